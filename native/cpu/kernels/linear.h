/* What linear.c and the files of the weight formats agree on. */
#ifndef KESTREL_LINEAR_H
#define KESTREL_LINEAR_H

#include "kernel.h"

/* Outputs are shared out and worked on in panels of this many: a multiple of every tile's columns,
 * and of 4. */
#define KST_PANEL 12

/* Outputs [begin, end) of one weight, for all rows. */
typedef struct {
    const float *x;        /* [rows, in] */
    const void *weight;    /* [out, in], any alignment */
    const float *bias;     /* [out] or NULL */
    const float *residual; /* [rows, out] or NULL */
    float *y;              /* [rows, out] */
    float scale;
    void *scratch;
    int64_t rows, in, out, begin, end;
} kst_linear_job;

/* sums[n] of one row are done: bias, scale, then residual, each step rounded to float32. */
static inline void kst_linear_finish(const kst_linear_job *job, int64_t row, int64_t out,
                                     const float *sums, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float sum = sums[i];
        if (job->bias) {
            float bias;
            memcpy(&bias, (const char *)job->bias + (out + i) * 4, 4);
            sum += bias;
        }
        sum *= job->scale;
        const int64_t at = row * job->out + out + i;
        job->y[at] = job->residual ? job->residual[at] + sum : sum;
    }
}

void KST_FN(linear_f32)(const kst_linear_job *job);
void KST_FN(linear_f16)(const kst_linear_job *job);
void KST_FN(linear_bf16)(const kst_linear_job *job);

#endif

/* What linear.c and the files of the weight formats agree on. */
#ifndef KESTREL_LINEAR_H
#define KESTREL_LINEAR_H

#include "kernel.h"

/* Outputs are shared out, worked on and finished in panels of this many: one vf, and a multiple of
 * every tile's columns. */
#define KST_PANEL VF_LANES

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
    const int64_t at = row * job->out + out;
    const int lanes = (int)n;
    vf y = vf_load(sums);
    if (job->bias) y = vf_add(y, vf_load_n((const char *)job->bias + out * 4, lanes));
    y = vf_mul(y, vf_set1(job->scale));
    if (job->residual) y = vf_add(vf_load_n(job->residual + at, lanes), y);
    vf_store_n(job->y + at, y, lanes);
}

void KST_FN(linear_f32)(const kst_linear_job *job);
void KST_FN(linear_f16)(const kst_linear_job *job);
void KST_FN(linear_bf16)(const kst_linear_job *job);

#endif

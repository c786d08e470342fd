/* sum of exp(x - max) over a row of logits (for log-sum-exp): 16 lanes in float32 over at most 256
 * numbers, the tree, and these partial sums in double, ascending. */
#include "kernel.h"

#define PART 256

double KST_FN(exp_sum)(const float *x, int64_t n, float max);

double KST_FN(exp_sum)(const float *x, int64_t n, float max) {
    const vf m = vf_set1(max);
    double sum = 0.0;
    for (int64_t begin = 0; begin < n; begin += PART) {
        const int64_t end = kst_min(begin + PART, n);
        vf part = vf_zero();
        for (int64_t i = begin; i < end; i += VF_LANES) {
            const int lanes = kst_lanes(end - i);
            part = vf_add(part,
                          vf_keep_n(vf_exp(vf_sub(vf_load_n(x + i, lanes), m)), lanes, vf_zero()));
        }
        sum += (double)vf_hsum(part);
    }
    return sum;
}

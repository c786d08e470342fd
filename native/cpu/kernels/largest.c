/* The largest of n logits; NaN is passed over, -inf if there is nothing else. */
#include "kernel.h"

float KST_FN(largest)(const float *x, int64_t n);

float KST_FN(largest)(const float *x, int64_t n) {
    const vf least = vf_set1(-INFINITY);
    vf a = least, b = least;
    int64_t i = 0;
    for (; i + 2 * VF_LANES <= n; i += 2 * VF_LANES) {
        a = vf_max(vf_load(x + i), a);
        b = vf_max(vf_load(x + i + VF_LANES), b);
    }
    for (; i < n; i += VF_LANES) {
        const int lanes = kst_lanes(n - i);
        a = vf_max(vf_keep_n(vf_load_n(x + i, lanes), lanes, least), a);
    }
    return vf_hmax(vf_max(a, b));
}

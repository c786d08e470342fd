/* The largest number of each block of `size` (a multiple of 16; the last block may be shorter). NaN
 * is passed over; -inf if there is nothing else. */
#include "kernel.h"

void KST_FN(block_maxima)(const float *x, int64_t n, int64_t size, float *maxima);

void KST_FN(block_maxima)(const float *x, int64_t n, int64_t size, float *maxima) {
    const vf least = vf_set1(-INFINITY);
    KST_REQUIRE(size > 0 && size % VF_LANES == 0);
    for (int64_t begin = 0; begin < n; begin += size) {
        const int64_t end = kst_min(begin + size, n);
        vf max = least;
        int64_t i = begin;
        for (; i + VF_LANES <= end; i += VF_LANES) max = vf_max(vf_load(x + i), max);
        if (i < end) {
            const int lanes = kst_lanes(end - i);
            max = vf_max(vf_keep_n(vf_load_n(x + i, lanes), lanes, least), max);
        }
        *maxima++ = vf_hmax(max);
    }
}

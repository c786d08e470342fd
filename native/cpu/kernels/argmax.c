/* The lowest index of the largest logit of a row; -1 if the row holds NaN or an infinity. */
#include "kernel.h"

/* Logits whose maximum is taken at once: only the first block that holds the largest is searched. */
#define BLOCK 1024
#define CHAINS 4 /* of vf_max, whose result the next has to wait for */

static int32_t argmax_row(const float *x, int64_t n) {
    /* 0 * x is 0 for finite x and NaN else, and NaN stays in the sum. */
    vf poison[CHAINS];
    for (int c = 0; c < CHAINS; c++) poison[c] = vf_zero();
    float largest = -INFINITY;
    int64_t found = 0;
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        const int64_t end = kst_min(begin + BLOCK, n);
        const vf first = vf_set1(x[begin]); /* what a last, shorter vf is padded by */
        vf best[CHAINS];
        for (int c = 0; c < CHAINS; c++) best[c] = first;
        int64_t i = begin;
        for (; i + CHAINS * VF_LANES <= end; i += CHAINS * VF_LANES)
            for (int c = 0; c < CHAINS; c++) {
                const vf v = vf_load(x + i + c * VF_LANES);
                poison[c] = vf_fma(v, vf_zero(), poison[c]);
                best[c] = vf_max(v, best[c]);
            }
        for (; i < end; i += VF_LANES) {
            const int lanes = kst_lanes(end - i);
            const vf v = vf_keep_n(vf_load_n(x + i, lanes), lanes, first);
            poison[0] = vf_fma(v, vf_zero(), poison[0]);
            best[0] = vf_max(v, best[0]);
        }
        const float here = vf_hmax(vf_max(vf_max(best[0], best[1]), vf_max(best[2], best[3])));
        if (here > largest) {
            largest = here;
            found = begin;
        }
    }
    if (vf_hsum(vf_add(vf_add(poison[0], poison[1]), vf_add(poison[2], poison[3]))) != 0.0f)
        return -1;
    while (x[found] != largest) found++;
    return (int32_t)found;
}

void KST_FN(argmax)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const int64_t vocab = cmd->args.argmax.vocab, rows = kst_row_count(cmd, step),
                  end = kst_end(rows, share);
    for (int64_t row = kst_begin(rows, share); row < end; row++)
        ((int32_t *)cmd->out[0])[row] = argmax_row((const float *)cmd->in[0] + row * vocab, vocab);
}

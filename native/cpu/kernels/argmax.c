/* The lowest index of the largest logit of a row; -1 if the row holds NaN or an infinity. */
#include "kernel.h"

static int32_t argmax_row(const float *x, int64_t n) {
    /* 0 * x is 0 for finite x and NaN else, and NaN stays in the sum. The first 16 lanes are padded
     * by x[0]. */
    vf poison = vf_zero(), best = vf_set1(x[0]);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const int lanes = kst_lanes(n - i);
        vf v = vf_keep_n(vf_load_n(x + i, lanes), lanes, vf_set1(x[0]));
        poison = vf_fma(v, vf_zero(), poison);
        best = vf_max(v, best);
    }
    if (vf_hsum(poison) != 0.0f) return -1;
    const float largest = vf_hmax(best);
    for (int64_t i = 0; i < n; i++)
        if (x[i] == largest) return (int32_t)i;
    return -1;
}

void KST_FN(argmax)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const int64_t vocab = cmd->args.argmax.vocab, rows = kst_row_count(cmd, step),
                  end = kst_end(rows, share);
    for (int64_t row = kst_begin(rows, share); row < end; row++)
        ((int32_t *)cmd->out[0])[row] = argmax_row((const float *)cmd->in[0] + row * vocab, vocab);
}

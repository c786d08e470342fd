/* y = scale * x, or cap * tanh(scale * x / cap); each step is rounded. */
#include "kernel.h"

void KST_FN(soft_cap)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const float *x = cmd->in[0];
    float *y = cmd->out[0];
    const vf scale = vf_set1(cmd->args.soft_cap.scale), cap = vf_set1(cmd->args.soft_cap.cap);
    const int capped = cmd->args.soft_cap.cap > 0.0f;
    const int64_t total = (int64_t)kst_row_count(cmd, step) * cmd->args.soft_cap.dim,
                  runs = (total + KST_RUN - 1) / KST_RUN;
    const int64_t end = kst_min(kst_end(runs, share) * KST_RUN, total);
    for (int64_t i = kst_begin(runs, share) * KST_RUN; i < end; i += VF_LANES) {
        const int lanes = kst_lanes(end - i);
        vf v = vf_mul(scale, vf_load_n(x + i, lanes));
        if (capped) v = vf_soft_cap(v, cap);
        vf_store_n(y + i, v, lanes);
    }
}

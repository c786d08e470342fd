/* y = (g / (1 + exp(-g))) * u */
#include "kernel.h"

void KST_FN(swiglu)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const float *gate = cmd->in[0], *up = cmd->in[1];
    float *y = cmd->out[0];
    const int64_t total = (int64_t)kst_row_count(cmd, step) * cmd->args.swiglu.dim,
                  runs = (total + KST_RUN - 1) / KST_RUN;
    const int64_t end = kst_min(kst_end(runs, share) * KST_RUN, total);
    const vf one = vf_set1(1.0f);
    for (int64_t i = kst_begin(runs, share) * KST_RUN; i < end; i += VF_LANES) {
        const int lanes = kst_lanes(end - i);
        vf g = vf_load_n(gate + i, lanes), u = vf_load_n(up + i, lanes);
        vf silu = vf_div(g, vf_add(one, vf_exp(vf_sub(vf_zero(), g))));
        vf_store_n(y + i, vf_mul(silu, u), lanes);
    }
}

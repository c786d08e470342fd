/* y = a + scale * b, the product rounded before it is added. */
#include "kernel.h"

void KST_FN(add)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const float *a = cmd->in[0], *b = cmd->in[1];
    float *y = cmd->out[0];
    const vf scale = vf_set1(cmd->args.add.scale);
    const int64_t total = (int64_t)kst_row_count(cmd, step) * cmd->args.add.dim,
                  runs = (total + KST_RUN - 1) / KST_RUN;
    const int64_t end = kst_min(kst_end(runs, share) * KST_RUN, total);
    for (int64_t i = kst_begin(runs, share) * KST_RUN; i < end; i += VF_LANES) {
        const int lanes = kst_lanes(end - i);
        vf product = vf_mul(scale, vf_load_n(b + i, lanes));
        vf_store_n(y + i, vf_add(vf_load_n(a + i, lanes), product), lanes);
    }
}

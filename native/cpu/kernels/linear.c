/* y_i = (residual +) scale * (x W_i^T (+ b_i)). Each output is 16 chains of fma over k ascending,
 * then the tree, then the additions: the same for every number of rows, tile and share. Here: which
 * panels are whose. */
#include "linear.h"

void KST_FN(linear)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const kst_linear_args *args = &cmd->args.linear;
    int64_t panels = 0, first = 0;
    KST_REQUIRE(args->weights >= 1 && args->weights <= KST_MAX_WEIGHTS && args->in_features > 0);
    for (int i = 0; i < args->weights; i++)
        panels += (args->out_features[i] + KST_PANEL - 1) / KST_PANEL;
    const int64_t begin = kst_begin(panels, share), end = kst_end(panels, share);

    for (int i = 0; i < args->weights; i++) {
        const int64_t out = args->out_features[i], own = (out + KST_PANEL - 1) / KST_PANEL;
        kst_linear_job job = {
            .x = cmd->in[0],
            .weight = cmd->in[1 + i],
            .bias = cmd->in[1 + KST_MAX_WEIGHTS + i],
            .residual = i == 0 ? cmd->in[1 + 2 * KST_MAX_WEIGHTS] : NULL,
            .y = cmd->out[i],
            .scale = args->scale,
            .scratch = share.scratch,
            .rows = kst_row_count(cmd, step),
            .in = args->in_features,
            .out = out,
            .begin = (begin > first ? begin - first : 0) * KST_PANEL,
            .end = kst_min((end - first) * KST_PANEL, out),
        };
        first += own;
        if (job.begin >= job.end) continue;
        KST_REQUIRE(args->dtype[i] >= KST_F32 && args->dtype[i] <= KST_BF16);
        switch (args->dtype[i]) {
        case KST_F32: KST_FN(linear_f32)(&job); break;
        case KST_F16: KST_FN(linear_f16)(&job); break;
        default: KST_FN(linear_bf16)(&job); break;
        }
    }
}

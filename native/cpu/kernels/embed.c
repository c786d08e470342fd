/* y[n] = scale * E[token[n]]: widened exactly, then one product; a scale of 1 copies. */
#include "kernel.h"

void KST_FN(embed)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const int32_t *token_ids = cmd->in[0];
    const int64_t dim = cmd->args.embed.dim, rows = kst_row_count(cmd, step),
                  end = kst_end(rows, share);
    const int dtype = cmd->args.embed.dtype, scaled = cmd->args.embed.scale != 1.0f;
    const vf scale = vf_set1(cmd->args.embed.scale);
    for (int64_t row = kst_begin(rows, share); row < end; row++) {
        KST_REQUIRE(token_ids[row] >= 0 && token_ids[row] < cmd->args.embed.vocab);
        const char *weight =
            (const char *)cmd->in[1] + token_ids[row] * dim * (dtype == KST_F32 ? 4 : 2);
        float *y = (float *)cmd->out[0] + row * dim;
        for (int64_t i = 0; i < dim; i += VF_LANES) {
            const int lanes = kst_lanes(dim - i);
            vf v;
            if (dtype == KST_F32)
                v = vf_load_n(weight + i * 4, lanes);
            else if (dtype == KST_F16)
                v = vf_load_f16_n(weight + i * 2, lanes);
            else
                v = vf_load_bf16_n(weight + i * 2, lanes);
            vf_store_n(y + i, scaled ? vf_mul(scale, v) : v, lanes);
        }
    }
}

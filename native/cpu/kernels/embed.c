/* y[n] = E[token[n]], widened exactly. */
#include "kernel.h"

void KST_FN(embed)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const int32_t *token_ids = cmd->in[0];
    const int64_t dim = cmd->args.embed.dim, rows = kst_row_count(cmd, step),
                  end = kst_end(rows, share);
    const int dtype = cmd->args.embed.dtype;
    for (int64_t row = kst_begin(rows, share); row < end; row++) {
        KST_REQUIRE(token_ids[row] >= 0 && token_ids[row] < cmd->args.embed.vocab);
        const char *weight =
            (const char *)cmd->in[1] + token_ids[row] * dim * (dtype == KST_F32 ? 4 : 2);
        float *y = (float *)cmd->out[0] + row * dim;
        for (int64_t i = 0; i < dim; i += VF_LANES) {
            const int lanes = kst_lanes(dim - i);
            if (dtype == KST_F32)
                vf_store_n(y + i, vf_load_n(weight + i * 4, lanes), lanes);
            else if (dtype == KST_F16)
                vf_store_n(y + i, vf_load_f16_n(weight + i * 2, lanes), lanes);
            else
                vf_store_n(y + i, vf_load_bf16_n(weight + i * 2, lanes), lanes);
        }
    }
}

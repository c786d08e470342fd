/* y[l] = x[row[l]] */
#include "kernel.h"

void KST_FN(gather_rows)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const int32_t *logit_rows = cmd->in[1];
    const int64_t dim = cmd->args.gather_rows.dim, rows = kst_row_count(cmd, step),
                  end = kst_end(rows, share);
    for (int64_t row = kst_begin(rows, share); row < end; row++) {
        KST_REQUIRE(logit_rows[row] >= 0 && logit_rows[row] < step->n_tokens);
        memcpy((float *)cmd->out[0] + row * dim, (const float *)cmd->in[0] + logit_rows[row] * dim,
               (size_t)dim * sizeof(float));
    }
}

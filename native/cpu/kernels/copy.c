/* A tap: y = x. */
#include "kernel.h"

void KST_FN(copy)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const int64_t total = (int64_t)kst_row_count(cmd, step) * cmd->args.copy.dim,
                  runs = (total + KST_RUN - 1) / KST_RUN;
    const int64_t begin = kst_begin(runs, share) * KST_RUN,
                  end = kst_min(kst_end(runs, share) * KST_RUN, total);
    if (begin < end)
        memcpy((float *)cmd->out[0] + begin, (const float *)cmd->in[0] + begin,
               (size_t)(end - begin) * sizeof(float));
}

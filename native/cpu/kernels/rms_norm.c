/* y = (offset + w) * (x * r), r = 1 / sqrt(mean(x^2) + eps), over each group of a row: 16 chains of
 * fma(x, x, sum), the tree, then float32 steps as written. */
#include "kernel.h"

void KST_FN(rms_norm)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const kst_rms_norm_args *args = &cmd->args.rms_norm;
    const float *weight = cmd->in[1];
    const int64_t dim = args->dim, groups = (int64_t)kst_row_count(cmd, step) * args->groups,
                  end = kst_end(groups, share);
    /* Adding -0 leaves every weight as it is, -0 too. */
    const vf offset = vf_set1(args->offset == 0.0f ? -0.0f : args->offset);
    for (int64_t group = kst_begin(groups, share); group < end; group++) {
        const float *x = (const float *)cmd->in[0] + group * dim;
        float *y = (float *)cmd->out[0] + group * dim;
        vf sum = vf_zero();
        for (int64_t i = 0; i < dim; i += VF_LANES) {
            vf v = vf_load_n(x + i, kst_lanes(dim - i));
            sum = vf_fma(v, v, sum);
        }
        float mean = vf_hsum(sum) / (float)dim;
        vf r = vf_set1(1.0f / sqrtf(mean + args->eps));
        for (int64_t i = 0; i < dim; i += VF_LANES) {
            const int lanes = kst_lanes(dim - i);
            vf w = vf_add(offset, vf_load_n(weight + i, lanes));
            vf_store_n(y + i, vf_mul(w, vf_mul(vf_load_n(x + i, lanes), r)), lanes);
        }
    }
}

/* y = w * (x * r), r = 1 / sqrt(mean(x^2) + eps): 16 chains of fma(x, x, sum), the tree, then
 * float32 steps as written. */
#include "kernel.h"

void KST_FN(rms_norm)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const float *weight = cmd->in[1];
    const int64_t dim = cmd->args.rms_norm.dim, rows = kst_row_count(cmd, step),
                  end = kst_end(rows, share);
    for (int64_t row = kst_begin(rows, share); row < end; row++) {
        const float *x = (const float *)cmd->in[0] + row * dim;
        float *y = (float *)cmd->out[0] + row * dim;
        vf sum = vf_zero();
        for (int64_t i = 0; i < dim; i += VF_LANES) {
            vf v = vf_load_n(x + i, kst_lanes(dim - i));
            sum = vf_fma(v, v, sum);
        }
        float mean = vf_hsum(sum) / (float)dim;
        vf r = vf_set1(1.0f / sqrtf(mean + cmd->args.rms_norm.eps));
        for (int64_t i = 0; i < dim; i += VF_LANES) {
            const int lanes = kst_lanes(dim - i);
            vf_store_n(y + i,
                       vf_mul(vf_load_n(weight + i, lanes), vf_mul(vf_load_n(x + i, lanes), r)),
                       lanes);
        }
    }
}

/* y = act(g) * u, with silu(g) = g / (1 + exp(-g)) or
 * gelu(g) = g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g^3))); each step is rounded. */
#include "kernel.h"

static inline vf silu(vf g) {
    return vf_div(g, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), g))));
}

static inline vf gelu_tanh(vf g) {
    vf cube = vf_mul(vf_mul(g, g), g);
    vf z = vf_mul(vf_set1(0.7978845608f), vf_add(g, vf_mul(vf_set1(0.044715f), cube)));
    return vf_mul(vf_mul(vf_set1(0.5f), g), vf_add(vf_set1(1.0f), vf_tanh(z)));
}

void KST_FN(swiglu)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const float *gate = cmd->in[0], *up = cmd->in[1];
    float *y = cmd->out[0];
    const int gelu = cmd->args.swiglu.activation == KST_GELU_TANH;
    const int64_t total = (int64_t)kst_row_count(cmd, step) * cmd->args.swiglu.dim,
                  runs = (total + KST_RUN - 1) / KST_RUN;
    const int64_t end = kst_min(kst_end(runs, share) * KST_RUN, total);
    for (int64_t i = kst_begin(runs, share) * KST_RUN; i < end; i += VF_LANES) {
        const int lanes = kst_lanes(end - i);
        vf g = vf_load_n(gate + i, lanes), u = vf_load_n(up + i, lanes);
        vf_store_n(y + i, vf_mul(gelu ? gelu_tanh(g) : silu(g), u), lanes);
    }
}

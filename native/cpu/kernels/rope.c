/* Rotates the halves of the first columns of each head, lo cos - hi sin and hi cos + lo sin, and
 * copies the rest. Products are rounded before they are added, as the reference's
 * q * cos + rotate_half(q) * sin does. */
#include "kernel.h"

static void rotate_head(const float *x, const float *cosine, const float *sine, float *y,
                        int64_t half) {
    for (int64_t i = 0; i < half; i += VF_LANES) {
        const int lanes = kst_lanes(half - i);
        vf lo = vf_load_n(x + i, lanes), hi = vf_load_n(x + half + i, lanes);
        vf c = vf_load_n(cosine + i, lanes), s = vf_load_n(sine + i, lanes);
        vf_store_n(y + i, vf_sub(vf_mul(lo, c), vf_mul(hi, s)), lanes);
        vf_store_n(y + half + i, vf_add(vf_mul(hi, c), vf_mul(lo, s)), lanes);
    }
}

void KST_FN(rope)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const int64_t heads = cmd->args.rope.heads, kv_heads = cmd->args.rope.kv_heads,
                  dim = cmd->args.rope.head_dim, rotary = cmd->args.rope.rotary_dim;
    const int64_t half = rotary / 2, both = heads + kv_heads,
                  total = kst_row_count(cmd, step) * both, end = kst_end(total, share);
    KST_REQUIRE(rotary % 2 == 0 && rotary <= dim);
    for (int64_t i = kst_begin(total, share); i < end; i++) {
        const int64_t row = i / both, head = i % both;
        const float *cosine = (const float *)cmd->in[2] + row * half,
                    *sine = (const float *)cmd->in[3] + row * half;
        const int side = head >= heads; /* 0: query, 1: key */
        const int64_t at =
            side ? (row * kv_heads + head - heads) * dim : (row * heads + head) * dim;
        const float *x = (const float *)cmd->in[side] + at;
        float *y = (float *)cmd->out[side] + at;
        rotate_head(x, cosine, sine, y, half);
        if (rotary < dim) memcpy(y + rotary, x + rotary, (size_t)(dim - rotary) * sizeof(float));
    }
}

/* Rotates the halves of the first columns of each head, and copies the rest: lo cos - hi sin, hi cos + lo sin. Products are rounded before
 * they are added, as the reference's q * cos + rotate_half(q) * sin does. */
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
                  dim = cmd->args.rope.head_dim;
    const int64_t half = cmd->args.rope.rotary_dim / 2, both = heads + kv_heads, total = kst_row_count(cmd, step) * both;
    const int64_t end = kst_end(total, share);
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
        memcpy(y + 2 * half, x + 2 * half, (size_t)(dim - 2 * half) * sizeof(float));
    }
}

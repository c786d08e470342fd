/* Attributes of the operations: fixed-width members only, so that C, Objective-C, Metal and CUDA read one truth.
 * Axes: N tokens, L logit rows, M either of them, H query heads, K kv heads, D head dim, C model dim, V vocabulary. */
#ifndef KESTREL_ARGS_H
#define KESTREL_ARGS_H

#include <stdint.h>

/* Positions in a block of the KV cache, and logical lanes of every kernel: a block of one head is one vector wide. */
#define KST_BLOCK_SIZE 16
/* Attention sums a context in chunks of this many positions, each from its own maximum, merged in ascending order:
 * the order of the sums then depends on the positions alone. */
#define KST_ATTENTION_CHUNK 256
/* Weights that may share one input in a linear command (q, k, v). */
#define KST_MAX_WEIGHTS 3

enum kst_dtype { KST_F32 = 0, KST_F16 = 1, KST_BF16 = 2, KST_I32 = 3 };

/* y[n] = scale * E[token[n]].    in: token_ids i32[N], E[V, C] of dtype.              out: f32[N, C] */
typedef struct { int32_t vocab, dim, dtype; float scale; } kst_embed_args;

/* angle = position * inv_freq[r], rounded to float32 as the reference does; then cos and sin, times scale. The row r of a
 * token is its rope_length - first_length, clamped to 0 .. rows - 1: frequencies that follow the length of the sequence.
 * in: positions i32[N], rope_lengths i32[N], inv_freq f32[rows, half].                out: cos f32[N, half], sin f32[N, half] */
typedef struct { int32_t half, rows, first_length; float scale; } kst_rotary_embedding_args;

/* y = (offset + w) * (x / sqrt(mean(x^2) + eps)), over each of the `groups` runs of dim columns of a row (the heads of q, k).
 * in: f32[M, groups * dim], w f32[dim].                                               out: f32[M, groups * dim] */
typedef struct { int32_t dim, groups; float eps, offset; } kst_rms_norm_args;

/* y_i = (residual +) scale * (x W_i^T (+ b_i)).   in: x f32[M, I], then W_0..2 [O_i, I] of dtype_i, b_0..2 f32[O_i] or NULL,
 * residual f32[M, O_0] or NULL (only with one weight).                                out: f32[M, O_i] for each weight */
typedef struct {
    int32_t in_features, weights;
    int32_t out_features[KST_MAX_WEIGHTS];
    int32_t dtype[KST_MAX_WEIGHTS];
    float scale;
} kst_linear_args;

/* Rotates the halves of the first rotary_dim columns of each head and copies the rest: (a, b) -> (a cos - b sin,
 * b cos + a sin), a the first half of the rotary part.
 * in: q f32[N, H*D], k f32[N, K*D], cos, sin f32[N, rotary_dim/2].                    out: f32[N, H*D], f32[N, K*D] */
typedef struct { int32_t heads, kv_heads, head_dim, rotary_dim; } kst_rope_args;

/* cache[slot[n]] = k[n], v[n].           in: k f32[N, K*D], v f32[N, K*D], slots i32[N].   out: cache (below) */
typedef struct { int32_t kv_heads, head_dim, cache_dtype; } kst_kv_write_args;

/* softmax(s) v over the block table, s = q k^T * scale, or soft_cap * tanh(q k^T * scale / soft_cap) where soft_cap > 0.
 * The token at position p sees the positions j <= p, and where window > 0 only j > p - window; blocks that end before them
 * are never read (their entries in the block table have no meaning).   in: q f32[N, H*D], cache.   out: f32[N, H*D]
 * cache: [blocks, 2, K, ...]; keys of a block and head as [D, 16] (a position a lane), values as [16, D]. */
typedef struct { int32_t heads, kv_heads, head_dim, cache_dtype, window; float scale, soft_cap; } kst_attention_args;

enum kst_activation { KST_SILU = 0, KST_GELU_TANH = 1 };

/* y = silu(gate) * up, or gelu(gate) * up with gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
 * in: f32[M, F], f32[M, F].                                                           out: f32[M, F] */
typedef struct { int32_t dim, activation; } kst_swiglu_args;

/* y = a + scale * b.                     in: f32[M, C], f32[M, C].                    out: f32[M, C] */
typedef struct { int32_t dim; float scale; } kst_add_args;

/* y = scale * x, or cap * tanh(scale * x / cap) where cap > 0.   in: f32[M, C].       out: f32[M, C] */
typedef struct { int32_t dim; float scale, cap; } kst_soft_cap_args;

/* y[l] = x[row[l]].                      in: f32[N, C], logit_rows i32[L].            out: f32[L, C] */
typedef struct { int32_t dim; } kst_gather_rows_args;

/* The lowest index of the largest logit; -1 where a row holds NaN or an infinity.     in: f32[L, V].   out: i32[L] */
typedef struct { int32_t vocab; } kst_argmax_args;

/* A tap: y = x.                          in: f32[M, C].                               out: f32[M, C] */
typedef struct { int32_t dim; } kst_copy_args;

typedef union {
    kst_embed_args embed;
    kst_rotary_embedding_args rotary_embedding;
    kst_rms_norm_args rms_norm;
    kst_linear_args linear;
    kst_rope_args rope;
    kst_kv_write_args kv_write;
    kst_attention_args attention;
    kst_swiglu_args swiglu;
    kst_add_args add;
    kst_soft_cap_args soft_cap;
    kst_gather_rows_args gather_rows;
    kst_argmax_args argmax;
    kst_copy_args copy;
} kst_args;

#endif

/* attention: order of the arithmetic, and the part of it that does not read the cache.
 *
 * A row (one query head of one token) sees positions 0 .. its own, or the last `window` of them.
 * Whatever the rows beside it: per chunk of KST_ATTENTION_CHUNK positions in which it sees any
 *   score[j] = scale * (fma chain of q[d] k[j][d] over d), with a cap: cap * tanh(score / cap),
 *   m = max score, p[j] = exp(score[j] - m),
 *   l = sum of p in 16 lanes over ascending blocks, then the tree,
 *   part[d] = fma chain of p[j] v[j][d] over j;
 * chunks are merged in ascending order: M = max(m, m'), a = exp(m - M), b = exp(m' - M),
 *   l = l a + l' b, acc = acc a + part b (products rounded, then added).
 * Result acc / l. What a row does not see is computed with in lanes that are thrown away, or not at
 * all; blocks that none of the rows that share a load sees are not read. */
#ifndef KESTREL_ATTENTION_H
#define KESTREL_ATTENTION_H

#include "kernel.h"

/* Rows that pass over a chunk together, at least one token's group; a larger group passes in turns
 * of TILE. Half as many where a step would have less than ENOUGH_TASKS to share out. */
#define TILE 48
#define ENOUGH_TASKS 64
#define MAX_DIM 512
#define CHUNK_BLOCKS (KST_ATTENTION_CHUNK / KST_BLOCK_SIZE)

/* From one row to the next, in floats; 16 more than a power of two, because rows a multiple of 4
 * KiB apart would share few places in the first cache. */
#define HEAD_STRIDE (MAX_DIM + VF_LANES)
#define P_STRIDE (KST_ATTENTION_CHUNK + VF_LANES)

typedef struct {
    float p[TILE][P_STRIDE]; /* scores before the scale, then weights, of one chunk */
    float q[TILE][HEAD_STRIDE];
    float part[TILE][HEAD_STRIDE]; /* weighted values of one chunk */
    float acc[TILE][HEAD_STRIDE];
    float max[TILE], sum[TILE];
    /* The last head_dim % 16 numbers of a chunk's values and zeros, as the cache stores them. */
    char tail[KST_ATTENTION_CHUNK * VF_LANES * sizeof(float)];
} scratch_layout;
_Static_assert(sizeof(scratch_layout) <= KST_SCRATCH_BYTES,
               "attention: a tile does not fit the scratch");

/* Positions [begin, end) that a row sees: of the sequence, or counted from a chunk's first. */
typedef struct {
    int64_t begin, end;
} span;

static inline span both(span a, span b) {
    return (span){a.begin > b.begin ? a.begin : b.begin, kst_min(a.end, b.end)};
}

static inline span around(span a, span b) {
    return (span){kst_min(a.begin, b.begin), a.end > b.end ? a.end : b.end};
}

static inline span blocks_of(span a) { /* the blocks that hold these positions */
    return (span){a.begin / KST_BLOCK_SIZE, (a.end + KST_BLOCK_SIZE - 1) / KST_BLOCK_SIZE};
}

/* Sums of n rows at the positions `any` become weights, of 0 where a row does not see them; gives
 * each row's maximum of scores and sum of weights. */
static void soften(int64_t n, float (*p)[P_STRIDE], const span *seen, span any,
                   const kst_attention_args *args, float *max, float *sum) {
    const vf least = vf_set1(-INFINITY), cap = vf_set1(args->soft_cap);
    const int capped = args->soft_cap > 0.0f;
    const int64_t begin = any.begin / VF_LANES * VF_LANES;
    for (int64_t r = 0; r < n; r++) {
        vf largest = least, scale = vf_set1(args->scale);
        for (int64_t i = begin; capped && i < any.end; i += VF_LANES)
            vf_store(&p[r][i], vf_soft_cap(vf_mul(scale, vf_load(&p[r][i])), cap));
        if (capped) scale = vf_set1(1.0f);
        for (int64_t i = begin; i < any.end; i += VF_LANES) {
            vf score = vf_mul(scale, vf_load(&p[r][i]));
            if (i < seen[r].begin) score = vf_keep_n(least, kst_lanes(seen[r].begin - i), score);
            if (seen[r].end < i + VF_LANES)
                score = vf_keep_n(score, seen[r].end > i ? (int)(seen[r].end - i) : 0, least);
            largest = vf_max(score, largest);
            vf_store(&p[r][i], score);
        }
        max[r] = vf_hmax(largest);
    }
    for (int64_t r = 0; r < n; r++) {
        const vf m = vf_set1(max[r]);
        vf total = vf_zero();
        for (int64_t i = begin; i < any.end; i += VF_LANES) {
            const vf weight = vf_exp(vf_sub(vf_load(&p[r][i]), m));
            vf_store(&p[r][i], weight);
            total = vf_add(total, weight);
        }
        sum[r] = vf_hsum(total);
    }
}

/* Adds a chunk to what a row has. */
static void merge(float *acc, const float *part, int64_t dim, float *max, float *sum,
                  float part_max, float part_sum) {
    const float largest = *max > part_max ? *max : part_max;
    const vf a = vf_exp(vf_set1(*max - largest)), b = vf_exp(vf_set1(part_max - largest));
    for (int64_t d = 0; d < dim; d += VF_LANES)
        vf_store(acc + d, vf_add(vf_mul(vf_load(acc + d), a), vf_mul(vf_load(part + d), b)));
    float scaled[VF_LANES];
    vf_store(scaled, vf_add(vf_mul(vf_set1(*sum), a), vf_mul(vf_set1(part_sum), b)));
    *sum = scaled[0];
    *max = largest;
}

#endif

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

#define TILE \
    16 /* rows in a task, at least one token's group; more rows are passed over in turns of TILE \
        */
#define ROWS 4 /* rows that share a load */
#define MAX_DIM 512
#define CHUNK_BLOCKS (KST_ATTENTION_CHUNK / KST_BLOCK_SIZE)

typedef struct {
    float p[ROWS][KST_ATTENTION_CHUNK]; /* scores, then weights, of one chunk */
    float part[ROWS][MAX_DIM];          /* weighted values of one chunk */
    float acc[TILE][MAX_DIM];
    float max[TILE], sum[TILE];
} scratch_layout;
_Static_assert(sizeof(scratch_layout) <= KST_SCRATCH_BYTES,
               "attention: a tile does not fit the scratch");

/* Positions [begin, end) that a row sees: of the sequence, or counted from a chunk's first. */
typedef struct {
    int64_t begin, end;
} span;

/* Scores of what one row sees are capped and become weights; returns their maximum and sum. */
static void soften(float *p, span seen, float cap, float *max, float *sum) {
    const vf least = vf_set1(-INFINITY);
    vf largest = least, total = vf_zero();
    const int64_t begin = seen.begin / VF_LANES * VF_LANES, n = seen.end;
    for (int64_t i = begin; cap > 0.0f && i < n; i += VF_LANES)
        vf_store(p + i, vf_soft_cap(vf_load(p + i), vf_set1(cap)));
    for (int64_t i = begin; i < seen.begin; i++) p[i] = -INFINITY; /* a weight of 0 */
    for (int64_t i = begin; i < n; i += VF_LANES)
        largest = vf_max(vf_keep_n(vf_load(p + i), kst_lanes(n - i), least), largest);
    *max = vf_hmax(largest);
    const vf m = vf_set1(*max);
    for (int64_t i = begin; i < n; i += VF_LANES) {
        vf weight = vf_keep_n(vf_exp(vf_sub(vf_load(p + i), m)), kst_lanes(n - i), vf_zero());
        vf_store(p + i, weight);
        total = vf_add(total, weight);
    }
    *sum = vf_hsum(total);
}

/* Adds a chunk to what a row has. */
static void merge(float *acc, const float *part, int64_t dim, float *max, float *sum,
                  float part_max, float part_sum, int first) {
    if (first) {
        memcpy(acc, part, (size_t)dim * sizeof(float));
        *max = part_max;
        *sum = part_sum;
        return;
    }
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

/* Tiles of registers of attention, for one cache format. A tile is a product of `rows` rows of
 * floats and `width` runs of 16 lanes, which are blocks of keys (scores) or parts of a head
 * (values). Rows and width are constants wherever a tile is inlined, so that its sums stay in
 * registers, vt by vt of the 16 lanes. */
#include "attention.h"

/* Sums of a tile: 6 x 4 registers of 32 (avx512), 6 x 2 of 16 (avx2), and 4 x 4 of 32 where a
 * compiler that loads far ahead would keep sums of a wider one in memory (neon). 8 or more, where
 * there are so many, hide the latency of a multiply-add. */
#define PARTS (VF_LANES / VT_LANES)
#if KST_JOIN(KST_ISA_ID_, KST_ISA) == 0
#define ROWS 1
#define WIDTH(rows) 1
#elif VT_LANES == 16
#define ROWS 6
#define WIDTH(rows) 4
#elif VT_LANES == 8
#define ROWS 6
#define WIDTH(rows) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)
#else
#define ROWS 4
#define WIDTH(rows) ((rows) == 1 ? 2 : 1)
#endif
#define MAX_WIDTH 4

/* What is prefetched while a block is read: the block so many places later in the order of reading,
 * 6 to 32 KiB, or for rows that are not the first to read it, itself. */
#define AHEAD 4

/* Column c of a row of the cache, whose runs start at b[w] + at. */
static inline const char *column(const char *const *b, int64_t at, int c) {
    return b[c / PARTS] + at + c % PARTS * VT_LANES * CACHE_BYTES;
}

/* sum[r] += a[r][i] b[i] over i < n; the runs of a b[i] start at b[w] + i step. */
static inline __attribute__((always_inline)) void
multiply(int rows, int width, int64_t n, const float *a, int64_t stride, const char *const *b,
         const char *const *ahead, int64_t step, vt (*sum)[MAX_WIDTH * PARTS]) {
    for (int64_t i = 0; i < n; i++) {
        vt x[ROWS], v[MAX_WIDTH * PARTS];
        for (int w = 0; w < width; w++) __builtin_prefetch(ahead[w] + i * step);
        /* The fewer of both wait in registers for the others to come one by one. */
        for (int r = 0; r < rows && rows <= width * PARTS; r++) x[r] = vt_set1(a[r * stride + i]);
        for (int c = 0; c < width * PARTS; c++) {
            v[c] = CACHE_LOAD(column(b, i * step, c));
            for (int r = 0; r < rows && rows <= width * PARTS; r++)
                sum[r][c] = vt_fma(x[r], v[c], sum[r][c]);
        }
        for (int r = 0; r < rows && rows > width * PARTS; r++) {
            x[r] = vt_set1(a[r * stride + i]);
            for (int c = 0; c < width * PARTS; c++) sum[r][c] = vt_fma(x[r], v[c], sum[r][c]);
        }
    }
}

/* A run of blocks: where each begins, and how many places later is what to prefetch. */
typedef struct {
    const char *const *blocks;
    int64_t n, dim;
    int ahead; /* AHEAD or 0 */
} block_run;

static inline __attribute__((always_inline)) void
score_tile(int rows, int width, const block_run *run, int64_t block, const float *q, float *p) {
    const char *k[MAX_WIDTH], *ahead[MAX_WIDTH];
    vt sum[ROWS][MAX_WIDTH * PARTS];
    for (int w = 0; w < width; w++) {
        k[w] = run->blocks[block + w];
        ahead[w] = run->blocks[block + w + run->ahead];
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < width * PARTS; c++) sum[r][c] = vt_set1(0.0f);
    multiply(rows, width, run->dim, q, HEAD_STRIDE, k, ahead, KST_BLOCK_SIZE * CACHE_BYTES, sum);
    p += block * KST_BLOCK_SIZE;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < width * PARTS; c++)
            vt_store(p + r * P_STRIDE + c * VT_LANES, sum[r][c]);
}

/* From the widest tile to the narrowest. */
static inline __attribute__((always_inline)) void score_tiles(int rows, const block_run *run,
                                                              const float *q, float *p) {
    int64_t block = 0;
    for (; block + WIDTH(rows) <= run->n; block += WIDTH(rows))
        score_tile(rows, WIDTH(rows), run, block, q, p);
    const int64_t left = run->n - block;
    if (WIDTH(rows) > 3 && left == 3) score_tile(rows, 3, run, block, q, p);
    if (WIDTH(rows) > 2 && left == 2) score_tile(rows, 2, run, block, q, p);
    if (WIDTH(rows) > 1 && left == 1) score_tile(rows, 1, run, block, q, p);
}

/* p[r] = sums of q[r] with the keys of the blocks, before the scale; rows up to the next number of
 * a case are computed with. */
static void score_rows(int64_t rows, const block_run *run, const float *q, float *p) {
    switch (rows) {
    case 1: score_tiles(1, run, q, p); break;
#if ROWS > 1
    case 2: score_tiles(2, run, q, p); break;
    case 3: score_tiles(3, run, q, p); break;
#endif
#if ROWS > 4
    case 4: score_tiles(4, run, q, p); break;
#endif
    default: score_tiles(ROWS, run, q, p); break;
    }
}

/* Rows that share loads: the positions that any of them sees, that all see (both 0 if there are
 * none), that each sees. */
typedef struct {
    span any, all;
    const span *seen;
} view;

/* Values of the positions `strip`, counted from the first of the blocks, as far as the rows see
 * them: each row's chain in ascending order. */
static inline __attribute__((always_inline)) void
value_tile(int rows, int width, const block_run *run, const view *rows_see, span strip, int64_t d,
           const float *p, float *part) {
    const int64_t step = run->dim * CACHE_BYTES;
    const span all = rows_see->all;
    vt sum[ROWS][MAX_WIDTH * PARTS];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < width * PARTS; c++)
            sum[r][c] = vt_load(part + r * HEAD_STRIDE + d + c * VT_LANES);
    for (int64_t stop, j = strip.begin; j < strip.end; j = stop) {
        const int64_t block = j / KST_BLOCK_SIZE, at = j % KST_BLOCK_SIZE * step + d * CACHE_BYTES;
        const char *v[MAX_WIDTH], *ahead[MAX_WIDTH];
        for (int w = 0; w < width; w++) {
            v[w] = run->blocks[block] + at + w * VF_LANES * CACHE_BYTES;
            ahead[w] = run->blocks[block + run->ahead] + at + w * VF_LANES * CACHE_BYTES;
        }
        if (rows == 1 || (all.begin <= j && j < all.end)) {
            stop = kst_min((block + 1) * KST_BLOCK_SIZE, kst_min(all.end, strip.end));
            multiply(rows, width, stop - j, p + j, P_STRIDE, v, ahead, step, sum);
            continue;
        }
        stop = j + 1;
        for (int r = 0; r < rows; r++) {
            if (j < rows_see->seen[r].begin || rows_see->seen[r].end <= j) continue;
            const vt x = vt_set1(p[r * P_STRIDE + j]);
            for (int c = 0; c < width * PARTS; c++)
                sum[r][c] = vt_fma(x, CACHE_LOAD(column(v, 0, c)), sum[r][c]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < width * PARTS; c++)
            vt_store(part + r * HEAD_STRIDE + d + c * VT_LANES, sum[r][c]);
}

static inline __attribute__((always_inline)) void value_tiles(int rows, const block_run *run,
                                                              const view *rows_see, span strip,
                                                              const float *p, float *part) {
    const int64_t runs = run->dim / VF_LANES;
    int64_t i = 0;
    for (; i + WIDTH(rows) <= runs; i += WIDTH(rows))
        value_tile(rows, WIDTH(rows), run, rows_see, strip, i * VF_LANES, p, part);
    const int64_t d = i * VF_LANES, left = runs - i;
    if (WIDTH(rows) > 3 && left == 3) value_tile(rows, 3, run, rows_see, strip, d, p, part);
    if (WIDTH(rows) > 2 && left == 2) value_tile(rows, 2, run, rows_see, strip, d, p, part);
    if (WIDTH(rows) > 1 && left == 1) value_tile(rows, 1, run, rows_see, strip, d, p, part);
}

/* part[r] += p[r][j] v[j] over the positions, for the numbers of a head that fill runs of 16. */
static void value_rows(int64_t rows, const block_run *run, const view *rows_see, span strip,
                       const float *p, float *part) {
    strip = both(strip, rows_see->any);
    switch (rows) {
    case 1: value_tiles(1, run, rows_see, strip, p, part); break;
#if ROWS > 1
    case 2: value_tiles(2, run, rows_see, strip, p, part); break;
    case 3: value_tiles(3, run, rows_see, strip, p, part); break;
#endif
#if ROWS > 4
    case 4: value_tiles(4, run, rows_see, strip, p, part); break;
#endif
    default: value_tiles(ROWS, run, rows_see, strip, p, part); break;
    }
}

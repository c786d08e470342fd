/* linear for one weight format; the including file defines WEIGHT_FORMAT, WEIGHT_BYTES,
 * WEIGHT_LOAD, WEIGHT_LOAD_N.
 *
 * One row: the weights are streamed once, COLUMNS outputs at a time, widened in registers.
 * Many rows: a panel of weights is widened into scratch for a block of k, and every row of a block
 * of rows passes over it in tiles of TILE_ROWS x TILE_COLUMNS sums. The 16 lanes of all sums are
 * parked in scratch between blocks of k, so their chains do not depend on the blocks. A tile holds
 * its sums in registers, vt by vt of the 16 lanes. */
#include "linear.h"

/* Of 32 registers 4 x 6 or 4 x 4 sums, of 16 (avx2) 3 x 4; beside them one vt of each row and one
 * of weights. */
#if KST_JOIN(KST_ISA_ID_, KST_ISA) == 0
#define TILE_ROWS 1
#define TILE_COLUMNS 1
#elif VT_LANES == 16
#define TILE_ROWS 4
#define TILE_COLUMNS 6
#elif VT_LANES == 8
#define TILE_ROWS 3
#define TILE_COLUMNS 4
#else
#define TILE_ROWS 4
#define TILE_COLUMNS 4
#endif

/* Measured by native/probes/linear.c (native/NOTES.md). */
#define STREAM_ROWS 4    /* rows that share a weight in a register */
#define STREAM_COLUMNS 4 /* outputs at a time, for one row */
#define FEW_ROWS 8       /* up to these the weights are streamed, above a panel is widened */
#define PREFETCH_BYTES 2048
#define BLOCK_K 384    /* a panel and the rows of a tile stay in the first cache */
#define BLOCK_ROWS 128 /* their x and sums stay in the second cache */

typedef struct {
    float panel[KST_PANEL][BLOCK_K];
    float sums[BLOCK_ROWS][KST_PANEL][VF_LANES];
    float x_tail[BLOCK_ROWS][VF_LANES];
} scratch_layout;
_Static_assert(sizeof(scratch_layout) <= KST_SCRATCH_BYTES,
               "linear: blocks do not fit the scratch");

static inline const void *weight_at(const kst_linear_job *job, int64_t out, int64_t k) {
    return (const char *)job->weight + (out * job->in + k) * WEIGHT_BYTES;
}

/* `columns` outputs of `rows` rows, x from scratch; inlined, so that both are constants. An output
 * past the end repeats the last. */
static inline __attribute__((always_inline)) void stream_tile(int rows, int columns,
                                                              const kst_linear_job *job,
                                                              const float *x, int64_t stride,
                                                              int64_t row, int64_t out) {
    const int64_t whole = job->in / VF_LANES * VF_LANES;
    const char *w[STREAM_COLUMNS], *ahead = (const char *)weight_at(job, out, 0) + PREFETCH_BYTES;
    vf sum[STREAM_ROWS][STREAM_COLUMNS];
    for (int c = 0; c < columns; c++) {
        w[c] = weight_at(job, kst_min(out + c, job->end - 1), 0);
        for (int r = 0; r < rows; r++) sum[r][c] = vf_zero();
    }
    for (int64_t k = 0; k < whole; k += VF_LANES) {
        for (int c = 0; c < columns * VF_LANES * WEIGHT_BYTES; c += 64)
            __builtin_prefetch(ahead + columns * k * WEIGHT_BYTES + c);
        vf v[STREAM_ROWS];
        for (int r = 0; r < rows; r++) v[r] = vf_load(x + r * stride + k);
        for (int c = 0; c < columns; c++) {
            const vf weight = STREAM_LOAD(w[c] + k * WEIGHT_BYTES);
            for (int r = 0; r < rows; r++) sum[r][c] = vf_fma(v[r], weight, sum[r][c]);
        }
    }
    for (int c = 0; whole < job->in && c < columns; c++) {
        char tail[VF_LANES * WEIGHT_BYTES] = {0};
        memcpy(tail, w[c] + whole * WEIGHT_BYTES, (size_t)(job->in - whole) * WEIGHT_BYTES);
        const vf weight = STREAM_LOAD(tail);
        for (int r = 0; r < rows; r++)
            sum[r][c] = vf_fma(vf_load(x + r * stride + whole), weight, sum[r][c]);
    }
    for (int r = 0; r < rows; r++) {
        float sums[4];
        vf joined[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        for (int c = 0; c < columns; c++) joined[c] = STREAM_JOIN(sum[r][c]);
        vf_hsum4(sums, joined[0], joined[1], joined[2], joined[3]);
        kst_linear_finish(job, row + r, out, sums, kst_min(columns, job->end - out));
    }
}

/* The outputs of a panel for all rows. */
static void stream_panel(const kst_linear_job *job, const float *x, int64_t stride, int64_t out) {
    const int64_t end = kst_min(out + KST_PANEL, job->end);
    for (int64_t row = 0; row < job->rows; row += STREAM_ROWS, x += STREAM_ROWS * stride)
        switch (kst_min(STREAM_ROWS, job->rows - row)) {
        case 1:
            for (int64_t o = out; o < end; o += 4) stream_tile(1, 4, job, x, stride, row, o);
            break;
        case 2:
            for (int64_t o = out; o < end; o += 3) stream_tile(2, 3, job, x, stride, row, o);
            break;
        case 3:
            for (int64_t o = out; o < end; o += 2) stream_tile(3, 2, job, x, stride, row, o);
            break;
        default:
            for (int64_t o = out; o < end; o += 1) stream_tile(4, 1, job, x, stride, row, o);
            break;
        }
}

static void stream(const kst_linear_job *job, int64_t stride) {
    float *x = job->scratch;
    for (int64_t row = 0; row < job->rows; row++)
        for (int64_t k = 0; k < job->in; k += VF_LANES)
            STREAM_STORE(x + row * stride + k,
                         vf_load_n(job->x + row * job->in + k, kst_lanes(job->in - k)));
    for (int64_t out = job->begin; out < job->end; out += KST_PANEL)
        stream_panel(job, x, stride, out);
}

/* Weights of n outputs from k on, size of them, widened; the tail of a row and missing outputs are
 * zero. */
static void widen_panel(const kst_linear_job *job, int64_t out, int64_t n, int64_t k, int64_t size,
                        float panel[KST_PANEL][BLOCK_K]) {
    for (int64_t c = 0; c < KST_PANEL; c++)
        for (int64_t i = 0; i < size; i += VF_LANES) {
            const int lanes = kst_lanes(size - i);
            if (c >= n)
                vf_store(&panel[c][i], vf_zero());
            else if (lanes == VF_LANES)
                vf_store(&panel[c][i], WEIGHT_LOAD(weight_at(job, out + c, k + i)));
            else
                vf_store(&panel[c][i], WEIGHT_LOAD_N(weight_at(job, out + c, k + i), lanes));
        }
}

/* sums[r][c] += x[r] panel[c] over k; always inlined, so that rows is a constant and the sums stay
 * in registers. */
static inline __attribute__((always_inline)) void tile(int rows, const float *x, int64_t x_stride,
                                                       float panel[][BLOCK_K], int64_t size,
                                                       int first, float sums[][KST_PANEL][VF_LANES],
                                                       int column) {
    for (int lane = 0; lane < VF_LANES; lane += VT_LANES) {
        vt sum[TILE_ROWS][TILE_COLUMNS];
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < TILE_COLUMNS; c++)
                sum[r][c] = first ? vt_set1(0.0f) : vt_load(&sums[r][column + c][lane]);
        for (int64_t k = lane; k < size; k += VF_LANES) {
            vt v[TILE_ROWS];
            for (int r = 0; r < rows; r++) v[r] = vt_load(x + r * x_stride + k);
            for (int c = 0; c < TILE_COLUMNS; c++) {
                vt w = vt_load(&panel[column + c][k]);
                for (int r = 0; r < rows; r++) sum[r][c] = vt_fma(v[r], w, sum[r][c]);
            }
        }
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < TILE_COLUMNS; c++) vt_store(&sums[r][column + c][lane], sum[r][c]);
    }
}

static void tile_rows(int64_t rows, const float *x, int64_t x_stride, float panel[][BLOCK_K],
                      int64_t size, int first, float sums[][KST_PANEL][VF_LANES]) {
    for (int64_t row = 0; row < rows; row += TILE_ROWS)
        for (int column = 0; column < KST_PANEL; column += TILE_COLUMNS) {
            const float *from = x + row * x_stride;
            switch (kst_min(TILE_ROWS, rows - row)) {
#if TILE_ROWS >= 4
            case 4: tile(4, from, x_stride, panel, size, first, sums + row, column); break;
#endif
#if TILE_ROWS >= 3
            case 3: tile(3, from, x_stride, panel, size, first, sums + row, column); break;
            case 2: tile(2, from, x_stride, panel, size, first, sums + row, column); break;
#endif
            default: tile(1, from, x_stride, panel, size, first, sums + row, column); break;
            }
        }
}

/* Outputs out .. out + n of rows begin .. begin + rows. */
static void panel_rows(const kst_linear_job *job, int64_t begin, int64_t rows, int64_t out,
                       int64_t n) {
    scratch_layout *s = job->scratch;
    const int64_t whole = job->in / VF_LANES * VF_LANES;
    const float *x = job->x + begin * job->in;
    for (int64_t k = 0; k < whole; k += BLOCK_K) {
        const int64_t size = kst_min(BLOCK_K, whole - k);
        widen_panel(job, out, n, k, size, s->panel);
        tile_rows(rows, x + k, job->in, s->panel, size, k == 0, s->sums);
    }
    if (whole < job->in) {
        widen_panel(job, out, n, whole, job->in - whole, s->panel);
        tile_rows(rows, s->x_tail[0], VF_LANES, s->panel, VF_LANES, whole == 0, s->sums);
    }
    for (int64_t row = 0; row < rows; row++) {
        float sums[KST_PANEL];
        for (int c = 0; c < KST_PANEL; c += 4)
            vf_hsum4(sums + c, vf_load(s->sums[row][c]), vf_load(s->sums[row][c + 1]),
                     vf_load(s->sums[row][c + 2]), vf_load(s->sums[row][c + 3]));
        kst_linear_finish(job, begin + row, out, sums, n);
    }
}

void KST_FN(WEIGHT_FORMAT)(const kst_linear_job *job) {
    const int64_t stride = (job->in + VF_LANES - 1) / VF_LANES * VF_LANES;
    if (job->rows <= FEW_ROWS && job->rows * stride * (int64_t)sizeof(float) <= KST_SCRATCH_BYTES) {
        stream(job, stride);
        return;
    }
    scratch_layout *s = job->scratch;
    const int tail = (int)(job->in % VF_LANES);
    for (int64_t begin = 0; begin < job->rows; begin += BLOCK_ROWS) {
        const int64_t rows = kst_min(BLOCK_ROWS, job->rows - begin);
        for (int64_t row = 0; tail && row < rows; row++)
            vf_store(s->x_tail[row], vf_load_n(job->x + (begin + row + 1) * job->in - tail, tail));
        for (int64_t out = job->begin; out < job->end; out += KST_PANEL)
            panel_rows(job, begin, rows, out, kst_min(KST_PANEL, job->end - out));
    }
}

/* linear for many rows: a panel of weights is widened into scratch for a block of k, and every row
 * of a block of rows passes over it in tiles of TILE_ROWS x TILE_COLUMNS sums. Included by
 * linear_tile.h.
 *
 * Where all k of a tile's outputs fit the panel it holds no more outputs than those, and no sum ever
 * leaves the registers. Else the 16 lanes of all sums are parked in scratch between blocks of k, so
 * their chains do not depend on the blocks, and the panel holds KST_PANEL outputs; up to TILE_BLOCKS
 * blocks it holds those of a tile here too: sums are parked less often, and x is read more often. A
 * tile holds its sums vt by vt of the 16 lanes. While the tiles run, the weights of the next block
 * are fetched, as many lines in each tile, and the rows of the next tile. */

/* Of 32 registers 3 x 8 or 4 x 4 sums, of 16 (avx2) 3 x 4; beside them one vt of each row and one
 * of weights. */
#if KST_JOIN(KST_ISA_ID_, KST_ISA) == 0
#define TILE_ROWS 1
#define TILE_COLUMNS 4
#elif VT_LANES == 16
#define TILE_ROWS 3
#define TILE_COLUMNS 8
#elif VT_LANES == 8
#define TILE_ROWS 3
#define TILE_COLUMNS 4
#else
#define TILE_ROWS 4
#define TILE_COLUMNS 4
#endif

/* Measured by native/probes/linear.c (native/NOTES.md). */
#define PANEL_SIZE 6144 /* weights: they and the rows of two tiles stay in the first cache */
#define BLOCK_ROWS 128  /* their x and sums stay in the second cache */
#define TILE_BLOCKS (TILE_COLUMNS == 8 ? 3 : 1)

/* Whether the first tile of rows widens the panel while it multiplies: where a vt is a vf. */
#define FUSED (TILE_COLUMNS == 8)

typedef struct {
    float panel[PANEL_SIZE]; /* [columns / TILE_COLUMNS, size / VF_LANES, TILE_COLUMNS, VF_LANES] */
    float parked[BLOCK_ROWS][KST_PANEL][VF_LANES];
    float sums[BLOCK_ROWS][KST_PANEL];
    float x_tail[BLOCK_ROWS][VF_LANES];
} scratch_layout;
_Static_assert(sizeof(scratch_layout) <= KST_SCRATCH_BYTES,
               "linear: blocks do not fit the scratch");

/* A block of k, `size` of them, of `rows` rows and of the outputs out .. out + columns, whose sums
 * are numbers column .. column + columns of the panel of KST_PANEL outputs. */
typedef struct {
    const float *x;
    int64_t rows, stride, size; /* stride: floats from row to row of x */
    int64_t out, k;
    int column, columns;
    int first, last; /* block of k */
} block;

/* Weights as they are stored: `rows` outputs, `stride` bytes apart. */
typedef struct {
    const char *at;
    int64_t stride, rows;
} stored;

static inline stored stored_at(const kst_linear_job *job, int64_t out, int64_t k, int64_t rows) {
    const int64_t left = job->end - out;
    return (stored){weight_at(job, out, k), job->in * WEIGHT_BYTES,
                    left < 0 ? 0 : kst_min(rows, left)};
}

/* Lines of memory to fetch, row after row. */
typedef struct {
    const char *at;
    int64_t left, per_row; /* lines of this row, of each */
    int64_t skip;          /* bytes from the last line of a row to the next row */
} lines;

static inline lines lines_of(stored rows, int64_t bytes) {
    const int64_t per_row = (bytes + LINE - 1) / LINE;
    return (lines){rows.at, per_row, per_row, rows.stride - per_row * LINE};
}

static inline __attribute__((always_inline)) void fetch_line(lines *next) {
    __builtin_prefetch(next->at);
    next->at += LINE;
    if (--next->left == 0) {
        next->at += next->skip;
        next->left = next->per_row;
    }
}

static inline int64_t steps_of(const block *b) { return (b->size + VF_LANES - 1) / VF_LANES; }

/* The tail of a row and outputs past the end are zero. */
static void widen(const stored *from, const block *b, float *panel) {
    const int64_t run = TILE_COLUMNS * VF_LANES, steps = steps_of(b);
    for (int c = 0; c < b->columns; c++) {
        float *to = panel + c / TILE_COLUMNS * steps * run + c % TILE_COLUMNS * VF_LANES;
        const char *at = from->at + c * from->stride;
        for (int64_t i = 0; i < steps; i++, to += run, at += VF_LANES * WEIGHT_BYTES) {
            const int lanes = kst_lanes(b->size - i * VF_LANES);
            if (c >= from->rows)
                vf_store(to, vf_zero());
            else
                vf_store(to, lanes == VF_LANES ? WEIGHT_LOAD(at) : WEIGHT_LOAD_N(at, lanes));
        }
    }
}

/* A vt of weights: from the panel, or as stored, then also into the panel. */
static inline __attribute__((always_inline)) vt tile_weight(int fused, float *panel,
                                                            const char *from) {
#if FUSED
    if (fused) {
        const vf weight = WEIGHT_LOAD(from);
        vf_store(panel, weight);
        return vt_in_register(weight);
    }
#endif
    (void)fused, (void)from;
    return vt_in_register(vt_load(panel));
}

/* parked[r][c] += x[r] panel[c] over a block of k, and after the last one their trees into sums;
 * inlined, so that rows and fused are constants and the sums stay in registers. Fetches `fetched`
 * lines of `next`. */
static inline __attribute__((always_inline)) void tile(int rows, int fused, const block *b,
                                                       int64_t row, int column, stored from,
                                                       lines *next, int64_t fetched,
                                                       scratch_layout *s) {
    lines ahead = *next; /* in registers */
    for (; fetched > steps_of(b); fetched--) fetch_line(&ahead);
    const float *x = b->x + row * b->stride;
    float(*sums)[KST_PANEL] = (float(*)[KST_PANEL]) & s->sums[row][b->column + column];
    float(*parked)[KST_PANEL][VF_LANES] =
        (float(*)[KST_PANEL][VF_LANES]) & s->parked[row][column];
    for (int lane = 0; lane < VF_LANES; lane += VT_LANES) {
        float *w = s->panel + column * steps_of(b) * VF_LANES + lane;
        vt sum[TILE_ROWS][TILE_COLUMNS];
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < TILE_COLUMNS; c++)
                sum[r][c] = b->first ? vt_set1(0.0f) : vt_load(&parked[r][c][lane]);
        for (int64_t k = lane; k < b->size; k += VF_LANES, w += TILE_COLUMNS * VF_LANES) {
            vt v[TILE_ROWS];
            for (int r = 0; r < rows; r++) {
                v[r] = vt_load(x + r * b->stride + k);
                if (lane == 0) __builtin_prefetch(x + (TILE_ROWS + r) * b->stride + k);
            }
            if (fetched > 0) {
                fetch_line(&ahead);
                fetched--;
            }
            for (int c = 0; c < TILE_COLUMNS; c++) {
                const vt weight = tile_weight(fused, w + c * VF_LANES,
                                              from.at + c * from.stride + k * WEIGHT_BYTES);
                for (int r = 0; r < rows; r++) sum[r][c] = vt_fma(v[r], weight, sum[r][c]);
            }
        }
        *next = ahead;
#if FUSED
        for (int r = 0; b->last && r < rows; r++) vf_hsum8(sums[r], sum[r]);
        if (b->last) return;
#endif
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < TILE_COLUMNS; c++) vt_store(&parked[r][c][lane], sum[r][c]);
    }
    for (int r = 0; b->last && r < rows; r++)
        vf_hsum4(sums[r], vf_load(parked[r][0]), vf_load(parked[r][1]), vf_load(parked[r][2]),
                 vf_load(parked[r][3]));
}

/* All rows of a block; `next` is fetched meanwhile. */
static void tiles(const block *b, stored from, stored next, scratch_layout *s) {
    const int64_t count = (b->rows + TILE_ROWS - 1) / TILE_ROWS * (b->columns / TILE_COLUMNS);
    lines ahead = lines_of(next, b->size * WEIGHT_BYTES);
    const int64_t all = next.rows * ahead.per_row;
    const int fused = FUSED && b->size % VF_LANES == 0 && from.rows == b->columns &&
                      b->rows >= TILE_ROWS;
    if (!fused) widen(&from, b, s->panel);
    int64_t done = 0;
    for (int64_t row = 0; row < b->rows; row += TILE_ROWS)
        for (int column = 0; column < b->columns; column += TILE_COLUMNS, done++) {
            const int64_t now = all * (done + 1) / count - all * done / count;
            if (fused && row == 0) {
                tile(TILE_ROWS, 1, b, row, column, from, &ahead, now, s);
                from.at += TILE_COLUMNS * from.stride;
                continue;
            }
            switch (kst_min(TILE_ROWS, b->rows - row)) {
#if TILE_ROWS >= 4
            case 4: tile(4, 0, b, row, column, from, &ahead, now, s); break;
#endif
#if TILE_ROWS >= 3
            case 3: tile(3, 0, b, row, column, from, &ahead, now, s); break;
            case 2: tile(2, 0, b, row, column, from, &ahead, now, s); break;
#endif
            default: tile(1, 0, b, row, column, from, &ahead, now, s); break;
            }
        }
}

/* The sums of a block of outputs over all k, block_k of them at a time, in parts as equal as vectors
 * allow; a tail is a part of its own. */
static void sum_up(const kst_linear_job *job, const float *x, block b, int64_t block_k) {
    scratch_layout *s = job->scratch;
    const int64_t vectors = job->in / VF_LANES, tail = job->in % VF_LANES,
                  blocks = (vectors * VF_LANES + block_k - 1) / block_k;
    for (int64_t i = 0; i < blocks + (tail > 0); i++) {
        const int is_tail = i == blocks;
        b.k = is_tail ? vectors * VF_LANES : vectors * i / blocks * VF_LANES;
        b.size = is_tail ? tail : vectors * (i + 1) / blocks * VF_LANES - b.k;
        b.x = is_tail ? s->x_tail[0] : x + b.k;
        b.stride = is_tail ? VF_LANES : job->in;
        b.first = b.k == 0;
        b.last = b.k + b.size == job->in;
        const stored next = b.last ? stored_at(job, b.out + b.columns, 0, b.columns)
                                   : stored_at(job, b.out, b.k + b.size, b.columns);
        tiles(&b, stored_at(job, b.out, b.k, b.columns), next, s);
    }
}

static void panels(const kst_linear_job *job) {
    scratch_layout *s = job->scratch;
    const int64_t in = job->in, tail = in % VF_LANES;
    const int columns =
        in <= TILE_BLOCKS * (PANEL_SIZE / TILE_COLUMNS) ? TILE_COLUMNS : KST_PANEL;
    for (int64_t begin = 0; begin < job->rows; begin += BLOCK_ROWS) {
        const int64_t rows = kst_min(BLOCK_ROWS, job->rows - begin);
        const float *x = job->x + begin * in;
        for (int64_t row = 0; tail && row < rows; row++)
            vf_store(s->x_tail[row], vf_load_n(x + (row + 1) * in - tail, (int)tail));
        for (int64_t out = job->begin; out < job->end; out += KST_PANEL) {
            const int64_t n = kst_min(KST_PANEL, job->end - out);
            for (int column = 0; column < n; column += columns) {
                const block b = {
                    .rows = rows, .out = out + column, .column = column, .columns = columns};
                sum_up(job, x, b, PANEL_SIZE / columns);
            }
            for (int64_t row = 0; row < rows; row++)
                kst_linear_finish(job, begin + row, out, s->sums[row], n);
        }
    }
}

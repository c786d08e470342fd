/* linear for a few rows: the weights are read once, in runs of outputs that all rows share, and
 * widened in registers. Included by linear_tile.h.
 *
 * The weights are fetched in the order in which memory has them, a run ahead, or AHEAD where a run is
 * shorter: memory gives one sequence faster than several, and hardware follows the outputs of a run,
 * each a stream of a few pages, too late. */

/* Measured by native/probes/linear.c (native/NOTES.md). FEW_ROWS: up to these the weights are
 * streamed, above a panel is widened. STREAM_ROWS pass over a run together, of so many outputs that
 * their sums, one vector of each row and one of weights fit the registers. */
#if VT_LANES == 16 && KST_JOIN(KST_ISA_ID_, KST_ISA) != 0
#define FEW_ROWS 6
#define STREAM_ROWS 6
#define STREAM_COLUMNS(rows) 4
#else
#define FEW_ROWS 8
#define STREAM_ROWS 4
#define STREAM_COLUMNS(rows) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)
#endif
#define AHEAD 8192 /* bytes */

#define LINE 64
#define SUMS_STRIDE (KST_PANEL + 4) /* the last run of a row may write up to 4 lanes too many */
#define STEP (VF_LANES * WEIGHT_BYTES) /* bytes of a stream a step */

/* The run of `columns` outputs from out on, `rows` rows from x on; inlined, so that both are
 * constants. An output past the end repeats the last. */
static inline __attribute__((always_inline)) void stream_run(int rows, int columns,
                                                             const kst_linear_job *job,
                                                             const float *x, int64_t stride,
                                                             int64_t out, float *sums) {
    const int64_t whole = job->in / VF_LANES * VF_LANES, run = columns * job->in * WEIGHT_BYTES;
    const char *ahead = (const char *)weight_at(job, out, 0) + (run > AHEAD ? run : AHEAD);
    const char *w[4];
    vf sum[STREAM_ROWS][4];
    for (int c = 0; c < columns; c++) {
        w[c] = weight_at(job, kst_min(out + c, job->end - 1), 0);
        for (int r = 0; r < rows; r++) sum[r][c] = vf_zero();
    }
    for (int64_t k = 0; k < whole;) {
        for (int c = 0; c < columns; c++, ahead += LINE) __builtin_prefetch(ahead);
        const int64_t stop = kst_min(k + LINE / WEIGHT_BYTES, whole);
        for (; k < stop; k += VF_LANES) {
            vf v[STREAM_ROWS];
            for (int r = 0; r < rows; r++) v[r] = vf_load(x + r * stride + k);
            for (int c = 0; c < columns; c++) {
                const vf weight = STREAM_LOAD(w[c] + k * WEIGHT_BYTES);
                for (int r = 0; r < rows; r++) sum[r][c] = vf_fma(v[r], weight, sum[r][c]);
            }
        }
    }
    for (int c = 0; whole < job->in && c < columns; c++) {
        char tail[STEP] = {0};
        memcpy(tail, w[c] + whole * WEIGHT_BYTES, (size_t)(job->in - whole) * WEIGHT_BYTES);
        const vf weight = STREAM_LOAD(tail);
        for (int r = 0; r < rows; r++)
            sum[r][c] = vf_fma(vf_load(x + r * stride + whole), weight, sum[r][c]);
    }
    for (int r = 0; r < rows; r++) {
        vf joined[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        for (int c = 0; c < columns; c++) joined[c] = STREAM_JOIN(sum[r][c]);
        vf_hsum4(sums + r * SUMS_STRIDE, joined[0], joined[1], joined[2], joined[3]);
    }
}

/* The outputs of a panel for rows [row, row + n). */
static void stream_panel(int64_t n, const kst_linear_job *job, const float *x, int64_t stride,
                         int64_t row, int64_t out) {
    float sums[STREAM_ROWS][SUMS_STRIDE];
    const int64_t outs = kst_min(KST_PANEL, job->end - out);
#define CASE(rows) \
    case rows: \
        for (int64_t c = 0; c < outs; c += STREAM_COLUMNS(rows)) \
            stream_run(rows, STREAM_COLUMNS(rows), job, x, stride, out + c, &sums[0][c]); \
        break
    switch (n) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
#if STREAM_ROWS > 4
        CASE(5);
        CASE(6);
#endif
    }
#undef CASE
    for (int64_t r = 0; r < n; r++) kst_linear_finish(job, row + r, out, sums[r], outs);
}

static void stream(const kst_linear_job *job, int64_t stride) {
    float *x = job->scratch;
    for (int64_t row = 0; row < job->rows; row++)
        for (int64_t k = 0; k < job->in; k += VF_LANES)
            STREAM_STORE(x + row * stride + k,
                         vf_load_n(job->x + row * job->in + k, kst_lanes(job->in - k)));
    for (int64_t out = job->begin; out < job->end; out += KST_PANEL)
        for (int64_t row = 0; row < job->rows; row += STREAM_ROWS)
            stream_panel(kst_min(STREAM_ROWS, job->rows - row), job, x + row * stride, stride, row,
                         out);
}

/* linear for a few rows: the weights are read once, GROUP outputs at a time, and widened in registers.
 * Included by linear_tile.h.
 *
 * The outputs of a group lie a quarter of the share apart, so that each reads one long sequence of
 * memory from group to group, which hardware follows. Some rows pass over a group at a time; for the
 * later ones it lies in the first cache, and they fetch what the next group reads. */

/* Measured by native/probes/linear.c (native/NOTES.md). FEW_ROWS: up to these the weights are
 * streamed, above a panel is widened. STREAM_COLUMNS: outputs that some rows pass over at a time, a
 * divisor of GROUP; the sums, one vector of each row and one of weights fit the registers. */
#if VT_LANES == 16 && KST_JOIN(KST_ISA_ID_, KST_ISA) != 0
#define FEW_ROWS (WEIGHT_BYTES == 4 ? 16 : 12)
#define STREAM_COLUMNS(rows) 4
#else
#define FEW_ROWS 16
#define STREAM_COLUMNS(rows) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)
#endif
#define PASS_ROWS 4 /* rows that pass over a group together */
#define GROUP 4     /* outputs */
#define AHEAD (WEIGHT_BYTES == 4 ? 1024 : 512) /* bytes */

typedef struct {
    const kst_linear_job *job;
    float *x;        /* the rows of x, as STREAM_STORE stores them */
    int64_t stride;  /* floats from row to row */
    int64_t quarter; /* outputs from stream to stream */
    int64_t passes;  /* over each group; each fetches some of its streams */
    int64_t ahead;   /* bytes */
} streams;

/* sum[r][c] += x[r] w[c] over VF_LANES k, `at` bytes from the begin of each w[c]. */
static inline __attribute__((always_inline)) void multiply(int rows, int columns, const float *x,
                                                           int64_t stride, const char *const *w,
                                                           int64_t at, vf sum[][GROUP]) {
    vf v[PASS_ROWS];
    for (int r = 0; r < rows; r++) v[r] = vf_load(x + r * stride);
    for (int c = 0; c < columns; c++) {
        const vf weight = STREAM_LOAD(w[c] + at);
        for (int r = 0; r < rows; r++) sum[r][c] = vf_fma(v[r], weight, sum[r][c]);
    }
}

/* Fetched into the first cache for 16 bits in one pass, else into the second, where Zen 4 does not
 * take what is fetched for one more stream (native/NOTES.md). */
#define FETCH(p, is_alone) __builtin_prefetch(p, 0, (is_alone) && WEIGHT_BYTES < 4 ? 3 : 2)

/* sums[rows, GROUP, KST_PANEL] of `columns` streams over `outs` outputs from out on; inlined, so that
 * rows, columns and is_alone (no other pass) are constants. An output past the end repeats the last. */
static inline __attribute__((always_inline)) void
stream_run(int rows, int columns, int is_alone, const streams *s, int64_t row, int64_t out,
           int64_t outs, float *sums) {
    const kst_linear_job *job = s->job;
    const int64_t whole = job->in / VF_LANES * VF_LANES, stride = s->stride;
    const float *x = s->x + row * stride;
    const int64_t pass = row / PASS_ROWS, step = LINE / WEIGHT_BYTES,
                  fetched = is_alone ? 0 : columns * pass / s->passes,
                  fetched_end = is_alone ? columns : columns * (pass + 1) / s->passes;
    for (int64_t i = 0; i < outs; i++) {
        const char *w[GROUP], *fetch[GROUP];
        vf sum[PASS_ROWS][GROUP];
        for (int c = 0; c < columns; c++) {
            w[c] = weight_at(job, kst_min(out + i + c * s->quarter, job->end - 1), 0);
            /* x, which is at hand, in place of what another pass fetches: no branch in the loop */
            fetch[c] = c >= fetched && c < fetched_end ? w[c] + s->ahead : (const char *)x;
            for (int r = 0; r < rows; r++) sum[r][c] = vf_zero();
        }
        int64_t k = 0;
        for (; k + step <= whole; k += step) {
            for (int c = 0; c < columns; c++) FETCH(fetch[c] + k * WEIGHT_BYTES, is_alone);
            for (int64_t j = k; j < k + step; j += VF_LANES)
                multiply(rows, columns, x + j, stride, w, j * WEIGHT_BYTES, sum);
        }
        for (; k < whole; k += VF_LANES)
            multiply(rows, columns, x + k, stride, w, k * WEIGHT_BYTES, sum);
        if (whole < job->in) {
            char tail[GROUP][VF_LANES * WEIGHT_BYTES] = {{0}};
            const char *padded[GROUP];
            for (int c = 0; c < columns; c++)
                padded[c] = memcpy(tail[c], w[c] + whole * WEIGHT_BYTES,
                                   (size_t)(job->in - whole) * WEIGHT_BYTES);
            multiply(rows, columns, x + whole, stride, padded, 0, sum);
        }
        for (int r = 0; r < rows; r++) {
            float trees[GROUP];
            vf joined[GROUP] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
            for (int c = 0; c < columns; c++) joined[c] = STREAM_JOIN(sum[r][c]);
            vf_hsum4(trees, joined[0], joined[1], joined[2], joined[3]);
            for (int c = 0; c < columns; c++) sums[(r * GROUP + c) * KST_PANEL + i] = trees[c];
        }
    }
}

/* `outs` outputs of each quarter, for up to PASS_ROWS rows. */
static inline __attribute__((always_inline)) void
stream_pass(int is_alone, const streams *s, int64_t row, int64_t out, int64_t outs, float *sums) {
#define CASE(n) \
    case n: \
        for (int c = 0; c < GROUP; c += STREAM_COLUMNS(n)) \
            stream_run(n, STREAM_COLUMNS(n), is_alone, s, row, out + c * s->quarter, outs, \
                       sums + c * KST_PANEL); \
        break
    switch (kst_min(PASS_ROWS, s->job->rows - row)) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
    }
#undef CASE
}

/* The same for all rows. Of several passes each is over before the next output begins. */
static void stream_outputs(const streams *s, int64_t out, int64_t outs, float *sums) {
    const int64_t rows = s->job->rows;
    if (s->passes == 1) {
        stream_pass(1, s, 0, out, outs, sums);
        return;
    }
    for (int64_t i = 0; i < outs; i++)
        for (int64_t row = 0; row < rows; row += PASS_ROWS)
            stream_pass(0, s, row, out + i, 1, sums + row * GROUP * KST_PANEL + i);
}

static void stream(const kst_linear_job *job, int64_t stride) {
    const int64_t rows = job->rows, quarter = (job->end - job->begin + GROUP - 1) / GROUP;
    const int64_t passes = (rows + PASS_ROWS - 1) / PASS_ROWS, bytes = job->in * WEIGHT_BYTES;
    const streams s = {.job = job,
                       .x = job->scratch,
                       .stride = stride,
                       .quarter = quarter,
                       .passes = passes,
                       .ahead = passes > 1 && bytes > AHEAD ? bytes : AHEAD};
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < job->in; k += VF_LANES)
            STREAM_STORE(s.x + row * stride + k,
                         vf_load_n(job->x + row * job->in + k, kst_lanes(job->in - k)));
    for (int64_t done = 0; done < quarter; done += KST_PANEL) {
        const int64_t outs = kst_min(KST_PANEL, quarter - done);
        float sums[FEW_ROWS][GROUP][KST_PANEL];
        stream_outputs(&s, job->begin + done, outs, &sums[0][0][0]);
        for (int c = 0; c < GROUP; c++) {
            const int64_t out = job->begin + c * quarter + done;
            const int64_t n = kst_min(outs, job->end - out);
            for (int64_t row = 0; n > 0 && row < rows; row++)
                kst_linear_finish(job, row, out, sums[row][c], n);
        }
    }
}

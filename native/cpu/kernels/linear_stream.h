/* linear for a few rows: the weights are read once, a group of outputs at a time, and widened in
 * registers. Included by linear_tile.h.
 *
 * The outputs of a group of four lie a quarter of the share apart, so that each reads one long
 * sequence of memory from group to group, which hardware follows; a stream is such a part of the
 * share. Some rows pass over a group at a time; for the later ones it lies in the first cache, and
 * they fetch what the next group reads. */

/* Measured by native/probes (native/NOTES.md). FEW_ROWS: up to these the weights are streamed, above
 * a panel is widened. Of several passes over long rows, whose x lies in the second cache, a group
 * has MOST_GROUP outputs, so that x is read less often. STREAM_COLUMNS: outputs of a group that some
 * rows pass over at a time; the sums, one vector of each row and one of weights fit the
 * registers. */
#define GROUP 4
#define IS_LONG(in) ((in) >= 512)
#if VT_LANES == 16 && KST_JOIN(KST_ISA_ID_, KST_ISA) != 0
#define FEW_ROWS(in) (WEIGHT_BYTES == 4 || IS_LONG(in) ? 16 : 12)
#define MOST_GROUP 6
#define STREAM_COLUMNS(rows, group) (group)
#else
#define FEW_ROWS(in) 16
#define MOST_GROUP GROUP
#define STREAM_COLUMNS(rows, group) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)
#endif
#define MOST_ROWS 16
#define PASS_ROWS 4 /* rows that pass over a group together */
#define AHEAD (WEIGHT_BYTES == 4 ? 1024 : 512) /* bytes */

typedef struct {
    const kst_linear_job *job;
    float *x;       /* the rows of x, as STREAM_STORE stores them */
    int64_t stride; /* floats from row to row */
    int64_t group;  /* streams */
    int64_t part;   /* outputs of a stream */
    int64_t passes; /* over each group; each fetches some of its streams */
    int64_t ahead;  /* bytes */
} streams;

/* The output of stream c of a group; one past the end is the last. */
static inline const char *stream_at(const streams *s, int64_t out, int64_t c) {
    return weight_at(s->job, kst_min(out + c * s->part, s->job->end - 1), 0);
}

/* Four addresses are no vector: gcc makes one of them, and then takes it apart. */
static inline const char *scalar(const char *p) {
    __asm__("" : "+r"(p));
    return p;
}

/* sum[r][c] += x[r] w[c] over VF_LANES k, `at` bytes from the begin of each w[c]: one index for all
 * addresses. */
static inline __attribute__((always_inline)) void multiply(int rows, int columns, const float *x,
                                                           int64_t stride, const char *const *w,
                                                           int64_t at, vf sum[][MOST_GROUP]) {
    vf v[PASS_ROWS];
    for (int r = 0; r < rows; r++)
        v[r] = vf_load((const char *)(x + r * stride) + at * (4 / WEIGHT_BYTES));
    for (int c = 0; c < columns; c++) {
        const vf weight = STREAM_LOAD(w[c] + at);
        for (int r = 0; r < rows; r++) sum[r][c] = vf_fma(v[r], weight, sum[r][c]);
    }
}

/* Fetched into the first cache for 16 bits in one pass, else into the second, where Zen 4 does not
 * take what is fetched for one more stream (native/NOTES.md). */
static inline __attribute__((always_inline)) void fetch_ahead(const char *p, int is_alone) {
    if (is_alone && WEIGHT_BYTES < 4)
        __builtin_prefetch(p);
    else
        __builtin_prefetch(p, 0, 2);
}

/* The trees of up to MOST_GROUP sums. */
static inline __attribute__((always_inline)) void stream_trees(int columns, const vf *sum,
                                                               float *trees) {
    vf joined[8] = {vf_zero(), vf_zero(), vf_zero(), vf_zero(),
                    vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int c = 0; c < columns; c++) joined[c] = STREAM_JOIN(sum[c]);
#if MOST_GROUP > GROUP
    if (columns > GROUP) {
        vf_hsum8(trees, joined);
        return;
    }
#endif
    vf_hsum4(trees, joined[0], joined[1], joined[2], joined[3]);
}

/* sums[rows, MOST_GROUP, KST_PANEL] of `columns` streams over `outs` outputs from out on; inlined,
 * so that rows, columns and is_alone (no other pass) are constants. An output past the end repeats
 * the last. */
static inline __attribute__((always_inline)) void
stream_run(int rows, int columns, int is_alone, const streams *s, int64_t row, int64_t out,
           int64_t outs, float *sums) {
    const kst_linear_job *job = s->job;
    const int64_t whole = job->in / VF_LANES * VF_LANES, stride = s->stride,
                  bytes = whole * WEIGHT_BYTES, step = VF_LANES * WEIGHT_BYTES;
    const float *x = s->x + row * stride;
    const int fetches = is_alone ? columns : (columns + 1) / 2; /* the most of two passes */
    const int64_t pass = row / PASS_ROWS,
                  fetched = is_alone ? 0 : columns * pass / s->passes,
                  fetched_end = is_alone ? columns : columns * (pass + 1) / s->passes;
    for (int64_t i = 0; i < outs; i++) {
        const char *w[MOST_GROUP], *fetch[MOST_GROUP];
        vf sum[PASS_ROWS][MOST_GROUP];
        for (int c = 0; c < columns; c++) {
            w[c] = stream_at(s, out + i, c);
            if (is_alone) w[c] = scalar(w[c]);
            for (int r = 0; r < rows; r++) sum[r][c] = vf_zero();
        }
        /* Where there are fewer, x, which is at hand: no branch in the loop. */
        for (int f = 0; f < fetches; f++)
            if (is_alone)
                fetch[f] = w[f] + s->ahead;
            else if (fetched + f < fetched_end)
                fetch[f] = stream_at(s, out + i, fetched + f) + s->ahead;
            else
                fetch[f] = (const char *)x;
        int64_t at = 0;
        for (; at + LINE <= bytes; at += LINE) {
            for (int f = 0; f < fetches; f++) fetch_ahead(fetch[f] + at, is_alone);
            for (int64_t v = at; v < at + LINE; v += step)
                multiply(rows, columns, x, stride, w, v, sum);
        }
        for (; at < bytes; at += step) multiply(rows, columns, x, stride, w, at, sum);
        if (whole < job->in) {
            char tail[MOST_GROUP][VF_LANES * WEIGHT_BYTES] = {{0}};
            const char *padded[MOST_GROUP];
            for (int c = 0; c < columns; c++)
                padded[c] =
                    memcpy(tail[c], w[c] + bytes, (size_t)(job->in - whole) * WEIGHT_BYTES);
            multiply(rows, columns, x + whole, stride, padded, 0, sum);
        }
        for (int r = 0; r < rows; r++) {
            float trees[8];
            stream_trees(columns, sum[r], trees);
            for (int c = 0; c < columns; c++) sums[(r * MOST_GROUP + c) * KST_PANEL + i] = trees[c];
        }
    }
}

/* `outs` outputs of each stream of a group. */
static inline __attribute__((always_inline)) void
stream_rows(int rows, int is_alone, int group, const streams *s, int64_t row, int64_t out,
            int64_t outs, float *sums) {
    const int columns = STREAM_COLUMNS(rows, group);
    for (int c = 0; c < group; c += columns)
        stream_run(rows, columns, is_alone, s, row, out + c * s->part, outs, sums + c * KST_PANEL);
}

/* The same for more rows, which pass over an output of each stream before the next. */
static inline __attribute__((always_inline)) void
stream_passes(int group, const streams *s, int64_t out, int64_t outs, float *sums) {
    for (int64_t i = 0; i < outs; i++)
        for (int64_t row = 0; row < s->job->rows; row += PASS_ROWS) {
            float *own = sums + row * MOST_GROUP * KST_PANEL + i;
            switch (kst_min(PASS_ROWS, s->job->rows - row)) {
            case 1: stream_rows(1, 0, group, s, row, out + i, 1, own); break;
            case 2: stream_rows(2, 0, group, s, row, out + i, 1, own); break;
            case 3: stream_rows(3, 0, group, s, row, out + i, 1, own); break;
            default: stream_rows(4, 0, group, s, row, out + i, 1, own); break;
            }
        }
}

/* Functions of their own: in one, the compiler has too few registers. */
typedef void stream_function(const streams *s, int64_t out, int64_t outs, float *sums);

static __attribute__((noinline)) void stream_short(const streams *s, int64_t out, int64_t outs,
                                                   float *sums) {
    stream_passes(GROUP, s, out, outs, sums);
}

#if MOST_GROUP > GROUP
static __attribute__((noinline)) void stream_long(const streams *s, int64_t out, int64_t outs,
                                                  float *sums) {
    stream_passes(MOST_GROUP, s, out, outs, sums);
}
#endif

#define ALONE(n) \
    static __attribute__((noinline)) void stream_##n(const streams *s, int64_t out, int64_t outs, \
                                                     float *sums) { \
        stream_rows(n, 1, GROUP, s, 0, out, outs, sums); \
    }
ALONE(1)
ALONE(2)
ALONE(3)
ALONE(4)
#undef ALONE

static stream_function *function_for(const streams *s) {
    static stream_function *const alone[PASS_ROWS] = {stream_1, stream_2, stream_3, stream_4};
    if (s->passes == 1) return alone[s->job->rows - 1];
#if MOST_GROUP > GROUP
    if (s->group == MOST_GROUP) return stream_long;
#endif
    return stream_short;
}

static void stream(const kst_linear_job *job, int64_t stride) {
    const int64_t rows = job->rows, passes = (rows + PASS_ROWS - 1) / PASS_ROWS;
    const int64_t group = passes > 1 && IS_LONG(job->in) ? MOST_GROUP : GROUP;
    const int64_t part = (job->end - job->begin + group - 1) / group;
    const int64_t bytes = job->in * WEIGHT_BYTES;
    const streams s = {.job = job,
                       .x = job->scratch,
                       .stride = stride,
                       .group = group,
                       .part = part,
                       .passes = passes,
                       .ahead = passes > 1 && bytes > AHEAD ? bytes : AHEAD};
    stream_function *run = function_for(&s);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < job->in; k += VF_LANES)
            STREAM_STORE(s.x + row * stride + k,
                         vf_load_n(job->x + row * job->in + k, kst_lanes(job->in - k)));
    for (int64_t done = 0; done < part; done += KST_PANEL) {
        const int64_t outs = kst_min(KST_PANEL, part - done);
        float sums[MOST_ROWS][MOST_GROUP][KST_PANEL];
        run(&s, job->begin + done, outs, &sums[0][0][0]);
        for (int c = 0; c < group; c++) {
            const int64_t out = job->begin + c * part + done;
            const int64_t n = kst_min(outs, job->end - out);
            for (int64_t row = 0; n > 0 && row < rows; row++)
                kst_linear_finish(job, row, out, sums[row][c], n);
        }
    }
}

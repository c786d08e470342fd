/* attention for one cache format; the including file defines CACHE_FORMAT, CACHE_BYTES, CACHE_LOAD,
 * CACHE_LOAD_N.
 *
 * A task is a tile of a sequence's tokens and one kv head; its rows (tokens x group) pass over a
 * chunk while it is in the cache, ROWS at a time, so that they share each load. */
#include "attention.h"

typedef struct {
    const kst_attention_args *args;
    const char *cache;
    const int32_t *blocks; /* block table of the sequence */
    int64_t kv_head;
} source;

static inline const char *keys_of(const source *from, int64_t block) {
    const int64_t heads = from->args->kv_heads,
                  size = (int64_t)from->args->head_dim * KST_BLOCK_SIZE;
    return from->cache + (from->blocks[block] * 2 * heads + from->kv_head) * size * CACHE_BYTES;
}

static inline const char *values_of(const source *from, int64_t block) {
    const int64_t heads = from->args->kv_heads,
                  size = (int64_t)from->args->head_dim * KST_BLOCK_SIZE;
    return from->cache +
           ((from->blocks[block] * 2 + 1) * heads + from->kv_head) * size * CACHE_BYTES;
}

/* Scores of `rows` queries against `blocks` blocks; inlined, so that both are constants. */
static inline __attribute__((always_inline)) void
score_tile(int rows, int blocks, const source *from, int64_t block, const float *const *q,
           float (*p)[KST_ATTENTION_CHUNK], int64_t at) {
    const int64_t dim = from->args->head_dim;
    const char *k[4];
    vf sum[4][4];
    for (int b = 0; b < blocks; b++) {
        k[b] = keys_of(from, block + b);
        for (int r = 0; r < rows; r++) sum[r][b] = vf_zero();
    }
    for (int64_t d = 0; d < dim; d++)
        for (int b = 0; b < blocks; b++) {
            vf key = CACHE_LOAD(k[b] + d * KST_BLOCK_SIZE * CACHE_BYTES);
            for (int r = 0; r < rows; r++) sum[r][b] = vf_fma(vf_set1(q[r][d]), key, sum[r][b]);
        }
    const vf scale = vf_set1(from->args->scale);
    for (int b = 0; b < blocks; b++)
        for (int r = 0; r < rows; r++)
            vf_store(&p[r][at + b * KST_BLOCK_SIZE], vf_mul(scale, sum[r][b]));
}

/* Scores of a chunk's blocks [b, blocks); `block` is the chunk's first. */
static void score_rows(int rows, const source *from, int64_t block, int64_t b, int64_t blocks,
                       const float *const *q, float (*p)[KST_ATTENTION_CHUNK]) {
    if (rows == 1)
        for (; b + 4 <= blocks; b += 4) score_tile(1, 4, from, block + b, q, p, b * KST_BLOCK_SIZE);
    if (rows == 2)
        for (; b + 2 <= blocks; b += 2) score_tile(2, 2, from, block + b, q, p, b * KST_BLOCK_SIZE);
    for (; b < blocks; b++) switch (rows) {
        case 1: score_tile(1, 1, from, block + b, q, p, b * KST_BLOCK_SIZE); break;
        case 2: score_tile(2, 1, from, block + b, q, p, b * KST_BLOCK_SIZE); break;
        case 3: score_tile(3, 1, from, block + b, q, p, b * KST_BLOCK_SIZE); break;
        default: score_tile(4, 1, from, block + b, q, p, b * KST_BLOCK_SIZE); break;
        }
}

/* part[r] (+)= p[r][j] v[j] over positions j in [from_j, to_j) of the chunk, for one run of `width`
 * vectors of the head; `first` starts the sums. */
static inline __attribute__((always_inline)) void
value_tile(int rows, int width, int lanes, const source *from, int64_t block, int64_t d,
           int64_t from_j, int64_t to_j, int first, const float (*p)[KST_ATTENTION_CHUNK],
           float (*part)[MAX_DIM]) {
    const int64_t dim = from->args->head_dim;
    vf sum[4][4];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width; i++)
            sum[r][i] = first ? vf_zero() : vf_load(&part[r][d + i * VF_LANES]);
    for (int64_t j = from_j; j < to_j;) {
        const int64_t stop = kst_min(to_j, (j / KST_BLOCK_SIZE + 1) * KST_BLOCK_SIZE);
        const char *v = values_of(from, block + j / KST_BLOCK_SIZE);
        for (; j < stop; j++) {
            const char *row = v + (j % KST_BLOCK_SIZE * dim + d) * CACHE_BYTES;
            for (int i = 0; i < width; i++) {
                vf value = lanes == VF_LANES ? CACHE_LOAD(row + i * VF_LANES * CACHE_BYTES)
                                             : CACHE_LOAD_N(row, lanes);
                for (int r = 0; r < rows; r++)
                    sum[r][i] = vf_fma(vf_set1(p[r][j]), value, sum[r][i]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width; i++) vf_store(&part[r][d + i * VF_LANES], sum[r][i]);
}

static void value_rows(int rows, const source *from, int64_t block, int64_t from_j, int64_t to_j,
                       int first, const float (*p)[KST_ATTENTION_CHUNK], float (*part)[MAX_DIM]) {
    const int64_t dim = from->args->head_dim;
    int64_t d = 0;
    if (from_j >= to_j) return;
    if (rows == 1)
        for (; d + 4 * VF_LANES <= dim; d += 4 * VF_LANES)
            value_tile(1, 4, VF_LANES, from, block, d, from_j, to_j, first, p, part);
    for (; d + VF_LANES <= dim; d += VF_LANES) switch (rows) {
        case 1: value_tile(1, 1, VF_LANES, from, block, d, from_j, to_j, first, p, part); break;
        case 2: value_tile(2, 1, VF_LANES, from, block, d, from_j, to_j, first, p, part); break;
        case 3: value_tile(3, 1, VF_LANES, from, block, d, from_j, to_j, first, p, part); break;
        default: value_tile(4, 1, VF_LANES, from, block, d, from_j, to_j, first, p, part); break;
        }
    if (d < dim)
        for (int r = 0; r < rows; r++)
            value_tile(1, 1, (int)(dim - d), from, block, d, from_j, to_j, first, p + r, part + r);
}

/* The weighted values of n rows: each row's chain runs over what it sees, in ascending order. Only
 * where all rows see a position do they share its load. */
static void sum_values(const source *from, int64_t block, int64_t n, const span *seen,
                       scratch_layout *s) {
    int64_t begin = 0, end = KST_ATTENTION_CHUNK; /* seen by all */
    int heads = 0;                                /* some rows see positions before them */
    for (int64_t r = 0; r < n; r++) {
        heads |= r && seen[r].begin != seen[0].begin;
        begin = seen[r].begin > begin ? seen[r].begin : begin;
        end = kst_min(end, seen[r].end);
    }
    const int alone = begin >= end;
    for (int64_t r = 0; r < n && heads && !alone; r++) {
        memset(s->part[r], 0, sizeof s->part[r]);
        value_rows(1, from, block, seen[r].begin, begin, 1, s->p + r, s->part + r);
    }
    value_rows((int)n, from, block, begin, end, !heads, s->p, s->part);
    for (int64_t r = 0; r < n; r++)
        value_rows(1, from, block, alone ? seen[r].begin : end, seen[r].end, alone, s->p + r,
                   s->part + r);
}

/* The n rows of a tile against one chunk, of which row r sees seen[r]; first[r]: none before. */
static void chunk_rows(const source *from, int64_t block, int64_t n, const float *const *q,
                       const span *seen, const int *first, scratch_layout *s, int64_t tile_row) {
    const int64_t dim = from->args->head_dim;
    int64_t least = KST_ATTENTION_CHUNK, most = 0;
    for (int64_t r = 0; r < n; r++) {
        if (seen[r].begin >= seen[r].end) continue;
        least = kst_min(least, seen[r].begin);
        most = seen[r].end > most ? seen[r].end : most;
    }
    if (most == 0) return;
    score_rows((int)n, from, block, least / KST_BLOCK_SIZE,
               (most + KST_BLOCK_SIZE - 1) / KST_BLOCK_SIZE, q, s->p);
    float max[ROWS], sum[ROWS];
    for (int64_t r = 0; r < n; r++)
        if (seen[r].begin < seen[r].end)
            soften(s->p[r], seen[r], from->args->soft_cap, &max[r], &sum[r]);
    sum_values(from, block, n, seen, s);
    for (int64_t r = 0; r < n; r++) {
        if (seen[r].begin >= seen[r].end) continue;
        const int64_t row = tile_row + r;
        merge(s->acc[row], s->part[r], (dim + VF_LANES - 1) / VF_LANES * VF_LANES, &s->max[row],
              &s->sum[row], max[r], sum[r], first[r]);
    }
}

/* Rows [begin, end) of a tile: row r is query head r % group of token `token` + r / group. */
static void tile_rows(const source *from, const kst_cmd *cmd, const kst_step *step, int64_t token,
                      int64_t begin, int64_t end, scratch_layout *s) {
    const int64_t dim = from->args->head_dim, heads = from->args->heads,
                  group = heads / from->args->kv_heads, window = from->args->window;
    const float *q[TILE];
    span visible[TILE];
    int64_t at[TILE], least = INT64_MAX, most = 0;
    for (int64_t r = begin; r < end; r++) {
        const int64_t n = token + r / group, i = r - begin, stop = (int64_t)step->positions[n] + 1;
        at[i] = (n * heads + from->kv_head * group + r % group) * dim;
        q[i] = (const float *)cmd->in[0] + at[i];
        visible[i].begin = window > 0 && stop > window ? stop - window : 0;
        visible[i].end = stop;
        KST_REQUIRE(step->positions[n] >= 0);
        KST_REQUIRE(step->positions[n] < (int64_t)step->max_blocks * KST_BLOCK_SIZE);
        least = kst_min(least, visible[i].begin);
        most = stop > most ? stop : most;
    }
    for (int64_t chunk = least / KST_ATTENTION_CHUNK * KST_ATTENTION_CHUNK; chunk < most;
         chunk += KST_ATTENTION_CHUNK)
        for (int64_t r = 0; r < end - begin; r += ROWS) {
            const int64_t n = kst_min(ROWS, end - begin - r);
            span seen[ROWS];
            int first[ROWS];
            for (int64_t i = 0; i < n; i++) {
                const span whole = visible[r + i];
                first[i] = whole.begin >= chunk;
                seen[i].begin = first[i] ? whole.begin - chunk : 0;
                seen[i].end = kst_min(whole.end - chunk, KST_ATTENTION_CHUNK);
                if (seen[i].begin >= seen[i].end) seen[i].begin = seen[i].end = 0;
            }
            chunk_rows(from, chunk / KST_BLOCK_SIZE, n, q + r, seen, first, s, r);
        }
    for (int64_t r = 0; r < end - begin; r++) {
        const vf sum = vf_set1(s->sum[r]);
        float *y = (float *)cmd->out[0] + at[r];
        for (int64_t d = 0; d < dim; d += VF_LANES)
            vf_store_n(y + d, vf_div(vf_load(&s->acc[r][d]), sum), kst_lanes(dim - d));
    }
}

static int64_t tiles_of(const kst_step *step, int32_t seq, int64_t tokens) {
    return (step->seq_start[seq + 1] - step->seq_start[seq] + tokens - 1) / tokens;
}

/* The task of that number: tiles of all sequences in order, the kv heads of a tile together. */
static void run_task(const kst_cmd *cmd, const kst_step *step, int64_t number, int64_t tokens,
                     scratch_layout *s) {
    const kst_attention_args *args = &cmd->args.attention;
    const int64_t group = args->heads / args->kv_heads;
    int64_t tile = number / args->kv_heads;
    int32_t seq = 0;
    for (int64_t tiles; tile >= (tiles = tiles_of(step, seq, tokens)); seq++) tile -= tiles;
    const source from = {args, cmd->in[1], step->block_table + (int64_t)seq * step->max_blocks,
                         number % args->kv_heads};
    const int64_t token = step->seq_start[seq] + tile * tokens;
    const int64_t rows = kst_min(tokens, step->seq_start[seq + 1] - token) * group;
    for (int64_t begin = 0; begin < rows; begin += TILE)
        tile_rows(&from, cmd, step, token, begin, kst_min(begin + TILE, rows), s);
}

void KST_FN(CACHE_FORMAT)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const int64_t group = cmd->args.attention.heads / cmd->args.attention.kv_heads;
    const int64_t tokens = group < TILE ? TILE / group : 1;
    KST_REQUIRE(cmd->args.attention.head_dim <= MAX_DIM);
    KST_REQUIRE(group * cmd->args.attention.kv_heads == cmd->args.attention.heads);
    int64_t tasks = 0;
    for (int32_t seq = 0; seq < step->n_seqs; seq++) tasks += tiles_of(step, seq, tokens);
    tasks *= cmd->args.attention.kv_heads;
    /* Causal tasks grow with the position, up to the window: first, last, second, last but one, ...
     * makes every run of them alike (within a third where a step reaches from 0 to twice the
     * window; steps before and past that are even). */
    const int64_t end = kst_end(tasks, share);
    for (int64_t i = kst_begin(tasks, share); i < end; i++)
        run_task(cmd, step, i % 2 ? tasks - 1 - i / 2 : i / 2, tokens, share.scratch);
}

/* attention for one cache format; the including file defines CACHE_FORMAT, CACHE_BYTES, CACHE_LOAD.
 *
 * A task is a tile of a sequence's tokens and one kv head; its rows (tokens x group) pass over a
 * chunk strip by strip, ROWS at a time, while the strip is in the first cache. */
#include "attention_tile.h"

#define STRIP_BLOCKS 8
#define STRIP (STRIP_BLOCKS * KST_BLOCK_SIZE)

/* Rows [row, row + n) of a tile in a chunk: rows that share loads. */
typedef struct {
    int64_t row, n;
    view sees;
    float *to; /* where their weighted values go: a chunk that is the first for all needs no
                  merging */
} team;

/* What a tile reads of a chunk, and by whom. Positions count from that of the first block read. */
typedef struct {
    const kst_attention_args *args;
    scratch_layout *s;
    const char *blocks[2 * CHUNK_BLOCKS + AHEAD]; /* in the order of reading: keys, values, and what
                                                     comes then */
    int64_t n_blocks, n_rows;
    span seen[TILE]; /* both 0: nothing, as of rows past the last */
    int first[TILE]; /* it saw nothing before */
    team teams[TILE / ROWS];
    int n_teams;
} chunk;

static void find_teams(chunk *c) {
    c->n_teams = 0;
    for (int64_t row = 0; row < c->n_rows; row += ROWS) {
        team t = {.row = row,
                  .n = kst_min(ROWS, c->n_rows - row),
                  .sees = {{KST_ATTENTION_CHUNK, 0}, {0, KST_ATTENTION_CHUNK}, &c->seen[row]},
                  .to = c->s->acc[row]};
        for (int64_t r = row; r < row + t.n; r++) {
            const span seen = c->seen[r];
            t.sees.all = both(t.sees.all, seen);
            if (!c->first[r]) t.to = c->s->part[row];
            if (seen.begin < seen.end) t.sees.any = around(t.sees.any, seen);
        }
        if (t.sees.all.begin >= t.sees.all.end) t.sees.all = (span){0, 0};
        if (t.sees.any.begin < t.sees.any.end) c->teams[c->n_teams++] = t;
    }
}

static void score(const chunk *c) {
    for (int64_t strip = 0; strip < c->n_blocks; strip += STRIP_BLOCKS)
        for (int i = 0; i < c->n_teams; i++) {
            const team *t = &c->teams[i];
            const span blocks = both((span){strip, strip + STRIP_BLOCKS}, blocks_of(t->sees.any));
            const block_run run = {.blocks = c->blocks + blocks.begin,
                                   .n = blocks.end - blocks.begin,
                                   .dim = c->args->head_dim,
                                   .ahead = i == 0 ? AHEAD : 0};
            score_rows(t->n, &run, c->s->q[t->row],
                       &c->s->p[t->row][blocks.begin * KST_BLOCK_SIZE]);
        }
}

/* The numbers of the strip's values that do not fill a run of 16. */
static block_run pad_tails(const chunk *c, span strip, const char **blocks) {
    const int64_t dim = c->args->head_dim, tail = dim % VF_LANES, step = VF_LANES * CACHE_BYTES;
    for (int64_t j = strip.begin; j < strip.end; j++) {
        const char *value = c->blocks[c->n_blocks + j / KST_BLOCK_SIZE];
        char *to = c->s->tail + j * step;
        memset(to, 0, (size_t)step);
        memcpy(to, value + ((j % KST_BLOCK_SIZE + 1) * dim - tail) * CACHE_BYTES,
               (size_t)(tail * CACHE_BYTES));
    }
    for (int64_t b = 0; b < c->n_blocks; b++) blocks[b] = c->s->tail + b * KST_BLOCK_SIZE * step;
    return (block_run){.blocks = blocks, .n = c->n_blocks, .dim = VF_LANES};
}

static void sum_values(const chunk *c) {
    const int64_t dim = c->args->head_dim, whole = dim / VF_LANES * VF_LANES;
    span any = {KST_ATTENTION_CHUNK, 0};
    for (int i = 0; i < c->n_teams; i++) {
        any = around(any, c->teams[i].sees.any);
        for (int64_t r = 0; r < c->teams[i].n; r++)
            for (int64_t d = 0; d < dim; d += VF_LANES)
                vf_store(c->teams[i].to + r * HEAD_STRIDE + d, vf_zero());
    }
    for (int64_t begin = 0; begin < any.end; begin += STRIP) {
        const span strip = both(any, (span){begin, begin + STRIP});
        for (int i = 0; i < c->n_teams; i++) {
            const team *t = &c->teams[i];
            const block_run run = {c->blocks + c->n_blocks, c->n_blocks, dim, i == 0 ? AHEAD : 0};
            value_rows(t->n, &run, &t->sees, strip, c->s->p[t->row], t->to);
        }
        if (whole == dim) continue;
        const char *blocks[CHUNK_BLOCKS];
        const block_run tail = pad_tails(c, strip, blocks);
        for (int i = 0; i < c->n_teams; i++) {
            const team *t = &c->teams[i];
            value_rows(t->n, &tail, &t->sees, strip, c->s->p[t->row], t->to + whole);
        }
    }
}

static void run_chunk(chunk *c) {
    scratch_layout *s = c->s;
    const int64_t dim = c->args->head_dim;
    float max[TILE], sum[TILE];
    find_teams(c);
    score(c);
    for (int i = 0; i < c->n_teams; i++) {
        const team *t = &c->teams[i];
        soften(t->n, &s->p[t->row], t->sees.seen, t->sees.any, c->args, &max[t->row], &sum[t->row]);
    }
    sum_values(c);
    for (int i = 0; i < c->n_teams; i++) {
        const team *t = &c->teams[i];
        for (int64_t r = t->row; r < t->row + t->n; r++) {
            if (c->seen[r].begin == c->seen[r].end) continue;
            if (!c->first[r]) {
                merge(s->acc[r], s->part[r], dim, &s->max[r], &s->sum[r], max[r], sum[r]);
                continue;
            }
            if (t->to != s->acc[t->row]) memcpy(s->acc[r], s->part[r], sizeof s->acc[r]);
            s->max[r] = max[r];
            s->sum[r] = sum[r];
        }
    }
}

/* A sequence's blocks of one kv head. */
typedef struct {
    const char *cache;
    const int32_t *table;
    int64_t kv_heads, kv_head, bytes; /* of a head's keys in a block, or values */
} source;

static const char *keys_of(const source *from, int64_t block) {
    return from->cache + (from->table[block] * 2 * from->kv_heads + from->kv_head) * from->bytes;
}

/* The blocks [begin, end) of a chunk, and those ahead of them up to `last`. */
static void list_blocks(chunk *c, const source *from, int64_t begin, int64_t end, int64_t last) {
    const char **to = c->blocks;
    c->n_blocks = end - begin;
    for (int64_t b = begin; b < end; b++) *to++ = keys_of(from, b);
    for (int64_t b = 0; b < end - begin; b++) *to++ = c->blocks[b] + from->kv_heads * from->bytes;
    for (int64_t b = end; b < end + AHEAD; b++, to++) *to = b < last ? keys_of(from, b) : to[-1];
}

/* Rows [begin, end) of a task: row r is query head r % group of token `token` + r / group. */
static void run_tile(const source *from, const kst_cmd *cmd, const kst_step *step, int64_t token,
                     int64_t begin, int64_t end, scratch_layout *s) {
    const kst_attention_args *args = &cmd->args.attention;
    const int64_t dim = args->head_dim, group = args->heads / args->kv_heads;
    span visible[TILE], any = {INT64_MAX, 0};
    int64_t at[TILE];
    for (int64_t r = begin; r < end; r++) {
        const int64_t n = token + r / group, i = r - begin, stop = (int64_t)step->positions[n] + 1;
        at[i] = (n * args->heads + from->kv_head * group + r % group) * dim;
        for (int64_t d = 0; d < dim; d += VF_LANES)
            vf_store(&s->q[i][d],
                     vf_load_n((const float *)cmd->in[0] + at[i] + d, kst_lanes(dim - d)));
        visible[i].begin = args->window > 0 && stop > args->window ? stop - args->window : 0;
        visible[i].end = stop;
        any = around(any, visible[i]);
        KST_REQUIRE(step->positions[n] >= 0);
        KST_REQUIRE(step->positions[n] < (int64_t)step->max_blocks * KST_BLOCK_SIZE);
    }
    chunk c = {.args = args, .s = s, .n_rows = end - begin};
    const span blocks = blocks_of(any);
    for (int64_t next, block = blocks.begin; block < blocks.end; block = next) {
        next = kst_min((block / CHUNK_BLOCKS + 1) * CHUNK_BLOCKS, blocks.end);
        list_blocks(&c, from, block, next, blocks.end);
        const span here = {block * KST_BLOCK_SIZE, next * KST_BLOCK_SIZE};
        for (int64_t r = 0; r < c.n_rows; r++) {
            const span seen = both(visible[r], here);
            c.first[r] = visible[r].begin >= here.begin;
            c.seen[r] = seen.begin < seen.end
                            ? (span){seen.begin - here.begin, seen.end - here.begin}
                            : (span){0, 0};
        }
        run_chunk(&c);
    }
    for (int64_t r = 0; r < c.n_rows; r++) {
        const vf sum = vf_set1(s->sum[r]);
        float *y = (float *)cmd->out[0] + at[r];
        for (int64_t d = 0; d < dim; d += VF_LANES)
            vf_store_n(y + d, vf_div(vf_load(&s->acc[r][d]), sum), kst_lanes(dim - d));
    }
}

static int64_t tiles_of(const kst_step *step, int32_t seq, int64_t tokens) {
    return (step->seq_start[seq + 1] - step->seq_start[seq] + tokens - 1) / tokens;
}

static int64_t tasks_of(const kst_cmd *cmd, const kst_step *step, int64_t tokens) {
    int64_t tiles = 0;
    for (int32_t seq = 0; seq < step->n_seqs; seq++) tiles += tiles_of(step, seq, tokens);
    return tiles * cmd->args.attention.kv_heads;
}

/* The task of that number: tiles of all sequences in order, the kv heads of a tile together. */
static void run_task(const kst_cmd *cmd, const kst_step *step, int64_t number, int64_t tokens,
                     scratch_layout *s) {
    const kst_attention_args *args = &cmd->args.attention;
    const int64_t group = args->heads / args->kv_heads;
    int64_t tile = number / args->kv_heads;
    int32_t seq = 0;
    for (int64_t tiles; tile >= (tiles = tiles_of(step, seq, tokens)); seq++) tile -= tiles;
    const source from = {.cache = cmd->in[1],
                         .table = step->block_table + (int64_t)seq * step->max_blocks,
                         .kv_heads = args->kv_heads,
                         .kv_head = number % args->kv_heads,
                         .bytes = (int64_t)args->head_dim * KST_BLOCK_SIZE * CACHE_BYTES};
    const int64_t token = step->seq_start[seq] + tile * tokens;
    const int64_t rows = kst_min(tokens, step->seq_start[seq + 1] - token) * group;
    for (int64_t begin = 0; begin < rows; begin += TILE)
        run_tile(&from, cmd, step, token, begin, kst_min(begin + TILE, rows), s);
}

void KST_FN(CACHE_FORMAT)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const int64_t group = cmd->args.attention.heads / cmd->args.attention.kv_heads;
    int64_t tokens = group < TILE ? TILE / group : 1;
    if (tasks_of(cmd, step, tokens) < ENOUGH_TASKS) tokens = (tokens + 1) / 2;
    const int64_t tasks = tasks_of(cmd, step, tokens);
    KST_REQUIRE(cmd->args.attention.head_dim <= MAX_DIM);
    KST_REQUIRE(group * cmd->args.attention.kv_heads == cmd->args.attention.heads);
    /* Causal tasks grow with the position, up to the window: first, last, second, last but one, ...
     * makes every run of them alike (within a third where a step reaches from 0 to twice the
     * window; steps before and past that are even). */
    const int64_t end = kst_end(tasks, share);
    for (int64_t i = kst_begin(tasks, share); i < end; i++)
        run_task(cmd, step, i % 2 ? tasks - 1 - i / 2 : i / 2, tokens, share.scratch);
}

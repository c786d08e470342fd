/* The cases: which shapes, and what their inputs hold. */
#include "case_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void linear(int rows, int in, int o0, int o1, int o2, int d0, int d1, int d2, int bias,
                   int residual, float scale, int skew) {
    test_case *c = BEGIN(linear, d0, rows);
    const int outs[3] = {o0, o1, o2}, dtypes[3] = {d0, d1, d2};
    snprintf(c->shape, sizeof c->shape,
             "rows=%d,in=%d,out=%d+%d+%d,dtypes=%d%d%d,bias=%d,residual=%d,x%g,skew=%d", rows, in,
             o0, o1, o2, d0, d1, d2, bias, residual, (double)scale, skew);
    c->cmd.in[0] = floats((int64_t)rows * in, 2.0f);
    c->cmd.args.linear.in_features = in;
    c->cmd.args.linear.scale = scale;
    for (int i = 0; i < 3 && outs[i]; i++) {
        c->cmd.args.linear.weights = i + 1;
        c->cmd.args.linear.out_features[i] = outs[i];
        c->cmd.args.linear.dtype[i] = dtypes[i];
        c->cmd.in[1 + i] = weights((int64_t)outs[i] * in, dtypes[i], 0.5f, skew);
        if (bias) c->cmd.in[4 + i] = weights(outs[i], KST_F32, 1.0f, skew);
        add_out(c, i, (int64_t)rows * outs[i] * 4);
    }
    if (residual) c->cmd.in[7] = floats((int64_t)rows * o0, 4.0f);
}

static void linears(void) {
    static const int rows[] = {1, 2, 3, 5, 10, 131}, ins[] = {1, 15, 16, 47, 288, 530, 1040};
    for (int r = 0; r < 6; r++)
        for (int i = 0; i < 7; i++) {
            const int dtype = (r + i) % 3;
            linear(rows[r], ins[i], 13, 0, 0, dtype, 0, 0, r & 1, i & 1, i % 3 ? 1.0f : 0.22f,
                   i % 2 * 2);
            linear(rows[r], ins[i], 24, 9, 1, dtype, (dtype + 1) % 3, (dtype + 2) % 3, i & 1, 0,
                   1.0f, 8);
        }
    linear(8, 40000, 3, 0, 0, KST_BF16, 0, 0, 0, 0, 1.0f,
           0); /* eight rows do not fit the scratch */
    for (int dtype = 0; dtype < 3; dtype++) {
        linear(7, 96, 40, 0, 0, dtype, 0, 0, 1, 1, 1.0f, 0);
        linear(17, 1552, 40, 0, 0, dtype, 0, 0, 1, 1, 1.0f, 0); /* several blocks of k */
        linear(18, 2500, 40, 0, 0, dtype, 0, 0, 1, 0, 1.0f, 0); /* whole panels */
        linear(20, 1000, 35, 16, 0, dtype, dtype, 0, 0, 0, 1.0f, 0);
        linear(25, 768, 32, 0, 0, dtype, 0, 0, 0, 1, 0.5f, 2); /* all k in the panel */
        linear(14, 300, 21, 0, 0, dtype, 0, 0, 1, 0, 1.0f, 0);
        linear(13, 1000, 37, 0, 0, dtype, 0, 0, 1, 1, 1.0f, 0); /* several passes, long rows */
        linear(16, 768, 50, 16, 0, dtype, dtype, 0, 0, 0, 1.0f, 2);
        linear(6, 512, 5, 0, 0, dtype, 0, 0, 0, 0, 0.5f, 0);
    }
}

/* Sequences of new[s] tokens after old[s] cached positions; cache blocks in scattered order,
 * unwritten places NaN. Blocks before the first new token's window are not there: their entries in
 * the table lead out of the cache. */
static void attention(int heads, int kv_heads, int dim, int dtype, int window, float cap,
                      int n_seqs, const int *old, const int *new) {
    int tokens = 0, max_blocks = 1, blocks = 0;
    int32_t *seq_start = malloc((size_t)(n_seqs + 1) * 4), *context = malloc((size_t)n_seqs * 4);
    for (int s = 0; s < n_seqs; s++) {
        seq_start[s] = tokens;
        tokens += new[s];
        context[s] = old[s] + new[s];
        const int own = (context[s] + 15) / 16;
        blocks += own;
        max_blocks = own > max_blocks ? own : max_blocks;
    }
    seq_start[n_seqs] = tokens;
    test_case *c = BEGIN(attention, dtype, tokens);
    snprintf(c->shape, sizeof c->shape,
             "heads=%d/%d,dim=%d,dtype=%d,window=%d,cap=%g,seqs=%d,first=%d+%d", heads, kv_heads,
             dim, dtype, window, (double)cap, n_seqs, old[0], new[0]);
    c->cmd.args.attention =
        (kst_attention_args){heads, kv_heads, dim, dtype, window, 1.0f / sqrtf((float)dim), cap};
    const int64_t head = (int64_t)dim * 16, size = (int64_t)(blocks + 1) * 2 * kv_heads * head;
    int32_t *table = calloc((size_t)(n_seqs * max_blocks), 4),
            *positions = malloc((size_t)tokens * 4);
    char *cache = malloc((size_t)size * (dtype == KST_F32 ? 4 : 2));
    for (int64_t i = 0; i < size; i++) put(cache, dtype, i, NAN);
    for (int s = 0, block = blocks; s < n_seqs; s++) {
        const int first = window && old[s] >= window ? (old[s] + 1 - window) / 16 : 0;
        for (int i = 0; i < (context[s] + 15) / 16; i++)
            table[s * max_blocks + i] = i < first ? (1 << 29) - i : block--;
        for (int i = 0; i < new[s]; i++) positions[seq_start[s] + i] = old[s] + i;
        for (int64_t j = first * 16; j < context[s]; j++)
            for (int64_t k = 0; k < kv_heads; k++)
                for (int64_t d = 0; d < dim; d++) {
                    const int64_t at = (int64_t)table[s * max_blocks + j / 16] * 2 * kv_heads;
                    put(cache, dtype, (at + k) * head + d * 16 + j % 16, number(6.0f));
                    put(cache, dtype, (at + kv_heads + k) * head + j % 16 * dim + d, number(2.0f));
                }
    }
    c->cmd.in[0] = floats((int64_t)tokens * heads * dim, 6.0f);
    c->cmd.in[1] = cache;
    c->step.n_seqs = n_seqs;
    c->step.max_blocks = max_blocks;
    c->step.positions = positions;
    c->step.seq_start = seq_start;
    c->step.context_len = context;
    c->step.block_table = table;
    add_out(c, 0, (int64_t)tokens * heads * dim * 4);
}

static void attentions(void) {
    static const int old[4] = {0, 5, 300, 511}, new[4] = {40, 1, 3, 2};
    static const int shapes[][3] = {{1, 1, 2},  {6, 6, 48}, {6, 2, 10},  {9, 3, 64},
                                    {3, 1, 80}, {40, 2, 6}, {2, 1, 256}, {2, 2, 512}};
    static const int windows[] = {1, 15, 16, 17, 40, 255, 256, 257};
    for (int i = 0; i < 8; i++)
        for (int dtype = KST_F32; dtype <= KST_F16; dtype++) {
            const int *of = shapes[i];
            attention(of[0], of[1], of[2], dtype, 0, 0.0f, 4, old, new);
            attention(of[0], of[1], of[2], dtype, 0, 0.0f, 1, old + i % 4, new + 1);
            attention(of[0], of[1], of[2], dtype, windows[i], dtype ? 4.0f : 0.0f, 4, old, new);
        }
    for (int i = 0; i < 8; i++) { /* a prompt and its last tokens, head by head and in groups */
        attention(2, 1 + i % 2, 20, KST_F32, windows[i], 0.0f, 1, (int[]){0}, (int[]){300});
        attention(2, 1 + i % 2, 20, KST_F32, windows[i], 2.0f, 1, (int[]){530}, (int[]){9});
    }
    for (int n = 4; n < 12; n++) /* every remainder of rows that share a load */
        attention(1, 1, 48, n & 1 ? KST_F32 : KST_F16, 0, 0.0f, 1, (int[]){600}, &n);
}

static void rows_of(int rows, int dim) { /* the operations over [rows, dim] */
    test_case *c = BEGIN(rms_norm, 0, rows);
    const int groups = dim % 4 ? 1 : 4; /* a norm of rows, or of four heads */
    c->cmd.args.rms_norm = (kst_rms_norm_args){dim / groups, groups, 1e-5f, rows & 1 ? 0.0f : 1.0f};
    c->cmd.in[0] = floats((int64_t)rows * dim, 3.0f);
    c->cmd.in[1] = floats(dim, 1.0f);
    for (int activation = KST_SILU; activation <= KST_GELU_TANH; activation++) {
        c = BEGIN(swiglu, 0, rows);
        c->cmd.args.swiglu = (kst_swiglu_args){dim, activation};
        c->cmd.in[0] = floats((int64_t)rows * dim, activation == KST_SILU ? 300.0f : 8.0f);
        c->cmd.in[1] = floats((int64_t)rows * dim, 3.0f);
        ((float *)c->cmd.in[0])[0] = rows & 1 ? NAN : -INFINITY;
    }
    for (int i = 0; i < 2; i++) {
        c = BEGIN(add, 0, rows);
        c->cmd.args.add = (kst_add_args){dim, i ? 0.22f : 1.0f};
        c->cmd.in[0] = floats((int64_t)rows * dim, 3.0f);
        c->cmd.in[1] = floats((int64_t)rows * dim, 3.0f);
    }
    for (int i = 0; i < 2; i++) {
        c = BEGIN(soft_cap, 0, rows);
        c->cmd.args.soft_cap = (kst_soft_cap_args){dim, i ? 0.0625f : 0.22f, i ? 0.0f : 3.0f};
        c->cmd.in[0] = floats((int64_t)rows * dim, 40.0f);
        ((float *)c->cmd.in[0])[dim - 1] = rows & 1 ? NAN : INFINITY;
    }
    c = BEGIN(copy, 0, rows);
    c->cmd.args.copy.dim = dim;
    c->cmd.in[0] = floats((int64_t)rows * dim, 3.0f);
    c = BEGIN(gather_rows, 0, rows);
    c->cmd.args.gather_rows.dim = dim;
    c->cmd.in[0] = floats((int64_t)9 * dim, 3.0f);
    c->cmd.in[1] = ids(rows, 9);
    c->cmd.rows = KST_ROWS_LOGITS;
    c->step.n_tokens = 9;
    for (int i = 0; i < 9; i++) {
        add_out(c - i, 0, (int64_t)rows * dim * 4);
        snprintf(c[-i].shape, sizeof c->shape, "rows=%d,dim=%d", rows, dim);
    }
    c = BEGIN(argmax, 0, rows);
    snprintf(c->shape, sizeof c->shape, "rows=%d,vocab=%d", rows, dim);
    c->cmd.args.argmax.vocab = dim;
    float *x = floats((int64_t)rows * dim, 3.0f);
    for (int r = 0; r < rows; r++) { /* ties; rows with NaN, inf, -inf at the end */
        x[r * dim + (int)(next() % (uint32_t)dim)] = x[r * dim + (int)(next() % (uint32_t)dim)] =
            5.0f;
        if (r % 4) x[r * dim + dim - 1] = r % 4 == 1 ? NAN : r % 4 == 2 ? INFINITY : -INFINITY;
    }
    c->cmd.in[0] = x;
    add_out(c, 0, rows * 4);
}

static void others(int rows, int heads, int kv_heads, int dim, int dtype) {
    test_case *c = BEGIN(embed, dtype, rows);
    snprintf(c->shape, sizeof c->shape, "rows=%d,dim=%d,dtype=%d", rows, dim + 1, dtype);
    c->cmd.args.embed = (kst_embed_args){11, dim + 1, dtype, rows % 3 ? 1.0f : 5.5f};
    c->cmd.in[0] = ids(rows, 11);
    c->cmd.in[1] = weights((int64_t)11 * (dim + 1), dtype, 2.0f, 2);
    add_out(c, 0, (int64_t)rows * (dim + 1) * 4);

    const int tables = 1 + dtype; /* by length: below 9, 9, 10 and above */
    c = BEGIN(rotary_embedding, 0, rows);
    snprintf(c->shape, sizeof c->shape, "rows=%d,half=%d,tables=%d", rows, dim / 2, tables);
    c->cmd.args.rotary_embedding =
        (kst_rotary_embedding_args){dim / 2, tables, 8, dtype ? 1.1386f : 1.0f};
    c->cmd.in[0] = ids(rows, dtype ? 1 << 24 : 3000);
    c->cmd.in[1] = ids(rows, 13);
    float *inv_freq = floats(tables * (dim / 2), 1.0f);
    for (int i = 0; i < tables * (dim / 2); i++) inv_freq[i] = i ? fabsf(inv_freq[i]) : 1.0f;
    c->cmd.in[2] = inv_freq;
    for (int i = 0; i < 2; i++) add_out(c, i, (int64_t)rows * (dim / 2) * 4);

    for (int rotary = dim; rotary > 0; rotary -= dim < 20 ? 4 : 26) {
        c = BEGIN(rope, 0, rows);
        snprintf(c->shape, sizeof c->shape, "rows=%d,heads=%d/%d,dim=%d/%d", rows, heads, kv_heads,
                 rotary, dim);
        c->cmd.args.rope = (kst_rope_args){heads, kv_heads, dim, rotary};
        c->cmd.in[0] = floats((int64_t)rows * heads * dim, 2.0f);
        c->cmd.in[1] = floats((int64_t)rows * kv_heads * dim, 2.0f);
        for (int i = 2; i < 4; i++) c->cmd.in[i] = floats((int64_t)rows * rotary / 2, 1.0f);
        add_out(c, 0, (int64_t)rows * heads * dim * 4);
        add_out(c, 1, (int64_t)rows * kv_heads * dim * 4);
    }

    if (dtype == KST_BF16) return; /* not a format of the cache */
    c = BEGIN(kv_write, dtype, rows);
    snprintf(c->shape, sizeof c->shape, "rows=%d,kv_heads=%d,dim=%d,dtype=%d", rows, kv_heads, dim,
             dtype);
    c->cmd.args.kv_write = (kst_kv_write_args){kv_heads, dim, dtype};
    c->cmd.in[0] =
        floats((int64_t)rows * kv_heads * dim, 3e5f); /* beyond the largest float16 too */
    c->cmd.in[1] = floats((int64_t)rows * kv_heads * dim, 1e-4f); /* and subnormal ones */
    int32_t *slots = ids(rows, 1);
    for (int i = 0; i < rows; i++)
        slots[i] = (i * 7 + 5) % (rows < 16 ? 16 : (rows + 15) / 16 * 16);
    c->cmd.in[2] = slots;
    c->halves = dtype == KST_F16;
    add_out(c, 0,
            (int64_t)((rows + 15) / 16) * 2 * kv_heads * dim * 16 * (dtype == KST_F32 ? 4 : 2));
}

test_case *make_cases(int *count) {
    test_case *cases = first_case();
    linears();
    attentions();
    static const int rows[] = {1, 3, 6, 20}, dims[] = {1, 15, 16, 17, 64, 100, 2049};
    for (int r = 0; r < 4; r++)
        for (int d = 0; d < 7; d++) rows_of(rows[r], dims[d]);
    for (int dtype = 0; dtype < 3; dtype++) {
        others(1, 4, 4, 2, dtype);
        others(5, 6, 3, 10, dtype);
        others(20, 9, 3, 64, dtype);
        others(33, 5, 1, 96, dtype);
    }
    *count = case_count();
    return cases;
}

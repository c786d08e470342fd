/* The scalar kernels against the definitions of args.h computed in double, each element within a
 * bound that follows from counting roundings (u = 2^-24). The other instruction sets have the same
 * bits (test_bits.c). */
#include "cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double u = 0x1p-24;
static double worst; /* of a case: error / bound */

static const float *in(const test_case *c, int i) { return c->cmd.in[i]; }

static void compare(const test_case *c, int out, int64_t at, double want, double bound) {
    const double got = ((const float *)c->cmd.out[out])[at];
    if (isnan(want) ? isnan(got) : got == want) return;
    const double ratio = fabs(got - want) / bound;
    worst = ratio <= worst ? worst : ratio; /* NaN becomes worst */
}

static void check_linear(const test_case *c) {
    const kst_linear_args *a = &c->cmd.args.linear;
    for (int w = 0; w < a->weights; w++)
        for (int64_t row = 0; row < c->step.n_tokens; row++)
            for (int64_t o = 0; o < a->out_features[w]; o++) {
                double sum = 0.0, size = 0.0;
                const int64_t at = row * a->out_features[w] + o;
                for (int64_t k = 0; k < a->in_features; k++) {
                    const double p = in(c, 0)[row * a->in_features + k] *
                                     element(c->cmd.in[1 + w], a->dtype[w], o * a->in_features + k);
                    sum += p;
                    size += fabs(p);
                }
                const double bias = in(c, 4 + w) ? element(in(c, 4 + w), KST_F32, o) : 0.0;
                const double residual = w == 0 && in(c, 7) ? in(c, 7)[at] : 0.0;
                /* a chain of in/16 fma, four levels of the tree, two additions */
                compare(c, w, at, sum + bias + residual,
                        ((a->in_features + 15) / 16 + 4 + 2) * u *
                            (size + fabs(bias) + fabs(residual)));
            }
}

static void check_attention(const test_case *c) {
    const kst_attention_args *a = &c->cmd.args.attention;
    const kst_step *s = &c->step;
    const int64_t dim = a->head_dim, head_size = dim * 16, kv = a->kv_heads;
    double score[1024], slack[1024];
    for (int64_t seq = 0; seq < s->n_seqs; seq++)
        for (int64_t n = s->seq_start[seq]; n < s->seq_start[seq + 1]; n++)
            for (int64_t h = 0; h < a->heads; h++) {
                const int64_t k = h / (a->heads / kv), seen = s->positions[n] + 1,
                              at = (n * a->heads + h) * dim;
                double max = -INFINITY, error = 0.0, total = 0.0;
                for (int64_t j = 0; j < seen; j++) {
                    const int64_t block = s->block_table[seq * s->max_blocks + j / 16];
                    double sum = 0.0, size = 0.0;
                    for (int64_t d = 0; d < dim; d++) {
                        const double p =
                            in(c, 0)[at + d] *
                            element(c->cmd.in[1], a->cache_dtype,
                                    (block * 2 * kv + k) * head_size + d * 16 + j % 16);
                        sum += p;
                        size += fabs(p);
                    }
                    score[j] = sum * a->scale;
                    slack[j] = (double)(dim + 1) * u * size * a->scale;
                    max = fmax(max, score[j]);
                }
                for (int64_t j = 0; j < seen; j++) {
                    /* relative error of a weight: score and maximum, the subtraction, exp (1 ulp =
                     * 2u), two rescalings */
                    error = fmax(error, 2 * slack[j] + u * (max - score[j]) + 2 * u + 6 * u);
                    score[j] = exp(score[j] - max);
                    total += score[j];
                }
                for (int64_t d = 0; d < dim; d++) {
                    double sum = 0.0, size = 0.0;
                    for (int64_t j = 0; j < seen; j++) {
                        const int64_t block = s->block_table[seq * s->max_blocks + j / 16];
                        const double p = score[j] * element(c->cmd.in[1], a->cache_dtype,
                                                            ((block * 2 + 1) * kv + k) * head_size +
                                                                j % 16 * dim + d);
                        sum += p;
                        size += fabs(p);
                    }
                    /* weights twice (sums above and below), the chain of values, the sum of
                     * weights, the division */
                    compare(c, 0, at + d, sum / total,
                            (2 * error + (256 + 20 + 10) * u) * size / total);
                }
            }
}

static void check_rms_norm(const test_case *c) {
    const int64_t dim = c->cmd.args.rms_norm.dim;
    for (int64_t row = 0; row < c->step.n_tokens; row++) {
        double sum = 0.0;
        for (int64_t i = 0; i < dim; i++) sum += pow(in(c, 0)[row * dim + i], 2);
        for (int64_t i = 0; i < dim; i++) {
            const double y = in(c, 1)[i] * in(c, 0)[row * dim + i] /
                             sqrt(sum / (double)dim + c->cmd.args.rms_norm.eps);
            /* half of: chain, tree, mean, + eps; then sqrt, 1/, two products */
            compare(c, 0, row * dim + i, y,
                    ((double)((dim + 15) / 16 + 4 + 2) / 2 + 4) * u * fabs(y));
        }
    }
}

static void check_rotary(const test_case *c) {
    const int64_t half = c->cmd.args.rotary_embedding.half;
    const float scale = c->cmd.args.rotary_embedding.scale;
    const int32_t *positions = c->cmd.in[0];
    for (int64_t i = 0; i < c->step.n_tokens * half; i++) {
        const double angle = (float)positions[i / half] * in(c, 1)[i % half];
        /* 0.501 ulp, an ulp at most 2u of the value; the product with scale, exact for 1 */
        const double relative = 2 * 0.501 * u + (scale == 1.0f ? 0.0 : u);
        compare(c, 0, i, cos(angle) * scale, relative * fabs(cos(angle) * scale));
        compare(c, 1, i, sin(angle) * scale, relative * fabs(sin(angle) * scale));
    }
}

static void check_rope(const test_case *c) {
    const int64_t dim = c->cmd.args.rope.head_dim, half = dim / 2;
    for (int side = 0; side < 2; side++) {
        const int64_t heads = side ? c->cmd.args.rope.kv_heads : c->cmd.args.rope.heads;
        for (int64_t i = 0; i < c->step.n_tokens * heads; i++)
            for (int64_t d = 0; d < half; d++) {
                const int64_t row = i / heads;
                const double lo = in(c, side)[i * dim + d], hi = in(c, side)[i * dim + half + d];
                const double cosine = in(c, 2)[row * half + d], sine = in(c, 3)[row * half + d];
                compare(c, side, i * dim + d, lo * cosine - hi * sine,
                        2 * u * (fabs(lo * cosine) + fabs(hi * sine)));
                compare(c, side, i * dim + half + d, hi * cosine + lo * sine,
                        2 * u * (fabs(hi * cosine) + fabs(lo * sine)));
            }
    }
}

static void check_kv_write(const test_case *c) {
    const int64_t dim = c->cmd.args.kv_write.head_dim, heads = c->cmd.args.kv_write.kv_heads;
    const int dtype = c->cmd.args.kv_write.cache_dtype;
    const int32_t *slots = c->cmd.in[2];
    for (int64_t i = 0; i < c->step.n_tokens * heads * dim; i++) {
        const int64_t row = i / (heads * dim), h = i / dim % heads, d = i % dim;
        const int64_t block = slots[row] / 16, offset = slots[row] % 16;
        for (int side = 0; side < 2; side++) {
            const int64_t at = ((block * 2 + side) * heads + h) * dim * 16 +
                               (side ? offset * dim + d : d * 16 + offset);
            const double want = in(c, side)[i], got = element(c->cmd.out[0], dtype, at);
            /* float16: half an ulp, relative 2^-11 or absolute 2^-25; infinity from 65520 on */
            const double bound = dtype == KST_F32 ? 0.0 : fmax(fabs(want) * 0x1p-11, 0x1p-25);
            const int fits = dtype == KST_F32 || fabs(want) < 65520.0;
            if (fits ? !(fabs(got - want) <= bound) : got != copysign(INFINITY, want))
                worst = INFINITY;
        }
    }
}

static void check_rows(const test_case *c) {
    const int64_t dim = c->cmd.args.swiglu.dim, rows = kst_row_count(&c->cmd, &c->step);
    for (int64_t i = 0; i < rows * dim; i++) {
        const double a = in(c, 0)[i];
        switch (c->cmd.op) {
        case KST_OP_swiglu: { /* exp 2u, addition, division, product; silu(-88.8) is lost: exp is
                                 inf, and inf/inf NaN */
            const double y = isinf(a) ? NAN : a / (1.0 + exp(-a)) * in(c, 1)[i];
            compare(c, 0, i, y, 5 * u * fabs(y) + (a < -87.0 ? 1e-35 * fabs(in(c, 1)[i]) : 0.0));
            break;
        }
        case KST_OP_add: compare(c, 0, i, (float)(a + in(c, 1)[i]), 0.0); break;
        case KST_OP_copy: compare(c, 0, i, a, 0.0); break;
        }
    }
}

static void check_embed(const test_case *c) {
    const int64_t width = c->cmd.args.embed.dim;
    const int32_t *ids = c->cmd.in[0];
    for (int64_t i = 0; i < kst_row_count(&c->cmd, &c->step) * width; i++)
        compare(c, 0, i, element(c->cmd.in[1], c->dtype, ids[i / width] * width + i % width), 0.0);
}

static void check_gather_rows(const test_case *c) {
    const int64_t dim = c->cmd.args.gather_rows.dim;
    const int32_t *picked = c->cmd.in[1];
    for (int64_t i = 0; i < kst_row_count(&c->cmd, &c->step) * dim; i++)
        compare(c, 0, i, in(c, 0)[picked[i / dim] * dim + i % dim], 0.0);
}

static void check_argmax(const test_case *c) {
    const int64_t vocab = c->cmd.args.argmax.vocab;
    for (int64_t row = 0; row < c->step.n_tokens; row++) {
        int32_t want = 0;
        for (int64_t i = 0; i < vocab; i++) {
            const float *x = in(c, 0) + row * vocab;
            if (!isfinite(x[i])) want = -1;
            if (want >= 0 && x[i] > x[want]) want = (int32_t)i;
        }
        if (((const int32_t *)c->cmd.out[0])[row] != want) worst = INFINITY;
    }
}

int main(void) {
    int count, failures = 0;
    test_case *cases = make_cases(&count);
    for (int i = 0; i < count; i++) {
        test_case *c = &cases[i];
        worst = 0.0;
        run_case(c, kst_kernel_for(0, c->cmd.op, c->dtype, NULL), 1);
        switch (c->cmd.op) {
        case KST_OP_linear: check_linear(c); break;
        case KST_OP_attention: check_attention(c); break;
        case KST_OP_rms_norm: check_rms_norm(c); break;
        case KST_OP_rotary_embedding: check_rotary(c); break;
        case KST_OP_rope: check_rope(c); break;
        case KST_OP_kv_write: check_kv_write(c); break;
        case KST_OP_argmax: check_argmax(c); break;
        case KST_OP_embed: check_embed(c); break;
        case KST_OP_gather_rows: check_gather_rows(c); break;
        default: check_rows(c);
        }
        printf("%s %s %s: %.3g of the bound\n", worst <= 1.0 ? "ok" : "FAILED", c->op, c->shape,
               worst);
        failures += !(worst <= 1.0);
    }
    printf("%d cases, %d failures\n", count, failures);
    return failures ? 1 : 0;
}

/* The scalar kernels against the definitions of args.h computed in double, each element within a
 * bound that follows from counting roundings (u = 2^-24). The other instruction sets have the same
 * bits (test_bits.c). */
#include "values.h"

#include <stdio.h>

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
                /* a chain of in/16 fma, four levels of the tree, two additions, a product */
                compare(c, w, at, residual + a->scale * (sum + bias),
                        ((a->in_features + 15) / 16 + 4 + 2 + (a->scale != 1.0f)) * u *
                            (a->scale * (size + fabs(bias)) + fabs(residual)));
            }
}

static void check_rms_norm(const test_case *c) {
    const kst_rms_norm_args *a = &c->cmd.args.rms_norm;
    const int64_t dim = a->dim;
    for (int64_t run = 0; run < (int64_t)c->step.n_tokens * a->groups; run++) {
        double sum = 0.0;
        for (int64_t i = 0; i < dim; i++) sum += pow(in(c, 0)[run * dim + i], 2);
        for (int64_t i = 0; i < dim; i++) {
            const double y = (a->offset + (double)in(c, 1)[i]) * in(c, 0)[run * dim + i] /
                             sqrt(sum / (double)dim + a->eps);
            /* half of: chain, tree, mean, + eps; then sqrt, 1/, offset, two products */
            compare(c, 0, run * dim + i, y,
                    ((double)((dim + 15) / 16 + 4 + 2) / 2 + 4 + (a->offset != 0.0f)) * u *
                        fabs(y));
        }
    }
}

static void check_rotary(const test_case *c) {
    const kst_rotary_embedding_args *a = &c->cmd.args.rotary_embedding;
    const int64_t half = a->half;
    const float scale = a->scale;
    const int32_t *positions = c->cmd.in[0], *lengths = c->cmd.in[1];
    for (int64_t i = 0; i < c->step.n_tokens * half; i++) {
        int64_t row = lengths[i / half] - a->first_length;
        row = row < 0 ? 0 : row > a->rows - 1 ? a->rows - 1 : row;
        const double angle = (float)positions[i / half] * in(c, 2)[row * half + i % half];
        /* 0.501 ulp, an ulp at most 2u of the value; the product with scale, exact for 1 */
        const double relative = 2 * 0.501 * u + (scale == 1.0f ? 0.0 : u);
        compare(c, 0, i, cos(angle) * scale, relative * fabs(cos(angle) * scale));
        compare(c, 1, i, sin(angle) * scale, relative * fabs(sin(angle) * scale));
    }
}

static void check_rope(const test_case *c) {
    const int64_t dim = c->cmd.args.rope.head_dim, half = c->cmd.args.rope.rotary_dim / 2;
    for (int side = 0; side < 2; side++) {
        const int64_t heads = side ? c->cmd.args.rope.kv_heads : c->cmd.args.rope.heads;
        for (int64_t i = 0; i < c->step.n_tokens * heads; i++) {
            for (int64_t d = 2 * half; d < dim; d++)
                compare(c, side, i * dim + d, in(c, side)[i * dim + d], 0.0);
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

/* act(g) * v */
static void check_gate(const test_case *c, int64_t at, double g, double v) {
    if (c->cmd.args.swiglu.activation == KST_SILU) {
        /* exp 2u, addition, division, product; silu(-88.8) is lost: exp is inf, and inf/inf NaN */
        const double y = isinf(g) ? NAN : g / (1.0 + exp(-g)) * v;
        compare(c, 0, at, y, 5 * u * fabs(y) + (g < -87.0 ? 1e-35 * fabs(v) : 0.0));
        return;
    }
    /* z: six roundings and those of two constants, of terms of one sign. tanh: that error times its
     * slope, which it hardly changes, and an ulp, at most 2u. Then 1 + tanh and two products. */
    const double z = sqrt(2.0 / acos(-1.0)) * (g + 0.044715 * g * g * g);
    const double share = (1.0 + tanh(z)) / 2, slope = 1.0 - pow(tanh(z), 2);
    const double error = 8.01 * u * fabs(z) * slope / 2 + u + 3.01 * u * share;
    compare(c, 0, at, isinf(g) ? NAN : g * share * v, error * fabs(g * v));
}

static void check_rows(const test_case *c) {
    const int64_t dim = c->cmd.args.copy.dim, rows = kst_row_count(&c->cmd, &c->step);
    for (int64_t i = 0; i < rows * dim; i++) {
        const double a = in(c, 0)[i];
        switch (c->cmd.op) {
        case KST_OP_swiglu: check_gate(c, i, a, in(c, 1)[i]); break;
        case KST_OP_add: {
            const float product = c->cmd.args.add.scale * in(c, 1)[i];
            compare(c, 0, i, (float)(a + product), 0.0);
            break;
        }
        case KST_OP_soft_cap: { /* product, quotient, tanh within an ulp, product */
            const double cap = c->cmd.args.soft_cap.cap, x = c->cmd.args.soft_cap.scale * a,
                         y = cap > 0.0 ? cap * tanh(x / cap) : x;
            compare(c, 0, i, y, (cap > 0.0 ? 5.01 : 1) * u * fabs(y));
            break;
        }
        case KST_OP_copy: compare(c, 0, i, a, 0.0); break;
        }
    }
}

static void check_embed(const test_case *c) {
    const int64_t width = c->cmd.args.embed.dim;
    const int32_t *ids = c->cmd.in[0];
    for (int64_t i = 0; i < kst_row_count(&c->cmd, &c->step) * width; i++)
        compare(c, 0, i,
                (float)element(c->cmd.in[1], c->dtype, ids[i / width] * width + i % width) *
                    c->cmd.args.embed.scale,
                0.0);
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

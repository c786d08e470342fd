/* How test_values.c compares, and its longest definition: attention. */
#ifndef KESTREL_TEST_VALUES_H
#define KESTREL_TEST_VALUES_H

#include "cases.h"

#include <math.h>

static const double u = 0x1p-24;
static double worst; /* of a case: error / bound */

static const float *in(const test_case *c, int i) { return c->cmd.in[i]; }

static void compare(const test_case *c, int out, int64_t at, double want, double bound) {
    const double got = ((const float *)c->cmd.out[out])[at];
    if (isnan(want) ? isnan(got) : got == want) return;
    const double ratio = fabs(got - want) / bound;
    worst = ratio <= worst ? worst : ratio; /* NaN becomes worst */
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
                              from = a->window && seen > a->window ? seen - a->window : 0,
                              at = (n * a->heads + h) * dim;
                double max = -INFINITY, error = 0.0, total = 0.0;
                for (int64_t j = from; j < seen; j++) {
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
                    if (a->soft_cap > 0.0f) { /* slope at most 1; quotient, tanh (1 ulp), product */
                        score[j] = a->soft_cap * tanh(score[j] / a->soft_cap);
                        slack[j] += 4 * u * fabs(score[j]);
                    }
                    max = fmax(max, score[j]);
                }
                for (int64_t j = from; j < seen; j++) {
                    /* relative error of a weight: score and maximum, the subtraction, exp (1 ulp =
                     * 2u), two rescalings */
                    error = fmax(error, 2 * slack[j] + u * (max - score[j]) + 2 * u + 6 * u);
                    score[j] = exp(score[j] - max);
                    total += score[j];
                }
                for (int64_t d = 0; d < dim; d++) {
                    double sum = 0.0, size = 0.0;
                    for (int64_t j = from; j < seen; j++) {
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

#endif

/* Powers of two of a row of logits in float64, and their sum, the denominator of softmax. Plain C:
 * additions and multiplications that each round once, in one order, are the same bits whatever
 * vectors the compiler makes of them. kestrel/sampling/portable.py is the same in NumPy. */
#include "kernel.h"

#define PART 512

void KST_FN(weigh)(const float *x, int64_t n, double highest, double scale, double *w);
double KST_FN(mass)(const float *x, int64_t n, double highest, double scale);

#define MAGIC 6755399441055744.0 /* 1.5 * 2^52: adding it rounds to the nearest integer */

/* z = k + r with |r| <= 1/2: t = MAGIC + k holds k in its low bits. */
static inline void split(double z, double *t, double *r) {
    *t = z + MAGIC;
    *r = z - (*t - MAGIC);
}

/* w = 2^k 2^r, 0 for k < -1021: there the result may be subnormal, and -inf ends up there. 2^r is a
 * polynomial of degree 11 with value 1 at 0 that interpolates at Chebyshev's nodes (error of the
 * fit 2^-55), then k goes into the exponent field. Several short loops, because a long chain of
 * dependent operations fills the processor's queue with what cannot start yet. */
static void powers(const double *restrict t, const double *restrict r, double *restrict w,
                   int64_t n) {
    double p[PART];
#define TWO_STEPS(value, a, b) \
    for (int64_t i = 0; i < n; i++) p[i] = (value * r[i] + a) * r[i] + b
    TWO_STEPS(0x1.e9d3fe3952179p-32, 0x1.e6063f7217bc6p-28, 0x1.b524fae627834p-24);
    TWO_STEPS(p[i], 0x1.62bfd47773353p-20, 0x1.ffcbfc670dcd4p-17);
    TWO_STEPS(p[i], 0x1.430913096fd9fp-13, 0x1.5d87fe78a5276p-10);
    TWO_STEPS(p[i], 0x1.3b2ab6fba1ddap-7, 0x1.c6b08d704a0c2p-5);
    TWO_STEPS(p[i], 0x1.ebfbdff82c598p-3, 0x1.62e42fefa39efp-1);
    for (int64_t i = 0; i < n; i++) {
        double y = p[i] * r[i] + 1.0;
        uint64_t bits, k;
        memcpy(&bits, &y, 8);
        memcpy(&k, &t[i], 8);
        bits += k << 52;
        memcpy(&y, &bits, 8);
        w[i] = t[i] < MAGIC - 1021.0 ? 0.0 : y;
    }
}

/* Halves added onto each other down to one number; destroys x. */
static double tree_sum(double *x, int64_t n) {
    while (n > 1) {
        const int64_t half = n / 2;
        for (int64_t i = 0; i < half; i++) x[i] += x[i + half];
        if (n % 2) x[0] += x[n - 1];
        n = half;
    }
    return x[0];
}

static void weigh(const float *x, int64_t n, double highest, double scale, double *w) {
    double t[PART], r[PART];
    for (int64_t i = 0; i < n; i++) split(((double)x[i] - highest) * scale, &t[i], &r[i]);
    powers(t, r, w, n);
}

/* w = 2^((x - highest) scale). */
void KST_FN(weigh)(const float *x, int64_t n, double highest, double scale, double *w) {
    for (int64_t i = 0; i < n; i += PART) weigh(x + i, kst_min(PART, n - i), highest, scale, w + i);
}

/* The sum of these: trees over PART of them, added up in order. */
double KST_FN(mass)(const float *x, int64_t n, double highest, double scale) {
    double w[PART], sum = 0.0;
    for (int64_t i = 0; i < n; i += PART) {
        const int64_t count = kst_min(PART, n - i);
        weigh(x + i, count, highest, scale, w);
        sum += tree_sum(w, count);
    }
    return sum;
}

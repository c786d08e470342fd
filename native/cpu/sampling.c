/* One row of logits, for the samplers. */
#include "table.h"

#include <math.h>

/* The order of candidates: larger logit first, of equal ones the lower id. */
static int before(float a, int32_t a_id, float b, int32_t b_id) {
    return a > b || (a == b && a_id < b_id);
}

/* Heap with the last candidate on top: sinks the element at `at`. */
static void sink(float *values, int32_t *ids, int32_t n, int32_t at) {
    const float value = values[at];
    const int32_t id = ids[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(values[child], ids[child], values[child + 1], ids[child + 1]))
            child++;
        if (before(values[child], ids[child], value, id)) break;
        values[at] = values[child];
        ids[at] = ids[child];
    }
    values[at] = value;
    ids[at] = id;
}

/* The k-th largest of n numbers without NaN (Hoare's selection; moves them about). */
static float select_largest(float *x, int64_t n, int64_t k) {
    for (int64_t low = 0, high = n - 1; low < high;) {
        const float pivot = x[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot) i++;
            while (pivot > x[j]) j--;
            if (i > j) break;
            const float swapped = x[i];
            x[i++] = x[j];
            x[j--] = swapped;
        }
        if (k - 1 <= j)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            break;
    }
    return x[k - 1];
}

#define MAX_BLOCKS 4096
#define STRIDE 64 /* logits looked over at once in search of a large one */

/* A number that at least k logits reach (or -inf): the k-th of the largest ones of 4 k blocks. Few
 * more than k reach it, so that the heap below has little to do. */
static float threshold(const kst_table *table, const float *logits, int64_t n, int64_t k) {
    float largest[MAX_BLOCKS];
    const int64_t size = n / (4 * k) + 1, blocks = (n + size - 1) / size;
    if (size < 4 || blocks > MAX_BLOCKS) return -INFINITY;
    for (int64_t b = 0; b < blocks; b++)
        largest[b] = table->largest(logits + b * size, b + 1 < blocks ? size : n - b * size);
    return blocks < k ? -INFINITY : select_largest(largest, blocks, k);
}

int32_t kst_top_candidates(const float *logits, int64_t n, int32_t k, int32_t *ids, float *values) {
    int32_t count = 0;
    int64_t i = 0;
    if (k <= 0) return 0;
    const kst_table *table = kst_table_of(kst_isa_best());
    const float least = threshold(table, logits, n, k);
    for (; i < n && count < k; i++) {
        if (i % STRIDE == 0 && i + STRIDE <= n && table->largest(logits + i, STRIDE) < least) {
            i += STRIDE - 1;
            continue;
        }
        if (!(logits[i] >= least)) continue; /* NaN is not */
        values[count] = logits[i];
        ids[count++] = (int32_t)i;
    }
    if (count == 0) return 0;
    for (int32_t at = count / 2 - 1; at >= 0; at--) sink(values, ids, count, at);
    for (; i < n; i++) {
        if (i % STRIDE == 0 && i + STRIDE <= n && table->largest(logits + i, STRIDE) <= values[0]) {
            i += STRIDE - 1;
            continue;
        }
        if (!(logits[i] > values[0])) continue; /* an equal one has the higher id */
        values[0] = logits[i];
        ids[0] = (int32_t)i;
        sink(values, ids, count, 0);
    }
    for (int32_t last = count - 1; last > 0; last--) { /* the heap gives the last candidate first */
        const float value = values[0];
        const int32_t id = ids[0];
        values[0] = values[last];
        ids[0] = ids[last];
        values[last] = value;
        ids[last] = id;
        sink(values, ids, last, 0);
    }
    return count;
}

/* ln x for normal x >= 1, by + - * / alone: x = m 2^e with m in [sqrt(1/2), sqrt(2)), and
 * ln m = 2 atanh(t) = 2 (t + t^3/3 + ...), t = (m - 1) / (m + 1), |t| < 0.172: 11 terms are below
 * 2^-56. */
static double log_of(double x) {
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2.0;
        e--;
    }
    const double t = (m - 1.0) / (m + 1.0), square = t * t;
    double series = 0.0;
    for (int i = 21; i >= 1; i -= 2) series = series * square + 1.0 / i;
    return e * 0.6931471805599453 + 2.0 * t * series;
}

double kst_log_sum_exp(const float *logits, int64_t n) {
    float max = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (logits[i] != logits[i]) return NAN;
        if (logits[i] > max) max = logits[i];
    }
    if (isinf(max)) return max;
    return (double)max + log_of(kst_table_of(kst_isa_best())->exp_sum(logits, n, max));
}

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

int32_t kst_top_candidates(const float *logits, int64_t n, int32_t k, int32_t *ids, float *values) {
    int32_t count = 0;
    int64_t i = 0;
    for (; i < n && count < k; i++) {
        if (logits[i] != logits[i]) continue;
        values[count] = logits[i];
        ids[count++] = (int32_t)i;
    }
    if (count == 0) return 0;
    for (int32_t at = count / 2 - 1; at >= 0; at--) sink(values, ids, count, at);
    for (; i < n; i++) {
        if (!(logits[i] > values[0]))
            continue; /* an equal one has the higher id; NaN is not larger */
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

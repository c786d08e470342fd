/* One row of logits, for the samplers. */
#include "table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The bits of a float, not NaN, as an integer of the same order; -0 is just below +0. */
static int32_t key_of(float x) {
    int32_t key;
    memcpy(&key, &x, 4);
    return key < 0 ? key ^ INT32_MAX : key;
}

static float of_key(int32_t key) {
    float x;
    if (key < 0) key ^= INT32_MAX;
    memcpy(&x, &key, 4);
    return x;
}

static int64_t count_from(const float *x, int64_t n, float least) {
    int32_t count = 0;
    for (int64_t i = 0; i < n; i++) count += x[i] >= least;
    return count;
}

/* A number that at least k of x reach, and at most `most` of them unless it is the k-th largest
 * itself; -inf if fewer than k are numbers. An interval of keys is halved: 32 rounds at most,
 * whatever x holds. */
static float border(const float *x, int64_t n, int64_t k, int64_t most) {
    int64_t low = key_of(-INFINITY), high = (int64_t)key_of(INFINITY) + 1; /* all reach, none */
    for (int64_t reached = n; reached > most && high - low > 1;) {
        const int64_t middle = low + (high - low) / 2;
        const int64_t count = count_from(x, n, of_key((int32_t)middle));
        if (count >= k) {
            low = middle;
            reached = count;
        } else {
            high = middle;
        }
    }
    return of_key((int32_t)low);
}

/* Candidates by ascending id. A logit below `least`, or equal to it once `full`, is none. */
typedef struct {
    int32_t *ids;
    int64_t count;
    float least;
    int full;
} list;

/* Without a branch that depends on a logit: half of them would be foretold wrong. */
static void append(list *l, const float *logits, int64_t begin, int64_t end) {
    int64_t count = l->count;
    for (int64_t i = begin; i < end; i++) {
        l->ids[count] = (int32_t)i;
        count += l->full ? logits[i] > l->least : logits[i] >= l->least; /* NaN is neither */
    }
    l->count = count;
}

/* Leaves the k first in the order of candidates, and a quarter more at most. */
static void shrink(list *l, const float *logits, int64_t k, float *values) {
    int64_t kept = 0, equals = k;
    for (int64_t i = 0; i < l->count; i++) values[i] = logits[l->ids[i]];
    l->least = border(values, l->count, k, k + k / 4);
    l->full = 1;
    for (int64_t i = 0; i < l->count; i++) equals -= values[i] > l->least;
    for (int64_t i = 0; i < l->count; i++) /* of equal ones the lowest ids */
        if (values[i] > l->least || (values[i] == l->least && equals-- > 0))
            l->ids[kept++] = l->ids[i];
    l->count = kept;
}

typedef struct {
    uint32_t key;
    int32_t id;
} item;

/* Stable, by ascending key, a byte at a time; `other` has room for as many. Returns where the
 * result is. */
static item *sort(item *items, item *other, int64_t n) {
    uint32_t least = UINT32_MAX, most = 0;
    for (int64_t i = 0; i < n; i++) {
        if (items[i].key < least) least = items[i].key;
        if (items[i].key > most) most = items[i].key;
    }
    for (int shift = 0; n > 0 && shift < 32 && (most - least) >> shift; shift += 8) {
        uint32_t places[257] = {0};
        for (int64_t i = 0; i < n; i++) places[((items[i].key - least) >> shift & 255) + 1]++;
        for (int digit = 1; digit < 256; digit++) places[digit] += places[digit - 1];
        for (int64_t i = 0; i < n; i++)
            other[places[(items[i].key - least) >> shift & 255]++] = items[i];
        item *swapped = items;
        items = other;
        other = swapped;
    }
    return items;
}

int32_t kst_top_candidates(const float *logits, int64_t n, int32_t k, int32_t *ids, float *values) {
    if (k > n) k = (int32_t)n;
    if (k <= 0) return 0;
    /* Of blocks of whole vectors, best four times as many as candidates, few hold any. */
    const int64_t share = n / (4 * (int64_t)k), size = share >= 64 ? 64 : share >= 32 ? 32 : 16;
    const int64_t blocks = (n + size - 1) / size, enough = 2 * (int64_t)k + 256;
    const int64_t room = (enough < n ? enough : n) + size;
    item *items = malloc((size_t)room * (2 * sizeof(item) + 8) + (size_t)blocks * 8);
    if (!items) return -1;
    float *numbers = (float *)(items + 2 * room), *maxima = numbers + room;
    int32_t *hits = (int32_t *)(maxima + blocks), hit_count = 0;
    list l = {hits + blocks, 0, -INFINITY, 0};

    const int ranked = blocks > k;
    if (ranked) {
        kst_table_of(kst_isa_best())->block_maxima(logits, n, size, maxima);
        l.least = border(maxima, blocks, k, k + k / 4);
        for (int32_t b = 0; b < blocks; b++) {
            hits[hit_count] = b;
            hit_count += maxima[b] >= l.least;
        }
    } else {
        l.least = border(logits, n, k, k + k / 4);
        for (; hit_count < blocks; hit_count++) hits[hit_count] = hit_count;
    }
    for (int32_t h = 0; h < hit_count; h++) {
        if (ranked && l.full && !(maxima[hits[h]] > l.least)) continue;
        const int64_t begin = hits[h] * size;
        append(&l, logits, begin, begin + size < n ? begin + size : n);
        if (l.count + size > room) shrink(&l, logits, k, numbers);
    }
    for (int64_t i = 0; i < l.count; i++) { /* + 0: the two zeros are equal */
        items[i].key = (uint32_t)key_of(logits[l.ids[i]] + 0.0f) ^ INT32_MAX; /* largest first */
        items[i].id = l.ids[i];
    }
    const item *sorted = sort(items, items + room, l.count);
    if (k > l.count) k = (int32_t)l.count;
    for (int32_t i = 0; i < k; i++) {
        ids[i] = sorted[i].id;
        values[i] = logits[ids[i]];
    }
    free(items);
    return k;
}

double kst_mass(const float *logits, int64_t n, double highest, double scale) {
    return kst_table_of(kst_isa_best())->mass(logits, n, highest, scale);
}

void kst_weigh(const float *logits, int64_t n, double scale, double *weights, double *sums) {
    if (n <= 0) return;
    kst_table_of(kst_isa_best())->weigh(logits, n, (double)logits[0], scale, weights);
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sums[i] = sum += weights[i];
}

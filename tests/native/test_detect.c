/* Choice of instruction sets and kernels, machine facts and limits, sampling over one row. */
#include "expect.h"
#include "table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_isas(void) {
    EXPECT(!strcmp(kst_isa_name(0), "scalar") && kst_isa_compiled(0) && kst_isa_supported(0));
    EXPECT(!strcmp(kst_isa_name(-1), "") && !strcmp(kst_isa_name(kst_isa_count()), ""));
    for (int isa = 0; isa < kst_isa_count(); isa++) {
        printf("isa %s compiled=%d supported=%d missing=%s\n", kst_isa_name(isa),
               kst_isa_compiled(isa), kst_isa_supported(isa), kst_isa_missing(isa));
        EXPECT(kst_isa_supported(isa) == !kst_isa_missing(isa)[0]);
        EXPECT(!kst_isa_supported(isa) || kst_isa_compiled(isa));
        EXPECT(!kst_isa_supported(isa) || isa <= kst_isa_best());
    }
    EXPECT(kst_isa_supported(kst_isa_best()));
    EXPECT(!kst_isa_supported(kst_isa_count()) && kst_isa_missing(kst_isa_count())[0]);
#if defined(__x86_64__)
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const int vbmi = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi");
    EXPECT(!kst_isa_compiled(KST_ISA_AVX2) || kst_isa_supported(KST_ISA_AVX2) == !!avx2);
    EXPECT(!kst_isa_compiled(KST_ISA_AVX512VBMI) ||
           kst_isa_supported(KST_ISA_AVX512VBMI) == !!vbmi);
    EXPECT(!kst_isa_supported(KST_ISA_NEON) && strstr(kst_isa_missing(KST_ISA_NEON), "x86-64"));
#elif defined(__aarch64__)
    EXPECT(!kst_isa_compiled(KST_ISA_NEON) || kst_isa_best() == KST_ISA_NEON);
#endif
}

static void check_kernels(void) {
    for (int op = 0; op < KST_OP_COUNT; op++) {
        const int cache = op == KST_OP_kv_write || op == KST_OP_attention;
        for (int isa = 0; isa < kst_isa_count(); isa++) {
            const char *variant = "none";
            EXPECT(kst_kernel_for(isa, op, KST_F32, &variant) != NULL);
            if (kst_isa_supported(isa)) EXPECT(!strcmp(variant, kst_isa_name(isa)));
        }
        EXPECT(kst_kernel_for(0, op, KST_F16, NULL) != NULL);
        EXPECT((kst_kernel_for(0, op, KST_BF16, NULL) == NULL) == cache);
        const int with_dtype = cache || op == KST_OP_linear || op == KST_OP_embed;
        EXPECT((kst_kernel_for(0, op, KST_I32, NULL) == NULL) == with_dtype);
    }
    EXPECT(!kst_kernel_for(0, KST_OP_COUNT, 0, NULL) && !kst_kernel_for(0, -1, 0, NULL));
}

static void check_candidates(void) {
    const float logits[] = {1.0f, 3.0f, NAN, 3.0f, -INFINITY, 2.0f, 0.0f, -0.0f};
    const int32_t order[] = {1, 3, 5, 0,
                             6, 7, 4}; /* descending, ties by lower id; 0 and -0 are equal */
    int32_t ids[8];
    float values[8];
    for (int k = 0; k <= 8; k++) {
        const int32_t n = kst_top_candidates(logits, 8, k, ids, values);
        EXPECT(n == (k < 7 ? k : 7));
        for (int i = 0; i < n; i++) EXPECT(ids[i] == order[i] && values[i] == logits[order[i]]);
    }
}

/* Against picking the best of what is left k times, over sizes on both sides of every block. */
static void check_many_candidates(void) {
    static float x[20000];
    static char taken[20000];
    static int32_t ids[700];
    static float values[700];
    static const int sizes[] = {1, 63, 64, 65, 1000, 4097, 20000}, counts[] = {1, 5, 40, 256, 700};
    uint32_t state = 1;
    for (int round = 0; round < 7; round++)
        for (int s = 0; s < 7; s++) {
            for (int i = 0; i < sizes[s]; i++) {
                state = state * 1664525 + 1013904223;
                /* 0: all differ; 1: many ties; 2: mostly NaN; 3: all equal; 4: ascending;
                 * 5: descending; 6: zeros of both signs and -inf */
                x[i] = (float)(round == 1 ? state >> 27 : state >> 8);
                if (round == 2 && i % 50) x[i] = NAN;
                if (round >= 3) x[i] = (const float[]){1.0f, 0.5f * i, -3.0f * i}[round % 3];
                if (round == 6) x[i] = state >> 30 ? i % 2 ? 0.0f : -0.0f : -INFINITY;
            }
            for (int c = 0; c < 5; c++) {
                const int32_t n = kst_top_candidates(x, sizes[s], counts[c], ids, values);
                memset(taken, 0, sizeof taken);
                for (int32_t k = 0; k <= n && k < counts[c]; k++) {
                    int best = -1;
                    for (int i = 0; i < sizes[s]; i++)
                        if (!taken[i] && !isnan(x[i]) && (best < 0 || x[i] > x[best])) best = i;
                    EXPECT(k < n ? best >= 0 && ids[k] == best && values[k] == x[best] : best < 0);
                    if (best >= 0) taken[best] = 1;
                }
            }
        }
}

/* Against exp of the C library, and the same bits from every instruction set. */
static void check_masses(void) {
    static float row[100003];
    static double weights[2][2000], sums[2000];
    double sum = 0.0;
    for (int i = 0; i < 100003; i++) {
        row[i] = i ? (float)((i * 7919) % 30011) / -1000.0f : 0.0f;
        sum += exp((double)row[i]);
    }
    const double scale = 1.4426950408889634, mass = kst_mass(row, 100003, 0.0, scale);
    /* units of 2^-53: a weight 2.5, its exponent of at most 30 two roundings, exp of the library 1,
     * a tree of 512 numbers 9, their sums 196; the plain sum here one for each number */
    EXPECT(fabs(mass - sum) < (2.5 + 60 + 1 + 9 + 196 + 100003) * 0x1p-53 * sum);
    EXPECT(kst_mass(row, 1, 0.0, scale) == 1.0 && kst_mass(row, 0, 0.0, scale) == 0.0);
    for (int i = 0; i < 2000; i++) row[i] = i < 1999 ? -0.75f * i : -INFINITY; /* 0 from 1362 on */
    kst_weigh(row, 2000, 1.0, weights[0], sums);
    sum = 0.0;
    for (int i = 0; i < 2000; i++) {
        const double exact = row[i] <= -1021.5f ? 0.0 : exp2((double)row[i]);
        EXPECT(fabs(weights[0][i] - exact) <= (2.5 + 2) * 0x1p-53 * exact); /* ours and theirs */
        EXPECT(sums[i] == (sum += weights[0][i]));
    }
    for (int isa = 0; isa < kst_isa_count(); isa++) {
        if (!kst_isa_supported(isa)) continue;
        const kst_table *table = kst_table_of(isa);
        for (int n = 1; n <= 2000; n = 3 * n + 1) {
            table->weigh(row, n, 0.0, 1.0, weights[1]);
            EXPECT(!memcmp(weights[0], weights[1], (size_t)n * sizeof **weights));
            EXPECT(table->mass(row, n, 0.0, 0.01) == kst_mass(row, n, 0.0, 0.01));
        }
    }
    EXPECT(mass == 0x1.a0975874bce8p+11); /* what kestrel/sampling/portable.py gives */
}

/* What a pass says that it did is what there was to do: every word read in every round, and as many
 * multiply-adds as registers hold, by the hand's count. */
static void check_limits(void) {
    static const uint64_t lanes[KST_ISA_COUNT] = { /* of all chains */
        [KST_ISA_AVX2] = 12 * 8,
        [KST_ISA_AVX512] = 24 * 16,
        [KST_ISA_AVX512VBMI] = 24 * 16,
        [KST_ISA_NEON] = 24 * 4,
#if defined(__aarch64__)
        [KST_ISA_SCALAR] = 24 * 4,
#else
        [KST_ISA_SCALAR] = 12 * 4,
#endif
    };
    const int64_t rounds = 1000;
    for (int isa = 0; isa < kst_isa_count(); isa++)
        for (int threads = 1; threads <= 3 && kst_isa_supported(isa); threads++) {
            kst_pool *pool = kst_pool_create(threads);
            double seconds = -1.0;
            uint64_t found = 0;
            EXPECT(kst_limit_fma(pool, isa, rounds, &seconds, &found) == KST_OK && seconds >= 0.0);
            EXPECT(found == (uint64_t)rounds * (uint64_t)threads * lanes[isa]);
            for (int64_t lines = 1; lines <= 300; lines = 2 * lines + 1) {
                const int64_t words = 8 * lines;
                uint64_t *data = malloc((size_t)words * 8), sum = 0;
                for (int64_t i = 0; i < words; i++)
                    sum += data[i] = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
                seconds = -1.0;
                EXPECT(kst_limit_read(pool, isa, data, 8 * words, 3, &seconds, &found) == KST_OK);
                EXPECT(found == 3 * sum && seconds >= 0.0);
                free(data);
            }
            kst_pool_destroy(pool);
        }
}

int main(void) {
    check_isas();
    check_kernels();
    check_candidates();
    check_many_candidates();
    check_masses();
    check_limits();
    EXPECT(kst_affinity_cpus() >= 1 && kst_performance_cpus() >= 0);
    printf("processors: %d\n%d failures\n", kst_affinity_cpus(), failures);
    return failures ? 1 : 0;
}

/* The kernels of one instruction set; dispatch.c overlays the tables. */
#ifndef KESTREL_TABLE_H
#define KESTREL_TABLE_H

#include "kestrel/cpu.h"

#define KST_DTYPES 3 /* F32, F16, BF16: of a weight or of the cache */

/* What the kernels of kernels/limits.c find in in[0] of their command. */
typedef struct {
    const char *data; /* bytes a multiple of 64 */
    int64_t bytes, rounds;
    float one;
    uint64_t *counts; /* [shares] what each did */
} kst_limit;

typedef struct {
    kst_kernel
        *kernels[KST_OP_COUNT][KST_DTYPES]; /* NULL: a lower table's; without a dtype, index 0 */
    void (*block_maxima)(const float *x, int64_t n, int64_t size, float *maxima);
    double (*mass)(const float *x, int64_t n, double highest, double scale);
    void (*weigh)(const float *x, int64_t n, double highest, double scale, double *w);
    kst_kernel *limit_read, *limit_fma;
    int (*simd_test)(const char *name, const void *a, const void *b, const void *c, void *out);
} kst_table;

extern const kst_table kst_table_scalar, kst_table_avx2, kst_table_avx512,
    kst_table_avx512vbmi, kst_table_neon;

/* The table of an instruction set, NULL if it is not compiled. (dispatch.c) */
const kst_table *kst_table_of(int isa);

enum kst_isa {
    KST_ISA_SCALAR,
    KST_ISA_AVX2,
    KST_ISA_AVX512,
    KST_ISA_AVX512VBMI,
    KST_ISA_NEON,
    KST_ISA_COUNT
};

/* What processor or operating system lack for an instruction set; "" if nothing. (detect.c) */
const char *kst_detect_missing(int isa);

#endif

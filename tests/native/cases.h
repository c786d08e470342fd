/* Commands over awkward shapes from a seeded generator, for the programs that compare kernels. */
#ifndef KESTREL_TEST_CASES_H
#define KESTREL_TEST_CASES_H

#include "kestrel/cpu.h"

typedef struct {
    const char *op; /* name in ops.def */
    char shape[80];
    int dtype; /* for kst_kernel_for */
    kst_cmd cmd;
    kst_step step;
    size_t out_bytes[KST_MAX_OUTPUTS];
    int halves; /* outputs are 16-bit numbers */
} test_case;

test_case *make_cases(int *count);

/* Clears the outputs, runs a kernel in `parts` shares and checks the guard bytes. Returns 0, or 1
 * if they changed. */
int run_case(test_case *c, kst_kernel *kernel, int parts);

/* 64-bit FNV-1a of the outputs; every NaN counts as the same. */
uint64_t hash_case(const test_case *c);

/* A weight or cache element of a dtype, widened. */
double element(const void *data, int dtype, int64_t i);

#endif

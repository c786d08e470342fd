/* What the cases are made of. */
#ifndef KESTREL_TEST_CASE_DATA_H
#define KESTREL_TEST_CASE_DATA_H

#include "cases.h"

test_case *first_case(void); /* seeds the generator and forgets all cases */
int case_count(void);
test_case *begin_case(const char *op, int op_id, int dtype, int rows);
void add_out(test_case *c, int i, int64_t bytes);
#define BEGIN(op, dtype, rows) begin_case(#op, KST_OP_##op, dtype, rows)

uint32_t next(void);
float number(float scale); /* bell-shaped, about [-scale, scale] */
float *floats(int64_t n, float scale);
int32_t *ids(int64_t n, int32_t below);
void put(void *data, int dtype, int64_t i, float f);

/* Weights, at an address `skew` bytes past an aligned one, up to the very end of their memory. */
void *weights(int64_t n, int dtype, float scale, int skew);

#endif

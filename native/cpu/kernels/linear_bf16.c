/* linear over weights stored as BF16. */
#define WEIGHT_FORMAT linear_bf16
#define WEIGHT_BYTES 2
#define WEIGHT_LOAD(p) vf_load_bf16(p)
#define WEIGHT_LOAD_N(p, n) vf_load_bf16_n(p, n)
#include "linear_tile.h"

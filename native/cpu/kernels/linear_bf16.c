/* linear over weights stored as BF16. */
#define WEIGHT_FORMAT linear_bf16
#define WEIGHT_BYTES 2
#define WEIGHT_LOAD(p) vf_load_bf16(p)
#define WEIGHT_LOAD_N(p, n) vf_load_bf16_n(p, n)
#define STREAM_LOAD(p) vf_load_bf16_split(p)
#define STREAM_STORE(p, v) vf_store_split(p, v)
#define STREAM_JOIN(v) vf_join(v)
#include "linear_tile.h"

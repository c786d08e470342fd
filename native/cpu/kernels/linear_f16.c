/* linear over weights stored as F16. */
#define WEIGHT_FORMAT linear_f16
#define WEIGHT_BYTES 2
#define WEIGHT_LOAD(p) vf_load_f16(p)
#define WEIGHT_LOAD_N(p, n) vf_load_f16_n(p, n)
#define STREAM_LOAD(p) WEIGHT_LOAD(p)
#define STREAM_STORE(p, v) vf_store(p, v)
#define STREAM_JOIN(v) (v)
#include "linear_tile.h"

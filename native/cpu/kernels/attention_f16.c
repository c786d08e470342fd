/* attention over a cache of F16. */
#define CACHE_FORMAT attention_f16
#define CACHE_BYTES 2
#define CACHE_LOAD(p) vf_load_f16(p)
#define CACHE_LOAD_N(p, n) vf_load_f16_n(p, n)
#include "attention_tile.h"

/* attention over a cache of F32. */
#define CACHE_FORMAT attention_f32
#define CACHE_BYTES 4
#define CACHE_LOAD(p) vf_load(p)
#define CACHE_LOAD_N(p, n) vf_load_n(p, n)
#include "attention_tile.h"

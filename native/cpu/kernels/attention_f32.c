/* attention over a cache of F32. */
#define CACHE_FORMAT attention_f32
#define CACHE_BYTES 4
#define CACHE_LOAD(p) vt_load((const float *)(p))
#include "attention_task.h"

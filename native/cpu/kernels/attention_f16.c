/* attention over a cache of F16. */
#define CACHE_FORMAT attention_f16
#define CACHE_BYTES 2
#define CACHE_LOAD(p) vt_load_f16(p)
#include "attention_task.h"

/* Memory by the page. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include "kestrel/cpu.h"

#include <sys/mman.h>

#define LARGE_PAGE ((size_t)2 << 20)

void *kst_memory_map(size_t bytes) {
    /* NORESERVE: a cache reserves room for the longest context, and commits what is used. */
    void *memory = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    if (bytes >= LARGE_PAGE) madvise(memory, bytes, MADV_HUGEPAGE); /* a wish */
#endif
    return memory;
}

void kst_memory_unmap(void *memory, size_t bytes) {
    if (memory) munmap(memory, bytes ? bytes : 1);
}

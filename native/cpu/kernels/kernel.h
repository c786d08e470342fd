/* What every kernel file starts from. A kernel is compiled once per instruction set; KST_FN gives
 * it that set's name. */
#ifndef KESTREL_KERNEL_H
#define KESTREL_KERNEL_H

#include "kestrel/abi.h"
#include "simd/vec.h"

#define KST_FN(name) KST_JOIN(KST_JOIN(KST_JOIN(kst_, name), _), KST_ISA)

/* The share's part of `total` equal things. Shares that cover every part of a count once cover every
 * thing once. */
static inline int64_t kst_begin(int64_t total, kst_share share) {
    return total * share.begin / share.count;
}
static inline int64_t kst_end(int64_t total, kst_share share) {
    return total * share.end / share.count;
}

/* A precondition that recorder and step have checked: looked at again in debug builds. */
#ifdef KST_DEBUG
#include <assert.h>
#define KST_REQUIRE(condition) assert(condition)
#else
#define KST_REQUIRE(condition) ((void)0)
#endif

static inline int64_t kst_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* The lanes of a row that are left at i, at most all. */
static inline int kst_lanes(int64_t left) { return left < VF_LANES ? (int)left : VF_LANES; }

#define LINE 64 /* bytes of a cache line, or half of one */

/* An elementwise command is shared out in runs of this many elements: whole cache lines. */
#define KST_RUN 64

#endif

/* Work that only the machine bounds: reading, and fused multiply-adds out of registers. Each gives
 * a number that counts what was done: no compiler can leave it out, and a test can check it. */
#include "kernel.h"
#include "table.h"

void KST_FN(limit_read)(const kst_cmd *cmd, const kst_step *step, kst_share share);
void KST_FN(limit_fma)(const kst_cmd *cmd, const kst_step *step, kst_share share);

/* One register. Plain C (vt is then no vector) gets what every processor of its kind has. */
#if KST_JOIN(KST_ISA_ID_, KST_ISA) == 0
#define BYTES 16
#else
#define BYTES (4 * VT_LANES)
#endif

/* Places that are read by turns: 2 are as fast, 1 is slower in the caches, 8 mostly. */
#define STREAMS 4
#define UNROLL (LINE / BYTES)

typedef uint64_t words __attribute__((vector_size(BYTES), aligned(8), may_alias));

/* Adds up the 64-bit words of the share's lines, `rounds` times over. */
void KST_FN(limit_read)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    (void)step;
    const kst_limit *limit = cmd->in[0];
    const int64_t total = limit->bytes / LINE, begin = kst_begin(total, share),
                  lines = kst_end(total, share) - begin, stride = lines / STREAMS;
    const char *data = limit->data + begin * LINE;
    words sum[STREAMS] = {{0}};
    for (int64_t round = 0; round < limit->rounds; round++) {
        for (int64_t line = 0; line < stride; line++)
#pragma GCC unroll 4
            for (int s = 0; s < STREAMS; s++)
#pragma GCC unroll 4
                for (int u = 0; u < UNROLL; u++)
                    sum[s] += *(const words *)(data + (s * stride + line) * LINE + u * BYTES);
        for (int64_t at = stride * STREAMS * LINE; at < lines * LINE; at += BYTES)
            sum[0] += *(const words *)(data + at);
        __asm__ volatile("" ::: "memory"); /* each round reads anew */
    }
    uint64_t count = 0;
    for (int s = 0; s < STREAMS; s++)
        for (int i = 0; i < BYTES / 8; i++) count += sum[s][i];
    limit->counts[share.begin] = count;
}

/* Chains that depend on nothing but themselves: enough to hide the latency of a multiply-add (4 or
 * 5 cycles, 2 to 4 of them a cycle), and few enough for the registers. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define CHAINS 24 /* of 32 */
#else
#define CHAINS 12 /* of 16 */
#endif

/* acc + 1 by a multiply-add, acc being what is added to: arm64 overwrites that one. */
#if KST_JOIN(KST_ISA_ID_, KST_ISA) != 0
typedef vt chain;
static inline chain next(chain acc, chain one) { return vt_fma(one, one, acc); }
#else
typedef float chain __attribute__((vector_size(BYTES)));
#ifdef __FP_FAST_FMAF
static inline chain next(chain acc, chain one) {
    for (int i = 0; i < BYTES / 4; i++) acc[i] = fmaf(one[i], one[i], acc[i]);
    return acc;
}
#else /* fmaf would be a function: two instructions, the first of which cannot leave the loop */
static inline chain next(chain acc, chain one) { return acc * one + one; }
#endif
#endif

/* Each loop over the chains is unrolled whole: an index that varies keeps them in memory. */
#define EACH_CHAIN _Pragma("GCC unroll 24") for (int c = 0; c < CHAINS; c++)

/* Adds 1 to every lane of every chain, `rounds` times over: exact below 2^24, and then the lanes
 * say how many multiply-adds there were. */
void KST_FN(limit_fma)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    (void)step;
    const kst_limit *limit = cmd->in[0];
    float lanes[CHAINS][BYTES / 4];
    chain acc[CHAINS], one;
    for (int i = 0; i < BYTES / 4; i++) one[i] = limit->one;
    EACH_CHAIN acc[c] = one * (float)c; /* alike, they would be one */
    for (int64_t round = 0; round < limit->rounds; round++) {
        EACH_CHAIN acc[c] = next(acc[c], one);
        __asm__ volatile(""); /* keeps the rounds apart */
    }
    EACH_CHAIN memcpy(lanes[c], &acc[c], BYTES);
    uint64_t count = 0;
    for (int c = 0; c < CHAINS; c++)
        for (int i = 0; i < BYTES / 4; i++) count += (uint64_t)lanes[c][i] - (uint64_t)c;
    limit->counts[share.begin] = count;
}

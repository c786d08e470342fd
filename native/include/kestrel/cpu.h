/* What the CPU backend offers to Cython: worker pool, interpreter, kernel choice, machine facts,
 * sampling over one row. */
#ifndef KESTREL_CPU_H
#define KESTREL_CPU_H

#include "abi.h"

/* Pool: worker threads that walk a program together.
 *
 * The caller is worker 0: it computes inside kst_run_continue. The other threads start with the
 * first run, sleep between runs, and start anew in a child after fork. Which thread does which
 * share of a command is open: one that the system holds up, or a caller who stays away, is helped
 * by the others. One run at a time; callers take turns by a lock of their own. */
typedef struct kst_pool kst_pool;

#define KST_MAX_THREADS 256

/* threads in 1..KST_MAX_THREADS. NULL: out of memory or out of range. */
kst_pool *kst_pool_create(int threads);

/* Cancels a run in progress; no thread survives. NULL is allowed. */
void kst_pool_destroy(kst_pool *pool);

int kst_pool_threads(const kst_pool *pool);

/* Begins a run and returns at once. cmds and step must stay as they are until kst_run_continue
 * returns KST_OK or KST_CANCELLED. KST_AGAIN: another run is in progress on this pool.
 * KST_NO_THREADS: a worker could not be started. */
kst_status kst_run_start(kst_pool *pool, const kst_cmd *cmds, int32_t n, const kst_step *step);

/* The same by the profiling interpreter: nanoseconds[n][threads][2] receives begin and end
 * (monotonic clock) of each share of each command. */
kst_status kst_run_start_profiled(kst_pool *pool, const kst_cmd *cmds, int32_t n,
                                  const kst_step *step, int64_t *nanoseconds);

/* Computes as worker 0. KST_OK: finished. KST_AGAIN: about `seconds` have passed; let signals in
 * and call again. KST_CANCELLED: stopped, no thread uses the arrays any more. With no run in
 * progress: KST_OK. */
kst_status kst_run_continue(kst_pool *pool, double seconds);

/* Asks the run in progress to stop at the next piece of work; from any thread. Then call
 * kst_run_continue until it returns something else than KST_AGAIN. Without a run: nothing. */
void kst_run_cancel(kst_pool *pool);

/* Instruction sets: 0 is scalar; a later one of the same architecture is the wider one. */
int kst_isa_count(void); /* all that this source knows, of every architecture */
const char *kst_isa_name(int isa); /* "scalar", "avx2", "avx512", "neon" */
int kst_isa_compiled(int isa);     /* in this build */
int kst_isa_supported(int isa);    /* compiled, and processor and operating system allow it */

/* Why not, for a message: "the processor lacks avx512bw"; "" if supported. Valid until this
 * thread's next call. */
const char *kst_isa_missing(int isa);

int kst_isa_best(void);

/* The kernel of an operation at most at isa_ceiling: scalar first, then what overlays it. dtype: of
 * the weight (embed, linear) or of the cache (kv_write, attention); ignored by the other
 * operations. One linear kernel takes any mixture of F32, F16 and BF16 weights. variant, if not
 * NULL, receives the name of the instruction set that was chosen. NULL: no such kernel. */
kst_kernel *kst_kernel_for(int isa_ceiling, int op, int dtype, const char **variant);

/* What the kernels were compiled with: compared with the extension's own when it is imported. */
int kst_abi_version(void);
size_t kst_cmd_size(void);

/* Machine facts (cgroup quotas are read in Python). */
int kst_affinity_cpus(void);    /* processors this process may run on */
int kst_performance_cpus(void); /* macOS: hw.perflevel0.logicalcpu; 0 if cores are all alike */

/* Zeroed memory, aligned to a page, in large pages where the system gives them: a first touch costs a
 * page's zeros, so many small ones cost more than a few large. Pages that are never touched cost
 * nothing. NULL: the system refuses. */
void *kst_memory_map(size_t bytes);
void kst_memory_unmap(void *memory, size_t bytes); /* NULL is allowed */

/* The k largest of a row of logits in descending order, equal ones by lower id; NaN is left out.
 * Returns how many (<= k, <= n), or -1: no memory. */
int32_t kst_top_candidates(const float *logits, int64_t n, int32_t k, int32_t *ids, float *values);

/* The sum of 2^((logit - highest) scale) over a row, in float64. highest: finite, no logit is above
 * it; scale: above 0. The same bits on every instruction set. */
double kst_mass(const float *logits, int64_t n, double highest, double scale);

/* weights: 2^((logit - logits[0]) scale), where logits[0] is the highest and finite; sums: these
 * added up one by one. The same bits on every instruction set. */
void kst_weigh(const float *logits, int64_t n, double scale, double *weights, double *sums);

/* One pass against a limit of the machine, by all threads of a pool; seconds: from the first one's
 * begin to the last one's end. isa must be supported. KST_AGAIN: another run is in progress;
 * KST_NO_THREADS as kst_run_start.
 * read: `bytes` (a multiple of 64, data aligned to 8) `rounds` times over, each thread its part;
 * sum: of all 64-bit words read, modulo 2^64.
 * fma: float32 multiply-adds out of registers, `rounds` (below 2^24) in each lane of each chain;
 * count: how many they were. Without the instruction, a multiplication and an addition. */
kst_status kst_limit_read(kst_pool *pool, int isa, const void *data, int64_t bytes, int64_t rounds,
                          double *seconds, uint64_t *sum);
kst_status kst_limit_fma(kst_pool *pool, int isa, int64_t rounds, double *seconds, uint64_t *count);

/* The vector vocabulary (native/cpu/simd/vec.h) lane by lane, for tests. Computes `name` on 16
 * lanes of a, b, c (floats or raw bits, see simd_test.c) into out[16] floats. Returns 0, or -1 if
 * the name or the instruction set is not there. */
int kst_simd_test(int isa, const char *name, const void *a, const void *b, const void *c,
                  void *out);
const char *kst_simd_name(int index); /* NULL past the last */

#endif

/* The machine's limits as a pool's threads meet them: one pass of work that only the machine
 * bounds, run and timed as the commands of a model are. */
#include "pool.h"
#include "table.h"

/* The first command brings all threads to the barrier, so that the second is timed without the
 * waking of those that slept. */
static kst_status pass(kst_pool *pool, kst_kernel *kernel, kst_limit *limit, double *seconds,
                       uint64_t *count) {
    const int threads = kst_pool_threads(pool);
    uint64_t counts[KST_MAX_THREADS] = {0};
    int64_t stamps[2][KST_MAX_THREADS][2];
    kst_limit nothing = {.data = limit->data, .counts = counts};
    limit->counts = counts;
    const kst_cmd cmds[2] = {{.kernel = kernel, .in = {&nothing}},
                             {.kernel = kernel, .in = {limit}, .barrier_before = 1}};
    const kst_step step = {.n_tokens = 1};
    int64_t *times = &stamps[0][0][0]; /* [2][threads][2] */
    kst_status status = kst_run_start_profiled(pool, cmds, 2, &step, times);
    if (status != KST_OK) return status;
    do status = kst_run_continue(pool, 1.0);
    while (status == KST_AGAIN);
    int64_t begin = INT64_MAX, end = 0;
    *count = 0;
    for (int t = 0; t < threads; t++) {
        const int64_t *own = times + 2 * (threads + t);
        begin = own[0] < begin ? own[0] : begin;
        end = own[1] > end ? own[1] : end;
        *count += counts[t];
    }
    *seconds = 1e-9 * (double)(end - begin);
    return status;
}

kst_status kst_limit_read(kst_pool *pool, int isa, const void *data, int64_t bytes, int64_t rounds,
                          double *seconds, uint64_t *sum) {
    kst_limit limit = {.data = data, .bytes = bytes, .rounds = rounds};
    return pass(pool, kst_table_of(isa)->limit_read, &limit, seconds, sum);
}

kst_status kst_limit_fma(kst_pool *pool, int isa, int64_t rounds, double *seconds,
                         uint64_t *count) {
    kst_limit limit = {.rounds = rounds, .one = 1.0f};
    return pass(pool, kst_table_of(isa)->limit_fma, &limit, seconds, count);
}

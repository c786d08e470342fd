/* The interpreter: all threads walk the commands together, each doing its share of every command, and meet where the
 * plan says so. A long command is cut into pieces of about 7 ms, so that a cancel is seen and worker 0 can leave. */
#include "pool.h"

#define PIECE_WORK 37.5e6 /* multiply-adds of a thread: 7.5 ms at 10 GFLOP/s */
#define CLOCK_WORK 5e6    /* multiply-adds between two looks at the clock: 1 ms at 10 GFLOP/s */
#define MAX_PIECES 65536

static kst_status meet(kst_worker *worker) {
    kst_pool *pool = worker->pool;
    if (!worker->arrived) {
        worker->sense = atomic_load_explicit(&pool->barrier.word, memory_order_relaxed);
        if (worker->sense & KST_CANCEL) return KST_CANCELLED;
        if (atomic_fetch_sub_explicit(&pool->pending, 1, memory_order_acq_rel) == 1) {
            atomic_store_explicit(&pool->pending, pool->threads, memory_order_relaxed);
            atomic_fetch_xor(&pool->barrier.word, KST_SENSE);
            kst_gate_wake(&pool->barrier);
            return KST_OK;
        }
        worker->arrived = 1;
    }
    const unsigned word = kst_gate_wait(&pool->barrier, worker->sense, worker->deadline, pool->spin);
    if (word == worker->sense) return KST_AGAIN;
    worker->arrived = 0;
    return word & KST_CANCEL ? KST_CANCELLED : KST_OK;
}

static int32_t pieces_of(const kst_cmd *cmd, int32_t rows, int threads) {
    const double pieces = cmd->work_per_row * rows / (threads * PIECE_WORK);
    return pieces < 1.0 ? 1 : pieces > MAX_PIECES ? MAX_PIECES : (int32_t)pieces;
}

static inline __attribute__((always_inline)) kst_status walk(kst_worker *worker, const int profiled) {
    kst_pool *pool = worker->pool;
    const int threads = pool->threads;
    for (; worker->command < pool->n; worker->command++, worker->piece = 0, worker->met = 0) {
        const kst_cmd *cmd = &pool->cmds[worker->command];
        if (cmd->barrier_before && threads > 1 && !worker->met) {
            const kst_status status = meet(worker);
            if (status != KST_OK) return status;
            worker->met = 1;
        }
        const int32_t rows = kst_row_count(cmd, pool->step), pieces = rows ? pieces_of(cmd, rows, threads) : 0;
        const double work = pieces ? cmd->work_per_row * rows / ((double)threads * pieces) : 0.0;
        int64_t *stamps = profiled ? pool->nanoseconds + 2 * (worker->command * (int64_t)threads + worker->index) : NULL;
        if (profiled && worker->piece == 0) stamps[0] = kst_now();
        for (; worker->piece < pieces; worker->piece++) {
            if (atomic_load_explicit(&pool->barrier.word, memory_order_relaxed) & KST_CANCEL) return KST_CANCELLED;
            if (worker->work > CLOCK_WORK) {
                worker->work = 0.0;
                if (worker->index == 0 && kst_now() >= worker->deadline) return KST_AGAIN;
            }
            worker->work += work;
            cmd->kernel(cmd, pool->step,
                        (kst_share){worker->index * pieces + worker->piece, threads * pieces, worker->scratch});
        }
        if (profiled) stamps[1] = kst_now();
    }
    return KST_OK;
}

kst_status kst_run(kst_worker *worker) { return walk(worker, 0); }

kst_status kst_run_profiled(kst_worker *worker) { return walk(worker, 1); }

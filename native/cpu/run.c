/* The interpreter: the lanes walk the commands together, each doing its share of every command, and
 * meet where the plan says so. A long command is cut into pieces of about 7 ms, so that a cancel is
 * seen and worker 0 can leave. */
#include "pool.h"

#define PIECE_WORK 37.5e6 /* multiply-adds of a thread: 7.5 ms at 10 GFLOP/s */
#define CLOCK_WORK 5e6    /* multiply-adds between two looks at the clock: 1 ms at 10 GFLOP/s */
#define MAX_PIECES 65536

static int32_t pieces_of(const kst_cmd *cmd, int32_t rows, int threads) {
    const double pieces = cmd->work_per_row * rows / (threads * PIECE_WORK);
    return pieces < 1.0 ? 1 : pieces > MAX_PIECES ? MAX_PIECES : (int32_t)pieces;
}

static inline __attribute__((always_inline)) kst_status walk(kst_worker *worker, kst_lane *lane,
                                                             const int profiled) {
    kst_pool *pool = worker->pool;
    const int threads = pool->threads;
    for (; lane->command < pool->n; lane->command++, lane->piece = 0, lane->met = 0) {
        const kst_cmd *cmd = &pool->cmds[lane->command];
        if (cmd->barrier_before && threads > 1 && !lane->met) {
            lane->met = 1;
            kst_lane_meet(pool, lane);
            return KST_OK;
        }
        const int32_t rows = kst_row_count(cmd, pool->step),
                      pieces = rows ? pieces_of(cmd, rows, threads) : 0;
        const double work = pieces ? cmd->work_per_row * rows / ((double)threads * pieces) : 0.0;
        int64_t *stamps =
            profiled ? pool->nanoseconds + 2 * (lane->command * (int64_t)threads + lane->index)
                     : NULL;
        if (profiled && lane->piece == 0) stamps[0] = kst_now();
        for (; lane->piece < pieces; lane->piece++) {
            if (kst_is_cancelled(pool)) return KST_CANCELLED;
            if (worker->work > CLOCK_WORK) {
                worker->work = 0.0;
                if (worker->index == 0 && kst_now() >= worker->deadline) return KST_AGAIN;
            }
            worker->work += work;
            cmd->kernel(
                cmd, pool->step,
                (kst_share){lane->index * pieces + lane->piece, threads * pieces, worker->scratch});
        }
        if (profiled) stamps[1] = kst_now();
    }
    kst_lane_close(pool);
    return KST_OK;
}

kst_status kst_run(kst_worker *worker, kst_lane *lane) { return walk(worker, lane, 0); }

kst_status kst_run_profiled(kst_worker *worker, kst_lane *lane) { return walk(worker, lane, 1); }

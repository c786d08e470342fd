/* The interpreter: the lanes walk the commands together and meet where the plan says so. A long
 * command is cut into pieces of at most about 7 ms, so that a cancel is seen and worker 0 can leave.
 * One for several rows is cut towards its end into ever smaller pieces, so that all lanes come to
 * the next barrier at about the same time, however fast each was. */
#include "pool.h"

#define PIECE_WORK 37.5e6 /* multiply-adds at most: 7.5 ms at 10 GFLOP/s */
#define CLOCK_WORK 5e6    /* multiply-adds between two looks at the clock: 1 ms at 10 GFLOP/s */
#define LEAST_WORK 5e5    /* multiply-adds at least: 1 MB of BF16 read once */
#define MAX_ROUNDS 16
#define EVEN_ROUNDS 5     /* halvings of a thread's share, at most, down to the last piece */

/* How a command is cut: in units of equal work. */
typedef struct {
    int32_t units, most; /* most: units of a piece */
    int is_shared;       /* lanes take pieces from each other's shares */
    double work;         /* multiply-adds of a unit */
} cut;

static cut cut_of(const kst_cmd *cmd, int32_t rows, int threads, int32_t since) {
    /* The memory, which threads share anyway, bounds one row: 15M to 1B no faster, a Xeon 4 %
     * slower with the shorter sequences. */
    const int is_shared = threads > 1 && rows > 1 && since < KST_CURSORS;
    double work = cmd->work_per_row * rows / threads;
    int rounds = 0;
    while ((is_shared && rounds < EVEN_ROUNDS && work >= 2 * LEAST_WORK) ||
           (rounds < MAX_ROUNDS && work > PIECE_WORK)) {
        work /= 2;
        rounds++;
    }
    const double most = work > 0.0 ? PIECE_WORK / work : 1.0;
    const int32_t own = 1 << rounds;
    return (cut){.units = threads * own,
                 .most = most < 1.0 ? 1 : most < own ? (int32_t)most : own,
                 .is_shared = is_shared,
                 .work = work};
}

/* Half of what is left, shared out. */
static int32_t piece_of(const cut *c, int32_t left, int threads) {
    const int32_t size = left / (2 * threads);
    return size < 1 ? 1 : size < c->most ? size : c->most;
}

/* The lane's next piece: its first is its own, the others are anybody's; 0 if none is left. */
static int take_piece(kst_pool *pool, const kst_lane *lane, const cut *c, kst_share *share) {
    const int threads = pool->threads;
    const int32_t first = piece_of(c, c->units, threads), begin = threads * first,
                  rest = c->units - begin;
    share->count = c->units;
    if (lane->piece == 0) {
        share->begin = lane->index * first;
        share->end = share->begin + first;
        return 1;
    }
    atomic_int *cursor = &pool->taken[lane->since];
    int32_t taken = atomic_load_explicit(cursor, memory_order_relaxed), size;
    do {
        if (taken >= rest) return 0;
        size = piece_of(c, rest - taken, threads);
    } while (!atomic_compare_exchange_weak_explicit(cursor, &taken, taken + size,
                                                    memory_order_relaxed, memory_order_relaxed));
    share->begin = begin + taken;
    share->end = share->begin + size;
    return 1;
}

/* The same where each lane does its own share. */
static int own_piece(const kst_lane *lane, const cut *c, int threads, kst_share *share) {
    const int32_t own = c->units / threads, done = lane->piece * c->most;
    if (done >= own) return 0;
    share->count = c->units;
    share->begin = lane->index * own + done;
    share->end = share->begin + (own - done < c->most ? own - done : c->most);
    return 1;
}

static inline __attribute__((always_inline)) kst_status walk(kst_worker *worker, kst_lane *lane,
                                                             const int profiled) {
    kst_pool *pool = worker->pool;
    const int threads = pool->threads;
    for (; lane->command < pool->n; lane->command++, lane->since++, lane->piece = lane->met = 0) {
        const kst_cmd *cmd = &pool->cmds[lane->command];
        if (cmd->barrier_before && threads > 1 && !lane->met) {
            lane->met = 1;
            kst_lane_meet(pool, lane);
            return KST_OK;
        }
        const int32_t rows = kst_row_count(cmd, pool->step);
        int64_t *stamps =
            profiled ? pool->nanoseconds + 2 * (lane->command * (int64_t)threads + lane->index)
                     : NULL;
        if (profiled && lane->piece == 0) stamps[0] = kst_now();
        const cut c = cut_of(cmd, rows, threads, lane->since);
        for (; rows > 0; lane->piece++) {
            if (kst_is_cancelled(pool)) return KST_CANCELLED;
            if (worker->work > CLOCK_WORK) {
                worker->work = 0.0;
                if (worker->index == 0 && kst_now() >= worker->deadline) return KST_AGAIN;
            }
            kst_share share = {.scratch = worker->scratch};
            if (!(c.is_shared ? take_piece(pool, lane, &c, &share)
                              : own_piece(lane, &c, threads, &share)))
                break;
            worker->work += c.work * (share.end - share.begin);
            cmd->kernel(cmd, pool->step, share);
        }
        if (profiled) stamps[1] = kst_now();
    }
    kst_lane_close(pool);
    return KST_OK;
}

kst_status kst_run(kst_worker *worker, kst_lane *lane) { return walk(worker, lane, 0); }

kst_status kst_run_profiled(kst_worker *worker, kst_lane *lane) { return walk(worker, lane, 1); }

/* Worker threads and lanes; pool.h says how they go together. Worker 0 is the caller. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include "pool.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPIN_NS 50000
#define HELP_NS 2000 /* a thread that is on a processor takes its own lane sooner than this */

/* Lanes: whoever calls these holds the lane, so the run cannot end meanwhile. */

void kst_lane_close(kst_pool *pool) {
    if (atomic_fetch_sub_explicit(&pool->open, 1, memory_order_acq_rel) > 1) return;
    atomic_fetch_add(&pool->gate.word, 1);
    atomic_store_explicit(&pool->active, 0, memory_order_release);
    kst_gate_wake(&pool->gate);
}

/* A closed word stays odd. */
static void stop_lane(kst_pool *pool) {
    atomic_store_explicit(&pool->stopped, 1, memory_order_relaxed);
    kst_lane_close(pool);
}

/* Closes a lane of that run which nobody holds; a holder looks at the flag himself, after he has
 * let it go. */
static void stop_idle_lane(kst_pool *pool, kst_lane *lane, unsigned run) {
    unsigned word = atomic_load(&lane->word);
    if (word & 1 || atomic_load(&pool->run) != run) return;
    if (atomic_compare_exchange_strong(&lane->word, &word, word | 1)) stop_lane(pool);
}

static void release(kst_pool *pool, kst_lane *lane, unsigned phase) {
    const unsigned run = atomic_load_explicit(&pool->run, memory_order_relaxed);
    atomic_store(&lane->word, 2 * phase);
    if (atomic_load(&pool->cancelled) == run) stop_idle_lane(pool, lane, run);
}

static void reset_cursors(kst_pool *pool) { /* while nobody takes pieces */
    for (int i = 0; i < KST_CURSORS; i++)
        atomic_store_explicit(&pool->taken[i], 0, memory_order_relaxed);
}

void kst_lane_meet(kst_pool *pool, kst_lane *lane) {
    const unsigned phase = atomic_load_explicit(&lane->word, memory_order_relaxed) / 2;
    lane->since = 0;
    if (atomic_fetch_sub_explicit(&pool->pending, 1, memory_order_acq_rel) == 1) {
        reset_cursors(pool);
        atomic_store_explicit(&pool->pending, pool->threads, memory_order_relaxed);
        atomic_fetch_add(&pool->gate.word, 1);
        kst_gate_wake(&pool->gate);
    }
    release(pool, lane, phase + 1);
}

/* Runs a lane, if it may run in this phase and nobody does. */
static kst_status take(kst_worker *worker, kst_lane *lane, unsigned phase, int *ran) {
    kst_pool *pool = worker->pool;
    unsigned word = 2 * phase;
    if (atomic_load_explicit(&lane->word, memory_order_relaxed) != word ||
        !atomic_compare_exchange_strong_explicit(&lane->word, &word, word + 1, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return KST_OK;
    *ran = 1;
    const kst_status status = pool->walk(worker, lane);
    if (status == KST_AGAIN) release(pool, lane, phase);
    if (status == KST_CANCELLED) stop_lane(pool);
    return status;
}

/* The own lane; if that is not to be had for a while, another; if there is none, waits for the next
 * phase. */
static kst_status work_or_wait(kst_worker *worker, unsigned phase) {
    kst_pool *pool = worker->pool;
    int ran = 0;
    kst_status status = take(worker, &pool->lanes[worker->index], phase, &ran);
    if (ran) return status;
    const int64_t soon = kst_now() + HELP_NS;
    if (kst_gate_wait(&pool->gate, phase, soon < worker->deadline ? soon : worker->deadline,
                      pool->spin) != phase)
        return KST_OK;
    for (int i = 0; i < pool->threads; i++) {
        status = take(worker, &pool->lanes[i], phase, &ran);
        if (ran) return status;
    }
    return kst_gate_wait(&pool->gate, phase, worker->deadline, pool->spin) == phase ? KST_AGAIN
                                                                                    : KST_OK;
}

static void *work(void *argument) {
    kst_worker *worker = argument;
    kst_pool *pool = worker->pool;
    for (;;) {
        const unsigned phase = atomic_load_explicit(&pool->gate.word, memory_order_acquire);
        if (atomic_load_explicit(&pool->quitting, memory_order_relaxed)) return NULL;
        work_or_wait(worker, phase);
    }
}

static void join_workers(kst_pool *pool, int count) {
    atomic_store_explicit(&pool->quitting, 1, memory_order_relaxed);
    atomic_fetch_add(&pool->gate.word, 1);
    kst_gate_wake(&pool->gate);
    for (int i = 1; i < count; i++) pthread_join(pool->workers[i].thread, NULL);
    atomic_store_explicit(&pool->quitting, 0, memory_order_relaxed);
}

static kst_status start_workers(kst_pool *pool) {
    sigset_t all, before;
    sigfillset(&all); /* signals are for the threads that Python knows */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int count = 1;
    while (count < pool->threads &&
           !pthread_create(&pool->workers[count].thread, NULL, work, &pool->workers[count]))
        count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pool->started = count == pool->threads;
    if (pool->started) return KST_OK;
    join_workers(pool, count);
    return KST_NO_THREADS;
}

/* The state of a pool without threads; also in a child after fork, where neither they nor a run of
 * the parent's are. */
static void reset(kst_pool *pool) {
    kst_gate_init(&pool->gate, 1);
    for (int i = 0; i < pool->threads; i++) atomic_init(&pool->lanes[i].word, 1);
    atomic_init(&pool->pending, 0);
    atomic_init(&pool->open, 0);
    atomic_init(&pool->run, 0);
    atomic_init(&pool->cancelled, 0);
    atomic_init(&pool->stopped, 0);
    atomic_init(&pool->active, 0);
    atomic_init(&pool->quitting, 0);
    pool->running = 0;
    pool->started = pool->threads == 1;
    pool->pid = getpid();
}

kst_pool *kst_pool_create(int threads) {
    if (threads < 1 || threads > KST_MAX_THREADS) return NULL;
    void *memory = NULL, *workers = NULL, *scratch = NULL;
    const size_t size = sizeof(kst_pool) + (size_t)threads * sizeof(kst_lane), n = (size_t)threads;
    if (posix_memalign(&memory, KST_LINE, size) ||
        posix_memalign(&workers, KST_LINE, n * sizeof(kst_worker)) ||
        posix_memalign(&scratch, KST_LINE, n * KST_SCRATCH_BYTES)) {
        free(memory);
        free(workers);
        return NULL;
    }
    memset(memory, 0, size);
    memset(workers, 0, n * sizeof(kst_worker));
    kst_pool *pool = memory;
    pool->threads = threads;
    pool->scratch = scratch;
    pool->workers = workers;
    /* Spinning helps only while every thread has a processor. */
    pool->spin = threads <= kst_affinity_cpus() ? SPIN_NS : 0;
    for (int i = 0; i < threads; i++) {
        pool->lanes[i].index = pool->workers[i].index = i;
        pool->workers[i].pool = pool;
        pool->workers[i].scratch = (char *)scratch + (size_t)i * KST_SCRATCH_BYTES;
        pool->workers[i].deadline = KST_NEVER;
    }
    reset(pool);
    return pool;
}

int kst_pool_threads(const kst_pool *pool) { return pool->threads; }

void kst_pool_destroy(kst_pool *pool) {
    if (!pool) return;
    if (pool->pid == getpid()) {
        kst_run_cancel(pool);
        while (kst_run_continue(pool, 1.0) == KST_AGAIN) continue;
        if (pool->started) join_workers(pool, pool->threads);
        kst_gate_destroy(&pool->gate);
    }
    free(pool->scratch);
    free(pool->workers);
    free(pool);
}

static kst_status begin(kst_pool *pool, kst_walk *walk, const kst_cmd *cmds, int32_t n,
                        const kst_step *step, int64_t *nanoseconds) {
    if (pool->pid != getpid()) reset(pool);
    if (pool->running) return KST_AGAIN;
    if (!pool->started && start_workers(pool) != KST_OK) return KST_NO_THREADS;
    pool->walk = walk;
    pool->cmds = cmds;
    pool->n = n;
    pool->step = step;
    pool->nanoseconds = nanoseconds;
    pool->running = 1;
    const unsigned run = atomic_load_explicit(&pool->gate.word, memory_order_relaxed) + 1;
    atomic_store_explicit(&pool->pending, pool->threads, memory_order_relaxed);
    atomic_store_explicit(&pool->open, pool->threads, memory_order_relaxed);
    atomic_store_explicit(&pool->stopped, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->cancelled, run - 1, memory_order_relaxed);
    reset_cursors(pool);
    atomic_store(&pool->run, run);
    for (int i = 0; i < pool->threads; i++) {
        kst_lane *lane = &pool->lanes[i];
        lane->command = lane->piece = lane->since = lane->met = 0;
        atomic_store(&lane->word, 2 * run);
    }
    atomic_store(&pool->active, 1);
    atomic_fetch_add(&pool->gate.word, 1);
    kst_gate_wake(&pool->gate);
    return KST_OK;
}

kst_status kst_run_start(kst_pool *pool, const kst_cmd *cmds, int32_t n, const kst_step *step) {
    return begin(pool, kst_run, cmds, n, step, NULL);
}

kst_status kst_run_start_profiled(kst_pool *pool, const kst_cmd *cmds, int32_t n,
                                  const kst_step *step, int64_t *nanoseconds) {
    return begin(pool, kst_run_profiled, cmds, n, step, nanoseconds);
}

kst_status kst_run_continue(kst_pool *pool, double seconds) {
    if (pool->pid != getpid() || !pool->running) return KST_OK;
    kst_worker *own = &pool->workers[0];
    own->deadline = kst_now() + (int64_t)(seconds * 1e9);
    for (kst_status status = KST_OK;;) {
        const unsigned phase = atomic_load_explicit(&pool->gate.word, memory_order_acquire);
        if (!atomic_load_explicit(&pool->active, memory_order_acquire)) break;
        if (status == KST_AGAIN) return KST_AGAIN;
        if (atomic_load_explicit(&pool->open, memory_order_relaxed))
            status = work_or_wait(own, phase);
        else
            sched_yield(); /* the last lane is being closed at this moment */
    }
    pool->running = 0;
    return atomic_load_explicit(&pool->stopped, memory_order_relaxed) ? KST_CANCELLED : KST_OK;
}

void kst_run_cancel(kst_pool *pool) {
    const unsigned run = atomic_load(&pool->run);
    if (!atomic_load(&pool->active)) return;
    atomic_store(&pool->cancelled, run);
    for (int i = 0; i < pool->threads; i++) stop_idle_lane(pool, &pool->lanes[i], run);
}

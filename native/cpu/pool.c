/* Worker threads. They sleep at `start`, walk the run, and count themselves out at `done`; worker 0 is the caller.
 * The barrier's word carries the cancel flag, so whoever waits for the one sees the other. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include "pool.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPIN_NS 50000

static void init_gates(kst_pool *pool) {
    kst_gate_init(&pool->start, 0);
    kst_gate_init(&pool->barrier, 0);
    kst_gate_init(&pool->done, 0);
    atomic_init(&pool->pending, pool->threads);
    atomic_init(&pool->left, 0);
    atomic_init(&pool->active, 0);
    atomic_init(&pool->stopped, 0);
    pool->started = pool->threads == 1;
    pool->quitting = 0;
    pool->pid = getpid();
}

kst_pool *kst_pool_create(int threads) {
    if (threads < 1 || threads > KST_MAX_THREADS) return NULL;
    void *memory = NULL, *scratch = NULL;
    const size_t size = sizeof(kst_pool) + (size_t)threads * sizeof(kst_worker);
    if (posix_memalign(&memory, KST_LINE, size)) return NULL;
    if (posix_memalign(&scratch, KST_LINE, (size_t)threads * KST_SCRATCH_BYTES)) {
        free(memory);
        return NULL;
    }
    memset(memory, 0, size);
    kst_pool *pool = memory;
    pool->threads = threads;
    pool->scratch = scratch;
    /* Spinning helps only while every thread has a processor. */
    pool->spin = threads <= kst_affinity_cpus() ? SPIN_NS : 0;
    for (int i = 0; i < threads; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].index = i;
        pool->workers[i].scratch = (char *)scratch + (size_t)i * KST_SCRATCH_BYTES;
    }
    init_gates(pool);
    return pool;
}

int kst_pool_threads(const kst_pool *pool) { return pool->threads; }

static void leave(kst_pool *pool, unsigned epoch) {
    if (atomic_fetch_add_explicit(&pool->left, 1, memory_order_acq_rel) + 1 < pool->threads - 1) return;
    atomic_store(&pool->done.word, epoch);
    kst_gate_wake(&pool->done);
}

static void *work(void *argument) {
    kst_worker *worker = argument;
    kst_pool *pool = worker->pool;
    for (;;) {
        worker->epoch = kst_gate_wait(&pool->start, worker->epoch, KST_NEVER, pool->spin);
        if (pool->quitting) return NULL;
        worker->command = worker->piece = worker->arrived = worker->met = 0;
        worker->deadline = KST_NEVER;
        if (pool->walk(worker) != KST_OK) atomic_store_explicit(&pool->stopped, 1, memory_order_relaxed);
        leave(pool, worker->epoch);
    }
}

static void publish(kst_pool *pool) {
    atomic_fetch_add(&pool->start.word, 1);
    kst_gate_wake(&pool->start);
}

static void join_workers(kst_pool *pool, int count) {
    pool->quitting = 1;
    publish(pool);
    for (int i = 1; i < count; i++) pthread_join(pool->workers[i].thread, NULL);
    pool->quitting = 0;
}

static kst_status start_workers(kst_pool *pool) {
    sigset_t all, before;
    sigfillset(&all); /* signals are for the threads that Python knows */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    const unsigned epoch = atomic_load(&pool->start.word);
    int count = 1;
    for (; count < pool->threads; count++) {
        pool->workers[count].epoch = epoch;
        if (pthread_create(&pool->workers[count].thread, NULL, work, &pool->workers[count])) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pool->started = count == pool->threads;
    if (pool->started) return KST_OK;
    join_workers(pool, count);
    return KST_NO_THREADS;
}

static kst_status begin(kst_pool *pool, kst_walk *walk, const kst_cmd *cmds, int32_t n, const kst_step *step,
                        int64_t *nanoseconds) {
    if (pool->pid != getpid()) init_gates(pool); /* a child after fork: it has no workers, and no run of its parent's */
    if (atomic_load(&pool->active)) return KST_AGAIN;
    if (!pool->started && start_workers(pool) != KST_OK) return KST_NO_THREADS;
    pool->walk = walk;
    pool->cmds = cmds;
    pool->n = n;
    pool->step = step;
    pool->nanoseconds = nanoseconds;
    kst_worker *own = &pool->workers[0];
    own->command = own->piece = own->arrived = own->met = 0;
    atomic_store_explicit(&pool->pending, pool->threads, memory_order_relaxed);
    atomic_store_explicit(&pool->left, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->stopped, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->barrier.word, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->active, 1, memory_order_release);
    if (pool->threads > 1) publish(pool);
    return KST_OK;
}

kst_status kst_run_start(kst_pool *pool, const kst_cmd *cmds, int32_t n, const kst_step *step) {
    return begin(pool, kst_run, cmds, n, step, NULL);
}

kst_status kst_run_start_profiled(kst_pool *pool, const kst_cmd *cmds, int32_t n, const kst_step *step,
                                  int64_t *nanoseconds) {
    return begin(pool, kst_run_profiled, cmds, n, step, nanoseconds);
}

kst_status kst_run_continue(kst_pool *pool, double seconds) {
    if (pool->pid != getpid() || !atomic_load_explicit(&pool->active, memory_order_acquire)) return KST_OK;
    kst_worker *own = &pool->workers[0];
    own->deadline = kst_now() + (int64_t)(seconds * 1e9);
    const kst_status status = pool->walk(own);
    if (status == KST_AGAIN) return KST_AGAIN;
    if (status == KST_CANCELLED) atomic_store_explicit(&pool->stopped, 1, memory_order_relaxed);
    if (pool->threads > 1) {
        const unsigned epoch = atomic_load_explicit(&pool->start.word, memory_order_relaxed);
        if (kst_gate_wait(&pool->done, epoch - 1, own->deadline, pool->spin) != epoch) return KST_AGAIN;
    }
    const int stopped = atomic_load_explicit(&pool->stopped, memory_order_relaxed);
    atomic_store_explicit(&pool->active, 0, memory_order_release);
    return stopped ? KST_CANCELLED : KST_OK;
}

void kst_run_cancel(kst_pool *pool) {
    if (!atomic_load(&pool->active)) return;
    atomic_fetch_or(&pool->barrier.word, KST_CANCEL);
    kst_gate_wake(&pool->barrier);
}

void kst_pool_destroy(kst_pool *pool) {
    if (!pool) return;
    if (pool->pid == getpid()) {
        kst_run_cancel(pool);
        while (kst_run_continue(pool, 1.0) == KST_AGAIN) continue;
        if (pool->started && pool->threads > 1) join_workers(pool, pool->threads);
        kst_gate_destroy(&pool->start);
        kst_gate_destroy(&pool->barrier);
        kst_gate_destroy(&pool->done);
    }
    free(pool->scratch);
    free(pool);
}

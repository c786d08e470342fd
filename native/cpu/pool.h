/* The pool's state, shared by pool.c (threads, lanes) and run.c (the interpreter).
 *
 * A run is walked by as many lanes as the pool has threads. Of a command for one row, and of a short
 * one, lane i does share i; of a long one for several rows it begins with a part of that, and the
 * rest is taken in pieces, by whichever lane is free. A thread runs its own lane; when it has waited
 * a little at a barrier and another lane could go on but does not, because its thread is not on a
 * processor, it runs that one too. So a thread that the system holds up holds up nobody, unless it
 * is in the middle of a piece of work.
 *
 * The gate's word counts the phases of all runs: it goes up when all lanes have met, when a run
 * begins and when it ends. A lane's word is 2 * (the phase from which on it may run), or that + 1:
 * somebody runs it, or it is closed. So one compare-and-swap from 2 * phase takes a lane that may
 * run now, and fails for a thread that is late by a phase or by a run (late by 2^31 phases exactly,
 * it would not; it would have to be suspended for hours). What a run consists of is read only by
 * who holds a lane, and a run ends when all its lanes are closed: nobody has to wait for sleepers.
 */
#ifndef KESTREL_POOL_H
#define KESTREL_POOL_H

#include "gate.h"
#include "kestrel/cpu.h"

#include <sys/types.h>

/* Commands behind a barrier whose rest can be taken in pieces; what comes after is shared out. */
#define KST_CURSORS 16

typedef struct {
    _Alignas(KST_LINE) atomic_uint word;
    /* Where it is in the run; for who holds it. */
    int32_t index, command, piece;
    int32_t since; /* commands since the barrier */
    int met; /* past the barrier before the command */
} kst_lane;

typedef struct {
    _Alignas(KST_LINE) kst_pool *pool;
    void *scratch;
    pthread_t thread;
    int32_t index;
    double work;      /* multiply-adds since the last look at the clock */
    int64_t deadline; /* worker 0 leaves a lane then */
} kst_worker;

/* Walks a lane from where it is. KST_OK: to the next barrier or the end, and it is no longer held.
 * KST_AGAIN: past the deadline, still held. KST_CANCELLED: still held. */
typedef kst_status kst_walk(kst_worker *worker, kst_lane *lane);

struct kst_pool {
    kst_gate gate;
    _Alignas(KST_LINE) atomic_int pending; /* lanes that the barrier waits for */
    _Alignas(KST_LINE) atomic_int open;    /* lanes not closed */
    /* What is taken of the rest of each command since the barrier. */
    _Alignas(KST_LINE) atomic_int taken[KST_CURSORS];
    _Alignas(KST_LINE) atomic_uint run;    /* phase in which the run began: its name */
    atomic_uint cancelled;                 /* the name of the run to stop */
    atomic_int stopped;                    /* a lane was closed before its end */
    atomic_int active;                     /* cleared when the last lane was closed */
    atomic_int quitting;
    int running; /* the caller has not been told the end of its run */
    int threads, started;
    pid_t pid;
    int64_t spin;
    void *scratch;
    kst_worker *workers;
    /* The run. */
    kst_walk *walk;
    const kst_cmd *cmds;
    const kst_step *step;
    int64_t *nanoseconds;
    int32_t n;
    kst_lane lanes[];
};

/* The lane that the caller holds has come to a barrier; or to the end of the run. (pool.c) */
void kst_lane_meet(kst_pool *pool, kst_lane *lane);
void kst_lane_close(kst_pool *pool);

static inline int kst_is_cancelled(kst_pool *pool) {
    return atomic_load_explicit(&pool->cancelled, memory_order_relaxed) ==
           atomic_load_explicit(&pool->run, memory_order_relaxed);
}

/* The interpreter and the profiling one. (run.c) */
kst_walk kst_run, kst_run_profiled;

#endif

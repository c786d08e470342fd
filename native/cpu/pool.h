/* The pool's state, shared by pool.c (threads) and run.c (the interpreter). */
#ifndef KESTREL_POOL_H
#define KESTREL_POOL_H

#include "gate.h"
#include "kestrel/cpu.h"

#include <sys/types.h>

#define KST_SENSE 1u             /* of the barrier's word: turns over at each meeting */
#define KST_CANCEL 0x80000000u   /* of the barrier's word: so that one wait sees both */

typedef struct {
    _Alignas(KST_LINE) kst_pool *pool;
    void *scratch;
    pthread_t thread;
    int32_t index;
    unsigned epoch;     /* the last run seen */
    /* Where it is in the run; worker 0 comes back to it after KST_AGAIN. */
    int32_t command, piece;
    int arrived;        /* at the barrier before the command, with this sense: */
    unsigned sense;
    int met;            /* past the barrier before the command */
    double work;        /* multiply-adds since the last look at the clock */
    int64_t deadline;
} kst_worker;

typedef kst_status kst_walk(kst_worker *worker);

struct kst_pool {
    kst_gate start;   /* word: number of runs begun */
    kst_gate barrier; /* word: KST_SENSE, KST_CANCEL */
    kst_gate done;    /* word: number of runs that all workers but 0 have left */
    _Alignas(KST_LINE) atomic_int pending; /* threads that the barrier waits for */
    _Alignas(KST_LINE) atomic_int left;    /* workers that left the run */
    _Alignas(KST_LINE) atomic_int active;  /* a run is in progress */
    atomic_int stopped;                    /* a worker left the run before its end */
    int threads, started, quitting;
    pid_t pid;
    int64_t spin;
    void *scratch;
    /* The run; written before `start` changes. */
    kst_walk *walk;
    const kst_cmd *cmds;
    const kst_step *step;
    int64_t *nanoseconds;
    int32_t n;
    kst_worker workers[];
};

/* Walks the commands from where the worker is. (run.c) */
kst_walk kst_run, kst_run_profiled;

#endif

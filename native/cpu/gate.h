/* A word that threads wait for: they spin, then yield, then sleep until it changes. Sleeping is a
 * futex on Linux and a condition variable elsewhere (KST_NO_FUTEX: there too, for tests). */
#ifndef KESTREL_GATE_H
#define KESTREL_GATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#if defined(__linux__) && !defined(KST_NO_FUTEX)
#define KST_FUTEX 1
#endif

#define KST_LINE 64 /* bytes in a cache line */

typedef struct {
    _Alignas(KST_LINE) atomic_uint word;
    atomic_int parked; /* sleepers, or about to be: who changes the word wakes them */
#ifndef KST_FUTEX
    pthread_mutex_t mutex;
    pthread_cond_t changed;
#endif
} kst_gate;

#define KST_NEVER INT64_MAX

int64_t kst_now(void); /* nanoseconds of the monotonic clock */

void kst_gate_init(kst_gate *gate, unsigned word);
void kst_gate_destroy(kst_gate *gate);

/* Call after the word was changed by a sequentially consistent operation. */
void kst_gate_wake(kst_gate *gate);

/* Waits until the word is not `old` and returns it; returns `old` when the clock has passed
 * `deadline`. Spins for about spin nanoseconds before it yields. */
unsigned kst_gate_wait(kst_gate *gate, unsigned old, int64_t deadline, int64_t spin);

#endif

/* Waiting for a word: spin, yield, sleep. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include "gate.h"

#include <sched.h>
#include <time.h>

#define YIELD_NS 100000 /* after the spinning: while a busy neighbour may only need a turn */
#define SPINS_PER_CLOCK 32

int64_t kst_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* `yield` does nothing on most arm64 cores */
#endif
}

/* A change of the word and a look at `parked` on one side, `parked` and then the word on the other:
 * both sequentially consistent, so at least one side sees the other and no sleeper is missed. */
#ifdef KST_FUTEX
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

void kst_gate_init(kst_gate *gate, unsigned word) {
    atomic_init(&gate->word, word);
    atomic_init(&gate->parked, 0);
}

void kst_gate_destroy(kst_gate *gate) { (void)gate; }

void kst_gate_wake(kst_gate *gate) {
    if (atomic_load(&gate->parked) > 0)
        syscall(SYS_futex, &gate->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void sleep_once(kst_gate *gate, unsigned old, int64_t nanoseconds) {
    const struct timespec left = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    atomic_fetch_add(&gate->parked, 1);
    syscall(SYS_futex, &gate->word, FUTEX_WAIT_PRIVATE, old,
            nanoseconds == KST_NEVER ? NULL : &left, NULL, 0);
    atomic_fetch_sub(&gate->parked, 1);
}
#else
void kst_gate_init(kst_gate *gate, unsigned word) {
    atomic_init(&gate->word, word);
    atomic_init(&gate->parked, 0);
    pthread_mutex_init(&gate->mutex, NULL);
    pthread_cond_init(&gate->changed, NULL);
}

void kst_gate_destroy(kst_gate *gate) {
    pthread_cond_destroy(&gate->changed);
    pthread_mutex_destroy(&gate->mutex);
}

void kst_gate_wake(kst_gate *gate) {
    if (atomic_load(&gate->parked) == 0) return;
    pthread_mutex_lock(&gate->mutex);
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->mutex);
}

static void sleep_once(kst_gate *gate, unsigned old, int64_t nanoseconds) {
    pthread_mutex_lock(&gate->mutex);
    atomic_fetch_add(&gate->parked, 1);
    if (atomic_load(&gate->word) == old) {
        if (nanoseconds == KST_NEVER) {
            pthread_cond_wait(&gate->changed, &gate->mutex);
        } else {
#ifdef __APPLE__
            const struct timespec left = {nanoseconds / 1000000000, nanoseconds % 1000000000};
            pthread_cond_timedwait_relative_np(&gate->changed, &gate->mutex, &left);
#else
            struct timespec at;
            clock_gettime(CLOCK_REALTIME, &at);
            const int64_t sum = at.tv_nsec + nanoseconds;
            at.tv_sec += sum / 1000000000;
            at.tv_nsec = sum % 1000000000;
            pthread_cond_timedwait(&gate->changed, &gate->mutex, &at);
#endif
        }
    }
    atomic_fetch_sub(&gate->parked, 1);
    pthread_mutex_unlock(&gate->mutex);
}
#endif

unsigned kst_gate_wait(kst_gate *gate, unsigned old, int64_t deadline, int64_t spin) {
    unsigned word;
    const int64_t begin = kst_now();
    int64_t now = begin;
    while (now < deadline) {
        if (now - begin < spin) {
            for (int i = 0; i < SPINS_PER_CLOCK; i++) {
                if ((word = atomic_load_explicit(&gate->word, memory_order_acquire)) != old)
                    return word;
                relax();
            }
        } else if (now - begin < spin + YIELD_NS) {
            if ((word = atomic_load_explicit(&gate->word, memory_order_acquire)) != old)
                return word;
            sched_yield();
        } else {
            sleep_once(gate, old, deadline == KST_NEVER ? KST_NEVER : deadline - now);
            if ((word = atomic_load_explicit(&gate->word, memory_order_acquire)) != old)
                return word;
        }
        now = kst_now();
    }
    return atomic_load_explicit(&gate->word, memory_order_acquire);
}

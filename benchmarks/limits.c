/* The machine's limits, measured beside the figures that are shares of them: bytes read per second from a buffer of a
 * given size, and float32 fused multiply-adds per second out of registers. Compiled by limits.py with
 * -DWIDTH=<bytes of a vector register> and the flags of an instruction set. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef float vf __attribute__((vector_size(WIDTH), aligned(4)));
typedef uint64_t vu __attribute__((vector_size(WIDTH), aligned(8)));

/* CHAINS hides the latency of a fused multiply-add (4 or 5 cycles, 2 a cycle) and fits the registers. */
enum { MAX_THREADS = 256, STREAMS = 4, CHAINS = WIDTH == 64 ? 24 : 12 };

typedef struct {
    const char *data;
    size_t bytes;
    long rounds;
    int threads;
    atomic_int *arrived; /* macOS has no pthread_barrier */
    double seconds, result;
} job;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void meet(job *j, int turn) {
    atomic_fetch_add(j->arrived, 1);
    while (atomic_load(j->arrived) < turn * j->threads) sched_yield();
}

static void *read_job(void *argument) {
    job *j = argument;
    const size_t stride = j->bytes / STREAMS / WIDTH * WIDTH;
    vu sum[STREAMS] = {{0}};
    meet(j, 1);
    const double begin = now();
    for (long r = 0; r < j->rounds; r++) {
        for (size_t at = 0; at < stride; at += WIDTH)
            for (int s = 0; s < STREAMS; s++) sum[s] += *(const vu *)(j->data + (size_t)s * stride + at);
        __asm__ volatile("" ::: "memory"); /* each round reads anew */
    }
    meet(j, 2);
    j->seconds = now() - begin;
    for (int s = 0; s < STREAMS; s++)
        for (size_t i = 0; i < WIDTH / 8; i++) j->result += (double)sum[s][i];
    return NULL;
}

static void *fma_job(void *argument) {
    job *j = argument;
    vf acc[CHAINS], x, y;
    for (size_t i = 0; i < WIDTH / 4; i++) x[i] = 0.9999f, y[i] = 1e-4f;
    for (int c = 0; c < CHAINS; c++) acc[c] = y * (float)c;
    meet(j, 1);
    const double begin = now();
    for (long r = 0; r < j->rounds; r++) {
        /* Unrolled whole: an index that varies keeps the chains in memory, not in registers. */
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++) acc[c] = acc[c] * x + y;
        __asm__ volatile(""); /* keeps the rounds apart, and the chains in registers */
    }
    meet(j, 2);
    j->seconds = now() - begin;
    for (int c = 0; c < CHAINS; c++)
        for (size_t i = 0; i < WIDTH / 4; i++) j->result += (double)acc[c][i];
    return NULL;
}

/* Seconds until the last thread is through; -1 when there are no such threads. */
static double run(void *(*work)(void *), int threads, const char *data, size_t bytes, long rounds) {
    pthread_t ids[MAX_THREADS];
    static job jobs[MAX_THREADS];
    atomic_int arrived = 0;
    if (threads < 1 || threads > MAX_THREADS) return -1;
    const size_t part = bytes / (size_t)threads / 64 * 64;
    for (int t = 0; t < threads; t++) {
        jobs[t] = (job){data + part * (size_t)t, part, rounds, threads, &arrived, 0, 0};
        if (pthread_create(&ids[t], NULL, work, &jobs[t])) return -1;
    }
    double seconds = 0;
    for (int t = 0; t < threads; t++) {
        pthread_join(ids[t], NULL);
        if (jobs[t].seconds > seconds) seconds = jobs[t].seconds;
    }
    return seconds;
}

/* Seconds to read `bytes` `rounds` times over, the threads side by side. */
double kst_read_seconds(const char *data, size_t bytes, long rounds, int threads) {
    return run(read_job, threads, data, bytes, rounds);
}

/* Seconds for kst_fma_count(rounds, threads) operations. */
double kst_fma_seconds(long rounds, int threads) { return run(fma_job, threads, NULL, 0, rounds); }

/* Floating-point operations, two a fused multiply-add. */
double kst_fma_count(long rounds, int threads) { return 2.0 * CHAINS * (WIDTH / 4) * (double)rounds * threads; }

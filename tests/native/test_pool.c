/* The pool and the interpreter with kernels of our own: barriers, pieces, pauses, cancel, fork, too many threads. */
#include "kestrel/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <dirent.h>
#endif

static int failures;
#define EXPECT(condition) \
    do { \
        if (!(condition)) { \
            printf("FAILED line %d: %s\n", __LINE__, #condition); \
            failures++; \
        } \
    } while (0)

#define COMMANDS 120
#define CELLS 64
static uint32_t cells[COMMANDS + 1][CELLS];
static atomic_int shares_done;

/* Each cell from all cells of the command before: wrong unless every thread has finished that one. */
static void mix(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    (void)step;
    const int32_t row = cmd->args.copy.dim;
    for (int i = CELLS * share.index / share.count; i < CELLS * (share.index + 1) / share.count; i++) {
        uint32_t sum = (uint32_t)i;
        for (int j = 0; j < CELLS; j++) sum = sum * 31 + cells[row][j];
        cells[row + 1][i] = sum;
    }
}

static void nap(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    (void)cmd, (void)step;
    const struct timespec t = {0, 2000000};
    nanosleep(&t, NULL);
    memset(share.scratch, share.index, KST_SCRATCH_BYTES);
    atomic_fetch_add(&shares_done, 1);
}

static kst_cmd cmds[COMMANDS];
static kst_step step = {.n_tokens = 1};

static void make(kst_kernel *kernel, int n, double work) {
    memset(cmds, 0, sizeof cmds);
    for (int i = 0; i < n; i++)
        cmds[i] = (kst_cmd){.kernel = kernel, .args.copy.dim = i, .barrier_before = i > 0, .work_per_row = work};
}

static uint32_t mixed(void) { /* the same by one thread */
    memset(cells, 0, sizeof cells);
    for (int i = 0; i < COMMANDS; i++) mix(&cmds[i], &step, (kst_share){0, 1, NULL});
    const uint32_t last = cells[COMMANDS][CELLS - 1];
    memset(cells, 0, sizeof cells);
    return last;
}

static kst_status finish(kst_pool *pool, double seconds) {
    kst_status status;
    while ((status = kst_run_continue(pool, seconds)) == KST_AGAIN) continue;
    return status;
}

static void check_barriers(int threads, double work, int runs) {
    kst_pool *pool = kst_pool_create(threads);
    EXPECT(kst_pool_threads(pool) == threads);
    make(mix, COMMANDS, work);
    const uint32_t want = mixed();
    for (int i = 0; i < runs; i++) {
        cells[COMMANDS][CELLS - 1] = 0;
        EXPECT(kst_run_start(pool, cmds, COMMANDS, &step) == KST_OK);
        EXPECT(finish(pool, i % 2 ? 1.0 : 0.0) == KST_OK);
        EXPECT(cells[COMMANDS][CELLS - 1] == want);
    }
    kst_pool_destroy(pool);
}

static void check_pauses(int threads) { /* every share once, over many returns to the caller */
    kst_pool *pool = kst_pool_create(threads);
    make(nap, 3, 5e8 * threads);
    atomic_store(&shares_done, 0);
    EXPECT(kst_run_continue(pool, 1.0) == KST_OK); /* nothing in progress */
    EXPECT(kst_run_start(pool, cmds, 3, &step) == KST_OK);
    EXPECT(kst_run_start(pool, cmds, 3, &step) == KST_AGAIN);
    int pauses = 0;
    kst_status status;
    while ((status = kst_run_continue(pool, 0.005)) == KST_AGAIN) pauses++;
    EXPECT(status == KST_OK && pauses > 0);
    EXPECT(atomic_load(&shares_done) == 3 * threads * 13); /* 5e8 / 37.5e6 pieces a thread */
    kst_pool_destroy(pool);
}

static void *cancel_later(void *pool) {
    const struct timespec t = {0, 10000000};
    nanosleep(&t, NULL);
    kst_run_cancel(pool);
    return NULL;
}

static void check_cancel(int threads) {
    kst_pool *pool = kst_pool_create(threads);
    kst_run_cancel(pool); /* no run: nothing */
    make(nap, COMMANDS, 1e9 * threads);
    for (int mode = 0; mode < 3; mode++) {
        pthread_t other;
        atomic_store(&shares_done, 0);
        EXPECT(kst_run_start(pool, cmds, COMMANDS, &step) == KST_OK);
        if (mode == 1) EXPECT(kst_run_continue(pool, 0.01) == KST_AGAIN);
        if (mode == 2)
            pthread_create(&other, NULL, cancel_later, pool);
        else
            kst_run_cancel(pool); /* 0: before the caller took part, so that the others wait at a barrier or work */
        EXPECT(finish(pool, mode ? 0.05 : 0.0) == KST_CANCELLED);
        if (mode == 2) pthread_join(other, NULL);
        EXPECT(atomic_load(&shares_done) < COMMANDS * threads * 26);
        EXPECT(kst_run_continue(pool, 1.0) == KST_OK); /* over */
    }
    make(mix, COMMANDS, 0.0);
    const uint32_t want = mixed();
    EXPECT(kst_run_start(pool, cmds, COMMANDS, &step) == KST_OK && finish(pool, 1.0) == KST_OK); /* usable afterwards */
    EXPECT(cells[COMMANDS][CELLS - 1] == want);
    kst_pool_destroy(pool);
}

static int live_threads(void) {
#ifdef __linux__
    int n = 0;
    DIR *dir = opendir("/proc/self/task");
    for (struct dirent *e; dir && (e = readdir(dir));) n += e->d_name[0] != '.';
    if (dir) closedir(dir);
    return n;
#else
    return 0;
#endif
}

static void check_destroy(void) {
    const int before = live_threads();
    kst_pool_destroy(NULL);
    kst_pool_destroy(kst_pool_create(4)); /* never started */
    EXPECT(!kst_pool_create(0) && !kst_pool_create(KST_MAX_THREADS + 1));
    kst_pool *pool = kst_pool_create(4);
    make(nap, COMMANDS, 1e9);
    EXPECT(kst_run_start(pool, cmds, COMMANDS, &step) == KST_OK);
    EXPECT(live_threads() == (before ? before + 3 : 0));
    kst_pool_destroy(pool); /* in the middle of a run */
    EXPECT(live_threads() == before);
}

static void check_profile(int threads) {
    kst_pool *pool = kst_pool_create(threads);
    make(mix, COMMANDS, 0.0);
    int64_t(*stamps)[2] = calloc((size_t)(COMMANDS * threads), sizeof *stamps);
    EXPECT(kst_run_start_profiled(pool, cmds, COMMANDS, &step, &stamps[0][0]) == KST_OK && finish(pool, 1.0) == KST_OK);
    for (int i = 0; i < COMMANDS; i++)
        for (int t = 0; t < threads; t++) {
            EXPECT(stamps[i * threads + t][0] > 0 && stamps[i * threads + t][1] >= stamps[i * threads + t][0]);
            /* a barrier: nobody begins a command before everybody has ended the one before */
            for (int other = 0; i && other < threads; other++)
                EXPECT(stamps[i * threads + t][0] >= stamps[(i - 1) * threads + other][1]);
        }
    free(stamps);
    kst_pool_destroy(pool);
}

#ifndef KST_TEST_NO_FORK
static void check_fork(int threads, int in_progress) {
    kst_pool *pool = kst_pool_create(threads);
    make(mix, COMMANDS, 0.0);
    const uint32_t want = mixed();
    EXPECT(kst_run_start(pool, cmds, COMMANDS, &step) == KST_OK);
    if (!in_progress) EXPECT(finish(pool, 1.0) == KST_OK);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) { /* no workers here, whatever the parent had */
        int right = kst_run_continue(pool, 1.0) == KST_OK;
        memset(cells, 0, sizeof cells);
        right &= kst_run_start(pool, cmds, COMMANDS, &step) == KST_OK && finish(pool, 1.0) == KST_OK;
        right &= cells[COMMANDS][CELLS - 1] == want;
        kst_pool_destroy(pool);
        _exit(right ? 0 : 1);
    }
    int status = -1;
    EXPECT(finish(pool, 1.0) == KST_OK);
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(cells[COMMANDS][CELLS - 1] == want);
    kst_pool_destroy(pool);
}
#endif

static atomic_int burning;
static void *burn(void *unused) {
    while (atomic_load_explicit(&burning, memory_order_relaxed)) continue;
    return unused;
}

static void check_neighbours(void) { /* more busy threads than processors: slow, but it ends */
    pthread_t others[4];
    atomic_store(&burning, 1);
    for (int i = 0; i < 4; i++) pthread_create(&others[i], NULL, burn, NULL);
    check_barriers(2, 0.0, 3);
    atomic_store(&burning, 0);
    for (int i = 0; i < 4; i++) pthread_join(others[i], NULL);
}

int main(void) {
    static const int threads[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < 5; i++) {
        check_barriers(threads[i], 0.0, 20);
        check_barriers(threads[i], 4e9, 4);
        check_pauses(threads[i]);
        check_cancel(threads[i]);
        check_profile(threads[i]);
#ifndef KST_TEST_NO_FORK
        check_fork(threads[i], 0);
        check_fork(threads[i], 1);
#endif
    }
    check_destroy();
    check_neighbours();
    printf("%d failures\n", failures);
    return failures ? 1 : 0;
}

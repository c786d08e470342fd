/* Cancel and destroy, at any moment of a run. */
#include "programs.h"

#include <sched.h>
#ifdef __linux__
#include <dirent.h>
#endif

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
            kst_run_cancel(pool); /* 0: before the caller took part, so that the others wait at a
                                     barrier or work */
        EXPECT(finish(pool, mode ? 0.05 : 0.0) == KST_CANCELLED);
        if (mode == 2) pthread_join(other, NULL);
        EXPECT(atomic_load(&shares_done) < COMMANDS * threads * 26);
        EXPECT(kst_run_continue(pool, 1.0) == KST_OK); /* over */
    }
    make(mix, COMMANDS, 0.0);
    const uint32_t want = mixed();
    EXPECT(kst_run_start(pool, cmds, COMMANDS, &step) == KST_OK &&
           finish(pool, 1.0) == KST_OK); /* usable afterwards */
    EXPECT(cells[COMMANDS][CELLS - 1] == want);
    kst_pool_destroy(pool);
}

static atomic_int storming;
static void *storm(void *pool) { /* a cancel may meet any moment of a run, its begin and its end */
    while (atomic_load(&storming)) {
        kst_run_cancel(pool);
        sched_yield();
    }
    return NULL;
}

static void check_storm(int threads) {
    kst_pool *pool = kst_pool_create(threads);
    pthread_t other;
    make(mix, COMMANDS, 0.0);
    const uint32_t want = mixed();
    atomic_store(&storming, 1);
    pthread_create(&other, NULL, storm, pool);
    for (int i = 0; i < 500; i++) {
        cells[COMMANDS][CELLS - 1] = 0;
        EXPECT(kst_run_start(pool, cmds, COMMANDS, &step) == KST_OK);
        const kst_status status = finish(pool, i % 3 ? 1.0 : 0.0);
        EXPECT(status == KST_CANCELLED || (status == KST_OK && cells[COMMANDS][CELLS - 1] == want));
    }
    atomic_store(&storming, 0);
    pthread_join(other, NULL);
    EXPECT(kst_run_start(pool, cmds, COMMANDS, &step) == KST_OK && finish(pool, 1.0) == KST_OK);
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

/* The count once it has held for 200 ms: an emulator's thread may outlive the join of the thread that
   it ran, also that of an earlier check. */
static int settled_threads(void) {
    int n = live_threads();
    for (int held = 0; held < 20; held++) {
        nanosleep(&(struct timespec){0, 10000000}, NULL);
        const int now = live_threads();
        if (now != n) held = 0;
        n = now;
    }
    return n;
}

static void check_destroy(void) {
    const int before = settled_threads();
    kst_pool_destroy(NULL);
    kst_pool_destroy(kst_pool_create(4)); /* never started */
    EXPECT(!kst_pool_create(0) && !kst_pool_create(KST_MAX_THREADS + 1));
    kst_pool *pool = kst_pool_create(4);
    make(nap, COMMANDS, 1e9);
    EXPECT(kst_run_start(pool, cmds, COMMANDS, &step) == KST_OK);
    EXPECT(settled_threads() == (before ? before + 3 : 0));
    kst_pool_destroy(pool); /* in the middle of a run */
    EXPECT(settled_threads() == before);
}

int main(void) {
    static const int threads[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < 5; i++) {
        check_cancel(threads[i]);
        check_storm(threads[i]);
    }
    check_destroy();
    printf("%d failures\n", failures);
    return failures ? 1 : 0;
}

/* The pool and the interpreter: barriers, pieces, pauses, help, profiles, fork, too many threads.
 */
#include "programs.h"

#include <sys/wait.h>
#include <unistd.h>

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
    EXPECT(kst_run_continue(pool, 1.0) == KST_OK); /* nothing in progress */
    EXPECT(kst_run_start(pool, cmds, 3, &step) == KST_OK);
    EXPECT(kst_run_start(pool, cmds, 3, &step) == KST_AGAIN);
    int pauses = 0;
    kst_status status;
    while ((status = kst_run_continue(pool, 0.005)) == KST_AGAIN) pauses++;
    EXPECT(status == KST_OK && pauses > 0);
    /* 5e8 multiply-adds a thread, halved until a piece has at most 37.5e6: 16 of 31.25e6 */
    EXPECT(atomic_load(&shares_done) == 3 * threads * 16);
    for (int i = 0; i < 3; i++) EXPECT(atomic_load(&parts_done[i]) == atomic_load(&parts[i]));
    kst_pool_destroy(pool);
}

/* Whoever comes first is done only when everything else is, or after 20 s. */
static atomic_int come;
static void wait_for_rest(const kst_cmd *cmd, const kst_step *s, kst_share share) {
    (void)s;
    const struct timespec t = {0, 1000000};
    const int rest = share.count - (share.end - share.begin);
    const int is_first = atomic_fetch_add(&come, 1) == 0;
    for (int i = 0; is_first && i < 20000; i++) {
        if (atomic_load(&parts_done[cmd->args.copy.dim]) == rest) break;
        nanosleep(&t, NULL);
    }
    if (is_first) EXPECT(atomic_load(&parts_done[cmd->args.copy.dim]) == rest);
    count_parts(cmd, share);
}

static const kst_step two_rows = {.n_tokens = 2}; /* of one row each thread does its own share */

static void check_balance(int threads, int before) { /* the others do what a slow thread leaves */
    kst_pool *pool = kst_pool_create(threads);
    make(nap, before, 0.0);
    cmds[before] = (kst_cmd){
        .kernel = wait_for_rest, .args.copy.dim = before, .work_per_row = 1e7 * threads};
    atomic_store(&come, 0);
    EXPECT(kst_run_start(pool, cmds, before + 1, &two_rows) == KST_OK &&
           finish(pool, 1.0) == KST_OK);
    EXPECT(atomic_load(&parts_done[before]) == atomic_load(&parts[before]));
    kst_pool_destroy(pool);
}

static void check_many_commands(int threads) { /* more between two barriers than have a cursor */
    kst_pool *pool = kst_pool_create(threads);
    make(nap, 40, 2e6 * threads);
    for (int i = 0; i < 40; i++) cmds[i].barrier_before = i == 30;
    EXPECT(kst_run_start(pool, cmds, 40, &two_rows) == KST_OK && finish(pool, 1.0) == KST_OK);
    for (int i = 0; i < 40; i++) EXPECT(atomic_load(&parts_done[i]) == atomic_load(&parts[i]));
    kst_pool_destroy(pool);
}

static void check_help(int threads) { /* the others do the lane of a caller who does not come */
    kst_pool *pool = kst_pool_create(threads);
    make(nap, 5, 0.0);
    EXPECT(kst_run_start(pool, cmds, 5, &step) == KST_OK);
    const struct timespec t = {0, 5000000};
    for (int i = 0; i < 4000 && atomic_load(&shares_done) < 5 * threads; i++) nanosleep(&t, NULL);
    EXPECT(atomic_load(&shares_done) == 5 * threads);
    EXPECT(kst_run_start(pool, cmds, 5, &step) == KST_AGAIN); /* nobody was told the end yet */
    EXPECT(finish(pool, 1.0) == KST_OK);
    kst_pool_destroy(pool);
}

static void check_profile(int threads) {
    kst_pool *pool = kst_pool_create(threads);
    make(mix, COMMANDS, 0.0);
    int64_t (*stamps)[2] = calloc((size_t)(COMMANDS * threads), sizeof *stamps);
    EXPECT(kst_run_start_profiled(pool, cmds, COMMANDS, &step, &stamps[0][0]) == KST_OK &&
           finish(pool, 1.0) == KST_OK);
    for (int i = 0; i < COMMANDS; i++)
        for (int t = 0; t < threads; t++) {
            EXPECT(stamps[i * threads + t][0] > 0 &&
                   stamps[i * threads + t][1] >= stamps[i * threads + t][0]);
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
        right &=
            kst_run_start(pool, cmds, COMMANDS, &step) == KST_OK && finish(pool, 1.0) == KST_OK;
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
        check_profile(threads[i]);
        check_many_commands(threads[i]);
        if (threads[i] > 1) {
            check_help(threads[i]);
            check_balance(threads[i], 3);
        }
#ifndef KST_TEST_NO_FORK
        check_fork(threads[i], 0);
        check_fork(threads[i], 1);
#endif
    }
    check_neighbours();
    printf("%d failures\n", failures);
    return failures ? 1 : 0;
}

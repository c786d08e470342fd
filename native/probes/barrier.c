/* Cost of a planned barrier: a program of 1000 empty commands with and without barriers, and of a
 * whole empty run. barrier      link with the objects of native/cpu */
#include "kestrel/cpu.h"

#include <stdio.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nothing(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    (void)cmd, (void)step, (void)share;
}

static double run(kst_pool *pool, const kst_cmd *cmds, int n, const kst_step *step) {
    double best = 1e9;
    for (int r = 0; r < 2000; r++) {
        const double t = now();
        kst_run_start(pool, cmds, n, step);
        while (kst_run_continue(pool, 1.0) == KST_AGAIN) continue;
        const double took = now() - t;
        best = took < best ? took : best;
    }
    return best;
}

int main(void) {
    static kst_cmd cmds[1000];
    const kst_step step = {.n_tokens = 1};
    static const int threads[] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        kst_pool *pool = kst_pool_create(threads[i]);
        double took[2];
        for (int barrier = 0; barrier < 2; barrier++) {
            for (int c = 0; c < 1000; c++)
                cmds[c] = (kst_cmd){.kernel = nothing, .barrier_before = barrier};
            took[barrier] = run(pool, cmds, 1000, &step);
        }
        printf("%d threads: command %.3f us, barrier %.3f us, empty run %.2f us (best of 2000)\n",
               threads[i], took[0] * 1e3, (took[1] - took[0]) * 1e3,
               run(pool, cmds, 1, &step) * 1e6);
        kst_pool_destroy(pool);
    }
}

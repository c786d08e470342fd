/* Kernels of our own and a program of them, for the tests of the pool and the interpreter. */
#ifndef KESTREL_TEST_PROGRAMS_H
#define KESTREL_TEST_PROGRAMS_H

#include "expect.h"
#include "kestrel/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COMMANDS 120
#define CELLS 64
static uint32_t cells[COMMANDS + 1][CELLS];
static atomic_int shares_done;
static atomic_int parts_done[COMMANDS], parts[COMMANDS]; /* done, of how many */

/* Each cell from all cells of the command before: wrong unless every thread has finished that one.
 */
static void mix(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    (void)step;
    const int32_t row = cmd->args.copy.dim;
    for (int i = CELLS * share.begin / share.count; i < CELLS * share.end / share.count;
         i++) {
        uint32_t sum = (uint32_t)i;
        for (int j = 0; j < CELLS; j++) sum = sum * 31 + cells[row][j];
        cells[row + 1][i] = sum;
    }
}

static void count_parts(const kst_cmd *cmd, kst_share share) {
    atomic_store(&parts[cmd->args.copy.dim], share.count);
    atomic_fetch_add(&parts_done[cmd->args.copy.dim], share.end - share.begin);
    atomic_fetch_add(&shares_done, 1);
}

static void nap(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    (void)step;
    const struct timespec t = {0, 2000000};
    nanosleep(&t, NULL);
    memset(share.scratch, share.begin, KST_SCRATCH_BYTES);
    count_parts(cmd, share);
}

static kst_cmd cmds[COMMANDS];
static kst_step step = {.n_tokens = 1};

static void make(kst_kernel *kernel, int n, double work) {
    memset(cmds, 0, sizeof cmds);
    atomic_store(&shares_done, 0);
    for (int i = 0; i < COMMANDS; i++) atomic_store(&parts_done[i], 0);
    for (int i = 0; i < n; i++)
        cmds[i] = (kst_cmd){
            .kernel = kernel, .args.copy.dim = i, .barrier_before = i > 0, .work_per_row = work};
}

static uint32_t mixed(void) { /* the same by one thread */
    memset(cells, 0, sizeof cells);
    for (int i = 0; i < COMMANDS; i++) mix(&cmds[i], &step, (kst_share){0, 1, 1, NULL});
    const uint32_t last = cells[COMMANDS][CELLS - 1];
    memset(cells, 0, sizeof cells);
    return last;
}

static kst_status finish(kst_pool *pool, double seconds) {
    kst_status status;
    while ((status = kst_run_continue(pool, seconds)) == KST_AGAIN) continue;
    return status;
}

#endif

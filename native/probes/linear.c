/* Speed of linear: GB/s of weights and GFLOP/s, best of many, on the pool.
 *     linear THREADS [ISA]      link with the objects of native/cpu */
#include "kestrel/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static clockid_t clock_id =
    CLOCK_MONOTONIC; /* for one thread its own time, so that neighbours do not count */

static double now(void) {
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 1,
              isa = argc > 2 ? atoi(argv[2]) : kst_isa_best();
    static const int shapes[][2] = {{864, 288},  {768, 288},  {288, 768},   {32000, 288},
                                    {1536, 576}, {576, 1536}, {3072, 2048}, {2048, 8192}};
    static const int rows[] = {1, 2, 4, 16, 128, 512};
    static const char *const names[] = {"f32", "f16", "bf16"};
    if (threads == 1) clock_id = CLOCK_PROCESS_CPUTIME_ID;
    kst_pool *pool = kst_pool_create(threads);
    const double seconds = argc > 3 ? atof(argv[3]) : 0.2;
    printf("%s, %d threads; GB/s of weights for 1 row, GFLOP/s above\n", kst_isa_name(isa),
           threads);
    for (int s = 0; s < 8; s++)
        for (int dtype = 0; dtype < 3; dtype++) {
            const int64_t out = shapes[s][0], in = shapes[s][1], size = out * in * (dtype ? 2 : 4);
            /* enough copies that the weights come from memory for one row */
            const int64_t copies = 64000000 / size + 1;
            char *w = aligned_alloc(64, (size_t)(size * copies + 63) / 64 * 64);
            memset(w, 0x3c, (size_t)(size * copies));
            printf("%5d x %4d %4s", (int)out, (int)in, names[dtype]);
            for (int m = 0; m < 6; m++) {
                float *x = aligned_alloc(64, (size_t)((rows[m] * in * 4 + 63) / 64 * 64)),
                      *y = malloc((size_t)(rows[m] * out * 4));
                for (int64_t i = 0; i < rows[m] * in; i++) x[i] = (float)(i % 7) - 3.0f;
                kst_step step = {.n_tokens = rows[m]};
                double best = 1e9, spent = 0.0;
                for (int64_t r = 0; spent < seconds || r < 3; r++) {
                    kst_cmd cmd = {.kernel = kst_kernel_for(isa, KST_OP_linear, dtype, NULL),
                                   .in = {x, w + r % copies * size},
                                   .out = {y},
                                   .args.linear = {(int)in, 1, {(int)out}, {dtype}, 1.0f},
                                   .work_per_row = (double)(in * out)};
                    const double t = now();
                    kst_run_start(pool, &cmd, 1, &step);
                    while (kst_run_continue(pool, 1.0) == KST_AGAIN) continue;
                    const double took = now() - t;
                    best = took < best ? took : best;
                    spent += took;
                }
                if (m == 0)
                    printf("  %5.1f GB/s", (double)size / best * 1e-9);
                else
                    printf("  M%d %5.1f", rows[m],
                           2.0 * (double)(rows[m] * in * out) / best * 1e-9);
                free(x);
                free(y);
            }
            printf("\n");
            fflush(stdout);
            free(w);
        }
    kst_pool_destroy(pool);
}

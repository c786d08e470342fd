/* Speed of attention, best of many, on the pool: GB/s of cache for one token whose context comes
 * from memory, GFLOP/s for prompts, whose context was written just before, and for their last part.
 *     attention THREADS [ISA [SECONDS]]      link with the objects of native/cpu */
#include "kestrel/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CACHE_BYTES (160 << 20) /* of all layers: several times the last cache */

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
    const double seconds = argc > 3 ? atof(argv[3]) : 0.2;
    static const int shapes[][3] = {{6, 6, 48}, {9, 3, 64}, {32, 8, 128}};
    static const int sizes[][2] = {{1, 512},   {1, 2048},  {1, 8192},
                                   {128, 128}, {512, 512}, {64, 2048}}; /* tokens, context */
    if (threads == 1) clock_id = CLOCK_PROCESS_CPUTIME_ID;
    kst_pool *pool = kst_pool_create(threads);
    char *cache = aligned_alloc(64, CACHE_BYTES);
    printf("%s, %d threads; tokens x context, GB/s of cache or GFLOP/s\n", kst_isa_name(isa),
           threads);
    for (int s = 0; s < 3; s++)
        for (int dtype = 0; dtype < 2; dtype++) {
            const int heads = shapes[s][0], kv = shapes[s][1], dim = shapes[s][2];
            memset(cache, 0x2c, CACHE_BYTES);
            printf("%2d/%d x %3d %s", heads, kv, dim, dtype ? "f16" : "f32");
            for (int z = 0; z < 6; z++) {
                const int n = sizes[z][0], context = sizes[z][1], blocks = context / 16;
                const int64_t bytes = (int64_t)context * 2 * kv * dim * (dtype ? 2 : 4),
                              layers = n < context ? CACHE_BYTES / bytes : 1;
                float *q = calloc((size_t)(n * heads * dim), 4),
                      *y = malloc((size_t)(n * heads * dim) * 4);
                int32_t *positions = malloc((size_t)n * 4), *table = malloc((size_t)blocks * 4);
                for (int i = 0; i < n; i++) positions[i] = context - n + i;
                for (int i = 0; i < blocks; i++) table[i] = i * 7 % blocks;
                const kst_step step = {.n_tokens = n,
                                       .n_seqs = 1,
                                       .max_blocks = blocks,
                                       .positions = positions,
                                       .seq_start = (int32_t[]){0, n},
                                       .context_len = &context,
                                       .block_table = table};
                double best = 1e9, spent = 0.0;
                for (int64_t r = 0; spent < seconds || r < 3; r++) {
                    const kst_cmd cmd = {.kernel =
                                             kst_kernel_for(isa, KST_OP_attention, dtype, NULL),
                                         .in = {q, cache + r % layers * bytes},
                                         .out = {y},
                                         .args.attention = {heads, kv, dim, dtype, 0, 0.1f, 0},
                                         .work_per_row = 1.0};
                    const double t = now();
                    kst_run_start(pool, &cmd, 1, &step);
                    while (kst_run_continue(pool, 1.0) == KST_AGAIN) continue;
                    const double took = now() - t;
                    best = took < best ? took : best;
                    spent += took;
                }
                const double pairs = n * (double)context - n * (n - 1.0) / 2;
                if (n == 1)
                    printf("  1x%d %.1f GB/s", context, (double)bytes / best * 1e-9);
                else
                    printf("  %dx%d %.1f", n, context, pairs * heads * dim * 4 / best * 1e-9);
                free(q), free(y), free(positions), free(table);
            }
            printf("\n");
            fflush(stdout);
        }
    free(cache);
    kst_pool_destroy(pool);
}

/* Speed of attention: microseconds and GB/s of cache for one token of a long context, GFLOP/s for a
 * prompt. attention [ISA]      link with the objects of native/cpu */
#include "kestrel/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    const int isa = argc > 1 ? atoi(argv[1]) : kst_isa_best();
    static const int shapes[][3] = {{6, 6, 48}, {9, 3, 64}, {32, 8, 128}};
    static const int sizes[][2] = {
        {1, 256}, {1, 2048}, {128, 128}, {512, 512}, {64, 2048}}; /* tokens, context */
    static _Alignas(64) char scratch[KST_SCRATCH_BYTES];
    for (int s = 0; s < 3; s++)
        for (int dtype = 0; dtype < 2; dtype++) {
            const int heads = shapes[s][0], kv = shapes[s][1], dim = shapes[s][2];
            printf("heads %d/%d, dim %d, %s:", heads, kv, dim, dtype ? "f16" : "f32");
            for (int z = 0; z < 5; z++) {
                const int n = sizes[z][0], context = sizes[z][1], blocks = context / 16;
                const size_t bytes = (size_t)context * 2 * (size_t)(kv * dim) * (dtype ? 2 : 4);
                void *cache = aligned_alloc(64, bytes);
                memset(cache, 0x2c, bytes);
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
                const kst_cmd cmd = {.in = {q, cache},
                                     .out = {y},
                                     .args.attention = {heads, kv, dim, dtype, 0, 0.1f, 0}};
                double best = 1e9, spent = 0.0;
                while (spent < 0.3) {
                    const double t = now();
                    kst_kernel_for(isa, KST_OP_attention, dtype, NULL)(&cmd, &step,
                                                                       (kst_share){0, 1, scratch});
                    const double took = now() - t;
                    best = took < best ? took : best;
                    spent += took;
                }
                const double pairs = n * (double)context - n * (n - 1.0) / 2;
                printf("  %dx%d %.1f us %.1f GB/s %.1f GFLOP/s", n, context, best * 1e6,
                       (double)bytes / best * 1e-9, pairs * heads * dim * 4 / best * 1e-9);
                free(cache), free(q), free(y), free(positions), free(table);
            }
            printf("\n");
        }
}

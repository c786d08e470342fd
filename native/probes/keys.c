/* Scores of one query against a context of keys: blocks of [D, 16] (a position a lane) against rows
 * [16, D] that need a sum of lanes for each score; and the price of writing a token's keys in
 * either layout (AVX2). gcc -O3 -mavx2 -mfma native/probes/keys.c -o /tmp/keys && /tmp/keys */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void lanes(const float *q, const float *k, float *s, int dim, int blocks) {
    for (int b = 0; b < blocks; b += 4) { /* four blocks at a time, as the kernel does */
        __m256 a[8];
        for (int i = 0; i < 8; i++) a[i] = _mm256_setzero_ps();
        for (int d = 0; d < dim; d++) {
            const __m256 x = _mm256_set1_ps(q[d]);
            for (int i = 0; i < 8; i++)
                a[i] = _mm256_fmadd_ps(
                    x, _mm256_loadu_ps(k + (b + i / 2) * dim * 16 + d * 16 + i % 2 * 8), a[i]);
        }
        for (int i = 0; i < 8; i++) _mm256_storeu_ps(s + b * 16 + i * 8, a[i]);
    }
}

static void rows(const float *q, const float *k, float *s, int dim, int positions) {
    for (int j = 0; j < positions;
         j += 4) { /* four positions, two vectors each; tree as in vf_hsum4 */
        __m256 a[8];
        __m128 t[4];
        for (int i = 0; i < 8; i++) a[i] = _mm256_setzero_ps();
        for (int d = 0; d < dim; d += 16)
            for (int i = 0; i < 8; i++)
                a[i] =
                    _mm256_fmadd_ps(_mm256_loadu_ps(q + d + i % 2 * 8),
                                    _mm256_loadu_ps(k + (j + i / 2) * dim + d + i % 2 * 8), a[i]);
        for (int i = 0; i < 4; i++) {
            const __m256 sum = _mm256_add_ps(a[2 * i], a[2 * i + 1]);
            t[i] = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
        }
        _MM_TRANSPOSE4_PS(t[0], t[1], t[2], t[3]);
        _mm_storeu_ps(s + j, _mm_add_ps(_mm_add_ps(t[0], t[2]), _mm_add_ps(t[1], t[3])));
    }
}

int main(void) {
    static const int dims[] = {48, 64, 128};
    for (int i = 0; i < 3; i++)
        for (int positions = 256; positions <= 16384; positions *= 8) {
            const int dim = dims[i], heads = 8;
            const size_t n = (size_t)dim * (size_t)positions;
            float *k = aligned_alloc(64, n * heads * 4), *s = malloc((size_t)positions * 4),
                  q[128] = {1.0f};
            memset(k, 0, n * heads * 4);
            double best[3] = {1e9, 1e9, 1e9}, t;
            for (int r = 0; r < 300; r++) {
                t = now();
                for (int h = 0; h < heads; h++) lanes(q, k + h * n, s, dim, positions / 16);
                best[0] = now() - t < best[0] ? now() - t : best[0];
                t = now();
                for (int h = 0; h < heads; h++) rows(q, k + h * n, s, dim, positions);
                best[1] = now() - t < best[1] ? now() - t : best[1];
                t = now();
                for (int h = 0; h < heads; h++)
                    for (int d = 0; d < dim; d++)
                        k[h * n + (size_t)d * 16 + (size_t)(r % 16)] = q[d % 8];
                best[2] = now() - t < best[2] ? now() - t : best[2];
            }
            printf("dim %3d, %5d positions, 8 heads: [D, 16] %.1f us, [16, D] %.1f us; writing one "
                   "token's keys %.2f us\n",
                   dim, positions, best[0] * 1e6, best[1] * 1e6, best[2] * 1e6);
            free(k), free(s);
        }
}

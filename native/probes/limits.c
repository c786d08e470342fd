/* What the machine can do: read bandwidth, also of unaligned bfloat16, and the peak of fused
 * multiply-adds (AVX2). gcc -O3 -mavx2 -mfma native/probes/limits.c -o /tmp/limits && /tmp/limits
 */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* neighbours do not count */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float read_floats(const char *p, size_t bytes) {
    __m256 s[4] = {{0}};
    for (size_t i = 0; i < bytes; i += 128)
        for (int j = 0; j < 4; j++)
            s[j] = _mm256_add_ps(s[j], _mm256_loadu_ps((const float *)(p + i) + 8 * j));
    return s[0][0] + s[1][1] + s[2][2] + s[3][3];
}

static float read_bf16(const char *p, size_t bytes) {
    __m256 s[4] = {{0}};
    for (size_t i = 0; i < bytes; i += 64)
        for (int j = 0; j < 4; j++) {
            __m128i h = _mm_loadu_si128((const __m128i *)(p + i) + j);
            s[j] = _mm256_add_ps(
                s[j], _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)));
        }
    return s[0][0] + s[1][1] + s[2][2] + s[3][3];
}

int main(void) {
    volatile float sink;
    for (size_t mib = 1; mib <= 256; mib *= 4) {
        const size_t bytes = mib << 20;
        char *p = aligned_alloc(64, bytes + 64);
        memset(p, 0, bytes + 64);
        double best[4] = {1e9, 1e9, 1e9, 1e9};
        static const int skews[] = {0, 0, 2, 8};
        for (int r = 0; r < 20; r++)
            for (int k = 0; k < 4; k++) {
                const double t = now();
                sink = k ? read_bf16(p + skews[k], bytes) : read_floats(p, bytes);
                const double took = now() - t;
                best[k] = took < best[k] ? took : best[k];
            }
        printf("%4zu MiB: f32 %.1f GB/s; bf16 at offset 0 %.1f, 2 %.1f, 8 %.1f\n", mib,
               (double)bytes / best[0] * 1e-9, (double)bytes / best[1] * 1e-9,
               (double)bytes / best[2] * 1e-9, (double)bytes / best[3] * 1e-9);
        free(p);
    }
    double best = 1e9;
    for (int r = 0; r < 20; r++) {
        __m256 s[12], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
        for (int j = 0; j < 12; j++) s[j] = _mm256_set1_ps((float)j);
        const double t = now();
        for (int i = 0; i < 1000000; i++)
            for (int j = 0; j < 12; j++) {
                s[j] = _mm256_fmadd_ps(s[j], a, b);
                __asm__("" : "+x"(s[j]));
            }
        const double took = now() - t;
        best = took < best ? took : best;
        for (int j = 0; j < 12; j++) sink = s[j][0];
    }
    (void)sink;
    printf("fma peak %.1f GFLOP/s\n", 12e6 * 16 / best * 1e-9);
}

/* Builds of the backend against each other, by turns in one process, so that what neighbours take
 * of the machine is taken from all. Each does the linear commands of a whole step, a barrier before
 * each, and beside them stand the limits measured between the turns.
 *     variants THREADS ISA MODEL DTYPE ROWS SECONDS LIBRARY...
 * MODEL: 15M, 135M, 1B, or OUTxIN:MB, one shape over so many megabytes. DTYPE: 0 F32, 1 F16, 2 BF16.
 * A library is made by variants.sh. KST_SMALL_PAGES=1: weights in pages of 4 KiB. */
#include "kestrel/cpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_TURNS 100000
#define LARGE_PAGE ((size_t)2 << 20)

typedef struct {
    const char *name;
    int layers, shapes[4][2], head[2]; /* [out, in] */
} model;

static const model models[] = {
    {"15M", 6, {{864, 288}, {288, 288}, {1536, 288}, {288, 768}}, {32000, 288}},
    {"135M", 30, {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}}, {49152, 576}},
    {"1B", 16, {{3072, 2048}, {2048, 2048}, {16384, 2048}, {2048, 8192}}, {128256, 2048}},
};

#define FUNCTIONS(f) \
    f(kst_pool_create) f(kst_run_start) f(kst_run_continue) f(kst_kernel_for) f(kst_limit_read) \
        f(kst_limit_fma)
typedef struct {
#define FIELD(name) __typeof__(name) *name;
    FUNCTIONS(FIELD)
    kst_pool *pool;
    kst_cmd *cmds;
    double times[MAX_TURNS];
    int turns;
} variant;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Rates of sorted times: the best, of the fastest tenth, of the middle. */
static void print_rates(const char *name, double amount, double *times, int n) {
    qsort(times, (size_t)n, sizeof *times, compare);
    printf("  %-20s best %6.1f, tenth %6.1f, median %6.1f, %.3f ms, %d turns\n", name,
           amount / times[0] * 1e-9, amount / times[n / 10] * 1e-9, amount / times[n / 2] * 1e-9,
           times[n / 2] * 1e3, n);
}

static variant *load(const char *library, int threads) {
    variant *v = calloc(1, sizeof *v);
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
#define FIND(name) if (handle) *(void **)&v->name = dlsym(handle, #name);
    FUNCTIONS(FIND)
    if (!handle || !v->kst_limit_fma) {
        fprintf(stderr, "%s: not made by variants.sh: %s\n", library, dlerror());
        exit(1);
    }
    v->pool = v->kst_pool_create(threads);
    return v;
}

static double turn(variant *v, int n, const kst_step *step) {
    const double begin = now();
    v->kst_run_start(v->pool, v->cmds, n, step);
    while (v->kst_run_continue(v->pool, 1.0) == KST_AGAIN) continue;
    return now() - begin;
}

int main(int argc, char **argv) {
    if (argc < 8) return fprintf(stderr, "usage: see the head of variants.c\n"), 1;
    const int threads = atoi(argv[1]), isa = atoi(argv[2]), dtype = atoi(argv[4]);
    const int rows = atoi(argv[5]), width = dtype ? 2 : 4, builds = argc - 7;
    model m = {.layers = 1};
    for (int i = 0; i < 3; i++)
        if (!strcmp(argv[3], models[i].name)) m = models[i];
    int megabytes = 0, kinds = m.name ? 4 : 1;
    if (!m.name && sscanf(argv[3], "%dx%d:%d", &m.shapes[0][0], &m.shapes[0][1], &megabytes) == 3)
        m.layers = (int)(megabytes * 1e6 / width / m.shapes[0][0] / m.shapes[0][1]) + 1;

    int (*shapes)[2] = calloc((size_t)(m.layers * kinds + 1), sizeof *shapes);
    int n = 0;
    for (int i = 0; i < m.layers * kinds; i++) memcpy(shapes[n++], m.shapes[i % kinds], 8);
    if (m.name && rows <= 16) memcpy(shapes[n++], m.head, 8); /* a prompt's is for one row */
    size_t weights = 0, in = 0, out = 0;
    for (int i = 0; i < n; i++) {
        weights += (size_t)shapes[i][0] * (size_t)shapes[i][1];
        out = (size_t)shapes[i][0] > out ? (size_t)shapes[i][0] : out;
        in = (size_t)shapes[i][1] > in ? (size_t)shapes[i][1] : in;
    }
    const size_t bytes = weights * (size_t)width;
    char *memory = mmap(NULL, bytes + LARGE_PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!getenv("KST_SMALL_PAGES")) madvise(memory, bytes + LARGE_PAGE, MADV_HUGEPAGE);
    char *w = memory + (LARGE_PAGE - (size_t)memory % LARGE_PAGE) % LARGE_PAGE;
    for (size_t i = 0; i < weights; i++) { /* signs at random, so that sums stay small */
        const uint32_t sign = (uint32_t)(i * 2654435761u) & 0x80000000;
        if (dtype)
            ((uint16_t *)w)[i] = (uint16_t)(sign >> 16 | 0x3c00);
        else
            ((uint32_t *)w)[i] = sign | 0x3c000000;
    }
    float *x = aligned_alloc(64, ((size_t)rows * in * 4 + 63) / 64 * 64),
          *y = aligned_alloc(64, ((size_t)rows * out * 4 + 63) / 64 * 64);
    for (size_t i = 0; i < (size_t)rows * in; i++) x[i] = (float)(i % 7) - 3.0f;

    const kst_step step = {.n_tokens = rows};
    variant **v = calloc((size_t)builds, sizeof *v);
    for (int b = 0; b < builds; b++) {
        v[b] = load(argv[7 + b], threads);
        v[b]->cmds = calloc((size_t)n, sizeof(kst_cmd));
        const char *at = w;
        for (int i = 0; i < n; i++) {
            const int o = shapes[i][0], k = shapes[i][1];
            v[b]->cmds[i] = (kst_cmd){.kernel = v[b]->kst_kernel_for(isa, KST_OP_linear, dtype, NULL),
                                      .in = {x, at},
                                      .out = {y},
                                      .args.linear = {k, 1, {o}, {dtype}, 1.0f},
                                      .barrier_before = 1,
                                      .work_per_row = (double)o * k};
            at += (size_t)o * (size_t)k * (size_t)width;
        }
    }
    const int is_small = bytes < (size_t)80 << 20; /* may be in a cache: what counts is a second turn */
    static double reads[MAX_TURNS], flops[MAX_TURNS];
    int limits = 0;
    for (const double end = now() + atof(argv[6]); now() < end && limits < MAX_TURNS; limits++) {
        for (int i = 0; i < builds; i++) {
            const int b = (limits + i) % builds; /* the first after the limits is slower */
            if (is_small) turn(v[b], n, &step);
            v[b]->times[v[b]->turns++] = turn(v[b], n, &step);
        }
        uint64_t count;
        for (int i = 0; i <= is_small; i++)
            v[0]->kst_limit_read(v[0]->pool, isa, w, (int64_t)(bytes / 64 * 64), 1, &reads[limits], &count);
        v[0]->kst_limit_fma(v[0]->pool, isa, 200000, &flops[limits], &count);
        flops[limits] /= 2e-9 * (double)count; /* seconds for 1e9 operations */
    }
    printf("%s, dtype %d, %d rows, %d threads, isa %d: %s\n", argv[3], dtype, rows, threads, isa,
           rows == 1 ? "GB/s of weights" : "GFLOP/s");
    print_rates("limit, read, GB/s", (double)bytes, reads, limits);
    print_rates("limit, GFLOP/s", 1e9, flops, limits);
    for (int b = 0; b < builds; b++)
        print_rates(argv[7 + b], rows == 1 ? (double)bytes : 2.0 * rows * (double)weights, v[b]->times,
                    v[b]->turns);
}

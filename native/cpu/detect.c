/* What the processor has and the operating system keeps over a switch of threads. Compiled with baseline flags: this
 * file must run on every machine. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include "table.h"

#include <stdio.h>
#include <string.h>

#ifdef __APPLE__
#include <sys/sysctl.h>
#include <unistd.h>

static int system_number(const char *name) { /* 0 where the name is unknown */
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 ? value : 0;
}
#endif

#if defined(__x86_64__)
#include <cpuid.h>

typedef struct {
    const char *name;
    int leaf, reg, bit; /* reg: 0 eax, 1 ebx, 2 ecx, 3 edx */
} feature;

static const feature avx2_features[] = {
    {"avx", 1, 2, 28}, {"fma", 1, 2, 12}, {"f16c", 1, 2, 29}, {"avx2", 7, 1, 5}, {NULL, 0, 0, 0}};
static const feature avx512_features[] = {
    {"avx512f", 7, 1, 16}, {"avx512dq", 7, 1, 17}, {"avx512bw", 7, 1, 30}, {"avx512vl", 7, 1, 31}, {NULL, 0, 0, 0}};

static int has(const feature *f) {
    unsigned reg[4] = {0, 0, 0, 0};
    return __get_cpuid_count((unsigned)f->leaf, 0, &reg[0], &reg[1], &reg[2], &reg[3]) && (reg[f->reg] >> f->bit & 1);
}

/* Which register states the operating system saves (XCR0); 0 if it does not say. */
static unsigned saved_states(void) {
    static const feature osxsave = {"osxsave", 1, 2, 27};
    if (!has(&osxsave)) return 0;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void append(char *text, size_t size, const char *word) {
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? ", " : "the processor lacks ", word);
}

static const char *missing_x86(int isa) {
    static _Thread_local char text[128];
    text[0] = '\0';
    for (const feature *f = avx2_features; f->name; f++)
        if (!has(f)) append(text, sizeof text, f->name);
    for (const feature *f = avx512_features; isa == KST_ISA_AVX512 && f->name; f++)
        if (!has(f)) append(text, sizeof text, f->name);
    if (text[0]) return text;
    const unsigned states = saved_states();
    if ((states & 0x6) != 0x6) return "the operating system does not save the ymm registers";
#ifdef __APPLE__ /* turned on at the first use, so XCR0 does not show it */
    if (isa == KST_ISA_AVX512 && !system_number("hw.optional.avx512f"))
        return "the operating system does not save the zmm registers";
#else
    if (isa == KST_ISA_AVX512 && (states & 0xe6) != 0xe6) return "the operating system does not save the zmm registers";
#endif
    return "";
}
#endif

const char *kst_detect_missing(int isa) {
    switch (isa) {
    case KST_ISA_SCALAR: return "";
#if defined(__x86_64__)
    case KST_ISA_AVX2:
    case KST_ISA_AVX512: return missing_x86(isa);
    case KST_ISA_NEON: return "the processor is x86-64";
#elif defined(__aarch64__)
    case KST_ISA_AVX2:
    case KST_ISA_AVX512: return "the processor is arm64";
    case KST_ISA_NEON: return ""; /* part of every arm64 processor */
#endif
    default: return "the processor is of another architecture";
    }
}

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>

int kst_affinity_cpus(void) {
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) { /* EINVAL: the kernel's mask is longer */
        cpu_set_t *set = CPU_ALLOC(cpus);
        if (!set) break;
        const size_t size = CPU_ALLOC_SIZE(cpus);
        const int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (count > 0) return count;
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int kst_performance_cpus(void) { return 0; }
#else
#include <unistd.h>

int kst_affinity_cpus(void) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

#ifdef __APPLE__
int kst_performance_cpus(void) { return system_number("hw.perflevel0.logicalcpu"); }
#else
int kst_performance_cpus(void) { return 0; }
#endif
#endif

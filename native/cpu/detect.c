/* What the processor has and the operating system keeps over a switch of threads. Compiled with
 * baseline flags: this file must run on every machine. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include "table.h"

#include <stdatomic.h>
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

/* Leaf 1 ecx, leaf 7 ebx and ecx, and the register states that the operating system saves (XCR0).
 * CPUID is slow in virtual machines, so the words are read once; threads that come at the same time
 * read the same. */
enum { LEAF_1_ECX, LEAF_7_EBX, LEAF_7_ECX, STATES, WORDS };

static unsigned word_of(int index) {
    static atomic_uint words[WORDS];
    static atomic_int known;
    if (!atomic_load_explicit(&known, memory_order_acquire)) {
        unsigned a, b, c = 0, d, states = 0;
        if (__get_cpuid_count(1, 0, &a, &b, &c, &d))
            atomic_store_explicit(&words[LEAF_1_ECX], c, memory_order_relaxed);
        if (c >> 27 & 1) __asm__ volatile("xgetbv" : "=a"(states), "=d"(d) : "c"(0)); /* OSXSAVE */
        atomic_store_explicit(&words[STATES], states, memory_order_relaxed);
        if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
            atomic_store_explicit(&words[LEAF_7_EBX], b, memory_order_relaxed);
            atomic_store_explicit(&words[LEAF_7_ECX], c, memory_order_relaxed);
        }
        atomic_store_explicit(&known, 1, memory_order_release);
    }
    return atomic_load_explicit(&words[index], memory_order_relaxed);
}

typedef struct {
    const char *name;
    int isa, word, bit; /* wanted by this instruction set and wider ones */
} feature;

static const feature features[] = {
    {"avx", KST_ISA_AVX2, LEAF_1_ECX, 28},        {"fma", KST_ISA_AVX2, LEAF_1_ECX, 12},
    {"f16c", KST_ISA_AVX2, LEAF_1_ECX, 29},       {"avx2", KST_ISA_AVX2, LEAF_7_EBX, 5},
    {"avx512f", KST_ISA_AVX512, LEAF_7_EBX, 16},  {"avx512dq", KST_ISA_AVX512, LEAF_7_EBX, 17},
    {"avx512bw", KST_ISA_AVX512, LEAF_7_EBX, 30}, {"avx512vl", KST_ISA_AVX512, LEAF_7_EBX, 31},
    {"avx512vbmi", KST_ISA_AVX512VBMI, LEAF_7_ECX, 1},
};

static const char *missing_x86(int isa) {
    static _Thread_local char text[128];
    text[0] = '\0';
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        const feature *f = &features[i];
        if (f->isa > isa || word_of(f->word) >> f->bit & 1) continue;
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s", used ? ", " : "the processor lacks ",
                 f->name);
    }
    if (text[0]) return text;
    const unsigned states = word_of(STATES);
    if ((states & 0x6) != 0x6) return "the operating system does not save the ymm registers";
#ifdef __APPLE__ /* turned on at the first use, so XCR0 does not show it */
    if (isa >= KST_ISA_AVX512 && !system_number("hw.optional.avx512f"))
        return "the operating system does not save the zmm registers";
#else
    if (isa >= KST_ISA_AVX512 && (states & 0xe6) != 0xe6)
        return "the operating system does not save the zmm registers";
#endif
    return "";
}
#endif

const char *kst_detect_missing(int isa) {
    switch (isa) {
    case KST_ISA_SCALAR: return "";
#if defined(__x86_64__)
    case KST_ISA_AVX2:
    case KST_ISA_AVX512:
    case KST_ISA_AVX512VBMI: return missing_x86(isa);
    case KST_ISA_NEON: return "the processor is x86-64";
#elif defined(__aarch64__)
    case KST_ISA_AVX2:
    case KST_ISA_AVX512:
    case KST_ISA_AVX512VBMI: return "the processor is arm64";
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

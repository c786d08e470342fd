/* Chooses kernels: the scalar table first, overlaid by what processor and operating system allow.
 * Baseline flags. */
#include "table.h"

static const char *const isa_names[KST_ISA_COUNT] = {"scalar", "avx2", "avx512", "avx512vbmi",
                                                     "neon"};

const kst_table *kst_table_of(int isa) {
    switch (isa) {
    case KST_ISA_SCALAR: return &kst_table_scalar;
#ifdef KST_WITH_AVX2
    case KST_ISA_AVX2: return &kst_table_avx2;
#endif
#ifdef KST_WITH_AVX512
    case KST_ISA_AVX512: return &kst_table_avx512;
#endif
#ifdef KST_WITH_AVX512VBMI
    case KST_ISA_AVX512VBMI: return &kst_table_avx512vbmi;
#endif
#ifdef KST_WITH_NEON
    case KST_ISA_NEON: return &kst_table_neon;
#endif
    default: return NULL;
    }
}

int kst_abi_version(void) { return KST_ABI_VERSION; }

size_t kst_cmd_size(void) { return sizeof(kst_cmd); }

int kst_isa_count(void) { return KST_ISA_COUNT; }

const char *kst_isa_name(int isa) { return isa >= 0 && isa < KST_ISA_COUNT ? isa_names[isa] : ""; }

int kst_isa_compiled(int isa) { return kst_table_of(isa) != NULL; }

const char *kst_isa_missing(int isa) {
    const char *missing = kst_detect_missing(isa);
    if (missing[0]) return missing;
    return kst_isa_compiled(isa) ? "" : "this build was made without it";
}

int kst_isa_supported(int isa) { return kst_isa_missing(isa)[0] == '\0'; }

int kst_isa_best(void) {
    int best = KST_ISA_SCALAR;
    for (int isa = 0; isa < KST_ISA_COUNT; isa++)
        if (kst_isa_supported(isa)) best = isa;
    return best;
}

kst_kernel *kst_kernel_for(int isa_ceiling, int op, int dtype, const char **variant) {
    if (op < 0 || op >= KST_OP_COUNT) return NULL;
    const int with_dtype = op == KST_OP_embed || op == KST_OP_linear || op == KST_OP_kv_write ||
                           op == KST_OP_attention;
    if (!with_dtype) dtype = 0;
    if (dtype < 0 || dtype >= KST_DTYPES) return NULL;
    kst_kernel *kernel = NULL;
    for (int isa = 0; isa <= isa_ceiling && isa < KST_ISA_COUNT; isa++) {
        if (!kst_isa_supported(isa) || !kst_table_of(isa)->kernels[op][dtype]) continue;
        kernel = kst_table_of(isa)->kernels[op][dtype];
        if (variant) *variant = isa_names[isa];
    }
    return kernel;
}

int kst_simd_test(int isa, const char *name, const void *a, const void *b, const void *c,
                  void *out) {
    return kst_isa_supported(isa) ? kst_table_of(isa)->simd_test(name, a, b, c, out) : -1;
}

const char *kst_simd_name(int index) {
    static const char *const names[] = {
        "load",        "load_n",     "store_n",     "load_f16",  "load_bf16",   "load_bf16_split",
        "store_split", "load_f16_n", "load_bf16_n", "store_f16", "store_f16_n", "set1",
        "add",         "sub",        "mul",         "div",       "max",         "fma",
        "select_lt",   "select_nan", "keep_n",      "exp",       "tanh",        "hsum",
        "hmax",        "hsum4",      "hsum8",       "vt_fma",
    };
    return index >= 0 && index < (int)(sizeof names / sizeof *names) ? names[index] : NULL;
}

/* The vocabulary of simd/vec.h by name, so that tests can compare the instruction sets lane by
 * lane. a, b, c: 16 lanes (of 16 bits for the loads of 16-bit formats). Lane counts are the
 * truncated first lane of c. out: 16 floats; what a function does not write is zero. */
#include "kernel.h"

int KST_FN(simd_test)(const char *name, const void *a, const void *b, const void *c, void *out);

int KST_FN(simd_test)(const char *name, const void *a, const void *b, const void *c, void *out) {
    const vf x = vf_load(a), y = vf_load(b), z = vf_load(c);
    float first, sums[4];
    memcpy(&first, c, sizeof first);
    const int n = first >= 0.0f && first <= 16.0f ? (int)first : 0;
    memset(out, 0, 16 * sizeof(float));
#define KST_IF(text) if (strcmp(name, text) == 0)
    KST_IF("load") vf_store(out, x);
    else KST_IF("load_n") vf_store(out, vf_load_n(a, n));
    else KST_IF("store_n") vf_store_n(out, x, n);
    else KST_IF("load_f16") vf_store(out, vf_load_f16(a));
    else KST_IF("load_bf16") vf_store(out, vf_load_bf16(a));
    else KST_IF("load_bf16_split") vf_store(out, vf_join(vf_load_bf16_split(a)));
    else KST_IF("store_split") {
        vf_store_split(out, x);
        vf_store(out, vf_join(vf_load(out)));
    }
    else KST_IF("load_f16_n") vf_store(out, vf_load_f16_n(a, n));
    else KST_IF("load_bf16_n") vf_store(out, vf_load_bf16_n(a, n));
    else KST_IF("store_f16") vf_store_f16(out, x);
    else KST_IF("store_f16_n") vf_store_f16_n(out, x, n);
    else KST_IF("set1") vf_store(out, vf_set1(first));
    else KST_IF("add") vf_store(out, vf_add(x, y));
    else KST_IF("sub") vf_store(out, vf_sub(x, y));
    else KST_IF("mul") vf_store(out, vf_mul(x, y));
    else KST_IF("div") vf_store(out, vf_div(x, y));
    else KST_IF("max") vf_store(out, vf_max(x, y));
    else KST_IF("fma") vf_store(out, vf_fma(x, y, z));
    else KST_IF("select_lt") vf_store(out, vf_select_lt(x, y, z, x));
    else KST_IF("select_nan") vf_store(out, vf_select_nan(x, y));
    else KST_IF("keep_n") vf_store(out, vf_keep_n(x, n, y));
    else KST_IF("exp") vf_store(out, vf_exp(x));
    else KST_IF("tanh") vf_store(out, vf_tanh(x));
    else KST_IF("hsum") vf_store_n(out, vf_set1(vf_hsum(x)), 1);
    else KST_IF("hmax") vf_store_n(out, vf_set1(vf_hmax(x)), 1);
    else KST_IF("hsum4") {
        vf_hsum4(sums, x, y, z, vf_add(x, y));
        memcpy(out, sums, sizeof sums);
    }
    else KST_IF("hsum8") {
        float eight[8];
        const vf v[8] = {x, y, z, vf_add(x, y), vf_add(y, z), vf_sub(x, y), vf_mul(x, y), z};
        vf_hsum8(eight, v);
        memcpy(out, eight, sizeof eight);
    }
    else KST_IF("vt_fma") for (int i = 0; i < VF_LANES; i += VT_LANES)
        vt_store((float *)out + i, vt_fma(vt_load((const float *)a + i),
                                          vt_load((const float *)b + i), vt_set1(first)));
    else return -1;
    return 0;
}

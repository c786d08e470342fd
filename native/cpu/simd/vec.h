/* The vector vocabulary. vf is 16 logical lanes on every instruction set, each name does the same
 * arithmetic in every lane of every set, and vec_scalar.h is the specification of the others. vt is
 * the machine's own vector, a part of a vf: tiles that would not fit the registers as vf work
 * through the 16 lanes a vt at a time. */
#ifndef KESTREL_VEC_H
#define KESTREL_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define VF_LANES 16

#define KST_JOIN2(a, b) a##b
#define KST_JOIN(a, b) KST_JOIN2(a, b)
#define KST_ISA_ID_scalar 0
#define KST_ISA_ID_avx2 1
#define KST_ISA_ID_avx512 2
#define KST_ISA_ID_avx512vbmi 3
#define KST_ISA_ID_neon 4

#ifndef KST_ISA
#error "compile with -DKST_ISA=scalar, avx2, avx512, avx512vbmi or neon"
#elif KST_JOIN(KST_ISA_ID_, KST_ISA) == 0
#include "vec_scalar.h"
#elif KST_JOIN(KST_ISA_ID_, KST_ISA) == 1
#include "vec_avx2.h"
#elif KST_JOIN(KST_ISA_ID_, KST_ISA) == 2 || KST_JOIN(KST_ISA_ID_, KST_ISA) == 3
#include "vec_avx512.h"
#elif KST_JOIN(KST_ISA_ID_, KST_ISA) == 4
#include "vec_neon.h"
#endif

#ifndef VT_LANES /* where a vf is one vector, or none is wider than a float */
#define VT_LANES 16
typedef vf vt;
static inline vt vt_load(const float *p) { return vf_load(p); }
static inline vt vt_load_f16(const void *p) { return vf_load_f16(p); }
static inline void vt_store(float *p, vt v) { vf_store(p, v); }
static inline vt vt_set1(float a) { return vf_set1(a); }
static inline vt vt_fma(vt a, vt b, vt c) { return vf_fma(a, b, c); }
#endif

#ifndef VF_HSUM8
static inline void vf_hsum8(float out[8], const vf v[8]) {
    vf_hsum4(out, v[0], v[1], v[2], v[3]);
    vf_hsum4(out + 4, v[4], v[5], v[6], v[7]);
}
#endif

/* v, loaded once: without it a compiler may read it from memory anew at each use, which costs as many
 * loads as multiply-adds. */
static inline vt vt_in_register(vt v) {
#if defined(__x86_64__) && KST_JOIN(KST_ISA_ID_, KST_ISA) != 0
    __asm__("" : "+v"(v));
#endif
    return v;
}

/* Split order: lanes 0, 2, .. 14, 1, 3, .. 15. Where an instruction set has nothing to gain by it,
 * it is the plain order. vf_join brings split lanes back; vf_store_split stores plain lanes so that
 * vf_load gives them split. */
#ifdef VF_SPLIT
static inline void vf_store_split(float *p, vf v) {
    float lanes[VF_LANES];
    vf_store(lanes, v);
    for (int i = 0; i < VF_LANES / 2; i++) {
        p[i] = lanes[2 * i];
        p[i + VF_LANES / 2] = lanes[2 * i + 1];
    }
}
#else
#ifndef VF_LOAD_BF16_SPLIT
static inline vf vf_load_bf16_split(const void *p) { return vf_load_bf16(p); }
#endif
static inline vf vf_join(vf v) { return v; }
static inline void vf_store_split(float *p, vf v) { vf_store(p, v); }
#endif

/* First n (1..15) of 16 16-bit values, the rest zero: +0 in both float formats. */
static inline vf vf_load_f16_n(const void *p, int n) {
    uint16_t padded[VF_LANES] = {0};
    memcpy(padded, p, (size_t)n * 2);
    return vf_load_f16(padded);
}

static inline vf vf_load_bf16_n(const void *p, int n) {
    uint16_t padded[VF_LANES] = {0};
    memcpy(padded, p, (size_t)n * 2);
    return vf_load_bf16(padded);
}

static inline void vf_store_f16_n(void *p, vf v, int n) {
    uint16_t padded[VF_LANES];
    vf_store_f16(padded, v);
    memcpy(p, padded, (size_t)n * 2);
}

/* exp, within 1 ulp. Below -87.33654 (the result would be subnormal) 0, above 88.72283 inf, NaN for
 * NaN. x = n ln2 + r, |r| <= ln2 / 2: adding 1.5 * 2^23 rounds to the nearest integer and leaves n
 * in the low bits. Then e^r = 1 + (r + r^2 q(r)), q a minimax fit of degree 5 (relative error of
 * the fit 1e-10), and 2^n goes into the exponent field, which is exact because every result is a
 * normal number. */
static inline vf vf_exp(vf x) {
    const vf magic = vf_set1(12582912.0f);
    vf t = vf_fma(x, vf_set1(0x1.715476p+0f), magic);
    vf n = vf_sub(t, magic);
    vf r = vf_fma(n, vf_set1(-0x1.62e430p-1f), x);
    r = vf_fma(n, vf_set1(0x1.05c610p-29f), r);
    vf q = vf_set1(0x1.9dfbbep-13f);
    q = vf_fma(q, r, vf_set1(0x1.6d4cbep-10f));
    q = vf_fma(q, r, vf_set1(0x1.11130ep-7f));
    q = vf_fma(q, r, vf_set1(0x1.5554e8p-5f));
    q = vf_fma(q, r, vf_set1(0x1.555554p-3f));
    q = vf_fma(q, r, vf_set1(0.5f));
    vf y = vf_add(vf_fma(q, vf_mul(r, r), r), vf_set1(1.0f));
    y = vf_scale(y, t);
    y = vf_select_lt(x, vf_set1(-87.33654f), vf_zero(), y);
    y = vf_select_lt(vf_set1(88.72283f), x, vf_set1(INFINITY), y);
    return vf_select_nan(x, y);
}

/* tanh, within 0.95 ulp (every float32 from 0 to 10 against double); NaN for NaN, +0 for both
 * zeros. Below 1, |x| + |x|^3 p(x^2), p a minimax fit of degree 6 (relative error of the fit 5e-9),
 * which keeps small results as exact as large ones; above, 1 - 2 / (e^2|x| + 1), which is 1 from
 * about 9 on. */
static inline vf vf_tanh(vf x) {
    const vf zero = vf_zero(), one = vf_set1(1.0f);
    const vf size = vf_max(x, vf_sub(zero, x)), z = vf_mul(size, size);
    vf p = vf_set1(-0x1.77d4c6p-12f);
    p = vf_fma(p, z, vf_set1(0x1.2da29cp-9f));
    p = vf_fma(p, z, vf_set1(-0x1.04608cp-7f));
    p = vf_fma(p, z, vf_set1(0x1.6009c4p-6f));
    p = vf_fma(p, z, vf_set1(-0x1.b9623cp-5f));
    p = vf_fma(p, z, vf_set1(0x1.110be4p-3f));
    p = vf_fma(p, z, vf_set1(-0x1.55553cp-2f));
    const vf small = vf_fma(vf_mul(size, z), p, size);
    const vf power = vf_exp(vf_add(size, size));
    const vf large = vf_sub(one, vf_div(vf_set1(2.0f), vf_add(power, one)));
    const vf y = vf_select_lt(size, one, small, large);
    return vf_select_nan(x, vf_select_lt(x, zero, vf_sub(zero, y), y));
}

/* cap * tanh(x / cap), each step rounded. */
static inline vf vf_soft_cap(vf x, vf cap) { return vf_mul(cap, vf_tanh(vf_div(x, cap))); }

#endif

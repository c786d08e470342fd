/* 16 floats in plain C: the executable specification of the vocabulary. */
#ifndef KESTREL_VEC_SCALAR_H
#define KESTREL_VEC_SCALAR_H

#include "half.h"

typedef struct {
    float l[16];
} vf;

#define VF_EACH for (int i = 0; i < 16; i++)

static inline vf vf_set1(float a) {
    vf v;
    VF_EACH v.l[i] = a;
    return v;
}
static inline vf vf_zero(void) { return vf_set1(0.0f); }

static inline vf vf_load(const void *p) {
    vf v;
    memcpy(v.l, p, sizeof v.l);
    return v;
}
static inline void vf_store(void *p, vf v) { memcpy(p, v.l, sizeof v.l); }

/* The first n (0..16) lanes; the others are +0, and memory behind is not touched. */
static inline vf vf_load_n(const void *p, int n) {
    vf v = vf_zero();
    memcpy(v.l, p, (size_t)n * 4);
    return v;
}
static inline void vf_store_n(void *p, vf v, int n) { memcpy(p, v.l, (size_t)n * 4); }

static inline vf vf_load_bf16(const void *p) {
    uint16_t h[16];
    vf v;
    memcpy(h, p, sizeof h);
    VF_EACH v.l[i] = kst_bf16_to_f32(h[i]);
    return v;
}
static inline vf vf_load_f16(const void *p) {
    uint16_t h[16];
    vf v;
    memcpy(h, p, sizeof h);
    VF_EACH v.l[i] = kst_f16_to_f32(h[i]);
    return v;
}
static inline void vf_store_f16(void *p, vf v) { /* round to nearest, ties to even */
    uint16_t h[16];
    VF_EACH h[i] = kst_f32_to_f16(v.l[i]);
    memcpy(p, h, sizeof h);
}

static inline vf vf_add(vf a, vf b) {
    VF_EACH a.l[i] += b.l[i];
    return a;
}
static inline vf vf_sub(vf a, vf b) {
    VF_EACH a.l[i] -= b.l[i];
    return a;
}
static inline vf vf_mul(vf a, vf b) {
    VF_EACH a.l[i] *= b.l[i];
    return a;
}
static inline vf vf_div(vf a, vf b) {
    VF_EACH a.l[i] /= b.l[i];
    return a;
}
static inline vf vf_max(vf a, vf b) { /* b where either is NaN */
    VF_EACH a.l[i] = a.l[i] > b.l[i] ? a.l[i] : b.l[i];
    return a;
}
static inline vf vf_fma(vf a, vf b, vf c) { /* a b + c, rounded once */
    VF_EACH c.l[i] = fmaf(a.l[i], b.l[i], c.l[i]);
    return c;
}

/* a < b ? x : y (y where either is NaN). */
static inline vf vf_select_lt(vf a, vf b, vf x, vf y) {
    VF_EACH y.l[i] = a.l[i] < b.l[i] ? x.l[i] : y.l[i];
    return y;
}
/* a where a is NaN, else y. */
static inline vf vf_select_nan(vf a, vf y) {
    VF_EACH y.l[i] = a.l[i] != a.l[i] ? a.l[i] : y.l[i];
    return y;
}
/* lane < n ? v : fill. */
static inline vf vf_keep_n(vf v, int n, vf fill) {
    VF_EACH v.l[i] = i < n ? v.l[i] : fill.l[i];
    return v;
}
/* y 2^n, n the low bits of t (see vf_exp); y and the result are normal numbers. */
static inline vf vf_scale(vf y, vf t) {
    VF_EACH {
        uint32_t a, b;
        memcpy(&a, &y.l[i], 4);
        memcpy(&b, &t.l[i], 4);
        a += b << 23;
        memcpy(&y.l[i], &a, 4);
    }
    return y;
}

/* The one order of every sum of lanes: 8, 4, 2, 1. */
static inline float vf_hsum(vf v) {
    for (int w = 8; w; w >>= 1)
        for (int i = 0; i < w; i++) v.l[i] += v.l[i + w];
    return v.l[0];
}
static inline float vf_hmax(vf v) {
    for (int w = 8; w; w >>= 1)
        for (int i = 0; i < w; i++) v.l[i] = v.l[i] > v.l[i + w] ? v.l[i] : v.l[i + w];
    return v.l[0];
}
static inline void vf_hsum4(float out[4], vf a, vf b, vf c, vf d) {
    out[0] = vf_hsum(a);
    out[1] = vf_hsum(b);
    out[2] = vf_hsum(c);
    out[3] = vf_hsum(d);
}

#endif

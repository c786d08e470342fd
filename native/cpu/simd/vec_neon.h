/* 16 lanes as four q registers; lanes 0..3 in a. Meanings: vec_scalar.h. */
#ifndef KESTREL_VEC_NEON_H
#define KESTREL_VEC_NEON_H

#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "KST_ISA=neon needs an aarch64 compiler"
#endif
#include <arm_neon.h>

typedef struct {
    float32x4_t a, b, c, d;
} vf;

#define VF_MAP(call) \
    vf r = {call(a), call(b), call(c), call(d)}; \
    return r

static inline vf vf_set1(float x) {
    float32x4_t q = vdupq_n_f32(x);
    vf r = {q, q, q, q};
    return r;
}
static inline vf vf_zero(void) { return vf_set1(0.0f); }

/* Byte loads: weights may lie at any address. */
static inline float32x4_t kst_load4(const void *p, int i) {
    return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)p + 16 * i));
}
static inline uint16x8_t kst_load8h(const void *p, int i) {
    return vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)p + 16 * i));
}
static inline vf vf_load(const void *p) {
    vf r = {kst_load4(p, 0), kst_load4(p, 1), kst_load4(p, 2), kst_load4(p, 3)};
    return r;
}
static inline void vf_store(void *p, vf v) {
    uint8_t *u = p;
    vst1q_u8(u, vreinterpretq_u8_f32(v.a));
    vst1q_u8(u + 16, vreinterpretq_u8_f32(v.b));
    vst1q_u8(u + 32, vreinterpretq_u8_f32(v.c));
    vst1q_u8(u + 48, vreinterpretq_u8_f32(v.d));
}
static inline vf vf_load_n(const void *p, int n) {
    if (n == VF_LANES) return vf_load(p);
    float padded[16] = {0};
    memcpy(padded, p, (size_t)n * 4);
    return vf_load(padded);
}
static inline void vf_store_n(void *p, vf v, int n) {
    if (n == VF_LANES) {
        vf_store(p, v);
        return;
    }
    float padded[16];
    vf_store(padded, v);
    memcpy(p, padded, (size_t)n * 4);
}

static inline vf vf_load_bf16(const void *p) {
    uint16x8_t h = kst_load8h(p, 0), k = kst_load8h(p, 1);
    vf r = {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(k), 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(k), 16))};
    return r;
}
static inline vf vf_load_f16(const void *p) {
    float16x8_t h = vreinterpretq_f16_u16(kst_load8h(p, 0)),
                k = vreinterpretq_f16_u16(kst_load8h(p, 1));
    vf r = {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h), vcvt_f32_f16(vget_low_f16(k)),
            vcvt_high_f32_f16(k)};
    return r;
}
static inline void vf_store_f16(void *p, vf v) {
    float16x8_t h = vcvt_high_f16_f32(vcvt_f16_f32(v.a), v.b),
                k = vcvt_high_f16_f32(vcvt_f16_f32(v.c), v.d);
    vst1q_u8(p, vreinterpretq_u8_f16(h));
    vst1q_u8((uint8_t *)p + 16, vreinterpretq_u8_f16(k));
}

#define KST_ADD(q) vaddq_f32(x.q, y.q)
#define KST_SUB(q) vsubq_f32(x.q, y.q)
#define KST_MUL(q) vmulq_f32(x.q, y.q)
#define KST_DIV(q) vdivq_f32(x.q, y.q)
#define KST_FMA(q) vfmaq_f32(z.q, x.q, y.q)
static inline vf vf_add(vf x, vf y) { VF_MAP(KST_ADD); }
static inline vf vf_sub(vf x, vf y) { VF_MAP(KST_SUB); }
static inline vf vf_mul(vf x, vf y) { VF_MAP(KST_MUL); }
static inline vf vf_div(vf x, vf y) { VF_MAP(KST_DIV); }
static inline vf vf_fma(vf x, vf y, vf z) { VF_MAP(KST_FMA); }

/* vmaxq gives NaN where one operand is NaN; the vocabulary's max gives the second. */
static inline float32x4_t kst_max4(float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}
#define KST_MAX(q) kst_max4(x.q, y.q)
static inline vf vf_max(vf x, vf y) { VF_MAP(KST_MAX); }

#define KST_LT(q) vbslq_f32(vcltq_f32(s.q, t.q), x.q, y.q)
static inline vf vf_select_lt(vf s, vf t, vf x, vf y) { VF_MAP(KST_LT); }
#define KST_NAN(q) vbslq_f32(vceqq_f32(x.q, x.q), y.q, x.q)
static inline vf vf_select_nan(vf x, vf y) { VF_MAP(KST_NAN); }

static inline vf vf_keep_n(vf v, int n, vf fill) {
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int32x4_t limit = vdupq_n_s32(n);
    vf r = {vbslq_f32(vcltq_s32(vld1q_s32(lanes), limit), v.a, fill.a),
            vbslq_f32(vcltq_s32(vld1q_s32(lanes + 4), limit), v.b, fill.b),
            vbslq_f32(vcltq_s32(vld1q_s32(lanes + 8), limit), v.c, fill.c),
            vbslq_f32(vcltq_s32(vld1q_s32(lanes + 12), limit), v.d, fill.d)};
    return r;
}
static inline float32x4_t kst_scale4(float32x4_t y, float32x4_t t) {
    int32x4_t n = vshlq_n_s32(vreinterpretq_s32_f32(t), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(y), n));
}
#define KST_SCALE(q) kst_scale4(x.q, y.q)
static inline vf vf_scale(vf x, vf y) { VF_MAP(KST_SCALE); }

/* Steps 8 and 4 of the tree. */
static inline float32x4_t kst_sum4(vf v) {
    return vaddq_f32(vaddq_f32(v.a, v.c), vaddq_f32(v.b, v.d));
}
static inline float vf_hsum(vf v) {
    float32x4_t s = kst_sum4(v);
    float32x2_t p = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(vpadd_f32(p, p), 0);
}
static inline float vf_hmax(vf v) {
    float m[4];
    vst1q_f32(m, kst_max4(kst_max4(v.a, v.c), kst_max4(v.b, v.d)));
    float m0 = m[0] > m[2] ? m[0] : m[2], m1 = m[1] > m[3] ? m[1] : m[3];
    return m0 > m1 ? m0 : m1;
}
/* Steps 2 and 1 of four trees at once. */
static inline float32x4_t kst_sum2(float32x4_t x,
                                   float32x4_t y) { /* (x0+x2, x1+x3, y0+y2, y1+y3) */
    return vcombine_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)),
                        vadd_f32(vget_low_f32(y), vget_high_f32(y)));
}
static inline void vf_hsum4(float out[4], vf x, vf y, vf z, vf w) {
    vst1q_f32(out,
              vpaddq_f32(kst_sum2(kst_sum4(x), kst_sum4(y)), kst_sum2(kst_sum4(z), kst_sum4(w))));
}

#define VT_LANES 4
typedef float32x4_t vt;
static inline vt vt_load(const float *p) { return vld1q_f32(p); }
static inline vt vt_load_f16(const void *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
static inline void vt_store(float *p, vt v) { vst1q_f32(p, v); }
static inline vt vt_set1(float x) { return vdupq_n_f32(x); }
static inline vt vt_fma(vt x, vt y, vt z) { return vfmaq_f32(z, x, y); }

#endif

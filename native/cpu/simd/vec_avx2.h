/* 16 lanes as two ymm registers; lanes 0..7 in lo. Meanings: vec_scalar.h. */
#ifndef KESTREL_VEC_AVX2_H
#define KESTREL_VEC_AVX2_H

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "KST_ISA=avx2 needs -mavx2 -mfma -mf16c"
#endif
#include <immintrin.h>

typedef struct {
    __m256 lo, hi;
} vf;

static inline vf vf_make(__m256 lo, __m256 hi) {
    vf v = {lo, hi};
    return v;
}

static inline vf vf_set1(float a) { return vf_make(_mm256_set1_ps(a), _mm256_set1_ps(a)); }
static inline vf vf_zero(void) { return vf_make(_mm256_setzero_ps(), _mm256_setzero_ps()); }

static inline vf vf_load(const void *p) {
    const float *f = p;
    return vf_make(_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8));
}
static inline void vf_store(void *p, vf v) {
    float *f = p;
    _mm256_storeu_ps(f, v.lo);
    _mm256_storeu_ps(f + 8, v.hi);
}

/* All ones in the lanes first .. first + 7 that are below n. */
static inline __m256i kst_mask8(int n, int first) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - first), lane);
}
static inline vf vf_load_n(const void *p, int n) {
    const float *f = p;
    if (n == VF_LANES) return vf_load(p);
    return vf_make(_mm256_maskload_ps(f, kst_mask8(n, 0)),
                   _mm256_maskload_ps(f + 8, kst_mask8(n, 8)));
}
static inline void vf_store_n(void *p, vf v, int n) {
    float *f = p;
    if (n == VF_LANES) { /* masked stores are slow on some processors */
        vf_store(p, v);
        return;
    }
    _mm256_maskstore_ps(f, kst_mask8(n, 0), v.lo);
    _mm256_maskstore_ps(f + 8, kst_mask8(n, 8), v.hi);
}

static inline __m256 kst_widen_bf16(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
static inline vf vf_load_bf16(const void *p) {
    const __m128i *h = p;
    return vf_make(kst_widen_bf16(_mm_loadu_si128(h)), kst_widen_bf16(_mm_loadu_si128(h + 1)));
}
/* Pairs of bfloat16 numbers widened by a shift and a mask, cheaper than spreading them first: lanes
 * in split order. */
#define VF_SPLIT 1
static inline vf vf_load_bf16_split(const void *p) {
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)p);
    return vf_make(
        _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
        _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000))));
}
static inline vf vf_join(vf v) {
    const __m256 a = _mm256_unpacklo_ps(v.lo, v.hi), b = _mm256_unpackhi_ps(v.lo, v.hi);
    return vf_make(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
static inline vf vf_load_f16(const void *p) {
    const __m128i *h = p;
    return vf_make(_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1)));
}
static inline void vf_store_f16(void *p, vf v) {
    __m128i *h = p;
    _mm_storeu_si128(h, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}

static inline vf vf_add(vf a, vf b) {
    return vf_make(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}
static inline vf vf_sub(vf a, vf b) {
    return vf_make(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}
static inline vf vf_mul(vf a, vf b) {
    return vf_make(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}
static inline vf vf_div(vf a, vf b) {
    return vf_make(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}
static inline vf vf_max(vf a, vf b) {
    return vf_make(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return vf_make(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

static inline vf vf_select_lt(vf a, vf b, vf x, vf y) {
    return vf_make(_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                   _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)));
}
static inline vf vf_select_nan(vf a, vf y) {
    return vf_make(_mm256_blendv_ps(y.lo, a.lo, _mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
                   _mm256_blendv_ps(y.hi, a.hi, _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)));
}
static inline vf vf_keep_n(vf v, int n, vf fill) {
    return vf_make(_mm256_blendv_ps(fill.lo, v.lo, _mm256_castsi256_ps(kst_mask8(n, 0))),
                   _mm256_blendv_ps(fill.hi, v.hi, _mm256_castsi256_ps(kst_mask8(n, 8))));
}

static inline __m256 kst_scale8(__m256 y, __m256 t) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
static inline vf vf_scale(vf y, vf t) {
    return vf_make(kst_scale8(y.lo, t.lo), kst_scale8(y.hi, t.hi));
}

static inline __m256 kst_low8(vf v) { return v.lo; }
static inline __m256 kst_high8(vf v) { return v.hi; }
#include "vec_trees.h"

/* Steps 2 and 1 of four trees at once: the transpose brings equal lanes together. */
static inline void vf_hsum4(float out[4], vf a, vf b, vf c, vf d) {
    __m128 s0 = kst_sum4(a), s1 = kst_sum4(b), s2 = kst_sum4(c), s3 = kst_sum4(d);
    _MM_TRANSPOSE4_PS(s0, s1, s2, s3);
    _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(s0, s2), _mm_add_ps(s1, s3)));
}

#define VT_LANES 8
typedef __m256 vt;
static inline vt vt_load(const float *p) { return _mm256_loadu_ps(p); }
static inline vt vt_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
static inline void vt_store(float *p, vt v) { _mm256_storeu_ps(p, v); }
static inline vt vt_set1(float a) { return _mm256_set1_ps(a); }
static inline vt vt_fma(vt a, vt b, vt c) { return _mm256_fmadd_ps(a, b, c); }

#endif

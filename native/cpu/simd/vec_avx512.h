/* 16 lanes as one zmm register. Meanings: vec_scalar.h. */
#ifndef KESTREL_VEC_AVX512_H
#define KESTREL_VEC_AVX512_H

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || \
    !defined(__AVX512VL__)
#error "KST_ISA=avx512 needs -mavx512f -mavx512bw -mavx512dq -mavx512vl"
#endif
#include <immintrin.h>

typedef __m512 vf;

static inline vf vf_set1(float a) { return _mm512_set1_ps(a); }
static inline vf vf_zero(void) { return _mm512_setzero_ps(); }
static inline vf vf_load(const void *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(void *p, vf v) { _mm512_storeu_ps(p, v); }

static inline __mmask16 kst_mask16(int n) { return (__mmask16)((1u << n) - 1); }
static inline vf vf_load_n(const void *p, int n) { return _mm512_maskz_loadu_ps(kst_mask16(n), p); }
static inline void vf_store_n(void *p, vf v, int n) { _mm512_mask_storeu_ps(p, kst_mask16(n), v); }

static inline vf vf_load_bf16(const void *p) {
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
static inline vf vf_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void vf_store_f16(void *p, vf v) {
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }

static inline vf vf_select_lt(vf a, vf b, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
static inline vf vf_select_nan(vf a, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), y, a);
}
static inline vf vf_keep_n(vf v, int n, vf fill) {
    return _mm512_mask_blend_ps(kst_mask16(n), fill, v);
}

static inline vf vf_scale(vf y, vf t) {
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), n));
}

/* Steps 8 and 4 of the tree. */
static inline __m128 kst_sum4(vf v) {
    __m256 s = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
static inline float vf_hsum(vf v) {
    __m128 s = kst_sum4(v);
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float vf_hmax(vf v) {
    __m256 m = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
/* Steps 2 and 1 of four trees at once: the transpose brings equal lanes together. */
static inline void vf_hsum4(float out[4], vf a, vf b, vf c, vf d) {
    __m128 s0 = kst_sum4(a), s1 = kst_sum4(b), s2 = kst_sum4(c), s3 = kst_sum4(d);
    _MM_TRANSPOSE4_PS(s0, s1, s2, s3);
    _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(s0, s2), _mm_add_ps(s1, s3)));
}

#define VT_LANES 16
typedef vf vt;
static inline vt vt_load(const float *p) { return vf_load(p); }
static inline void vt_store(float *p, vt v) { vf_store(p, v); }
static inline vt vt_set1(float a) { return vf_set1(a); }
static inline vt vt_fma(vt a, vt b, vt c) { return vf_fma(a, b, c); }

#endif

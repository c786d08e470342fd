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

static inline __m256 kst_low8(vf v) { return _mm512_castps512_ps256(v); }
static inline __m256 kst_high8(vf v) { return _mm512_extractf32x8_ps(v, 1); }
#include "vec_trees.h"

#endif

/* 16 lanes as one zmm register. Meanings: vec_scalar.h. The set avx512vbmi is avx512 and one more
 * instruction, which moves bytes anywhere. */
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
#ifdef __AVX512VBMI__
/* Number i, bytes 2 i and 2 i + 1, into the upper half of lane i by one instruction, where to spread
 * and then to shift are two: for streams, which this bounds; panels are 2 % slower (Zen 4). */
#define VF_LOAD_BF16_SPLIT 1
static inline vf vf_load_bf16_split(const void *p) {
#define KST_UPPER(i) 0x01000000 + (i) * 0x02020000
    static const int32_t bytes[VF_LANES] = {
        KST_UPPER(0),  KST_UPPER(1),  KST_UPPER(2),  KST_UPPER(3), KST_UPPER(4),  KST_UPPER(5),
        KST_UPPER(6),  KST_UPPER(7),  KST_UPPER(8),  KST_UPPER(9), KST_UPPER(10), KST_UPPER(11),
        KST_UPPER(12), KST_UPPER(13), KST_UPPER(14), KST_UPPER(15)};
#undef KST_UPPER
    const __m512i h = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi8(0xcccccccccccccccc,
                                                             _mm512_loadu_si512(bytes), h));
}
#endif
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

/* Steps 8 and 4 of four trees at once: 128 bits each. */
static inline __m512 kst_quarters(vf a, vf b, vf c, vf d) {
    const __m512 ab =
        _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd =
        _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
static inline void vf_hsum4(float out[4], vf a, vf b, vf c, vf d) {
    __m512 s = kst_quarters(a, b, c, d);
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(order, s)));
}
/* Eight trees: step 2 brings two quarters together, step 1 leaves the results in lanes 0 and 2 of
 * each 128 bits. */
#define VF_HSUM8 1
static inline void vf_hsum8(float out[8], const vf v[8]) {
    const __m512 q = kst_quarters(v[0], v[1], v[2], v[3]), r = kst_quarters(v[4], v[5], v[6], v[7]);
    __m512 s = _mm512_add_ps(_mm512_shuffle_ps(q, r, 0x44), _mm512_shuffle_ps(q, r, 0xee));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, s)));
}

#endif

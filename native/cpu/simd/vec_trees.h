/* Sums and maxima of lanes on x86-64, where kst_low8 and kst_high8 give the halves of a vf. */
#ifndef KESTREL_VEC_TREES_H
#define KESTREL_VEC_TREES_H

/* Steps 8 and 4 of the tree. */
static inline __m128 kst_sum4(vf v) {
    __m256 s = _mm256_add_ps(kst_low8(v), kst_high8(v));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
static inline float vf_hsum(vf v) {
    __m128 s = kst_sum4(v);
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float vf_hmax(vf v) {
    __m256 m = _mm256_max_ps(kst_low8(v), kst_high8(v));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

#endif

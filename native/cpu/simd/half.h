/* The 16-bit formats, one number at a time, by integer arithmetic alone. */
#ifndef KESTREL_HALF_H
#define KESTREL_HALF_H

#include <stdint.h>
#include <string.h>

static inline float kst_bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t kst_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float kst_bf16_to_f32(uint16_t h) { return kst_bits_f32((uint32_t)h << 16); }

static inline float kst_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31) /* infinity, or NaN made quiet as the processors do */
        return kst_bits_f32(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24, exact in float32 */
        uint32_t magnitude = kst_f32_bits((float)mantissa * 0x1p-24f);
        return kst_bits_f32(sign | magnitude);
    }
    return kst_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t kst_f32_to_f16(float f) { /* round to nearest, ties to even */
    uint32_t u = kst_f32_bits(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
    if (u >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above round to infinity */
    if (u < 0x38800000) { /* below 2^-14: adding 0.5 lines the mantissa up with the subnormals of
                             float16 and rounds */
        return (uint16_t)(sign | (kst_f32_bits(kst_bits_f32(u) + 0.5f) - 0x3f000000));
    }
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | (u - 0x38000000) >> 13);
}

#endif

/* The vector vocabulary of every instruction set against the scalar one, lane by lane; the scalar
 * one's conversions, exp and tanh against their definitions. */
#include "kestrel/cpu.h"
#include "simd/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int failures;

static const uint32_t special[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x3f800000, 0xbf800000,
    0x3f7fffff, 0x4b400000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001,
    0x42b17218, 0x42b17217, 0xc2aeac4f, 0xc2aeac50, 0x33000000, 0x33000001, 0x38800000, 0x387fffff,
    0x477fefff, 0x477ff000, 0x477fe000, 0xc77ff000, 0x3f002000, 0x3f003000,
};
#define SPECIALS (sizeof special / sizeof *special)

static uint32_t random_bits(void) {
    static uint64_t state = 7;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static void fill(uint32_t lanes[16], int round) {
    for (int i = 0; i < 16; i++) {
        const uint32_t r = random_bits();
        if (round % 4 == 0)
            lanes[i] = special[r % SPECIALS];
        else if (round % 4 == 1)
            lanes[i] = r; /* any float */
        else
            lanes[i] = kst_f32_bits(((float)(r & 0xffffff) / 0x1p23f - 1.0f) *
                                    (round % 4 == 2 ? 2.0f : 100.0f));
    }
}

static int same(uint32_t a, uint32_t b,
                int halves) { /* NaN are alike: architectures choose their bits */
    if (a == b) return 1;
    if (!halves) return (a & 0x7fffffff) > 0x7f800000 && (b & 0x7fffffff) > 0x7f800000;
    for (int i = 0; i < 32; i += 16) {
        const uint32_t x = a >> i & 0xffff, y = b >> i & 0xffff;
        if (x != y && !((x & 0x7fff) > 0x7c00 && (y & 0x7fff) > 0x7c00)) return 0;
    }
    return 1;
}

static void compare_isa(int isa) {
    const char *name;
    for (int f = 0; (name = kst_simd_name(f)); f++)
        for (int round = 0; round < 2000; round++) {
            uint32_t a[16], b[16], c[16], want[16], got[16];
            fill(a, round);
            fill(b, round / 4);
            fill(c, round / 16);
            const size_t length = strlen(name);
            if ((length > 2 && !strcmp(name + length - 2, "_n")))
                c[0] = kst_f32_bits((float)(round % 16 + !strcmp(name, "store_n")));
            if (c[0] == 0 && strstr(name, "16_n")) c[0] = 0x3f800000; /* 1..15 lanes */
            if (kst_simd_test(0, name, a, b, c, want) || kst_simd_test(isa, name, a, b, c, got)) {
                printf("FAILED %s %s: not there\n", kst_isa_name(isa), name);
                failures++;
                break;
            }
            int bad = -1;
            for (int i = 0; i < 16; i++)
                if (!same(want[i], got[i], strstr(name, "store_f16") != NULL)) bad = i;
            if (bad < 0) continue;
            printf("FAILED %s %s lane %d: %08x %08x %08x: scalar %08x, here %08x\n",
                   kst_isa_name(isa), name, bad, a[bad], b[bad], c[bad], want[bad], got[bad]);
            failures++;
            break;
        }
    printf("compared %s\n", kst_isa_name(isa));
}

static void expect(int right, const char *what, uint32_t at) {
    if (right) return;
    printf("FAILED %s at %08x\n", what, at);
    failures++;
}

static float value_of(const char *name, float x) {
    float lanes[16] = {x}, out[16];
    kst_simd_test(kst_isa_best(), name, lanes, lanes, lanes, out);
    return out[0];
}

static float exp_of(float x) { return value_of("exp", x); }
static float tanh_of(float x) { return value_of("tanh", x); }

/* Units in the last place of the result, a normal number. */
static double ulps(float found, double want) {
    int e;
    frexp(want, &e);
    return fabs(found - want) / ldexp(1.0, e - 24);
}

/* Within one unit in the last place of the result over the whole range, and right at and beyond its
 * borders. */
static void check_exp(void) {
    double worst = 0.0;
    for (uint32_t u = 0; u < 0x42b20000; u += 1009)
        for (int negative = 0; negative < 2; negative++) {
            const float x = kst_bits_f32(u | (uint32_t)negative << 31);
            if (x < -87.33654f || x > 88.72283f) continue;
            const double off = ulps(exp_of(x), exp((double)x));
            worst = off > worst ? off : worst;
        }
    printf("exp: at most %.4f ulp\n", worst);
    expect(worst <= 1.0, "exp beyond 1 ulp", 0);
    expect(exp_of(0.0f) == 1.0f && exp_of(-0.0f) == 1.0f, "exp(0)", 0);
    expect(isfinite(exp_of(88.72283f)) && exp_of(nextafterf(88.72283f, 100.0f)) == INFINITY,
           "exp at overflow", 0);
    expect(exp_of(-87.33654f) >= 0x1p-126f && exp_of(nextafterf(-87.33654f, -100.0f)) == 0.0f,
           "exp at underflow", 0);
    expect(exp_of(INFINITY) == INFINITY && exp_of(-INFINITY) == 0.0f && isnan(exp_of(NAN)),
           "exp(inf, NaN)", 0);
}

/* Within 0.95 units in the last place, odd, and nothing lost where the result is as small as x. */
static void check_tanh(void) {
    double worst = 0.0;
    for (uint32_t u = 0x00800000; u < 0x41200000; u += u < 0x38000000 ? 100003 : 1009) {
        const float x = kst_bits_f32(u), y = tanh_of(x);
        const double off = ulps(y, tanh((double)x));
        worst = off > worst ? off : worst;
        expect(tanh_of(-x) == -y, "tanh(-x)", u);
    }
    printf("tanh: at most %.4f ulp\n", worst);
    expect(worst <= 0.95, "tanh beyond 0.95 ulp", 0);
    const float below = nextafterf(1.0f, 0.0f); /* the two formulas meet at 1 */
    expect(tanh_of(below) <= tanh_of(1.0f) && tanh_of(below) >= nextafterf(tanh_of(1.0f), 0.0f),
           "tanh at 1", 0);
    expect(tanh_of(0x1p-149f) == 0x1p-149f && tanh_of(-0x1p-127f) == -0x1p-127f, "tanh, tiny", 0);
    expect(tanh_of(0.0f) == 0.0f && tanh_of(-0.0f) == 0.0f, "tanh(0)", 0);
    expect(tanh_of(9.1f) == 1.0f && tanh_of(-3e38f) == -1.0f, "tanh, large", 0);
    expect(tanh_of(INFINITY) == 1.0f && tanh_of(-INFINITY) == -1.0f && isnan(tanh_of(NAN)),
           "tanh(inf, NaN)", 0);
}

/* float16 by its definition, and the rounding of every float32 between two neighbours. */
static void check_half(void) {
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const int exponent = (int)(h >> 10);
        const double mantissa = h & 0x3ff;
        const double want =
            exponent ? ldexp(1024.0 + mantissa, exponent - 25) : ldexp(mantissa, -24);
        expect(kst_f16_to_f32((uint16_t)h) == want, "float16 widened", h);
        expect(kst_f16_to_f32((uint16_t)(h | 0x8000)) == -want, "float16 widened", h | 0x8000);
        expect(kst_f32_to_f16((float)want) == h, "float16 there and back", h);
        const double next =
            exponent ? ldexp(1025.0 + mantissa, exponent - 25) : ldexp(mantissa + 1.0, -24);
        const float middle = (float)((want + next) / 2);
        expect(kst_f32_to_f16(middle) == h + (h & 1), "float16 tie", h);
        expect(kst_f32_to_f16(nextafterf(middle, 0.0f)) == h, "float16 below a tie", h);
        expect(kst_f32_to_f16(nextafterf(middle, INFINITY)) == h + 1, "float16 above a tie", h);
    }
    expect(isinf(kst_f16_to_f32(0x7c00)) && isnan(kst_f16_to_f32(0x7c01)), "float16 specials",
           0x7c00);
    expect(kst_f32_to_f16(INFINITY) == 0x7c00 && (kst_f32_to_f16(NAN) & 0x7fff) > 0x7c00,
           "float16 specials", 0);
}

/* The tree adds 8, 4, 2, 1 apart: with these lanes every other order gives another sum. */
static void check_tree(void) {
    float lanes[16], out[16], l[16];
    for (int i = 0; i < 16; i++)
        lanes[i] = l[i] =
            ldexpf(1.0f + (float)i / 64.0f, (i * 7) % 13 - 6) * (i % 3 ? 1.0f : -1.0f);
    for (int w = 8; w; w /= 2)
        for (int i = 0; i < w; i++) l[i] = l[i] + l[i + w];
    for (int isa = 0; isa < kst_isa_count(); isa++) {
        if (!kst_isa_supported(isa)) continue;
        kst_simd_test(isa, "hsum", lanes, lanes, lanes, out);
        expect(out[0] == l[0], "hsum", (uint32_t)isa);
        kst_simd_test(isa, "hsum4", lanes, lanes, lanes, out);
        for (int i = 0; i < 4; i++)
            expect(out[i] == (i < 3 ? l[0] : 2 * l[0]), "hsum4", (uint32_t)isa);
    }
}

int main(void) {
    for (int isa = 1; isa < kst_isa_count(); isa++)
        if (kst_isa_supported(isa)) compare_isa(isa);
    check_exp();
    check_tanh();
    check_half();
    check_tree();
    printf("%d failures\n", failures);
    return failures ? 1 : 0;
}

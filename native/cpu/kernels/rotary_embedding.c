/* cos and sin of position * inv_freq (rounded to float32, as the reference does), times scale.
 *
 * In double, by + - * and conversions alone, so that no libm decides a bit. Reduction after Cody
 * and Waite: pi/2 in three parts, the first two of 29 bits, so that n * part is exact for |n| <
 * 2^24; it holds for angles up to 2^24. Kernels: the polynomials of fdlibm's __kernel_sin and
 * __kernel_cos (error below 2^-58 on [-pi/4, pi/4]). */
#include "kernel.h"

static double sin_kernel(double x) {
    const double z = x * x;
    const double p = 8.33333333332248946124e-03 +
                     z * (-1.98412698298579493134e-04 +
                          z * (2.75573137070700676789e-06 +
                               z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)));
    return x + x * z * (-1.66666666666666324348e-01 + z * p);
}

static double cos_kernel(double x) {
    const double z = x * x;
    const double p =
        4.16666666666666019037e-02 +
        z * (-1.38888888888741095749e-03 +
             z * (2.48015872894767294178e-05 +
                  z * (-2.75573143513906633035e-07 +
                       z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11))));
    return 1.0 - 0.5 * z + z * z * p;
}

static void sin_cos(float angle, float *sine, float *cosine) {
    const double x = angle, magic = 0x1.8p52;
    const double n = (x * 0x1.45f306dc9c883p-1 + magic) - magic; /* to the nearest integer */
    const double r = ((x - n * 0x1.921fb54p+0) - n * 0x1.10b4611p-30) - n * 0x1.4c4c6628b80dcp-59;
    const float s = (float)sin_kernel(r), c = (float)cos_kernel(r);
    switch ((int64_t)n & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
    }
}

void KST_FN(rotary_embedding)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const kst_rotary_embedding_args *args = &cmd->args.rotary_embedding;
    const int32_t *positions = cmd->in[0], *lengths = cmd->in[1];
    const float *inv_freq = cmd->in[2], scale = args->scale;
    const int64_t half = args->half, total = kst_row_count(cmd, step) * half;
    const int64_t end = kst_end(total, share);
    for (int64_t i = kst_begin(total, share); i < end; i++) {
        const int64_t token = i / half, past = (int64_t)lengths[token] - args->first_length;
        const int64_t row = past < 0 ? 0 : kst_min(past, args->rows - 1);
        float sine, cosine;
        sin_cos((float)positions[token] * inv_freq[row * half + i % half], &sine, &cosine);
        ((float *)cmd->out[0])[i] = cosine * scale;
        ((float *)cmd->out[1])[i] = sine * scale;
    }
}

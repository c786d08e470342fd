/* The table of kernels of one instruction set; compiled once per set, like the kernels. */
#include "table.h"

#include "kernels/kernel.h"

#define KST_KERNEL(name) \
    void KST_FN(name)(const kst_cmd *cmd, const kst_step *step, kst_share share);
KST_KERNEL(embed)
KST_KERNEL(rotary_embedding)
KST_KERNEL(rms_norm)
KST_KERNEL(linear)
KST_KERNEL(rope)
KST_KERNEL(kv_write)
KST_KERNEL(attention_f32)
KST_KERNEL(attention_f16)
KST_KERNEL(swiglu)
KST_KERNEL(add)
KST_KERNEL(soft_cap)
KST_KERNEL(gather_rows)
KST_KERNEL(argmax)
KST_KERNEL(copy)
void KST_FN(block_maxima)(const float *x, int64_t n, int64_t size, float *maxima);
double KST_FN(mass)(const float *x, int64_t n, double highest, double scale);
void KST_FN(weigh)(const float *x, int64_t n, double highest, double scale, double *w);
KST_KERNEL(limit_read)
KST_KERNEL(limit_fma)
int KST_FN(simd_test)(const char *name, const void *a, const void *b, const void *c, void *out);

const kst_table KST_JOIN(kst_table_, KST_ISA) = {
    .kernels =
        {
            [KST_OP_embed] = {KST_FN(embed), KST_FN(embed), KST_FN(embed)},
            [KST_OP_rotary_embedding] = {KST_FN(rotary_embedding)},
            [KST_OP_rms_norm] = {KST_FN(rms_norm)},
            [KST_OP_linear] = {KST_FN(linear), KST_FN(linear), KST_FN(linear)},
            [KST_OP_rope] = {KST_FN(rope)},
            [KST_OP_kv_write] = {KST_FN(kv_write), KST_FN(kv_write)},
            [KST_OP_attention] = {KST_FN(attention_f32), KST_FN(attention_f16)},
            [KST_OP_swiglu] = {KST_FN(swiglu)},
            [KST_OP_add] = {KST_FN(add)},
            [KST_OP_soft_cap] = {KST_FN(soft_cap)},
            [KST_OP_gather_rows] = {KST_FN(gather_rows)},
            [KST_OP_argmax] = {KST_FN(argmax)},
            [KST_OP_copy] = {KST_FN(copy)},
        },
    .block_maxima = KST_FN(block_maxima),
    .mass = KST_FN(mass),
    .weigh = KST_FN(weigh),
    .limit_read = KST_FN(limit_read),
    .limit_fma = KST_FN(limit_fma),
    .simd_test = KST_FN(simd_test),
};

/* cache[slot[n]] = k[n], v[n]. A block of a kv head holds its keys as [D, 16] (a position a lane)
 * and its values as [16, D]; a block holds the keys of all its heads, then the values. */
#include "kernel.h"

static void write_f32(char *cache, int64_t keys, int64_t values, const float *k, const float *v,
                      int64_t dim) {
    float *c = (float *)cache;
    for (int64_t i = 0; i < dim; i++) c[keys + i * KST_BLOCK_SIZE] = k[i];
    memcpy(c + values, v, (size_t)dim * 4);
}

static void write_f16(char *cache, int64_t keys, int64_t values, const float *k, const float *v,
                      int64_t dim) {
    uint16_t *c = (uint16_t *)cache;
    for (int64_t i = 0; i < dim; i += VF_LANES) {
        const int lanes = kst_lanes(dim - i);
        uint16_t column[VF_LANES];
        vf_store_f16(column, vf_load_n(k + i, lanes));
        for (int j = 0; j < lanes; j++) c[keys + (i + j) * KST_BLOCK_SIZE] = column[j];
        vf_store_f16_n(c + values + i, vf_load_n(v + i, lanes), lanes);
    }
}

void KST_FN(kv_write)(const kst_cmd *cmd, const kst_step *step, kst_share share) {
    const int32_t *slots = cmd->in[2];
    const int64_t heads = cmd->args.kv_write.kv_heads, dim = cmd->args.kv_write.head_dim;
    const int64_t head_size = dim * KST_BLOCK_SIZE, total = kst_row_count(cmd, step) * heads;
    const int64_t end = kst_end(total, share);
    for (int64_t i = kst_begin(total, share); i < end; i++) {
        const int64_t row = i / heads, head = i % heads;
        KST_REQUIRE(slots[row] >= 0);
        const int64_t block = slots[row] / KST_BLOCK_SIZE, offset = slots[row] % KST_BLOCK_SIZE;
        const int64_t keys = (block * 2 * heads + head) * head_size + offset;
        const int64_t values = ((block * 2 + 1) * heads + head) * head_size + offset * dim;
        const float *k = (const float *)cmd->in[0] + i * dim,
                    *v = (const float *)cmd->in[1] + i * dim;
        if (cmd->args.kv_write.cache_dtype == KST_F32)
            write_f32(cmd->out[0], keys, values, k, v, dim);
        else
            write_f16(cmd->out[0], keys, values, k, v, dim);
    }
}

/* Random data, outputs with guard bytes, and hashes of the cases. */
#include "case_data.h"

#include "simd/half.h"

#include <stdlib.h>

#define GUARD 64
#define MAX_CASES 600

static test_case cases[MAX_CASES];
static int n_cases;
static uint64_t state;

test_case *first_case(void) {
    state = 20250101;
    n_cases = 0;
    return cases;
}

int case_count(void) { return n_cases; }

uint32_t next(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

float number(float scale) {
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) sum += (float)(next() & 0xffff) / 65536.0f - 0.5f;
    return sum * 0.5f * scale;
}

float *floats(int64_t n, float scale) {
    float *p = malloc((size_t)n * 4 + 1);
    for (int64_t i = 0; i < n; i++) p[i] = number(scale);
    return p;
}

void put(void *data, int dtype, int64_t i, float f) {
    uint16_t h = dtype == KST_F16 ? kst_f32_to_f16(f) : (uint16_t)(kst_f32_bits(f) >> 16);
    if (dtype == KST_F32)
        memcpy((char *)data + i * 4, &f, 4);
    else
        memcpy((char *)data + i * 2, &h, 2);
}

double element(const void *data, int dtype, int64_t i) {
    float f;
    uint16_t h;
    if (dtype == KST_F32) {
        memcpy(&f, (const char *)data + i * 4, 4);
        return f;
    }
    memcpy(&h, (const char *)data + i * 2, 2);
    return dtype == KST_F16 ? kst_f16_to_f32(h) : kst_bf16_to_f32(h);
}

void *weights(int64_t n, int dtype, float scale, int skew) {
    char *p = (char *)malloc((size_t)n * (dtype == KST_F32 ? 4 : 2) + (size_t)skew) + skew;
    for (int64_t i = 0; i < n; i++) put(p, dtype, i, number(scale));
    return p;
}

int32_t *ids(int64_t n, int32_t below) {
    int32_t *p = malloc((size_t)n * 4 + 1);
    for (int64_t i = 0; i < n; i++) p[i] = (int32_t)(next() % (uint32_t)below);
    return p;
}

test_case *begin_case(const char *op, int op_id, int dtype, int rows) {
    test_case *c = &cases[n_cases++];
    if (n_cases > MAX_CASES) abort();
    c->op = op;
    c->dtype = dtype;
    c->cmd.op = op_id;
    c->cmd.rows = KST_ROWS_TOKENS;
    c->step.n_tokens = c->step.n_logit_rows = rows;
    return c;
}
void add_out(test_case *c, int i, int64_t bytes) {
    c->out_bytes[i] = (size_t)bytes;
    c->cmd.out[i] = (char *)malloc((size_t)bytes + 2 * GUARD) + GUARD;
}

int run_case(test_case *c, kst_kernel *kernel, int parts) {
    static _Alignas(64) char scratch[KST_SCRATCH_BYTES];
    int broken = 0;
    for (int i = 0; i < KST_MAX_OUTPUTS; i++)
        if (c->cmd.out[i]) memset((char *)c->cmd.out[i] - GUARD, 0xa5, c->out_bytes[i] + 2 * GUARD);
    for (int part = parts - 1; part >= 0; part--) {
        memset(scratch, 0xff,
               sizeof scratch); /* NaN: a kernel must not use what it has not written */
        kernel(&c->cmd, &c->step, (kst_share){part, part + 1, parts, scratch});
    }
    for (int i = 0; i < KST_MAX_OUTPUTS; i++)
        for (int j = 0; c->cmd.out[i] && j < GUARD; j++) {
            const unsigned char *p = c->cmd.out[i];
            broken |= p[-1 - j] != 0xa5 || p[c->out_bytes[i] + (size_t)j] != 0xa5;
        }
    return broken;
}

uint64_t hash_case(const test_case *c) {
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < KST_MAX_OUTPUTS; i++)
        for (size_t at = 0; c->cmd.out[i] && at < c->out_bytes[i]; at += c->halves ? 2 : 4) {
            uint32_t u = 0;
            memcpy(&u, (const char *)c->cmd.out[i] + at, c->halves ? 2 : 4);
            if (!c->halves && (u & 0x7fffffff) > 0x7f800000 && c->cmd.op != KST_OP_argmax)
                u = 0x7fc00000;
            hash = (hash ^ u) * 1099511628211u;
        }
    return hash;
}

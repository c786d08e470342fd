/* Structs shared by Cython and C. Internal: _ops compares KST_ABI_VERSION and sizeof(kst_cmd) when it is imported. */
#ifndef KESTREL_ABI_H
#define KESTREL_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "args.h"

#define KST_ABI_VERSION 2
#define KST_MAX_INPUTS 8 /* x, three weights, three biases, residual */
#define KST_MAX_OUTPUTS 3

enum kst_op {
#define KST_OP(name, args, rows) KST_OP_##name,
#include "ops.def"
#undef KST_OP
    KST_OP_COUNT
};

enum kst_rows { KST_ROWS_TOKENS = 0, KST_ROWS_LOGITS = 1, KST_ROWS_ANY = 2 };

typedef enum {
    KST_OK = 0,
    KST_AGAIN = 1,     /* not finished: let signals in, then call again */
    KST_CANCELLED = 2, /* stopped between pieces of work: the step's outputs are not to be used */
    KST_NO_THREADS = 3 /* a worker thread could not be started */
} kst_status;

typedef struct kst_cmd kst_cmd;
typedef struct kst_step kst_step;

/* A share of a command: parts [begin, end) of count, and scratch of the thread's own. */
typedef struct {
    int32_t begin, end, count;
    void *scratch; /* KST_SCRATCH_BYTES, aligned to 64 */
} kst_share;

#define KST_SCRATCH_BYTES (1 << 20)

/* A kernel cannot fail, allocate, lock or call Python. Shapes, ids and slots were checked before. */
typedef void kst_kernel(const kst_cmd *cmd, const kst_step *step, kst_share share);

struct kst_cmd {
    kst_kernel *kernel;
    const void *in[KST_MAX_INPUTS]; /* order as in args.h; for linear: x, W0, W1, W2, b0, b1, b2, residual */
    void *out[KST_MAX_OUTPUTS];
    kst_args args;
    int32_t op;             /* enum kst_op */
    int32_t rows;           /* KST_ROWS_TOKENS or KST_ROWS_LOGITS: which count of the step is M */
    int32_t barrier_before; /* all threads meet before this command */
    double work_per_row;    /* multiply-adds a row: how finely to cut the command so that a cancel is seen soon */
};

/* One submission. The arrays live at fixed addresses for the life of an executable. */
struct kst_step {
    int32_t n_tokens, n_seqs, n_logit_rows, max_blocks;
    const int32_t *token_ids;   /* [N] */
    const int32_t *positions;   /* [N] */
    const int32_t *rope_lengths; /* [N] length of the sequence by which a token is rotated; read where frequencies follow it */
    const int32_t *slots;       /* [N] block * KST_BLOCK_SIZE + offset */
    const int32_t *seq_start;   /* [S + 1] */
    const int32_t *context_len; /* [S] */
    const int32_t *block_table; /* [S, max_blocks] */
    const int32_t *logit_rows;  /* [L] */
};

static inline int32_t kst_row_count(const kst_cmd *cmd, const kst_step *step) {
    return cmd->rows == KST_ROWS_LOGITS ? step->n_logit_rows : step->n_tokens;
}

#endif

"""Declarations of native/include/kestrel/abi.h and cpu.h; the headers say what each thing means."""

from libc.stdint cimport int32_t, int64_t, uint64_t


cdef extern from "kestrel/args.h" nogil:
    int KST_BLOCK_SIZE
    int KST_MAX_WEIGHTS

    enum kst_dtype:
        KST_F32
        KST_F16
        KST_BF16

    enum kst_activation:
        KST_SILU
        KST_GELU_TANH

    ctypedef struct kst_embed_args:
        int32_t vocab, dim, dtype
        float scale

    ctypedef struct kst_rotary_embedding_args:
        int32_t half, rows, first_length
        float scale

    ctypedef struct kst_rms_norm_args:
        int32_t dim, groups
        float eps, offset

    ctypedef struct kst_linear_args:
        int32_t in_features, weights
        int32_t out_features[3]
        int32_t dtype[3]
        float scale

    ctypedef struct kst_rope_args:
        int32_t heads, kv_heads, head_dim, rotary_dim

    ctypedef struct kst_kv_write_args:
        int32_t kv_heads, head_dim, cache_dtype

    ctypedef struct kst_attention_args:
        int32_t heads, kv_heads, head_dim, cache_dtype, window
        float scale, soft_cap

    ctypedef struct kst_swiglu_args:
        int32_t dim, activation

    ctypedef struct kst_add_args:
        int32_t dim
        float scale

    ctypedef struct kst_soft_cap_args:
        int32_t dim
        float scale, cap

    ctypedef struct kst_gather_rows_args:
        int32_t dim

    ctypedef struct kst_argmax_args:
        int32_t vocab

    ctypedef struct kst_copy_args:
        int32_t dim

    ctypedef union kst_args:
        kst_embed_args embed
        kst_rotary_embedding_args rotary_embedding
        kst_rms_norm_args rms_norm
        kst_linear_args linear
        kst_rope_args rope
        kst_kv_write_args kv_write
        kst_attention_args attention
        kst_swiglu_args swiglu
        kst_add_args add
        kst_soft_cap_args soft_cap
        kst_gather_rows_args gather_rows
        kst_argmax_args argmax
        kst_copy_args copy


cdef extern from "kestrel/abi.h" nogil:
    int KST_ABI_VERSION
    int KST_MAX_INPUTS
    int KST_MAX_OUTPUTS

    enum kst_op:
        KST_OP_embed
        KST_OP_rotary_embedding
        KST_OP_rms_norm
        KST_OP_linear
        KST_OP_rope
        KST_OP_kv_write
        KST_OP_attention
        KST_OP_swiglu
        KST_OP_add
        KST_OP_soft_cap
        KST_OP_gather_rows
        KST_OP_argmax
        KST_OP_copy
        KST_OP_COUNT

    enum kst_rows:
        KST_ROWS_TOKENS
        KST_ROWS_LOGITS

    ctypedef enum kst_status:
        KST_OK
        KST_AGAIN
        KST_CANCELLED
        KST_NO_THREADS

    ctypedef void kst_kernel

    ctypedef struct kst_cmd:
        kst_kernel *kernel
        const void *in_ "in"[8]
        void *out[3]
        kst_args args
        int32_t op, rows, barrier_before
        double work_per_row

    ctypedef struct kst_step:
        int32_t n_tokens, n_seqs, n_logit_rows, max_blocks
        const int32_t *token_ids
        const int32_t *positions
        const int32_t *rope_lengths
        const int32_t *slots
        const int32_t *seq_start
        const int32_t *context_len
        const int32_t *block_table
        const int32_t *logit_rows


cdef extern from "kestrel/cpu.h" nogil:
    ctypedef struct kst_pool:
        pass

    int KST_MAX_THREADS
    kst_pool *kst_pool_create(int threads)
    void kst_pool_destroy(kst_pool *pool)
    kst_status kst_run_start(kst_pool *pool, const kst_cmd *cmds, int32_t n, const kst_step *step)
    kst_status kst_run_start_profiled(kst_pool *pool, const kst_cmd *cmds, int32_t n,
                                      const kst_step *step, int64_t *nanoseconds)
    kst_status kst_run_continue(kst_pool *pool, double seconds)
    void kst_run_cancel(kst_pool *pool)

    int kst_abi_version()
    size_t kst_cmd_size()

    int kst_isa_count()
    const char *kst_isa_name(int isa)
    int kst_isa_compiled(int isa)
    int kst_isa_supported(int isa)
    const char *kst_isa_missing(int isa)
    int kst_isa_best()
    kst_kernel *kst_kernel_for(int isa_ceiling, int op, int dtype, const char **variant)

    void *kst_memory_map(size_t bytes)
    void kst_memory_unmap(void *memory, size_t bytes)
    int32_t kst_top_candidates(const float *logits, int64_t n, int32_t k, int32_t *ids,
                               float *values)
    double kst_mass(const float *logits, int64_t n, double highest, double scale)
    void kst_weigh(const float *logits, int64_t n, double scale, double *weights, double *sums)

    kst_status kst_limit_read(kst_pool *pool, int isa, const void *data, int64_t bytes,
                              int64_t rounds, double *seconds, uint64_t *sum)
    kst_status kst_limit_fma(kst_pool *pool, int isa, int64_t rounds, double *seconds,
                             uint64_t *count)

    const char *kst_simd_name(int index)
    int kst_simd_test(int isa, const char *name, const void *a, const void *b, const void *c,
                      void *out)

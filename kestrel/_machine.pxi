"""Part of _ops.pyx: what build and machine can do, sampling over a row, the vector vocabulary."""

cdef dict _OPS = {
    "embed": KST_OP_embed,
    "rotary_embedding": KST_OP_rotary_embedding,
    "rms_norm": KST_OP_rms_norm,
    "linear": KST_OP_linear,
    "rope": KST_OP_rope,
    "kv_write": KST_OP_kv_write,
    "attention": KST_OP_attention,
    "swiglu": KST_OP_swiglu,
    "add": KST_OP_add,
    "soft_cap": KST_OP_soft_cap,
    "gather_rows": KST_OP_gather_rows,
    "argmax": KST_OP_argmax,
    "copy": KST_OP_copy,
}


def build_info():
    """What was built: ``{"options": "debug thread", "isas": ["scalar", ...]}``."""
    names = [kst_isa_name(i).decode() for i in range(kst_isa_count()) if kst_isa_compiled(i)]
    return {"options": KST_BUILD_OPTIONS.decode(), "isas": names}


def isas():
    """Names of the instruction sets that were built and may be used here, narrowest first."""
    return [kst_isa_name(i).decode() for i in range(kst_isa_count()) if kst_isa_supported(i)]


def missing_isas():
    """Instruction set -> why it cannot be used here."""
    return {
        kst_isa_name(i).decode(): kst_isa_missing(i).decode()
        for i in range(kst_isa_count())
        if not kst_isa_supported(i)
    }


def op_table(isa=None):
    """Operation -> {dtype of the weight or cache: instruction set of its kernel}.

    ``isa`` is a ceiling, None for the best one. Operations that read neither list ``F32``.
    """
    cdef int ceiling = _ceiling(isa)
    cdef const char *c_variant = NULL
    table = {}
    for op, number in _OPS.items():
        typed = op in ("embed", "linear", "kv_write", "attention")
        table[op] = {}
        for dtype in ("F32", "F16", "BF16") if typed else ("F32",):
            if kst_kernel_for(ceiling, number, dtype_code(dtype), &c_variant) != NULL:
                table[op][dtype] = c_variant.decode()
    return table


cdef int _ceiling(isa) except -1:
    if isa is None:
        return kst_isa_best()
    for i in range(kst_isa_count()):
        if kst_isa_name(i).decode() == isa:
            if kst_isa_supported(i):
                return i
            raise errors.UnsupportedIsaError(
                f"instruction set {isa!r} cannot be used: {kst_isa_missing(i).decode()}; "
                f"here are {', '.join(isas())}"
            )
    raise errors.UnsupportedIsaError(
        f"unknown instruction set {isa!r}: here are {', '.join(isas())}"
    )


def top_candidates(const float[::1] logits, int32_t k):
    """The k largest logits, descending, equal ones by lower id; NaN is left out.

    Returns (ids, values): array('i') and array('f') of at most k elements.
    """
    if k < 1 or logits.shape[0] < 1:
        raise ValueError(f"expected k and a row of at least 1, found {k} and {logits.shape[0]}")
    k = min(k, logits.shape[0])
    ids, values = array("i", bytes(4 * k)), array("f", bytes(4 * k))
    cdef int32_t[::1] c_ids = ids
    cdef float[::1] c_values = values
    cdef int32_t found = kst_top_candidates(&logits[0], logits.shape[0], k, &c_ids[0], &c_values[0])
    return (ids, values) if found == k else (ids[:found], values[:found])


def log_sum_exp(const float[::1] logits):
    """log(sum(exp(logits))), a Python float: the same bits on every instruction set."""
    return kst_log_sum_exp(&logits[0], logits.shape[0]) if logits.shape[0] else float("-inf")


def simd_names():
    """Names of the vector vocabulary (native/cpu/simd/vec.h) that `simd_test` can run."""
    names = []
    while kst_simd_name(len(names)) != NULL:
        names.append(kst_simd_name(len(names)).decode())
    return names


def simd_test(isa, str name, const unsigned char[::1] a, const unsigned char[::1] b,
              const unsigned char[::1] c):
    """16 lanes of one vector function: three inputs of 64 bytes each, 64 bytes returned."""
    if min(a.shape[0], b.shape[0], c.shape[0]) < 64:
        raise ValueError("simd_test: each input holds 16 lanes, 64 bytes")
    cdef unsigned char c_out[64]
    if kst_simd_test(_ceiling(isa), name.encode(), &a[0], &b[0], &c[0], c_out) != 0:
        raise ValueError(f"simd_test: no {name!r} on {isa!r}; names are {', '.join(simd_names())}")
    return <bytes>c_out[:64]

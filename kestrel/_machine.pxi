"""Part of _ops.pyx: what build and machine can do and how fast, sampling over a row, the vector
vocabulary."""

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


def top_candidates(const float[::1] logits, int32_t[::1] ids, float[::1] values):
    """The largest logits, descending, equal ones by lower id, as many as fit; NaN is left out.

    Fills ``ids`` and ``values``, which are of one length, and returns how many there are.
    """
    if ids.shape[0] != values.shape[0] or min(ids.shape[0], logits.shape[0]) < 1:
        raise ValueError(
            f"expected a row of at least 1, and as many ids as values, at least 1: found "
            f"{logits.shape[0]}, {ids.shape[0]} and {values.shape[0]}"
        )
    cdef int32_t found = kst_top_candidates(
        &logits[0], logits.shape[0], ids.shape[0], &ids[0], &values[0]
    )
    if found < 0:
        raise MemoryError(f"no memory to select {ids.shape[0]} of {logits.shape[0]} logits")
    return found


def mass(const float[::1] logits, double highest, double scale):
    """The sum of ``2**((logit - highest) * scale)`` over a row, a Python float.

    ``highest``: finite, and no logit is above it. The same bits on every instruction set.
    """
    return kst_mass(&logits[0], logits.shape[0], highest, scale) if logits.shape[0] else 0.0


def weigh(const float[::1] logits, double scale, double[::1] weights, double[::1] sums):
    """Fill ``weights`` with ``2**((logit - logits[0]) * scale)``, ``sums`` with these added up.

    All of one length. ``logits[0]``: finite, the highest. The same bits on every instruction set.
    """
    cdef Py_ssize_t n = logits.shape[0]
    if n < 1 or weights.shape[0] != n or sums.shape[0] != n:
        raise ValueError(
            f"expected at least 1 logit, and as many weights and sums: found {n}, "
            f"{weights.shape[0]} and {sums.shape[0]}"
        )
    kst_weigh(&logits[0], n, scale, &weights[0], &sums[0])


def limit_read(CpuDevice device, const unsigned char[::1] data, int64_t rounds):
    """Read ``data`` ``rounds`` times over with all threads: (seconds, sum), one pass.

    ``sum`` is that of all little-endian 64-bit words read, modulo 2**64. ``data``: a multiple of 64
    bytes, aligned to 8. A pass holds the interpreter: keep it to some tenths of a second.
    """
    cdef double seconds = 0.0
    cdef uint64_t total = 0
    if rounds < 1 or data.shape[0] < 64 or data.shape[0] % 64 or <size_t>&data[0] % 8:
        raise ValueError(
            f"limit_read: expected whole lines of 64 bytes, aligned to 8, and at least 1 round: "
            f"found {data.shape[0]} bytes and {rounds}"
        )
    with device.turn():
        _check_open(device)
        _check(kst_limit_read(device.c_pool, device._ceiling, &data[0], data.shape[0], rounds,
                              &seconds, &total))
    return seconds, total


def limit_fma(CpuDevice device, int64_t rounds):
    """Multiply-adds out of registers with all threads: (seconds, how many), one pass.

    Each lane of each chain does ``rounds``, below 2**24. Holds the interpreter as `limit_read`.
    """
    cdef double seconds = 0.0
    cdef uint64_t total = 0
    if not 1 <= rounds < 2**24:
        raise ValueError(f"limit_fma: expected 1 to {2**24 - 1} rounds, found {rounds}")
    with device.turn():
        _check_open(device)
        _check(kst_limit_fma(device.c_pool, device._ceiling, rounds, &seconds, &total))
    return seconds, total


cdef int _check_open(CpuDevice device) except -1:
    if device.c_pool == NULL:
        raise errors.BackendError("the cpu backend was closed: open another")
    return 0


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

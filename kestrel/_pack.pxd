"""Attributes of a command, by name, into the structs of native/include/kestrel/args.h."""

from kestrel._native cimport *


cdef inline int dtype_code(name) except -1:
    """``F32``, ``F16`` or ``BF16`` as enum kst_dtype. Raises ValueError on others."""
    if name not in ("F32", "F16", "BF16"):
        raise ValueError(f"dtype: expected F32, F16 or BF16, found {name!r}")
    return KST_F32 if name == "F32" else KST_F16 if name == "F16" else KST_BF16


cdef inline int activation_code(name) except -1:
    """``silu`` or ``gelu_tanh`` as enum kst_activation. Raises ValueError on others."""
    if name not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation: expected silu or gelu_tanh, found {name!r}")
    return KST_SILU if name == "silu" else KST_GELU_TANH


cdef inline int pack_args(kst_args *c_args, int op, a) except -1:
    """Fill the member of ``c_args`` that belongs to ``op`` from a mapping of attributes."""
    if op == KST_OP_embed:
        c_args.embed.vocab, c_args.embed.dim = a["vocab"], a["dim"]
        c_args.embed.dtype, c_args.embed.scale = dtype_code(a["dtype"]), a["scale"]
    elif op == KST_OP_rotary_embedding:
        c_args.rotary_embedding.half, c_args.rotary_embedding.rows = a["half"], a["rows"]
        c_args.rotary_embedding.first_length = a["first_length"]
        c_args.rotary_embedding.scale = a["scale"]
    elif op == KST_OP_rms_norm:
        c_args.rms_norm.dim, c_args.rms_norm.groups = a["dim"], a["groups"]
        c_args.rms_norm.eps, c_args.rms_norm.offset = a["eps"], a["offset"]
    elif op == KST_OP_linear:
        c_args.linear.in_features, c_args.linear.weights = a["in_features"], a["weights"]
        c_args.linear.scale = a["scale"]
        for i in range(c_args.linear.weights):
            c_args.linear.out_features[i] = a["out_features"][i]
            c_args.linear.dtype[i] = dtype_code(a["dtypes"][i])
    elif op == KST_OP_rope:
        c_args.rope.heads, c_args.rope.kv_heads = a["heads"], a["kv_heads"]
        c_args.rope.head_dim, c_args.rope.rotary_dim = a["head_dim"], a["rotary_dim"]
    elif op == KST_OP_kv_write:
        c_args.kv_write.kv_heads, c_args.kv_write.head_dim = a["kv_heads"], a["head_dim"]
        c_args.kv_write.cache_dtype = dtype_code(a["cache_dtype"])
    elif op == KST_OP_attention:
        c_args.attention.heads, c_args.attention.kv_heads = a["heads"], a["kv_heads"]
        c_args.attention.head_dim, c_args.attention.window = a["head_dim"], a["window"]
        c_args.attention.scale, c_args.attention.soft_cap = a["scale"], a["soft_cap"]
        c_args.attention.cache_dtype = dtype_code(a["cache_dtype"])
    elif op == KST_OP_swiglu:
        c_args.swiglu.dim = a["dim"]
        c_args.swiglu.activation = activation_code(a["activation"])
    elif op == KST_OP_add:
        c_args.add.dim, c_args.add.scale = a["dim"], a["scale"]
    elif op == KST_OP_soft_cap:
        c_args.soft_cap.dim = a["dim"]
        c_args.soft_cap.scale, c_args.soft_cap.cap = a["scale"], a["cap"]
    elif op == KST_OP_argmax:
        c_args.argmax.vocab = a["vocab"]
    else:  # gather_rows, copy: the width of a row, the one member of each struct
        c_args.copy.dim = a["dim"]
    return 0

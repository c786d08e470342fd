"""PagedCache: the device storage of keys and values, and its geometry.

One buffer a layer, [blocks, 2, K, 16 * D]: within a block a kv head's keys lie together, then its
values. Which block belongs to whom is the BlockPool's business.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kestrel.cache.sequence import blocks_needed, window_blocks
from kestrel.dtypes import Dtype
from kestrel.errors import CapacityError, ConfigError
from kestrel.program.values import Storage, Value

if TYPE_CHECKING:
    from kestrel.backends.base import Backend
    from kestrel.models.config import DecoderConfig
    from kestrel.models.limits import Limits

__all__ = [
    "BLOCK_SIZE", "KV_DTYPES", "Capacity", "PagedCache", "bytes_per_token", "kv_dtype",
    "plan_capacity",
]  # fmt: skip

#: Positions in a block: KST_BLOCK_SIZE in native/include/kestrel/args.h.
BLOCK_SIZE = 16

#: Positions reserved by default, unless one context alone is longer.
DEFAULT_TOKENS = 131_072

KV_DTYPES = {"float32": Dtype.F32, "float16": Dtype.F16}


def kv_dtype(name: str) -> Dtype:
    """The cache's element type. Raises ConfigError unless ``float32`` or ``float16``."""
    if not isinstance(name, str) or name not in KV_DTYPES:
        raise ConfigError(f"kv_dtype: expected {' or '.join(KV_DTYPES)}, found {name!r}")
    return KV_DTYPES[name]


def bytes_per_token(config: "DecoderConfig", dtype: Dtype) -> int:
    """Bytes of keys and values of one position over all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.size


class PagedCache:
    """Storage for ``num_blocks`` blocks on a backend; pages never written cost no memory.

    Raises CapacityError where the system refuses them.
    """

    def __init__(
        self, backend: "Backend", config: "DecoderConfig", num_blocks: int, dtype: Dtype
    ) -> None:
        shape = (num_blocks, 2, config.num_kv_heads, BLOCK_SIZE * config.head_dim)
        self.num_blocks = num_blocks
        self.nbytes = num_blocks * BLOCK_SIZE * bytes_per_token(config, dtype)
        layer_bytes = self.nbytes // config.num_layers
        try:
            memory = [backend.allocate(layer_bytes) for _ in range(config.num_layers)]
        except MemoryError:
            raise CapacityError(
                f"KV cache: the system does not give {self.nbytes:,} bytes for "
                f"{num_blocks * BLOCK_SIZE:,} positions: allow fewer with --max-context N (in "
                "Python Limits.max_context or cache_bytes)"
            ) from None
        self._layers = [
            Value(f"cache.layers.{i}", Storage.CACHE, dtype, shape, each)
            for i, each in enumerate(memory)
        ]

    def layer(self, index: int) -> Value:
        """The cache of one layer as a value of the program."""
        return self._layers[index]


@dataclass(frozen=True)
class Capacity:
    """How much of a context the cache can hold."""

    num_blocks: int
    max_context: int
    notes: tuple[str, ...]


def plan_capacity(config: "DecoderConfig", limits: "Limits", dtype: Dtype) -> Capacity:
    """Blocks to reserve, and the context limit that follows.

    Without ``limits.cache_bytes``: contexts for ``max_seqs`` sequences, but at most
    DEFAULT_TOKENS beyond one, and at most half of the machine's memory. Reserved is not used:
    pages come when positions are written. Of a context that only a window is seen of, a window and
    a step have to fit. Raises CapacityError when not even one block fits, ConfigError when
    ``limits.max_context`` is more than the model was made for.
    """
    wanted = limits.max_context or config.context_limit
    if wanted > config.context_limit:
        raise ConfigError(_too_long(config, wanted), "max_context")
    per_block = BLOCK_SIZE * bytes_per_token(config, dtype)
    blocks_per_context = -(-wanted // BLOCK_SIZE)
    window = config.attention_window
    if limits.cache_bytes is not None:
        budget = limits.cache_bytes
        blocks = min(budget // per_block, blocks_per_context * limits.max_seqs)
    else:
        budget = memory_bytes() // 2
        one = wanted
        if window is not None:
            # Past its first and last position, a step may hold the rest of two blocks.
            step = limits.max_tokens + 2 * (BLOCK_SIZE - 1)
            one = min(wanted, window_blocks(window, BLOCK_SIZE) * BLOCK_SIZE + step)
        tokens = max(one, min(wanted * limits.max_seqs, DEFAULT_TOKENS))
        blocks = min(budget // per_block, -(-tokens // BLOCK_SIZE) + limits.max_seqs)
    if blocks < 1:
        raise CapacityError(
            f"KV cache: one block of {BLOCK_SIZE} positions needs {per_block:,} bytes, "
            f"{budget:,} are available: raise Limits.cache_bytes"
        )
    context = wanted
    if blocks < blocks_needed(wanted, BLOCK_SIZE, window):
        context = blocks * BLOCK_SIZE
    notes = []
    if context < wanted:
        notes.append(
            f"context limit {context} tokens: a KV cache of {budget:,} bytes at "
            f"{per_block // BLOCK_SIZE:,} bytes a token holds no more of the {wanted} wanted; "
            "raise Limits.cache_bytes, or use kv_dtype='float16'"
        )
    return Capacity(blocks, context, tuple(notes))


def _too_long(config: "DecoderConfig", wanted: int) -> str:
    limit, trained = config.context_limit, config.max_position_embeddings
    if limit == trained:
        known = f"max_position_embeddings = {trained} of config.json"
    else:
        known = (
            f"{limit}, which follows from max_position_embeddings = {trained} and the RoPE "
            "settings of config.json"
        )
    return f"max_context: {wanted} is above {known}: the model was not made for it"


def memory_bytes() -> int:
    """Physical memory, or less where the control group (v2, v1) grants less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                memory = min(memory, int(file.read()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return memory

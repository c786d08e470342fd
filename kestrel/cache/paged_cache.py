"""PagedCache: the device storage of keys and values, and its geometry.

One buffer a layer, [blocks, 2, K, 16 * D]: within a block a kv head's keys lie together, then its
values. Which block belongs to whom is the BlockPool's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kestrel.dtypes import Dtype
from kestrel.errors import ConfigError
from kestrel.program.values import Storage, Value

if TYPE_CHECKING:
    from kestrel.backends.base import Backend
    from kestrel.models.config import DecoderConfig

__all__ = ["BLOCK_SIZE", "KV_DTYPES", "PagedCache", "bytes_per_token", "kv_dtype"]

#: Positions in a block: KST_BLOCK_SIZE in native/include/kestrel/args.h.
BLOCK_SIZE = 16

KV_DTYPES = {"float32": Dtype.F32, "float16": Dtype.F16}


def kv_dtype(name: str) -> Dtype:
    """The cache's element type. Raises ConfigError unless ``float32`` or ``float16``."""
    if name not in KV_DTYPES:
        raise ConfigError(f"kv_dtype: expected {' or '.join(KV_DTYPES)}, found {name!r}")
    return KV_DTYPES[name]


def bytes_per_token(config: "DecoderConfig", dtype: Dtype) -> int:
    """Bytes of keys and values of one position over all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.size


class PagedCache:
    """Storage for ``num_blocks`` blocks on a backend; pages never written cost no memory."""

    def __init__(
        self, backend: "Backend", config: "DecoderConfig", num_blocks: int, dtype: Dtype
    ) -> None:
        shape = (num_blocks, 2, config.num_kv_heads, BLOCK_SIZE * config.head_dim)
        self.num_blocks = num_blocks
        self.nbytes = num_blocks * BLOCK_SIZE * bytes_per_token(config, dtype)
        layer_bytes = self.nbytes // config.num_layers
        self._layers = [
            Value(f"cache.layers.{i}", Storage.CACHE, dtype, shape, backend.allocate(layer_bytes))
            for i in range(config.num_layers)
        ]

    def layer(self, index: int) -> Value:
        """The cache of one layer as a value of the program."""
        return self._layers[index]

"""The KV cache: which sequence owns which blocks, and which prompt prefixes are already there.

``block_pool`` and ``sequence`` are bookkeeping in pure Python, without arrays; ``paged_cache`` is
the storage on the device.
"""

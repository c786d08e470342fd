"""What the families' ways to read a config.json have in common, after transformers' classes."""

from __future__ import annotations

from kestrel.stages import Geometry, LayerGeometry

__all__ = ["biases", "heads", "layers", "rope_parameters", "windows_from", "windows_of"]

#: Projections by the key of config.json that gives them biases.
_BIASES = {
    "attention_bias": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp_bias": ("gate_proj", "up_proj", "down_proj"),
}


def biases(config: dict[str, object]) -> tuple[str, ...]:
    """Projections with biases, by ``attention_bias`` and ``mlp_bias``."""
    return tuple(name for key, names in _BIASES.items() if config.get(key) for name in names)


def heads(config: dict[str, object]) -> dict[str, int]:
    """Fields of Geometry about heads; head_dim is hidden_size over heads when nothing is said."""
    count = config["num_attention_heads"]
    return {
        "num_attention_heads": count,
        "num_key_value_heads": config.get("num_key_value_heads") or count,
        "head_dim": config.get("head_dim") or config["hidden_size"] // count,
    }


def rope_parameters(
    config: dict[str, object],
    block: dict[str, object] | None = None,
    theta: float = 10000.0,
) -> dict[str, object]:
    """A block of rope_parameters as RotaryEmbeddingConfigMixin completes it.

    ``block`` is that of config.json unless given; ``theta`` stands where nothing gives one.
    """
    if block is None:
        block = config.get("rope_scaling") or config.get("rope_parameters") or {}
    full = {"rope_theta": config.get("rope_theta", theta), **block}
    full.setdefault("rope_type", block.get("type", "default"))
    limit = config["max_position_embeddings"]
    if full["rope_type"] in ("llama3", "yarn", "longrope"):
        outside = config.get("original_max_position_embeddings")
        if outside is not None:
            full["original_max_position_embeddings"] = outside
        full.setdefault("original_max_position_embeddings", limit)
    partial = full.setdefault("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    head_dim = heads(config)["head_dim"]
    return {**full, "rotary_dim": int(head_dim * partial), "max_position_embeddings": limit}


def layers(config: dict[str, object], windows: list[int | None]) -> tuple[LayerGeometry, ...]:
    """Layers with these windows, all turned by the same tables."""
    if len(windows) != config["num_hidden_layers"]:
        raise ValueError(f"{len(windows)} windows for {config['num_hidden_layers']} layers")
    return tuple(LayerGeometry(window) for window in windows)


def windows_of(config: dict[str, object], kinds: list[str]) -> list[int | None]:
    """The window of each layer by its entry in ``layer_types``."""
    window = config.get("sliding_window")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def windows_from(config: dict[str, object]) -> list[int | None]:
    """As Qwen reads it: from the layer ``max_window_layers`` on, if windows are used at all."""
    if not config.get("use_sliding_window", False):
        config = {**config, "sliding_window": None}
    first, window = config.get("max_window_layers", 28), config.get("sliding_window", 4096)
    kinds = config.get("layer_types") or [
        "sliding_attention" if window is not None and index >= first else "full_attention"
        for index in range(config["num_hidden_layers"])
    ]
    return windows_of({**config, "sliding_window": window}, kinds)

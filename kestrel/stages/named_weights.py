"""The weights of a loaded model, under the names that the definitions use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

    from kestrel.checkpoint import TensorView
    from kestrel.models.weights import DecoderWeights, LayerWeights

__all__ = ["NamedWeights"]

#: Blocks of a layer by the projections in them.
_BLOCKS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
_NORMS = (
    "input_norm", "q_norm", "k_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm",
)  # fmt: skip


class NamedWeights(Mapping):
    """Tensor name -> float32 array, as Llama's checkpoints name the projections.

    A tensor that several projections share is under the name of each, as its part. Each look-up
    widens the stored tensor to float32 and keeps nothing, so that a large model is compared in
    little memory. A tied head has no name of its own.
    """

    def __init__(self, weights: "DecoderWeights") -> None:
        tensors = {
            "model.embed_tokens.weight": weights.embed_tokens,
            "model.norm.weight": weights.norm.weight,
        }
        if weights.lm_head.weight is not weights.embed_tokens:
            tensors["lm_head.weight"] = weights.lm_head.weight
        for index, layer in enumerate(weights.layers):
            for name, tensor in _layer(layer):
                tensors[f"model.layers.{index}.{name}"] = tensor
        self._tensors: dict[str, "TensorView"] = tensors

    def __getitem__(self, name: str) -> "numpy.ndarray":
        return self._tensors[name].to_numpy_f32()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _layer(layer: "LayerWeights") -> "Iterator[tuple[str, TensorView]]":
    for use in _NORMS:
        norm = getattr(layer, use)
        if norm is not None:
            yield f"{norm.name}.weight", norm.weight
    for block, names in _BLOCKS.items():
        for name in names:
            linear = getattr(layer, name)
            yield f"{block}.{name}.weight", linear.weight
            if linear.bias is not None:
                yield f"{block}.{name}.bias", linear.bias

"""Bind the tensors of a checkpoint to the places where the forward pass uses them.

Strict both ways: every wanted tensor is there with its shape and a dtype that can be computed
with, and every tensor of the checkpoint is used, or dropped for a reason that a note gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

from kestrel.dtypes import WEIGHT_DTYPES
from kestrel.errors import DtypeError, ShapeError, UnexpectedTensorError
from kestrel.models.tensor_names import Naming, choose_naming, missing_error, unexpected_error

if TYPE_CHECKING:
    from kestrel.checkpoint import Checkpoint, TensorView
    from kestrel.models.config import DecoderConfig
    from kestrel.models.family import Family

__all__ = ["DecoderWeights", "LayerWeights", "Linear", "bind"]


@dataclass(frozen=True)
class Linear:
    """y = x Wᵀ + b: ``weight`` [out, in], ``bias`` [out] or None."""

    weight: "TensorView"
    bias: "TensorView | None"


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. Norms are [hidden_size]."""

    input_norm: "TensorView"
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear
    post_norm: "TensorView"
    gate_proj: Linear
    up_proj: Linear
    down_proj: Linear


@dataclass(frozen=True)
class DecoderWeights:
    """The whole model. ``embed_tokens`` is [vocab_size, hidden_size]; a tied head shares it."""

    embed_tokens: "TensorView"
    layers: tuple[LayerWeights, ...]
    norm: "TensorView"
    lm_head: Linear

    def tensors(self) -> "Iterator[TensorView]":
        """Every tensor in use, once, in the order of the forward pass."""
        yield self.embed_tokens
        for layer in self.layers:
            for use in layer.__dataclass_fields__:
                yield from _views(getattr(layer, use))
        yield self.norm
        if self.lm_head.weight is not self.embed_tokens:
            yield from _views(self.lm_head)


def _views(weights: "Linear | TensorView") -> "Iterator[TensorView]":
    if not isinstance(weights, Linear):
        yield weights
        return
    yield weights.weight
    if weights.bias is not None:
        yield weights.bias


@dataclass(frozen=True)
class _Wanted:
    """A tensor that the model needs: its standard name, shape, and the fields that set it."""

    name: str
    shape: tuple[int, ...]
    fields: str


def bind(
    checkpoint: "Checkpoint", config: "DecoderConfig", family: "Family"
) -> tuple[DecoderWeights, list[str]]:
    """The weights by use, and notes for the user.

    Raises MissingTensorError, UnexpectedTensorError (a tied head with values of its own too),
    ShapeError or DtypeError; each names the file, the tensor, what was expected and found.
    """
    tensors, notes = checkpoint.tensors, []
    wanted = {each.name: each for each in _wanted(config, family)}
    naming = choose_naming(wanted, tensors)
    if naming.body != "model.":
        notes.append(f"tensor names: {naming} is read as model.")
    names = {name: naming.stored(name) for name in wanted}
    missing = [name for name in names.values() if name not in tensors]
    unused = set(tensors).difference(names.values())
    unused -= _skipped(unused, naming, family, notes)
    head = naming.stored("lm_head.weight")
    if config.tie_word_embeddings:
        unused.discard(head)
    if missing:
        raise missing_error(checkpoint, missing, len(names), unused)
    if unused:
        raise unexpected_error(checkpoint, unused)
    for each in wanted.values():
        _check(tensors[names[each.name]], each)
    bound = {name: tensors[stored] for name, stored in names.items()}
    if config.tie_word_embeddings and head in tensors:
        notes.append(_drop_tied_head(tensors[head], bound["model.embed_tokens.weight"]))
    return _assemble(bound, config, family), notes


def _wanted(config: "DecoderConfig", family: "Family") -> Iterator[_Wanted]:
    hidden = (config.hidden_size, "hidden_size")
    inner = (config.intermediate_size, "intermediate_size")
    query = (config.num_heads * config.head_dim, "num_attention_heads * head_dim")
    key = (config.num_kv_heads * config.head_dim, "num_key_value_heads * head_dim")
    vocab = (config.vocab_size, "vocab_size")
    linears = {
        "q_proj": (query, hidden, config.attention_bias),
        "k_proj": (key, hidden, config.attention_bias),
        "v_proj": (key, hidden, config.attention_bias),
        "o_proj": (hidden, query, config.attention_bias),
        "gate_proj": (inner, hidden, config.mlp_bias),
        "up_proj": (inner, hidden, config.mlp_bias),
        "down_proj": (hidden, inner, config.mlp_bias),
    }
    yield _want("model.embed_tokens.weight", vocab, hidden)
    for i in range(config.num_layers):
        for use, module in family.layer_names.items():
            name = f"model.layers.{i}.{module}"
            if use not in linears:
                yield _want(f"{name}.weight", hidden)
                continue
            rows, columns, has_bias = linears[use]
            yield _want(f"{name}.weight", rows, columns)
            if has_bias:
                yield _want(f"{name}.bias", rows)
    yield _want("model.norm.weight", hidden)
    if not config.tie_word_embeddings:
        yield _want("lm_head.weight", vocab, hidden)


def _want(name: str, *axes: tuple[int, str]) -> _Wanted:
    sizes, fields = zip(*axes)
    return _Wanted(name, sizes, " × ".join(fields))


def _skipped(
    unused: set[str], naming: Naming, family: "Family", notes: list[str]
) -> set[str]:
    """Tensors that the family lists as needless; adds a note for each pattern met."""
    found: set[str] = set()
    for pattern in family.skipped:
        hits = {name for name in unused if fnmatchcase(name, naming.stored(pattern))}
        if hits:
            notes.append(f"skipped {pattern} ({len(hits)}): it follows from config.json")
        found |= hits
    return found


def _check(view: "TensorView", wanted: _Wanted) -> None:
    if view.shape != wanted.shape:
        never_stored = 0 in view.shape
        raise ShapeError(
            f"{view.file}: tensor {view.name!r}: expected shape {list(wanted.shape)} "
            f"({wanted.fields} in config.json), found {list(view.shape)}: "
            + (
                "its values were never stored, as when a sharded training run saves without "
                "gathering: save the model again from that run"
                if never_stored
                else "the config belongs to another checkpoint, or one of the two was changed"
            ),
            view.file,
        )
    if view.dtype not in WEIGHT_DTYPES:
        raise DtypeError(
            f"{view.file}: tensor {view.name!r}: expected dtype "
            f"{' or '.join(dtype.value for dtype in WEIGHT_DTYPES)}, found {view.dtype.value}: "
            "quantized and integer weights are not supported: use the model's float32, float16 "
            "or bfloat16 checkpoint",
            view.file,
        )


def _drop_tied_head(head: "TensorView", embedding: "TensorView") -> str:
    """The note that ``head`` is left out. Raises UnexpectedTensorError unless it is equal."""
    same_kind = (head.shape, head.dtype) == (embedding.shape, embedding.dtype)
    if not same_kind or not _equal_bytes(head.data, embedding.data):
        found = "other values" if same_kind else f"{head.dtype.value} {list(head.shape)}"
        raise UnexpectedTensorError(
            f"{head.file}: tensor {head.name!r}: tie_word_embeddings is true, so it must equal "
            f"{embedding.name!r} ({embedding.dtype.value} {list(embedding.shape)}), found "
            f"{found}: set tie_word_embeddings to false in config.json if the model was trained "
            "with a head of its own",
            head.file,
        )
    return f"{head.name} equals {embedding.name}, as tie_word_embeddings says: one copy is used"


def _equal_bytes(a: memoryview, b: memoryview, chunk: int = 1 << 20) -> bool:
    # By chunks: comparing at once would make an array of bools as large as the embedding.
    return all(
        np.array_equal(np.frombuffer(a[i : i + chunk], "u1"), np.frombuffer(b[i : i + chunk], "u1"))
        for i in range(0, len(a), chunk)
    )


def _assemble(
    bound: "dict[str, TensorView]", config: "DecoderConfig", family: "Family"
) -> DecoderWeights:
    def linear(name: str) -> Linear:
        return Linear(bound[f"{name}.weight"], bound.get(f"{name}.bias"))

    norms = ("input_norm", "post_norm")
    layers = []
    for i in range(config.num_layers):
        modules = {use: f"model.layers.{i}.{name}" for use, name in family.layer_names.items()}
        layers.append(
            LayerWeights(
                **{
                    use: bound[f"{name}.weight"] if use in norms else linear(name)
                    for use, name in modules.items()
                }
            )
        )
    embedding = bound["model.embed_tokens.weight"]
    head = Linear(embedding, None) if config.tie_word_embeddings else linear("lm_head")
    return DecoderWeights(embedding, tuple(layers), bound["model.norm.weight"], head)

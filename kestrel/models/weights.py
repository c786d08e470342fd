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

__all__ = ["DecoderWeights", "LayerWeights", "Linear", "Norm", "bind"]


@dataclass(frozen=True)
class Linear:
    """y = x Wᵀ + b: ``weight`` [out, in], ``bias`` [out] or None."""

    weight: "TensorView"
    bias: "TensorView | None"


@dataclass(frozen=True)
class Norm:
    """An RMS norm: ``weight`` [columns], and ``name``, its module's name within the layer."""

    weight: "TensorView"
    name: str


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. A norm that the family has not is None.

    Norms of a block's input and output are [hidden_size]; of q and k, what ``qk_norm`` says.
    """

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear
    gate_proj: Linear
    up_proj: Linear
    down_proj: Linear
    input_norm: Norm | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    attention_output_norm: Norm | None = None
    mlp_norm: Norm | None = None
    mlp_output_norm: Norm | None = None


@dataclass(frozen=True)
class DecoderWeights:
    """The whole model. ``embed_tokens`` is [vocab_size, hidden_size]; a tied head shares it."""

    embed_tokens: "TensorView"
    layers: tuple[LayerWeights, ...]
    norm: Norm
    lm_head: Linear

    def tensors(self) -> "Iterator[TensorView]":
        """Every tensor in use, once; a tensor shared by several projections comes in parts."""
        yield self.embed_tokens
        for layer in self.layers:
            for use in layer.__dataclass_fields__:
                yield from _views(getattr(layer, use))
        yield self.norm.weight
        if self.lm_head.weight is not self.embed_tokens:
            yield from _views(self.lm_head)


def _views(weights: "Linear | Norm | None") -> "Iterator[TensorView]":
    if weights is None:
        return
    yield weights.weight
    if isinstance(weights, Linear) and weights.bias is not None:
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

    Raises CheckpointError (a tensor that the index does not name), MissingTensorError,
    UnexpectedTensorError (a tied head with values of its own too), ShapeError or DtypeError; each
    names the file, the tensor, what was expected and found.
    """
    tensors, notes = checkpoint.tensors, []
    wanted = {each.name: each for each in _wanted(config, family)}
    naming = choose_naming(wanted, tensors)
    if naming.body != "model.":
        notes.append(f"tensor names: {naming} is read as model.")
    names = {name: naming.stored(name) for name in wanted}
    missing = [name for name in names.values() if name not in tensors]
    unused = set(tensors).difference(names.values())
    skipped = _skipped(unused, naming, family, notes)
    checkpoint.check_index(skipped)
    unused -= skipped
    head = naming.stored("lm_head.weight")
    if config.tie_word_embeddings:
        unused.discard(head)
    if missing:
        raise missing_error(checkpoint, missing, len(names), unused, family.model_type)
    if unused:
        raise unexpected_error(checkpoint, unused, family.model_type)
    for each in wanted.values():
        _check(tensors[names[each.name]], each)
    bound = {name: tensors[stored] for name, stored in names.items()}
    if config.tie_word_embeddings and head in tensors:
        notes.append(_drop_tied_head(tensors[head], bound["model.embed_tokens.weight"]))
    return _assemble(bound, config, family), notes


def _wanted(config: "DecoderConfig", family: "Family") -> Iterator[_Wanted]:
    hidden = (config.hidden_size, "hidden_size")
    vocab = (config.vocab_size, "vocab_size")
    yield _want("model.embed_tokens.weight", vocab, hidden)
    modules = _modules(config, family)
    for i in range(config.num_layers):
        for module, parts in modules.items():
            name = f"model.layers.{i}.{module}"
            rows = (
                sum(part.rows[0] for part in parts.values()),
                " + ".join(part.rows[1] for part in parts.values()),
            )
            first = next(iter(parts.values()))
            columns = () if first.columns is None else (first.columns,)
            yield _want(f"{name}.weight", rows, *columns)
            if first.has_bias:
                yield _want(f"{name}.bias", rows)
    yield _want("model.norm.weight", hidden)
    if not config.tie_word_embeddings:
        yield _want("lm_head.weight", vocab, hidden)


@dataclass(frozen=True)
class _Part:
    """The shape of one field of LayerWeights: sizes, each with the fields of config.json that set
    it; a norm has no columns."""

    rows: tuple[int, str]
    columns: tuple[int, str] | None = None
    has_bias: bool = False


def _modules(config: "DecoderConfig", family: "Family") -> dict[str, dict[str, _Part]]:
    """Module name to the fields of LayerWeights that its tensor holds, in order of rows."""
    hidden = (config.hidden_size, "hidden_size")
    inner = (config.intermediate_size, "intermediate_size")
    query = (config.num_heads * config.head_dim, "num_attention_heads * head_dim")
    key = (config.num_kv_heads * config.head_dim, "num_key_value_heads * head_dim")
    head = (config.head_dim, "head_dim")
    per_head = config.qk_norm == "head"
    parts = {
        "q_proj": _Part(query, hidden, config.attention_bias),
        "k_proj": _Part(key, hidden, config.attention_bias),
        "v_proj": _Part(key, hidden, config.attention_bias),
        "o_proj": _Part(hidden, query, config.attention_output_bias),
        "gate_proj": _Part(inner, hidden, config.mlp_bias),
        "up_proj": _Part(inner, hidden, config.mlp_bias),
        "down_proj": _Part(hidden, inner, config.mlp_bias),
        "q_norm": _Part(head if per_head else query),
        "k_norm": _Part(head if per_head else key),
    }
    modules: dict[str, dict[str, _Part]] = {}
    for use, module in family.layer_names.items():
        modules.setdefault(module, {})[use] = parts.get(use) or _Part(hidden)
    return modules


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
    modules = _modules(config, family)
    layers = tuple(
        LayerWeights(**_layer(bound, f"model.layers.{i}", modules))
        for i in range(config.num_layers)
    )
    embedding = bound["model.embed_tokens.weight"]
    head = embedding if config.tie_word_embeddings else bound["lm_head.weight"]
    norm = Norm(bound["model.norm.weight"], "model.norm")
    return DecoderWeights(embedding, layers, norm, Linear(head, None))


def _layer(
    bound: "dict[str, TensorView]", prefix: str, modules: dict[str, dict[str, _Part]]
) -> "dict[str, Linear | Norm]":
    uses: dict[str, Linear | Norm] = {}
    for module, parts in modules.items():
        weight = bound[f"{prefix}.{module}.weight"]
        bias = bound.get(f"{prefix}.{module}.bias")
        begin = 0
        for use, part in parts.items():
            end = begin + part.rows[0]
            whole = len(parts) == 1
            own = weight if whole else weight.rows(begin, end)
            if part.columns is None:
                uses[use] = Norm(own, module)
            else:
                uses[use] = Linear(own, bias if whole or bias is None else bias.rows(begin, end))
            begin = end
    return uses

"""The tensors of each family find their places, under every prefix, and nothing else does."""

import numpy as np
import pytest
from unit.binding import bind_all, stored_names, write  # noqa: F401  write is a fixture
from unit.family_configs import FAMILY_TENSORS, tiny

from kestrel.errors import MissingTensorError, ShapeError, UnexpectedTensorError

families = pytest.mark.parametrize("family", FAMILY_TENSORS)
#: Biases that the config.json of ``tiny`` announces in no family but Qwen2.
BIASES = ["self_attn.q_proj.bias", "self_attn.o_proj.bias", "mlp.gate_proj.bias"]

#: Projection to the module of Phi-3 whose rows it is.
FUSED = {
    **dict.fromkeys(["q_proj", "k_proj", "v_proj"], "qkv_proj"),
    **dict.fromkeys(["gate_proj", "up_proj"], "gate_up_proj"),
}


def tensors_of(family: str, layers: int = 2) -> dict[str, np.ndarray]:
    shapes = {"model.embed_tokens.weight": (64, 32)}
    for i in range(layers):
        shapes |= {f"model.layers.{i}.{name}": at for name, at in FAMILY_TENSORS[family].items()}
    shapes |= {"model.norm.weight": (32,), "lm_head.weight": (64, 32)}
    return {name: np.full(shape, k, np.float32) for k, (name, shape) in enumerate(shapes.items())}


def untied(family: str) -> dict[str, object]:
    return tiny(family, tie_word_embeddings=False)


@families
def test_every_tensor_finds_its_place(write, family):
    checkpoint = write(untied(family), tensors_of(family))
    weights, notes = bind_all(checkpoint)
    assert notes == []
    assert stored_names(weights) == sorted(checkpoint.tensors)
    for i, layer in enumerate(weights.layers):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
            linear = getattr(layer, name)
            module = FUSED.get(name, name) if family == "phi3" else name
            assert linear.weight.name.startswith(f"model.layers.{i}.")
            assert linear.weight.name.partition("[")[0].endswith(f".{module}.weight")
            assert linear.bias is None or linear.bias.name.endswith(f".{name}.bias")


#: Family to the norms of a layer: before and after attention, before and after the MLP.
NORMS = {
    **dict.fromkeys(
        ["llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "granite", "phi3"],
        ["input_layernorm", None, "post_attention_layernorm", None],
    ),
    **dict.fromkeys(
        ["gemma2", "gemma3_text"],
        [
            "input_layernorm", "post_attention_layernorm",
            "pre_feedforward_layernorm", "post_feedforward_layernorm",
        ],
    ),
    "olmo2": [None, "post_attention_layernorm", None, "post_feedforward_layernorm"],
}  # fmt: skip


@families
def test_norms_are_where_the_class_applies_them(write, family):
    weights, _ = bind_all(write(untied(family), tensors_of(family)))
    uses = ("input_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm")
    found = [getattr(weights.layers[1], use) for use in uses]
    assert [norm and norm.name for norm in found] == NORMS[family]
    for norm in filter(None, found):
        assert norm.weight.name == f"model.layers.1.{norm.name}.weight"


@families
def test_an_equal_tied_head_is_dropped(write, family):
    # S05
    tensors = tensors_of(family)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    weights, notes = bind_all(write(tiny(family, tie_word_embeddings=True), tensors))
    assert weights.lm_head.weight is weights.embed_tokens
    assert len(notes) == 1 and "lm_head.weight equals" in notes[0]
    tensors["lm_head.weight"] = -tensors["model.embed_tokens.weight"] - 1
    with pytest.raises(UnexpectedTensorError, match="tie_word_embeddings is true"):
        bind_all(write(tiny(family, tie_word_embeddings=True), tensors))


@families
@pytest.mark.parametrize("name", BIASES)
def test_biases_that_are_not_announced_are_named(write, family, name):
    # S10
    full = f"model.layers.1.{name}"
    tensors = tensors_of(family)
    if full in tensors:
        del tensors[full]
        with pytest.raises(MissingTensorError, match=full):
            bind_all(write(untied(family), tensors))
        return
    shape = FAMILY_TENSORS[family].get(name.replace("bias", "weight"), (1,))
    tensors[full] = np.ones(shape[0], np.float32)
    with pytest.raises(UnexpectedTensorError, match=f"{full}'.*{family} model .*has no such bias"):
        bind_all(write(untied(family), tensors))


@families
@pytest.mark.parametrize(
    "body, head",
    [("model.language_model.", ""), ("language_model.model.", "language_model."), ("", "")],
)
def test_other_prefixes(write, family, body, head):
    # S20
    def rename(name: str) -> str:
        if name.startswith("model."):
            return body + name.removeprefix("model.")
        return head + name

    tensors = {rename(name): values for name, values in tensors_of(family).items()}
    weights, notes = bind_all(write(untied(family), tensors))
    assert len(stored_names(weights)) == len(tensors)
    assert len(notes) == 1 and (body or "(no prefix)") in notes[0]
    odd = rename("model.layers.1.mlp.down_proj.weight")
    tensors["model.layers.1.mlp.down_proj.weight"] = tensors.pop(odd)
    with pytest.raises(MissingTensorError, match=rf"\(1 of {len(tensors)}\): '{odd}'"):
        bind_all(write(untied(family), tensors))


@families
def test_every_tensor_of_a_layer_is_needed_in_its_shape(write, family):
    whole = tensors_of(family)
    for name in FAMILY_TENSORS[family]:
        full = f"model.layers.0.{name}"
        with pytest.raises(MissingTensorError, match=f"'{full}'"):
            bind_all(write(untied(family), {n: v for n, v in whole.items() if n != full}))
        longer = np.ones((whole[full].shape[0] + 1, *whole[full].shape[1:]), np.float32)
        with pytest.raises(ShapeError, match=f"'{full}': expected shape"):
            bind_all(write(untied(family), {**whole, full: longer}))


@families
def test_norms_of_another_family_have_no_place(write, family):
    others = {name for tensors in FAMILY_TENSORS.values() for name in tensors}
    for name in sorted({*others, "input_layernorm.bias"} - FAMILY_TENSORS[family].keys()):
        odd = {f"model.layers.0.{name}": np.ones(10, np.float32)}
        with pytest.raises(UnexpectedTensorError, match=name):
            bind_all(write(untied(family), tensors_of(family) | odd))

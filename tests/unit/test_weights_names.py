"""Names of tensors: every wanted one found, every found one used, few rules for prefixes."""

import json

import numpy as np
import pytest
from checkpoints import INDEX_NAME, tiny_llama_config, tiny_llama_tensors
from unit.binding import LAYER_FILES, bind_all, write  # noqa: F401  write is a fixture

from kestrel.checkpoint import Checkpoint
from kestrel.errors import CheckpointError, MissingTensorError, UnexpectedTensorError


def renamed(tensors, rename):
    return {rename(name): values for name, values in tensors.items()}


def test_missing_tensors_are_counted_and_named(write):
    config = tiny_llama_config()
    tensors = tiny_llama_tensors(config, 3)
    for name in list(tensors):
        if ".1." in name:
            del tensors[name]
    checkpoint = write(config, tensors)
    with pytest.raises(MissingTensorError) as caught:
        bind_all(checkpoint)
    message = str(caught.value)
    assert message.startswith(f"{checkpoint.folder}: missing tensors (9 of {LAYER_FILES})")
    assert "'model.layers.1.input_layernorm.weight'" in message and "6 more" in message
    assert caught.value.file == str(checkpoint.folder)


def test_the_nearest_name_is_given(write):
    config = tiny_llama_config()
    tensors = renamed(tiny_llama_tensors(config, 3), lambda n: n.replace(".1.mlp.up_", ".1.mlp.u_"))
    with pytest.raises(MissingTensorError) as caught:
        bind_all(write(config, tensors))
    expected = "'model.layers.1.mlp.up_proj.weight' (near: 'model.layers.1.mlp.u_proj.weight')"
    assert expected in str(caught.value)


def test_a_missing_head_points_to_tie_word_embeddings(write):
    tensors = tiny_llama_tensors(tiny_llama_config(tie_word_embeddings=True), 3)
    with pytest.raises(MissingTensorError, match="set tie_word_embeddings to true"):
        bind_all(write(tiny_llama_config(), tensors))


def test_a_model_of_too_many_layers_is_answered_at_once(write):
    tensors = tiny_llama_tensors(tiny_llama_config(), 3)
    with pytest.raises(MissingTensorError, match=r"missing tensors \(89982 of 90003\)"):
        bind_all(write(tiny_llama_config(num_hidden_layers=10_000), tensors))


@pytest.mark.parametrize(
    "name, shape, advice",
    [
        ("model.layers.0.self_attn.q_proj.bias", (32,), "attention_bias"),  # S10
        ("model.layers.1.mlp.down_proj.bias", (32,), "mlp_bias"),
        ("lm_head.bias", (64,), ""),
        ("model.layers.2.input_layernorm.weight", (32,), "another checkpoint"),
        ("model.layers.0.self_attn.q_norm.weight", (8,), "another checkpoint"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", (4, 32), "merge the LoRA"),
        # S13
        ("model.layers.0.self_attn.q_proj.weight_scale_inv", (1, 1), "quantized"),
        ("model.layers.0.self_attn.q_proj.weight_scale", (32, 1), "quantized"),
        ("model.layers.0.self_attn.q_proj.qzeros", (4, 4), "quantized"),
    ],
)
def test_tensors_without_a_place_are_named(write, name, shape, advice):
    config = tiny_llama_config()
    tensors = {**tiny_llama_tensors(config, 3), name: np.ones(shape, np.float32)}
    checkpoint = write(config, tensors)
    with pytest.raises(UnexpectedTensorError) as caught:
        bind_all(checkpoint)
    message = str(caught.value)
    assert message.startswith(f"{checkpoint.folder / 'model.safetensors'}: ")
    assert repr(name) in message and "(1)" in message and advice in message


def test_announced_biases_must_be_there(write):
    config = tiny_llama_config()
    tensors = tiny_llama_tensors(config, 3)
    with pytest.raises(MissingTensorError, match=r"\(8 of .*q_proj.bias"):
        bind_all(write({**config, "attention_bias": True}, tensors))


@pytest.mark.parametrize(
    "body, head",
    [
        ("model.language_model.", ""),
        ("language_model.model.", "language_model."),
        ("language_model.model.", ""),
        ("", ""),
    ],
)
def test_other_prefixes(write, body, head):
    # S20
    def rename(name):
        return body + name.removeprefix("model.") if name.startswith("model.") else head + name

    config = tiny_llama_config()
    checkpoint = write(config, renamed(tiny_llama_tensors(config, 3), rename))
    weights, notes = bind_all(checkpoint)
    assert weights.embed_tokens is checkpoint.tensors[f"{body}embed_tokens.weight"]
    up_proj = weights.layers[1].up_proj.weight
    assert up_proj is checkpoint.tensors[f"{body}layers.1.mlp.up_proj.weight"]
    assert weights.lm_head.weight is checkpoint.tensors[f"{head}lm_head.weight"]
    assert len(notes) == 1 and (body or "(no prefix)") in notes[0]


@pytest.mark.parametrize("odd", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"])
@pytest.mark.parametrize("prefix", ["language_model.", "x.", ""])
def test_a_prefix_holds_for_all_tensors_or_none(write, odd, prefix):
    config = tiny_llama_config()
    stored = prefix + odd if prefix else odd.removeprefix("model.")
    tensors = renamed(tiny_llama_tensors(config, 3), lambda n: stored if n == odd else n)
    with pytest.raises(MissingTensorError) as caught:
        bind_all(write(config, tensors))
    message = str(caught.value)
    assert f"(1 of {LAYER_FILES}): {odd!r}" in message
    assert f"without a place (1): {stored!r}" in message


def test_two_prefixes_at_once_are_an_error(write):
    config = tiny_llama_config()
    tensors = tiny_llama_tensors(config, 3)
    both = {**renamed(tensors, lambda n: f"language_model.{n}"), **tensors}
    with pytest.raises(UnexpectedTensorError, match=rf"\({LAYER_FILES}\): 'lm_head.weight'"):
        bind_all(write(config, both))


def test_rotary_buffers_of_old_checkpoints_are_skipped_with_a_note(write):
    config = tiny_llama_config()
    extra = {
        f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32) for i in range(2)
    }
    weights, notes = bind_all(write(config, {**tiny_llama_tensors(config, 3), **extra}))
    assert len(list(weights.tensors())) == LAYER_FILES
    assert len(notes) == 1 and "rotary_emb.inv_freq (2)" in notes[0]
    # The same name elsewhere is not on the list.
    odd = {"model.layers.0.mlp.rotary_emb.inv_freq": np.ones(4, np.float32)}
    with pytest.raises(UnexpectedTensorError, match="rotary_emb.inv_freq"):
        bind_all(write(config, {**tiny_llama_tensors(config, 3), **odd}))


@pytest.mark.parametrize(
    "name, is_needless",
    [
        ("model.layers.1.self_attn.rotary_emb.inv_freq", True),
        ("model.layers.1.self_attn.rotary_emb.cos_cached", False),
        ("model.layers.1.mlp.up_proj.weight", False),
    ],
)
def test_an_index_may_leave_out_what_is_skipped_and_nothing_else(write, name, is_needless):
    config = tiny_llama_config()
    tensors = {name: np.ones(4, np.float32), **tiny_llama_tensors(config, 3)}
    checkpoint = write(config, tensors, shards=2)
    index = checkpoint.folder / INDEX_NAME
    content = json.loads(index.read_text())
    shard = content["weight_map"].pop(name)
    index.write_text(json.dumps(content))
    if is_needless:
        weights, notes = bind_all(Checkpoint(checkpoint.folder))
        assert len(list(weights.tensors())) == LAYER_FILES
        assert any("rotary_emb.inv_freq (1)" in note for note in notes)
        return
    with pytest.raises(CheckpointError) as caught:
        bind_all(Checkpoint(checkpoint.folder))
    assert f"{shard} and {INDEX_NAME} disagree: the shard holds 1 tensor ('{name}')" in str(
        caught.value
    )


def test_gptq_names_are_told_apart_from_a_cut_download(write):
    config = tiny_llama_config()
    tensors = renamed(
        tiny_llama_tensors(config, 3), lambda n: n.replace("_proj.weight", "_proj.qweight")
    )
    with pytest.raises(MissingTensorError, match=r"missing tensors \(14 of .*quantized"):
        bind_all(write(config, tensors))

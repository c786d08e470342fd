"""`kestrel inspect`: what it says of a model, as data, as text and as JSON."""

import json

import numpy as np
import pytest
from checkpoints import tiny_llama_config, tiny_llama_tensors, write_checkpoint

from kestrel.cli import main
from kestrel.errors import CheckpointError, ShapeError
from kestrel.inspection import inspect_folder


@pytest.fixture
def write(tmp_path, demo_model):
    """Write a tiny model with the demo model's tokenizer (4096 tokens); returns its folder."""

    def write_folder(tensors=None, tokenizer=True, dtype="BF16", shards=1, **changes):
        config = tiny_llama_config(**{"vocab_size": 4096, **changes})
        tensors = {**tiny_llama_tensors(config, 5), **(tensors or {})}
        return write_checkpoint(
            tmp_path / "model", config, tensors, dtype=dtype, shards=shards,
            generation_config={
                "do_sample": True, "temperature": 0.6, "eos_token_id": [2, 3], "max_length": 99,
            },
            tokenizer=demo_model if tokenizer else None,
        )  # fmt: skip

    return write_folder


def field(report, name):
    return next(row for row in report["config"] if row["name"] == name)


def test_counts_and_sizes(write):
    report = inspect_folder(write(tie_word_embeddings=True))
    # By hand, hidden 32, inner 48, q width 32, kv width 16, two layers, tied.
    layer = 32 * 32 * 2 + 16 * 32 * 2 + 3 * 48 * 32 + 2 * 32
    parameters = 4096 * 32 + 2 * layer + 32
    assert report["parameters"] == parameters
    assert report["weights"] == {"BF16": {"tensors": 20, "bytes": 2 * parameters}}
    # Keys and values of 2 layers, 2 kv heads, head_dim 8.
    assert report["kv_cache_bytes_per_token"] == {"float32": 2 * 2 * 2 * 8 * 4, "float16": 128}


def test_an_equal_tied_head_counts_once(write):
    config = tiny_llama_config(vocab_size=4096, tie_word_embeddings=True)
    embedding = tiny_llama_tensors(config, 5)["model.embed_tokens.weight"]
    folder = write({"lm_head.weight": embedding}, tie_word_embeddings=True)
    report = inspect_folder(folder)
    assert report["weights"]["BF16"]["tensors"] == 20
    assert any("lm_head.weight equals" in note for note in report["notes"])


def test_fields_and_their_sources(write):
    report = inspect_folder(
        write(rope_theta=None, rope_parameters={"rope_theta": 1e6}, rms_norm_eps=None)
    )
    assert field(report, "rope_theta") == {  # S01
        "name": "rope_theta", "value": 1e6, "source": "config.json (rope_parameters)",
    }  # fmt: skip
    assert field(report, "rms_norm_eps")["value"] == 1e-6  # S11
    assert field(report, "rms_norm_eps")["source"].startswith("default")
    assert field(report, "num_hidden_layers")["source"] == "config.json"
    assert field(report, "attention_scale")["source"].startswith("implied by head_dim")


def test_generation_settings_and_end_tokens(write):
    report = inspect_folder(write())
    defaults = {row["name"]: row for row in report["generation"]["defaults"]}
    assert defaults["temperature"]["value"] == 0.6
    assert defaults["temperature"]["source"] == "generation_config.json temperature"
    ends = {row["id"]: row["sources"] for row in report["generation"]["end_tokens"]}
    # S08: the union of config.json (2), generation_config.json (2, 3) and the tokenizer (1).
    assert list(ends) == [1, 2, 3]
    assert [len(places) for places in ends.values()] == [1, 2, 1]
    assert any("max_length" in note for note in report["notes"])


def test_files_are_those_in_use(write):
    folder = write(shards=2)
    (folder / "other.safetensors").write_bytes(b"left alone")
    report = inspect_folder(folder)
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert [file["name"] for file in report["files"]] == names
    assert [file["bytes"] for file in report["files"]] == [
        (folder / name).stat().st_size for name in names
    ]
    assert any("other.safetensors" in note for note in report["notes"])


def test_tokenizer_facts_and_vocabularies_that_differ(write):
    same = inspect_folder(write())
    assert same["tokenizer"]["vocab_size"] == 4096
    assert not any("vocab_size" in note for note in same["notes"])
    more = inspect_folder(write(vocab_size=4100))  # S09
    assert any("4 of the 4100 ids" in note for note in more["notes"])
    fewer = inspect_folder(write(vocab_size=4000))
    assert any("96 tokens of the tokenizer" in note for note in fewer["notes"])


def test_a_folder_without_tokenizer_is_shown_with_a_note(write):
    report = inspect_folder(write(tokenizer=False))
    assert report["tokenizer"] is None and report["parameters"] > 0
    assert any("tokenizer.json" in note for note in report["notes"])


def test_what_cannot_be_loaded_raises(write, tmp_path):
    with pytest.raises(ShapeError):
        inspect_folder(write({"model.norm.weight": np.ones(31, np.float32)}))
    with pytest.raises(CheckpointError):
        inspect_folder(tmp_path / "nowhere")


def test_json_is_the_same_report(write, capsys):
    folder = write()
    assert main(["inspect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == inspect_folder(folder)


def test_text_shows_every_section(write, capsys):
    folder = write(tie_word_embeddings=True)
    assert main(["inspect", str(folder)]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert f"model {folder}" in lines
    assert "KV cache a token takes 256 bytes in float32, 128 bytes in float16" in lines
    assert "num_key_value_heads 2 config.json" in lines
    assert any(line.startswith("weights BF16: ") and "in 20 tensors" in line for line in lines)
    for title in ("config", "files", "tokenizer", "end tokens", "notes"):
        assert title in lines
    assert all(line == line.rstrip() for line in out.splitlines())


def test_the_demo_model_is_the_default(capsys, demo_model):
    assert main(["inspect", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["folder"] == str(demo_model)
    assert report["parameters"] == 5_475_584  # its README


def test_a_refusal_is_one_line_and_status_2(write, capsys):
    assert main(["inspect", str(write(sliding_window=8))]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "sliding_window" in captured.err
    assert captured.err.count("\n") == 1


def test_fused_projections_and_long_lists(tmp_path, capsys):
    config = {
        "model_type": "phi3", "vocab_size": 64, "hidden_size": 40, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 20,
        "original_max_position_embeddings": 16,
        "rope_scaling": {"type": "su", "short_factor": [1] * 10, "long_factor": [2.5] * 10},
    }  # fmt: skip
    shapes = {
        "model.embed_tokens.weight": (64, 40),
        "model.layers.0.self_attn.qkv_proj.weight": (120, 40),
        "model.layers.0.self_attn.o_proj.weight": (40, 40),
        "model.layers.0.mlp.gate_up_proj.weight": (48, 40),
        "model.layers.0.mlp.down_proj.weight": (40, 24),
        "model.layers.0.input_layernorm.weight": (40,),
        "model.layers.0.post_attention_layernorm.weight": (40,),
        "model.norm.weight": (40,),
        "lm_head.weight": (64, 40),
    }
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    folder = write_checkpoint(tmp_path / "model", config, tensors)
    report = inspect_folder(folder)
    values = sum(value.size for value in tensors.values())
    assert report["parameters"] == values
    assert report["weights"] == {"BF16": {"tensors": 9, "bytes": 2 * values}}
    assert field(report, "long_factor")["value"] == [2.5] * 10
    assert main(["inspect", str(folder)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    eight = ", ".join(["2.5"] * 8)
    assert f"long_factor {eight} and 2 more config.json (rope_scaling)" in lines

"""DecoderConfig and tensors against transformers' classes: the same values from the same file."""

import warnings

import numpy as np
import pytest
from unit.binding import bind_all, stored_names, write  # noqa: F401  write is a fixture
from unit.family_configs import CLASSES, PUBLIC, tiny

from kestrel.models import family_for

pytestmark = pytest.mark.reference
families = pytest.mark.parametrize("family", CLASSES)

#: Fields that DecoderConfig and the classes share, as far as a class has them.
SAME = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim rms_norm_eps max_position_embeddings tie_word_embeddings "
    "attention_bias mlp_bias embedding_multiplier residual_multiplier logits_scaling "
    "final_logit_softcapping"
).split()


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(scope="module")
def torch(transformers):
    return pytest.importorskip("torch", reason="torch is not installed")


def understood(source):
    config = family_for(source).parse(source)
    return config, {name: value for name, value, _ in config.described()}


def reference_config(transformers, source):
    start = CLASSES[source["model_type"]][1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, f"{start}Config").from_dict(dict(source))


def reference_model(transformers, torch, source):
    """The class's model without values: what its constructors make of the config."""
    start = CLASSES[source["model_type"]][0]
    config = reference_config(transformers, source)
    config._attn_implementation = "eager"
    config.pad_token_id = None  # SmolLM3's default lies beyond a small vocabulary
    with torch.device("meta"):
        return getattr(transformers, f"{start}ForCausalLM")(config)


@pytest.mark.parametrize("name", PUBLIC)
def test_values_equal_those_of_the_class(transformers, name):
    expected = reference_config(transformers, PUBLIC[name])
    config, shown = understood(PUBLIC[name])
    for field in SAME:
        theirs = getattr(expected, field, None)
        if theirs is not None:
            assert shown[field] == theirs, field
    blocks = expected.rope_parameters
    if "full_attention" not in blocks:
        blocks = dict.fromkeys(("full_attention", "sliding_attention"), blocks)
    for kind in config.layers:
        if kind.rope is not None:
            ours = dict(kind.rope.settings())
            assert ours == rope_settings(blocks[kind.attention], config.head_dim, ours)


def rope_settings(block, head_dim, ours):
    """A block of the class as RopeConfig has it: lists as tuples, a share as columns, and the
    factor of cos and sin, which the class computes later (test_rope_types)."""
    theirs = {k: tuple(v) if isinstance(v, list) else v for k, v in block.items() if k != "type"}
    share = theirs.pop("partial_rotary_factor", 1.0)
    if share != 1:
        theirs["rotary_dim"] = int(head_dim * share)
    if "attention_factor" in ours:
        theirs.setdefault("attention_factor", ours["attention_factor"])
    return theirs


#: Settings of layers and scores that public files do not have all of.
LAYERS = {
    "mistral-unsaid": tiny("mistral"),
    "mistral-window": tiny("mistral", sliding_window=8),
    "mistral-none": tiny("mistral", sliding_window=None),
    "qwen2-window": tiny("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen2-off": tiny("qwen2", use_sliding_window=False, sliding_window=8, max_window_layers=1),
    "qwen2-unsaid": tiny("qwen2", use_sliding_window=True, max_window_layers=0),
    "qwen3-types": tiny(
        "qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=0,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "smollm3-unsaid": tiny("smollm3", num_hidden_layers=5),
    "smollm3-window": tiny(
        "smollm3", num_hidden_layers=5, use_sliding_window=True, sliding_window=8,
        no_rope_layer_interval=2,
    ),
    "smollm3-list": tiny("smollm3", no_rope_layers=[0, 1], sliding_window=8),
    "gemma-unsaid": tiny("gemma"),
    "gemma2-unsaid": tiny("gemma2", num_hidden_layers=3),
    "gemma2-types": tiny(
        "gemma2", sliding_window=8, layer_types=["full_attention", "sliding_attention"],
        query_pre_attn_scalar=144, attn_logit_softcapping=None, final_logit_softcapping=None,
    ),
    "gemma3-unsaid": tiny("gemma3_text", num_hidden_layers=7),
    "gemma3-pattern": tiny(
        "gemma3_text", num_hidden_layers=5, sliding_window=8, sliding_window_pattern=2,
        query_pre_attn_scalar=168, final_logit_softcapping=30.0,
    ),
    "granite": tiny("granite", attention_multiplier=0.3, residual_multiplier=0.1),
    "olmo2": tiny("olmo2", attention_bias=True),
}  # fmt: skip


@pytest.mark.parametrize("name", [*LAYERS, "qwen2.5-0.5b", "gemma-2-27b", "smollm3-3b", "gemma-2b"])
def test_layers_are_those_that_the_model_makes(transformers, torch, name):
    source = LAYERS[name] if name in LAYERS else PUBLIC[name]
    model = reference_model(transformers, torch, source)
    config, _ = understood(source)
    # Two models choose one mask for all layers; the others ask each layer.
    of_all = model.config.sliding_window if source["model_type"] in ("mistral", "phi3") else None
    for kind, layer in zip(config.layers, model.model.layers, strict=True):
        attention = layer.self_attn
        assert kind.window == getattr(attention, "sliding_window", of_all)
        assert (kind.rope is not None) == bool(getattr(attention, "use_rope", True))
        assert config.attention_scale == np.float32(attention.scaling)
        assert config.attn_logit_softcapping == getattr(attention, "attn_logit_softcapping", None)
        assert config.attention_bias == (attention.q_proj.bias is not None)
        assert config.attention_output_bias == (attention.o_proj.bias is not None)
        assert config.residual_multiplier == getattr(layer, "residual_multiplier", 1.0)
        assert (config.hidden_act == "silu") == ("SiLU" in type(layer.mlp.act_fn).__name__)
    scale = getattr(model.model.embed_tokens, "scalar_embed_scale", config.embedding_multiplier)
    assert config.embedding_multiplier == np.float32(scale)
    assert (config.norm_offset == 1) == ("Gemma" in type(model.model.norm).__name__)


@families
@pytest.mark.parametrize("tied", [False, True])
def test_what_the_class_saves_finds_its_place(transformers, torch, write, family, tied):
    source = tiny(family, tie_word_embeddings=tied)
    shapes = reference_model(transformers, torch, source).state_dict()
    tensors = {name: np.ones(tuple(each.shape), np.float32) for name, each in shapes.items()}
    weights, _ = bind_all(write(source, tensors))
    assert len(stored_names(weights)) == len(tensors) - tied


@families
def test_every_key_that_the_class_writes_is_understood(transformers, family):
    # The full form holds all fields, defaults too.
    start, base = CLASSES[family]
    written = getattr(transformers, f"{base}Config")().to_dict()
    written = {**written, "architectures": [f"{start}ForCausalLM"]}
    config, shown = understood(written)
    for field in SAME:
        if written.get(field) is not None:
            assert shown[field] == written[field], field
    assert config.notes == ()


def test_generation_settings_are_known_by_name(transformers):
    from kestrel.models.generic_keys import GENERATION_KEYS, WITHOUT_EFFECT

    theirs = set(transformers.GenerationConfig._get_default_generation_params())
    assert theirs - set(WITHOUT_EFFECT) <= GENERATION_KEYS

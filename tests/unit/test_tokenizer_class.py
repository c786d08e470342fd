"""The class that tokenizer_config.json names: its texts, its blank in front, its older pipeline."""

import inspect
import json
import shutil

import pytest

from kestrel.models import FAMILIES
from kestrel.text.chat_template import encode_chat
from kestrel.text.tokenizer_class import DEFAULT_TOKENS, class_of
from kestrel.tokenizer import Tokenizer

TEXTS = [
    "Once upon a time", " Hello", "Hi</s> there<s>", "1234 5,6", "hello  world", "a<|im_end|> b",
    "time<|endoftext|>upon a time",
]  # fmt: skip
NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
GPT2, QWEN3 = "tokenizer-gpt2", "tokenizer-qwen3"
SMOL, MISTRAL = "SmolLM2-135M-Instruct", "tokenizer-mistral-v0.1"


@pytest.fixture
def write(shared_models, tmp_path):
    def write_folder(source, model_type="llama", without=(), of_model=None, **changes):
        shutil.copy(shared_models / source / "tokenizer.json", tmp_path)
        config = json.loads((shared_models / source / "tokenizer_config.json").read_text())
        config = {k: v for k, v in {**config, **changes}.items() if k not in without}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        model = {"model_type": model_type, "tokenizer_class": of_model}
        (tmp_path / "config.json").write_text(json.dumps(model))
        return tmp_path

    return write_folder


#: What a class is told and does; (source, model_type, keys left out, keys changed).
FOLDERS = [
    *[(GPT2, each, (), {"add_prefix_space": True}) for each in ("llama", "mistral", "granite")],
    *[(QWEN3, each, (), {"add_prefix_space": True}) for each in ("qwen2", "qwen3", "phi3")],
    (MISTRAL, "mistral", (), {}),  # the type decides: its tokenizer.json is followed there too
    (MISTRAL, "mistral", NAMES, {}),
    (SMOL, "llama", ("bos_token",), {}),
    (SMOL, "llama", NAMES, {}),
    (SMOL, "llama", NAMES, {"bos_token": None}),
    (SMOL, "llama", NAMES, {"tokenizer_class": "GPT2TokenizerFast"}),
    (SMOL, "llama", NAMES, {"tokenizer_class": "PreTrainedTokenizerFast"}),
    (SMOL, "llama", NAMES, {"tokenizer_class": "LlamaTokenizerFast"}),  # splits into bytes
    (SMOL, "olmo2", NAMES, {}),
    (QWEN3, "qwen3", NAMES, {}),
    (QWEN3, "qwen2", NAMES, {"tokenizer_class": "PreTrainedTokenizerFast"}),
    (QWEN3, "llama", NAMES, {}),
    (QWEN3, "llama", (), {"additional_special_tokens": ["upon"]}),
    *[(SMOL, each, (*NAMES, "tokenizer_class"), {}) for each in ("llama", "smollm3", "qwen3")],
    *[(SMOL, each, (*NAMES, "tokenizer_class"), {"of_model": "GPT2Tokenizer"})
      for each in ("llama", "gemma", "mistral")],
]  # fmt: skip


@pytest.mark.reference
@pytest.mark.parametrize(("source", "model_type", "without", "changes"), FOLDERS)
def test_as_in_transformers(write, source, model_type, without, changes):
    transformers = pytest.importorskip("transformers")
    folder = write(source, model_type, without, **changes)
    ours, theirs = Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.named_tokens == theirs.special_tokens_map
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("model_type", "ids"), [("llama", [18435, 995]), ("mistral", [15496, 995])]
)
def test_a_blank_in_front(write, model_type, ids):
    """The ids are those of the documentation of transformers' GPT2Tokenizer."""
    tokenizer = Tokenizer.from_folder(write(GPT2, model_type, add_prefix_space=True))
    assert tokenizer.encode("Hello world") == ids
    assert tokenizer.encode(" Hello world") == [18435, 995]
    told = ["add_prefix_space is true, tokenizer.json puts" in w for w in tokenizer.warnings]
    assert told == [True] * (model_type == "mistral")


@pytest.mark.parametrize(
    ("source", "wanted", "words"),
    [
        (SMOL, True, "add_prefix_space is true, tokenizer.json puts no blank in front of a text: "
         "tokenizer.json decides; GPT2Tokenizer of transformers follows the config"),
        (MISTRAL, False, "add_prefix_space is false, tokenizer.json puts a blank in front of a "
         "text: tokenizer.json decides; LlamaTokenizer of transformers follows the config"),
        ("stories260K", False, "add_prefix_space is false, tokenizer.json puts a blank in front of "
         "a text: tokenizer.json decides"),
        (SMOL, False, None),
        (MISTRAL, True, None),
        ("stories260K", True, None),
        (SMOL, None, None),
    ],
)  # fmt: skip
def test_a_blank_that_is_not_followed_is_said(write, shared_models, source, wanted, words):
    tokenizer = Tokenizer.from_folder(write(source, add_prefix_space=wanted))
    assert tokenizer.warnings == ([] if words is None else [f"tokenizer_config.json: {words}"])
    plain = Tokenizer.from_folder(shared_models / source)
    assert [tokenizer.encode(text) for text in TEXTS] == [plain.encode(text) for text in TEXTS]


@pytest.mark.parametrize(
    ("changes", "first"),
    [({}, [0]), ({"bos_token": None}, []), ({"tokenizer_class": "PreTrainedTokenizerFast"}, [])],
)
def test_a_template_reads_the_texts_of_the_class(write, changes, first):
    without = [name for name in NAMES if name not in changes]
    tokenizer = Tokenizer.from_folder(write(SMOL, without=without, **changes))
    messages = [{"role": "user", "content": "a"}]
    template = "{{ bos_token }}{{ messages[0].content }}"
    [letter] = tokenizer.encode("a")
    assert encode_chat(tokenizer, messages, template=template) == [*first, letter]
    assert list(tokenizer.eos_ids.values()) == (
        [] if "tokenizer_class" in changes else ["the default of GPT2Tokenizer eos_token "
                                                 "'<|endoftext|>'"]
    )  # fmt: skip


@pytest.mark.parametrize("model_type", ["gemma", "gemma2", "gemma3_text"])
def test_the_class_of_a_model_type(write, model_type):
    """The texts are those of transformers' GemmaTokenizer; SmolLM2's vocabulary has none."""
    tokenizer = Tokenizer.from_folder(write(SMOL, model_type, (*NAMES, "tokenizer_class")))
    assert tokenizer.named_tokens == {
        "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
        "mask_token": "<mask>",
    }  # fmt: skip
    assert all("the default of GemmaTokenizer" in warning for warning in tokenizer.warnings)


def test_a_text_of_the_class_that_is_no_token(demo_model, tmp_path):
    shutil.copy(demo_model / "tokenizer.json", tmp_path)
    config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.from_folder(tmp_path).warnings == [
        "the default of GPT2Tokenizer: unk_token '<|endoftext|>' is no token of tokenizer.json: "
        "not used"
    ]


@pytest.mark.parametrize(("model_type", "count"), [("llama", 1), ("mistral", 0)])
def test_an_older_pipeline_is_followed_and_inspect_says_so(
    write, shared_models, model_type, count
):
    tokenizer = Tokenizer.from_folder(write(MISTRAL, model_type))
    plain = Tokenizer.from_folder(shared_models / MISTRAL)
    assert [tokenizer.encode(text) for text in TEXTS] == [plain.encode(text) for text in TEXTS]
    assert tokenizer.warnings == []
    notes = tokenizer.describe()["warnings"]
    assert [note.startswith("tokenizer.json decides about ids") for note in notes] == [True] * count


@pytest.mark.reference
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_the_class_of_every_family_is_that_of_transformers(model_type):
    auto = pytest.importorskip("transformers.models.auto.tokenization_auto")
    registered = auto.TOKENIZER_MAPPING_NAMES.get(model_type)
    named, unnamed = "GPT2Tokenizer", registered
    if registered == "TokenizersBackend":
        named = unnamed = None
    elif model_type in auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS:
        named = registered
    assert class_of("GPT2TokenizerFast", model_type, True) == named
    assert class_of(None, model_type, True) == unnamed


@pytest.mark.reference
@pytest.mark.parametrize("name", sorted(DEFAULT_TOKENS))
def test_the_texts_of_a_class_are_those_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    parameters = inspect.signature(getattr(transformers, name).__init__).parameters
    defaults = {key: each.default for key, each in parameters.items() if key.endswith("_token")}
    assert DEFAULT_TOKENS[name] == {k: v for k, v in defaults.items() if isinstance(v, str)}

"""User report S09 with real tokenizers: rows of logits above the tokens are never drawn."""

import numpy as np
import pytest
from checkpoints import tiny_llama_config, tiny_llama_tensors, write_checkpoint
from unit.tokenizer_readme import FOLDERS, opened

import kestrel
from kestrel.errors import RequestError

#: vocab_size of the published models where it is more than the tokens, else the next multiple of 64
#: above them: what training code pads to.
ROWS = {"tokenizer-qwen3": 151_936}
PLAIN = kestrel.SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module", params=FOLDERS)
def padded(request, shared_models, tmp_path_factory):
    """A tiny model in which two rows without a token have by far the largest logits, in turn."""
    tokenizer = opened(shared_models / request.param)
    tokens = tokenizer.vocab_size
    rows = ROWS.get(request.param, tokens // 64 * 64 + 64)
    config = tiny_llama_config(vocab_size=rows, hidden_size=16, head_dim=4, eos_token_id=None)
    tensors = tiny_llama_tensors(config, seed=9)
    head = tensors["lm_head.weight"]
    # One of the two has a logit of some tens whatever the state is, the other its negative.
    head[rows - 1] = 30 * np.sign(head[0])
    head[rows - 2] = -head[rows - 1]
    folder = tmp_path_factory.mktemp("padded")
    write_checkpoint(folder, config, tensors, dtype="BF16", tokenizer=tokenizer.folder)
    with kestrel.load(folder, threads=1) as model:
        yield model, tokens, rows


def test_ids_without_text_are_never_drawn(padded):
    model, tokens, rows = padded
    assert model.tokenizer.ids_without_text(rows) == tuple(range(tokens, rows))
    ids = [5, 6, 7]
    assert model.session().prefill(ids).argmax() >= rows - 2  # what would be drawn otherwise
    draws = [
        PLAIN.replace(temperature=0),
        PLAIN.replace(temperature=1, seed=1),
        PLAIN.replace(temperature=5, seed=2, top_k=3, min_p=0.01),
        PLAIN.replace(temperature=0, repetition_penalty=1.5),
    ]
    for answer in model.generate([ids] * len(draws), draws):
        assert len(answer.ids) == 8 and max(answer.ids) < tokens


def test_ids_without_text_are_legal_in_a_prompt(padded):
    model, _, rows = padded
    assert len(model.generate([5, rows - 1], PLAIN.replace(temperature=0)).ids) == 8
    with pytest.raises(RequestError, match=f"{rows}"):
        model.generate([5, rows], PLAIN)

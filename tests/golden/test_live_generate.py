"""`generate` of transformers, run now: the same greedy tokens where frequencies follow the length.

Phi-3's class drops the cache when the sequence grows past the original length, Llama's keeps it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from golden.engines import ENGINES, Engine
from golden.make_golden import recorder
from golden.recipes import RECIPES
from golden.six_tokens import MAX_ERROR

pytestmark = pytest.mark.reference
torch = pytest.importorskip("torch", reason="torch absent: pip install '.[reference]'")
pytest.importorskip("transformers", reason="transformers absent")

NEW = 24
#: Tokens of the prompts: four go past the original length of 20 on the way, two are past it.
STARTS = (12, 18, 19, 20, 21, 24)
#: More to choose from, and a head of its own: a tied one likes to say the same token again.
WIDER = {"vocab_size": 97, "tie_word_embeddings": False}
#: The float32 twins of recipes that grow past that length.
TWINS = {
    name: replace(RECIPES[name], dtype="F32", seed=7501, config={**RECIPES[name].config, **WIDER})
    for name in ("phi3-longrope-decode-f16", "rope-longrope-decode", "rope-dynamic-decode")
}


def by_generate(model, ids: list[int]) -> tuple[list[int], float]:
    """Greedy tokens, and the smallest distance of a largest logit from the second."""
    out = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.cat(out.logits).topk(2).values
    return out.sequences[0, len(ids) :].tolist(), float((best[:, 0] - best[:, 1]).min())


def by_forward(model, ids: list[int]) -> list[int]:
    """Greedy tokens of the class's forward alone, whose cache is never dropped."""
    tokens, out = [], model(torch.tensor([ids]), use_cache=True)
    while len(tokens) < NEW:
        tokens.append(int(out.logits[0, -1].argmax()))
        out = model(torch.tensor([tokens[-1:]]), cache=out.cache, use_cache=True)
    return tokens


@pytest.mark.parametrize("engine", [ENGINES[0], ENGINES[-1]], ids=str)
@pytest.mark.parametrize("name", TWINS)
def test_greedy_tokens_are_those_of_generate(name: str, engine: Engine, tmp_path: Path) -> None:
    tool, folder = recorder(), TWINS[name].write(tmp_path / "model")
    prompts = [TWINS[name].ids(start) for start in STARTS]
    expected, dropped = [], []
    torch.set_num_threads(1)
    for ids in prompts:
        # Each with a model loaded anew: frequencies stay those of the last call.
        tokens, margin = by_generate(tool.load(folder), ids)
        assert margin > 2 * MAX_ERROR, "too close to tell the two apart"
        expected.append(tokens)
        with torch.no_grad():
            dropped.append(by_forward(tool.load(folder), ids) != tokens)
    is_phi3 = name.startswith("phi3")
    assert dropped == [is_phi3 and start <= 20 for start in STARTS]
    with engine.load(folder) as model:
        answers = model.generate(prompts, temperature=0, max_tokens=NEW, ignore_eos=True)
    assert [answer.ids for answer in answers] == expected

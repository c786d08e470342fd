"""A real chat model, SmolLM2-135M-Instruct, against the lists of its README and transformers.

Its weights are too large for a repository. ``../shared/models/make-smollm2`` makes them; the
variable SMOLLM2_FOLDER names the folder that holds the results as ``bf16`` and ``f32``.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import kestrel
from golden.make_golden import recorder
from golden.model_readme import greedy_lists
from golden.six_tokens import MAX_ERROR
from kestrel import SamplingParams
from kestrel.diff import compare_trace, first_beyond, table
from kestrel.dump import Dump
from kestrel.text.chat_template import choose_template, render

#: The README rounds logits to four decimals.
ROUNDING = 0.5e-4

dtypes = pytest.mark.parametrize("dtype", ["bf16", "f32"])


@pytest.fixture(scope="module")
def lists(shared_models: Path) -> list[dict[str, object]]:
    return greedy_lists(shared_models / "SmolLM2-135M-Instruct")


@pytest.fixture(scope="module")
def models() -> Path:
    made = os.environ.get("SMOLLM2_FOLDER")
    if not made:
        pytest.skip("SMOLLM2_FOLDER is not set: make the model with ../shared/models/make-smollm2")
    return Path(made)


@dtypes
def test_prompt_ids_and_greedy_tokens(dtype: str, models: Path, lists) -> None:
    """All seven prompts, in one batch; the README says that both files give the same tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=48)
    with kestrel.load(models / dtype) as model:
        answers = model.generate([entry["prompt"] for entry in lists], params)
    assert len(answers) == 7
    for answer, entry in zip(answers, lists):
        assert answer.prompt_ids == entry["prompt_ids"]
        assert answer.ids == entry["greedy_ids"]


def test_first_step_logits_of_the_bf16_file(models: Path, lists) -> None:
    """The README's logits are of this file: the rounding there, and the bar of the six tokens."""
    with kestrel.load(models / "bf16") as model:
        for entry in lists:
            logits = model.session().prefill(entry["prompt_ids"])
            expected = entry["first_step_top5"]
            assert np.argsort(-logits, kind="stable")[:5].tolist() == [i for i, _ in expected]
            for token, value in expected:
                assert abs(float(logits[token]) - value) <= ROUNDING + MAX_ERROR


def test_the_chat_template_makes_the_prompt_of_the_list(models: Path, lists) -> None:
    with kestrel.load(models / "bf16") as model:
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        text = render(choose_template(model.tokenizer), messages)
        ids = model.tokenizer.encode(text, add_special_tokens=False)
    entry = next(entry for entry in lists if "capital of France?" in entry["prompt"])
    assert (text, ids) == (entry["prompt"], entry["prompt_ids"])


@pytest.mark.reference
@dtypes
def test_every_stage_of_a_chat_prompt_live(dtype: str, models: Path, lists) -> None:
    """Stage by stage within the bounds, at all positions of 30 layers."""
    ids = next(e["prompt_ids"] for e in lists if "capital of France?" in e["prompt"])
    tool = recorder()
    reference = Dump(ids, tool.record(tool.load(models / dtype), ids))
    with kestrel.load(models / dtype) as model:
        rows = compare_trace(model.trace(ids), reference, model.config, model.weights)
    assert len(rows) == 30 * 15 + 5 and all(row.bound is not None for row in rows)
    assert first_beyond(rows) is None, table(rows)

"""What ``generate``, ``stream`` and ``trace`` accept, brought into lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as AbstractSequence
from typing import Union

from kestrel.errors import RequestError
from kestrel.sampling.params import SamplingParams

__all__ = ["Prompt", "params_list", "pattern_list", "prompt_list"]

#: Text, encoded with the tokenizer's own special tokens, or token ids, taken as they are.
Prompt = Union[str, AbstractSequence[int]]


def params_list(
    params: object, options: Mapping[str, object], defaults: SamplingParams, count: int
) -> list[SamplingParams]:
    """The settings of each of ``count`` prompts.

    ``options`` change ``defaults``; ``params`` replace them, so only one of the two may be given.
    Raises RequestError for both, for another type, or another number of them.
    """
    if options and params is not None:
        raise RequestError(
            f"{', '.join(options)}: given beside params: change params instead, with params.replace"
        )
    if params is None or isinstance(params, SamplingParams):
        return [params or defaults.replace(**options)] * count
    each = list(params) if isinstance(params, (list, tuple)) else [params]
    if any(not isinstance(one, SamplingParams) for one in each):
        raise RequestError(f"params: expected SamplingParams, found {params!r:.80}")
    if len(each) != count:
        raise RequestError(f"params: expected one for each of {count}, found {len(each)}")
    return each


def pattern_list(stages: object) -> tuple[str, ...]:
    """Shell patterns of stages, one or many. Raises RequestError for anything but texts."""
    patterns = [stages] if isinstance(stages, str) else stages
    if not isinstance(patterns, (list, tuple)) or not all(isinstance(p, str) for p in patterns):
        raise RequestError(
            "trace: stages: expected a pattern over names, such as 'model.layers.*', or a list of "
            f"them, found {stages!r:.80}"
        )
    return tuple(patterns)


def prompt_list(prompt: object) -> tuple[list[Prompt], bool]:
    """Prompts as a list, and whether it was a single one: text, or ids."""
    if isinstance(prompt, str):
        return [prompt], True
    if hasattr(prompt, "tolist") and not isinstance(prompt, memoryview):  # an array of ids
        prompt = prompt.tolist()
    if not isinstance(prompt, (list, tuple)) or not prompt:
        raise RequestError(
            "prompt: expected text, token ids, or a list of at least one of them, found "
            f"{prompt!r:.80}"
        )
    is_single = not isinstance(prompt[0], (str, list, tuple)) and not hasattr(prompt[0], "tolist")
    return [prompt] if is_single else list(prompt), is_single

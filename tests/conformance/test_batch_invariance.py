"""One row's result is the same bits alone and in any batch, by any chunk, thread and kernel."""

import dataclasses

import numpy as np
import pytest
from checkpoints import tiny_llama_config, tiny_llama_tensors, write_checkpoint
from conformance import cases
from conformance.helpers import Case, bits, cpu, isas, run, tensor

import kestrel
from kestrel.cache.sequence import Sequence

ROWS = 9
#: Cases of ROWS rows whose inputs are activations, row by row.
ROWWISE = [
    cases.linear(ROWS, 97, (11, 5, 9), cases.DTYPES, bias=True),
    cases.linear(ROWS, 1041, (19,), ("F32",), residual=True),
    cases.linear(ROWS, 530, (33,), ("F16",)),
    cases.linear(ROWS, 530, (33,), ("BF16",)),
    cases.linear(ROWS, 16, (8,), ("BF16",), logit_rows=True),
    cases.rms_norm(ROWS, 97),
    cases.rms_norm(ROWS, 19, groups=3, offset=1.0),
    cases.rope(ROWS, 4, 2, 18),
    cases.rope(ROWS, 4, 2, 18, 10),
    cases.swiglu(ROWS, 33),
    cases.swiglu(ROWS, 33, "gelu_tanh"),
    cases.add(ROWS, 33, 0.5),
    cases.soft_cap(ROWS, 33, 1.0, 30.0),
    cases.copy(ROWS, 33),
]
WIDEST = isas()[-1]


def take(case: Case, rows: slice) -> Case:
    """The case with some of its rows: those of each input that has one per row of the output."""

    def part(value):
        if value is None or value.shape[0] != ROWS or len(value.shape) != 2:
            return value
        return tensor(value.source.to_numpy_f32()[rows])

    count = len(range(*rows.indices(ROWS)))
    weights = slice(1, 4) if case.operation == "linear" else slice(0, 0)
    inputs = [part(value) for value in case.inputs]
    inputs[weights] = case.inputs[weights]
    return dataclasses.replace(case, inputs=tuple(inputs), rows=count)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("case", ROWWISE, ids=str)
def test_a_row_alone_equals_the_row_in_every_batch(case, isa):
    whole = run(cpu(isa), case)
    for start in range(ROWS):
        for stop in range(start + 1, ROWS + 1):
            found = run(cpu(isa), take(case, slice(start, stop)))
            assert bits(found) == bits([out[start:stop] for out in whole]), (start, stop)


@pytest.mark.parametrize("isa", isas())
def test_many_rows_equal_one_row_past_the_block_sizes(isa):
    for dtype in cases.DTYPES:
        [whole] = run(cpu(isa), cases.linear(300, 1041, (21,), (dtype,)))
        # The same seeds give the same first rows.
        for rows in (1, 2, 3, 4, 5, 8, 12, 13, 16, 17, 127, 129):
            [part] = run(cpu(isa), cases.linear(rows, 1041, (21,), (dtype,)))
            assert bits([part]) == bits([whole[:rows]]), (dtype, rows)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    ("window", "longest"), [(0, 300), (5, 300), (16, 300), (100, 300), (257, 600)]
)
@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_attention_of_a_token_does_not_depend_on_the_chunk(isa, dtype, window, longest):
    def attended(context: int, new: int):
        case = cases.attention(6, 3, 12, [(context, new)], dtype, False, window)
        return run(cpu(isa), case)

    [whole] = attended(longest, longest)
    for context in (1, 15, 16, 17, 100, 255, 256, 257, 300, 513, 600):
        for new in {1, min(7, context), min(64, context)} if context <= longest else ():
            [part] = attended(context, new)
            assert bits([part]) == bits([whole[context - new : context]]), (context, new)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (6, 3)])
def test_attention_of_a_sequence_does_not_depend_on_those_beside_it(isa, heads):
    sequences = [(300, 3), (40, 40), (1, 1), (513, 1), (272, 17)]
    for window, cap in ((0, 0.0), (16, 3.0), (256, 0.0)):
        attended = cases.attention(*heads, 20, sequences, "F32", False, window, cap)
        [together] = run(cpu(isa), attended)
        start = 0
        for s, (context, new) in enumerate(sequences):
            own = {key: attended.step[key][s : s + 1] for key in ("context_len", "block_table")}
            step = {**own, "positions": np.arange(context - new, context), "seq_start": [0, new]}
            rows = attended.inputs[0].source.to_numpy_f32()[start : start + new]
            inputs = (tensor(rows), attended.inputs[1])
            case = dataclasses.replace(attended, inputs=inputs, rows=new, step=step)
            [alone] = run(cpu(isa), case)
            assert bits([alone]) == bits([together[start : start + new]]), (window, context)
            start += new


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_logits_do_not_depend_on_how_a_model_is_run(tmp_path, demo_model, dtype):
    config = tiny_llama_config(num_attention_heads=6, num_key_value_heads=3, attention_bias=True)
    tensors = tiny_llama_tensors(config, 11)
    folder = write_checkpoint(tmp_path / "m", config, tensors, dtype, tokenizer=demo_model)
    rng = np.random.default_rng(2)
    prompts = [rng.integers(3, 64, length).tolist() for length in (70, 1, 16, 17, 33, 5, 64, 2)]
    limits = kestrel.Limits(max_tokens=512, max_seqs=8)

    def load(isa: str, threads: int) -> kestrel.Model:
        return kestrel.load(folder, backend="cpu", isa=isa, threads=threads, limits=limits)

    with load("scalar", 1) as model:
        expected = [model.session().prefill(ids).tobytes() for ids in prompts]
    for isa in isas():
        for threads in (1, 2):
            with load(isa, threads) as model:
                for chunk in (1, 7, 64, None):
                    cold = model.session()
                    assert cold.prefill(prompts[0], chunk=chunk).tobytes() == expected[0]
                    cold.reset()
                    warm = model.session()  # finds the full blocks of the first in the cache
                    assert warm.prefill(prompts[0], chunk=chunk).tobytes() == expected[0]
                assert _together(model, prompts) == expected


def _together(model: kestrel.Model, prompts: list[list[int]]) -> list[bytes]:
    """The logits after each prompt, all of them computed in one step."""
    sequences = [Sequence(model.pool, ids) for ids in prompts]
    for sequence in sequences:
        sequence.reserve(len(sequence.tokens))
    runner = model.runner
    with runner.turn:
        runner.run([(sequence, 0, len(sequence.tokens), "last") for sequence in sequences])
        logits = [runner.logits(row).tobytes() for row in range(len(prompts))]
    for sequence in sequences:
        sequence.release()
    return logits

"""What each command prints and returns; errors name what is wrong and choose the exit status."""

import json
import math
import os
import platform

import numpy
import pytest
from checkpoints import tiny_llama_config, tiny_llama_tensors, write_checkpoint
from system.command_line import CASTLE, CASTLE_TEXT

import kestrel
from kestrel.cli.failures import _classify
from kestrel.cli.verify import CASES
from kestrel.errors import CheckpointError

GREEDY = ["--greedy", "--repetition-penalty", "1"]


# -- generate ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "parts"),
    [
        (["generate"], 2, ["no prompt", "standard input", "--file", "--ids"]),
        (["Once", "--model", "/nowhere"], 2, ["/nowhere"]),
        (["Once", "--model", __file__], 2, [__file__]),
        (["Once", "--file", "x"], 2, ["not allowed"]),
        (["--file", "/nowhere/prompt.txt"], 2, ["--file: expected", "/nowhere/prompt.txt: No"]),
        (["--file", os.path.dirname(__file__)], 2, ["--file: expected", "a directory"]),
        (["chat", "--chat-template", "/nowhere"], 2, ["--chat-template: expected", "/nowhere: No"]),
        (["Once", "--model", "a/b/c"], 2, ["a/b/c", "folder", "ORG/NAME"]),
        (["Once", "--backend", "tpu"], 2, ["--backend", "'tpu'", "cpu"]),
        (["Once", "--isa", "avx99"], 2, ["--isa", "'avx99'", "scalar"]),
        (["--file", "/dev/zero"], 2, ["--file", "regular file", "/dev/zero is a device"]),
        (["chat", "--chat-template", "/dev/zero"], 2, ["--chat-template", "is a device"]),
        (["Once", "--backend", "reference", "--threads", "2"], 3, ["--threads 2:", "'reference'"]),
        (["bench", "--backend", "null", "--threads", "1,2"], 3, ["--threads 1,2:", "'null'"]),
        (["Once", "--max-context", "4096"], 2, ["max_context", "4096", "1024"]),
        (["--ids", "0 4096"], 2, ["4096", "position 1", "4095"]),
        (["--ids", " ".join(["5"] * 65), "--max-context", "64"], 2, ["65", "64"]),
        (["--ids", "5 6", "--max-context", "2"], 2, ["has 2 tokens", "the prompt to 1 token "]),
        (["Once", "--stop-token", "4096"], 2, ["--stop-token: expected token ids 0 to 4095"]),
        (["Once", "--logit-bias", "4096=1"], 2, ["--logit-bias: expected token ids 0 to 4095"]),
        (["verify", "--new-tokens", "99999"], 2, ["--new-tokens", "17", "1024", "99999"]),
        # Found before the model is looked for:
        (["Once", "--model", "/nowhere", "--top-p", "2"], 2, ["--top-p", "0 to 1", "2.0"]),
        (["Once", "--repetition-penalty", "-1"], 2, ["--repetition-penalty", "above 0", "-1"]),
        (["Once", "--repetition-penalty", "0"], 2, ["--repetition-penalty", "above 0", "0.0"]),
        (["Once", "--model", "/nowhere", "--stop", ""], 2, ["--stop", "not empty"]),
        (["Once", "--model", "/nowhere", "--temperature", "-1"], 2, ["--temperature", "-1"]),
        (["Once", "--greedy", "--temperature", "0.5"], 2, ["--greedy", "--temperature 0.5"]),
    ],
)
def test_errors_name_what_was_expected_and_found(outcome, arguments, status, parts):
    found, out, err = outcome(*arguments)
    assert (found, out) == (status, "")
    for part in parts:
        assert part in err
    assert "Traceback" not in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_an_error_of_the_environment(outcome, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("Once")
    path.chmod(0)
    status, _, err = outcome("--file", path)
    assert status == 3 and f"{path}: Permission denied" in err


@pytest.mark.parametrize("arguments", [["--file"], ["chat", "--chat-template"]])
def test_files_that_hold_no_text_of_sensible_size(outcome, tmp_path, arguments):
    path = tmp_path / "text"
    path.write_bytes(b"ab\xff")
    status, _, err = outcome(*arguments, path)
    assert status == 2
    assert f"{path}: expected UTF-8 text, found the byte 0xff at offset 2" in err
    os.truncate(path, 64 * 2**20 + 1)
    status, _, err = outcome(*arguments, path)
    assert status == 2 and f"{path}: expected at most 67,108,864 bytes, found more" in err
    os.mkfifo(tmp_path / "fifo")
    status, _, err = outcome(*arguments, tmp_path / "fifo")
    assert status == 2 and "regular file" in err and "fifo is a pipe" in err


@pytest.mark.parametrize(
    ("cause", "status"),
    [(PermissionError(13, "Permission denied"), 3), (OSError(5, "Input/output error"), 3),
     (FileNotFoundError(2, "No such file or directory"), 2), (None, 2)],
)  # fmt: skip
def test_the_cause_of_an_error_chooses_the_exit_status(cause, status):
    """As root every file may be read, so the error is made here."""
    error = CheckpointError("config.json: cannot be read")
    error.__cause__ = CheckpointError("of a file")
    error.__cause__.__context__ = cause
    assert _classify(error) == (status, "error: config.json: cannot be read")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_model_that_may_not_be_read_is_an_error_of_the_environment(outcome, tmp_path):
    write_checkpoint(tmp_path, tiny_llama_config(), tiny_llama_tensors(tiny_llama_config(), seed=1))
    (tmp_path / "config.json").chmod(0)
    status, _, err = outcome("Once", "--model", tmp_path)
    assert status == 3 and "config.json" in err


def test_a_prompt_from_a_file(outcome, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text(CASTLE + "\n", encoding="utf-8")
    status, out, _ = outcome("--file", path, *GREEDY, "--max-tokens", 11)
    assert (status, out) == (0, CASTLE + CASTLE_TEXT + "\n")


def test_a_stop_string_ends_the_text_before_it(outcome):
    _, out, err = outcome(CASTLE, *GREEDY, "--stop", "castle was", "--no-echo")
    assert out == " and in the midst of the \n"
    assert "ended by stop" in err


def test_a_token_id_of_the_line_ends_the_answer(outcome):
    # 274, " and", is the card's first token.
    tokens = ("--stop-token", 7, "--stop-token", 274, "--ignore-eos")
    _, out, err = outcome(CASTLE, *GREEDY, *tokens, "--json")
    assert json.loads(out)["ids"] == [274] and "stop_token_ids (7, 274)" in err


def test_the_context_limit_ends_an_answer_and_is_named(outcome):
    # 60 tokens and 4 new ones fill 64; the last is given out and never fed back.
    ids = " ".join(["5"] * 60)
    _, out, _ = outcome("--ids", ids, "--max-context", 64, "--ignore-eos", "--greedy", "--json")
    report = json.loads(out)
    assert (report["reason"], report["figures"]["completion_tokens"]) == ("length", 4)
    assert "64" in report["note"]


def test_logprobs_are_those_of_the_model_card(outcome):
    # "first_step_top5" of the card: 274 has logit 8.86658 and 387 has 8.00564.
    _, out, _ = outcome(CASTLE, *GREEDY, "--max-tokens", 1, "--logprobs", 2)
    prompt, row = out.splitlines()
    assert json.loads(prompt.strip()) == CASTLE
    chosen, _, top = row.partition("|")
    token, logprob, text = chosen.split(maxsplit=2)
    assert (token, json.loads(text)) == ("274", " and")
    listed = dict(zip(top.split()[::2], map(float, top.split()[1::2])))
    assert list(listed) == ["274", "387"] and listed["274"] == float(logprob)
    # Both numbers are printed with 4 digits, the card's with 5.
    assert abs((listed["274"] - listed["387"]) - (8.86658 - 8.00564)) <= 2 * 0.5e-4 + 2 * 0.5e-5


def test_logprobs_after_sampling(outcome):
    # Of two candidates, by the card as above: at temperature 0.5 the gap of 0.86094 doubles.
    options = ("--temperature", 0.5, "--top-k", 2, "--top-p", 1, "--seed", 1, "--max-tokens", 1,
               "--repetition-penalty", 1, "--logprobs", 2)  # fmt: skip
    _, out, _ = outcome(CASTLE, *options, "--logprobs-after-sampling", "--json")
    (listed,) = json.loads(out)["top_logprobs"]
    assert [token for token, _ in listed] == [274, 387]
    expected = -math.log1p(math.exp(-2 * (8.86658 - 8.00564)))
    # d/dgap of the expression is at most 2 / 2; the card's digits leave 2 * 0.5e-5 of the gap,
    # and the bar for the logits twice 3.7e-5.
    assert abs(listed[0][1] - expected) <= 2 * 0.5e-5 + 2 * 3.7e-5
    status, out, err = outcome(CASTLE, "--logprobs-after-sampling")
    assert (status, out) == (2, "") and "expected --logprobs N too" in err


def test_settings_are_shown_with_where_they_come_from(outcome):
    _, _, err = outcome("Once", "--max-tokens", 2, "--seed", 3, "--min-p", 0.1)
    # The demo model's generation_config.json: do_sample, temperature, top_p, repetition_penalty.
    assert (
        "kestrel: seed 3, max_tokens 2, min_p 0.1; generation_config.json: temperature 0.7, "
        "top_p 0.9, repetition_penalty 1.05; transformers' default where do_sample is true: "
        "top_k 50\n"
    ) in err


def test_an_option_without_effect_is_named(outcome):
    _, _, err = outcome("Once", "--max-tokens", 2, "--greedy", "--top-p", 0.5, "--seed", 3)
    assert "--top-p, --seed without effect: the answer is greedy" in err


# -- devices, verify ---------------------------------------------------------------------------


def test_devices_lists_backends_sets_and_kernels(outcome):
    status, out, _ = outcome("devices", "--json")
    found = json.loads(out)
    assert status == 0
    assert [backend["name"] for backend in found["backends"]] == ["cpu", "reference", "null"]
    sets = {row["name"]: row for row in found["instruction_sets"]}
    assert set(sets) == {"scalar", "avx2", "avx512", "avx512vbmi", "neon"}
    assert sets["scalar"]["supported"] and sum(row["chosen"] for row in sets.values()) == 1
    assert all(row["supported"] or row["missing"] for row in sets.values())
    assert found["threads"]["chosen"] >= 1
    assert found["auto"] in ("cpu", os.environ.get("KESTREL_BACKEND")) and not found["problems"]
    status, out, _ = outcome("devices")
    assert status == 0
    for word in ("reference", "avx512", "rms_norm", "build options", "environment"):
        assert word in out


def test_verify_finds_one_set_of_bits(outcome, tiny_model):
    status, out, _ = outcome("verify", tiny_model, "--json")
    report = json.loads(out)
    assert status == 0 and report["ok"]
    assert {run["hash"] for run in report["runs"]} == {report["hash"]}
    threads = {run["threads"] for run in report["runs"]}
    sets = {run["isa"] for run in report["runs"]}
    assert {1, 2} <= threads and "scalar" in sets
    assert len(report["runs"]) == len(CASES) * len(threads) * len(sets)
    status, out, _ = outcome("verify", tiny_model, "--isa", "scalar", "--no-mmap")
    assert status == 0 and "DIFFERS" not in out and report["hash"] in out.splitlines()[-2]


def test_verify_refuses_what_it_cannot_run(outcome, tiny_model):
    status, _, err = outcome("verify", tiny_model, "--isa", "avx99")
    assert status == 2 and "'avx99'" in err and "scalar" in err
    foreign = "avx2" if platform.machine() in ("arm64", "aarch64") else "neon"
    status, _, err = outcome("verify", tiny_model, "--isa", foreign)
    assert status == 3 and repr(foreign) in err
    status, _, err = outcome("verify", tiny_model, "--ids", "1 2 3")
    assert status == 2 and "a prompt of 17 to" in err and "found 3" in err


# -- diff --------------------------------------------------------------------------------------


def test_diff_with_the_reference_backend(outcome, tiny_model):
    status, out, err = outcome("diff", tiny_model, "--ids", "3 1 4 1 5 9")
    assert status == 0 and "lm_head" in out and "against backend reference" in err
    status, out, _ = outcome("diff", tiny_model, "--ids", "3 1 4 1 5 9", "--json")
    assert json.loads(out)["first_beyond"] is None


def test_diff_names_the_first_stage_that_is_wrong(outcome, tiny_model, tmp_path):
    from safetensors.numpy import save_file

    ids = [3, 1, 4, 1, 5, 9]
    with kestrel.load(tiny_model, backend="reference") as model:
        stages = dict(model.trace(ids))
    wrong = "model.layers.1.mlp.up_proj"
    stages[wrong] = stages[wrong].copy()
    stages[wrong][2, 3] += 1.0
    path = tmp_path / "dump.safetensors"
    tensors = {"token_ids": numpy.array(ids, numpy.int32), **stages}
    save_file(tensors, path, {"format": "kestrel-reference-dump"})
    status, out, _ = outcome("diff", tiny_model, "--reference", path, "--json")
    report = json.loads(out)
    assert (status, report["ok"], report["first_beyond"]) == (1, False, wrong)
    status, out, _ = outcome("diff", tiny_model, "--reference", path)
    assert status == 1 and wrong in out.splitlines()[-1]
    status, _, err = outcome("diff", tiny_model, "--reference", path, "--ids", "3 1 4")
    assert status == 2 and "[3, 1, 4]" in err and "found [3, 1, 4, 1, 5, 9]" in err


def test_diff_says_what_a_dump_is(outcome, tiny_model):
    status, _, err = outcome("diff", tiny_model, "--reference", "/nowhere/dump.safetensors")
    assert status == 2 and "/nowhere/dump.safetensors" in err
    status, _, err = outcome("diff", "--reference", os.path.join(tiny_model, "model.safetensors"))
    assert status == 2 and "tools/dump_reference.py" in err


@pytest.fixture(scope="session")
def tiny_model(demo_model, tmp_path_factory):
    """Two random layers behind the demo model's tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    config = tiny_llama_config(vocab_size=4096)
    tensors = tiny_llama_tensors(config, seed=7)
    return str(write_checkpoint(folder, config, tensors, tokenizer=demo_model))

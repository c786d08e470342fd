#!/usr/bin/env python3
"""Kestrel beside transformers with torch, on the same cores, in one run: a table for the README.

    python benchmarks/compare_transformers.py MODEL_FOLDER --threads 2

The seed protocol on both sides: 16 prompt tokens, 32 generated greedily, two warm-ups, five
measured runs, then a prompt of 128 tokens alone; F32 (the stored values widened) and BF16. Each
side is a process of its own, and they take turns, run by run, so that whatever else the machine
does meets both. transformers is driven by its own forward with its own cache (its default
attention, sdpa; logits of the last position): the shortest way there is. Kestrel is driven twice,
by Session and by Model.stream, which adds scheduling, sampling and text.

Development only: needs torch and transformers (`pip install '.[reference]'`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(_ROOT / "tests"), str(_ROOT)]

PROMPT, GENERATED, LONG_PROMPT = 16, 32, 128
WARM_UPS = 2
TRANSFORMERS, SESSION, STREAM = "transformers", "Kestrel Session", "Kestrel stream"


class Transformers:
    """`LlamaForCausalLM.forward` with a cache, one argmax a step."""

    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        self.torch = torch
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype={"F32": torch.float32, "BF16": torch.bfloat16}[dtype]
        ).eval()

    def generate(self, ids: list[int], new_tokens: int) -> tuple[list[float], list[int]]:
        """A time stamp before the first and after each token, and the tokens."""
        cache, step, tokens = None, ids, []
        stamps = [time.perf_counter()]
        with self.torch.inference_mode():
            for _ in range(new_tokens):
                out = self.model(
                    input_ids=self.torch.tensor([step]),
                    cache=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                cache = out.cache
                tokens.append(int(out.logits[0, -1].argmax()))
                stamps.append(time.perf_counter())
                step = tokens[-1:]
        return stamps, tokens


class Kestrel:
    """A session, or Model.stream."""

    def __init__(self, folder: str, dtype: str, threads: int, stream: bool) -> None:
        import kestrel

        self.stream = stream
        self.model = kestrel.load(folder, threads=threads)
        self.params = kestrel.SamplingParams(temperature=0.0, ignore_eos=True)
        info = self.model.backend.info
        self.version = f"Kestrel {kestrel.__version__}, {info.isa}, {info.threads} threads"

    def generate(self, ids: list[int], new_tokens: int) -> tuple[list[float], list[int]]:
        """As Transformers.generate."""
        tokens, stamps = [], [time.perf_counter()]
        if self.stream:
            for event in self.model.stream(ids, self.params.replace(max_tokens=new_tokens)):
                if hasattr(event, "id"):
                    tokens.append(event.id)
                    stamps.append(time.perf_counter())
            return stamps, tokens
        session = self.model.session()
        logits = session.prefill(ids)
        while True:
            tokens.append(int(logits.argmax()))
            stamps.append(time.perf_counter())
            if len(tokens) == new_tokens:
                return stamps, tokens
            logits = session.decode(tokens[-1])


def serve(pipe, side: str, folder: str, dtype: str, threads: int) -> None:
    """A worker process: answers (ids, new_tokens) until None comes."""
    if side == TRANSFORMERS:
        worker = Transformers(folder, dtype, threads)
    else:
        worker = Kestrel(folder, dtype, threads, stream=side == STREAM)
    pipe.send((worker.version, worker.model.config.vocab_size))
    while (job := pipe.recv()) is not None:
        pipe.send(worker.generate(*job))


def widened(folder: Path, target: Path) -> Path:
    """A copy of a checkpoint with every tensor as float32, the same values."""
    from checkpoints import write_checkpoint  # tests/checkpoints.py

    from kestrel.checkpoint.checkpoint import Checkpoint

    checkpoint = Checkpoint(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = {name: view.to_numpy_f32() for name, view in checkpoint.tensors.items()}
    config.pop("torch_dtype", None)
    return write_checkpoint(target, config, tensors, "F32", tokenizer=folder)


def compare(folders: dict[str, str], dtype: str, threads: int, runs: int) -> dict:
    """Take turns; gives the rows of one dtype."""
    context = multiprocessing.get_context("spawn")
    pipes, processes, rows = {}, [], {}
    for side in (TRANSFORMERS, SESSION, STREAM):
        pipes[side], other = context.Pipe()
        # transformers widens by itself; Kestrel takes the dtype that the file has.
        folder = folders["given" if side == TRANSFORMERS else dtype]
        process = context.Process(target=serve, args=(other, side, folder, dtype, threads))
        process.start()
        processes.append(process)
        version, vocab = pipes[side].recv()
        rows[side] = {"version": version, "first": [], "decode": [], "long": [], "ids": []}

    def ask(side: str, length: int, new_tokens: int, turn: int) -> tuple[list[float], list[int]]:
        # The first id differs by turn, so that no cache of prefixes helps; ids 0 to 9 are special.
        ids = [(10 + turn + i * 7919) % vocab for i in range(length)]
        pipes[side].send((ids, new_tokens))
        return pipes[side].recv()

    for turn in range(WARM_UPS + runs):
        for side, row in rows.items():
            stamps, ids = ask(side, PROMPT, GENERATED, turn)
            long_stamps, _ = ask(side, LONG_PROMPT, 1, turn + 1000)
            if turn >= WARM_UPS:
                row["first"].append(stamps[1] - stamps[0])
                row["decode"].append((GENERATED - 1) / (stamps[-1] - stamps[1]))
                row["long"].append(LONG_PROMPT / (long_stamps[1] - long_stamps[0]))
                row["ids"].append(ids)
    for side, process in zip(rows, processes):
        pipes[side].send(None)
        process.join()
    if rows[SESSION]["ids"] != rows[STREAM]["ids"]:
        raise SystemExit("Session and stream gave other tokens: one of them is wrong")
    return rows


def table(rows: dict, dtype: str) -> list[str]:
    """Markdown, medians with the range of the runs."""
    lines = []
    reference = rows[TRANSFORMERS]
    for side, row in rows.items():
        same = sum(a == b for a, b in zip(sum(row["ids"], []), sum(reference["ids"], [])))
        total = sum(map(len, row["ids"]))
        ratio = statistics.median(row["decode"]) / statistics.median(reference["decode"])
        cells = [
            dtype,
            side,
            spread([1e3 * seconds for seconds in row["first"]]),
            spread([PROMPT / seconds for seconds in row["first"]]),
            spread(row["long"]),
            spread(row["decode"]),
            f"{ratio:.2f}",
            f"{same} of {total}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def spread(values: list[float]) -> str:
    """``median (least..most)``."""
    digits = 1 if statistics.median(values) < 1000 else 0
    middle, least, most = (
        f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} ({least}..{most})"


def main() -> None:
    """Parse, measure, print."""
    from machine import Clock

    from kestrel.checkpoint.checkpoint import Checkpoint
    from kestrel.processors import processor_name, processors

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="a folder with a BF16 or F32 checkpoint")
    parser.add_argument("--dtype", choices=("F32", "BF16"), action="append", help="default: both")
    parser.add_argument("--threads", type=int, default=processors().threads)
    parser.add_argument("--runs", type=int, default=5, help="measured runs (default 5)")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(args.threads)
    head = ["weights", "", "first token, ms", f"prefill of {PROMPT}, tokens/s"]
    head += [f"prefill of {LONG_PROMPT}, tokens/s", f"decode of {GENERATED}, tokens/s"]
    head += ["decode, times transformers", "same tokens"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    dtypes = args.dtype or ["F32", "BF16"]
    found = {view.dtype.value for view in Checkpoint(args.model).tensors.values()}
    if "BF16" in dtypes and found != {"BF16"}:
        parser.error(f"{args.model}: expected BF16 weights, found {', '.join(sorted(found))}")
    clock, versions = Clock(), []
    with tempfile.TemporaryDirectory(prefix="kestrel-compare-") as scratch:
        folders = {"given": str(args.model), "BF16": str(args.model)}
        for dtype in dtypes:
            if dtype == "F32":
                folders["F32"] = str(widened(args.model, Path(scratch) / "F32"))
            rows = compare(folders, dtype, args.threads, args.runs)
            lines += table(rows, dtype)
            versions = [rows[TRANSFORMERS]["version"], rows[SESSION]["version"]]
    print("\n".join(lines))
    others = clock.others()
    print(f"\n{args.model.name} on {processor_name()}, {args.threads} threads")
    print("; ".join(versions))
    print(f"{WARM_UPS} warm-ups and {args.runs} runs by turns; median (least..most)")
    print("tokens may differ in BF16, where transformers rounds activations to BF16 too")
    if others is not None:
        print(f"other processes kept {others:.2f} processors busy")


if __name__ == "__main__":
    main()

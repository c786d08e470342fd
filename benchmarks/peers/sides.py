"""One side of the comparison in a process of its own: Kestrel or a peer.

    python benchmarks/peers/sides.py NAME FILE F32|BF16 THREADS

It is a server on standard input and output, a JSON value a line: it first says its version, then
answers each job. It needs the packages of its side alone, so that each may live in an environment
of its own. FILE is a Hugging Face folder, for llama.cpp a GGUF file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

#: Tokens of one sequence in the longest case, and of one call.
CONTEXT, LONGEST_CALL = 1024, 512


class Kestrel:
    """A session for one sequence, an engine for several."""

    def __init__(self, path: str, dtype: str, threads: int) -> None:
        root = Path(__file__).resolve().parents[2]
        sys.path[1:1] = [str(root / name) for name in ("benchmarks", "tests", ".")]
        kestrel = import_module("kestrel")
        self.model = kestrel.load(path, threads=threads)
        import_module("models").touch_cache(self.model)  # llama.cpp clears its own, too
        self.params = kestrel.SamplingParams(temperature=0.0, ignore_eos=True)
        info = self.model.backend.info
        self.facts = {
            "version": f"Kestrel {kestrel.__version__} ({info.isa})",
            "isa": info.isa,
            "threads": info.threads,
            "weight_bytes": self.model.program.weight_bytes(),
        }

    def prefill(self, ids: list[int]) -> int:
        self.session = self.model.session()
        return int(self.session.prefill(ids).argmax())

    def step(self, token: int) -> int:
        return int(self.session.decode(token).argmax())

    def batch(self, prompts: list[list[int]], new_tokens: int) -> dict:
        """Seconds of the steps in which several sequences get ``new_tokens`` after their first."""
        engine = self.model.engine()
        for ids in prompts:
            engine.add(ids, self.params.replace(max_tokens=new_tokens + 1))
        if len(engine.step()) != len(prompts):
            raise RuntimeError("the prompts did not fit into one step")
        started = time.perf_counter()
        while engine.has_work:
            engine.step()
        return {"steps": time.perf_counter() - started}

    def checksum(self, ids: list[int], new_tokens: int) -> str:
        """SHA-256 over the logits before each new token, in 16 hexadecimal digits."""
        digest, session = hashlib.sha256(), self.model.session()
        logits = session.prefill(ids)
        for _ in range(new_tokens):
            digest.update(logits.tobytes())
            logits = session.decode(int(logits.argmax()))
        return digest.hexdigest()[:16]


class LlamaCpp:
    """llama.cpp's C interface, by way of llama-cpp-python's bindings; its default F16 cache."""

    def __init__(self, path: str, dtype: str, threads: int) -> None:
        self.numpy, self.lib = import_module("numpy"), import_module("llama_cpp")
        lib = self.lib
        self.quiet = lib.llama_log_callback(lambda level, text, data: None)  # kept: C calls it
        lib.llama_log_set(self.quiet, None)
        lib.llama_backend_init()
        model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT, LONGEST_CALL, LONGEST_CALL
        params.n_threads = params.n_threads_batch = threads
        self.context = lib.llama_init_from_model(model, params)
        self.memory = lib.llama_get_memory(self.context)
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self.facts = {"version": f"llama.cpp of llama-cpp-python {lib.__version__}"}

    def prefill(self, ids: list[int]) -> int:
        self.lib.llama_memory_clear(self.memory, False)
        return self._run(ids)

    def step(self, token: int) -> int:
        return self._run([token])

    def _run(self, ids: list[int]) -> int:
        tokens = (self.lib.llama_token * len(ids))(*ids)
        status = self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(tokens, len(ids)))
        if status:
            raise RuntimeError(f"llama_decode gave {status}")
        logits = self.lib.llama_get_logits_ith(self.context, -1)
        return int(self.numpy.ctypeslib.as_array(logits, (self.vocab,)).argmax())


class Transformers:
    """The model class's own forward with its own cache, its default attention."""

    def __init__(self, path: str, dtype: str, threads: int) -> None:
        self.torch, transformers = import_module("torch"), import_module("transformers")
        self.torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        dtypes = {"F32": self.torch.float32, "BF16": self.torch.bfloat16}
        found = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtypes[dtype])
        self.model, self.cache = found.eval(), None
        version = f"transformers {transformers.__version__} with torch {self.torch.__version__}"
        self.facts = {"version": version}

    def prefill(self, ids: list[int]) -> int:
        self.cache = None
        return self._run(ids)

    def step(self, token: int) -> int:
        return self._run([token])

    def _run(self, ids: list[int]) -> int:
        with self.torch.inference_mode():
            out = self.model(
                input_ids=self.torch.tensor([ids]),
                cache=self.cache,
                use_cache=True,
                logits_to_keep=1,
            )
        self.cache = out.cache
        return int(out.logits[0, -1].argmax())


class OpenVino:
    """The model that optimum-intel exports, with the logits of the last position alone."""

    def __init__(self, path: str, dtype: str, threads: int) -> None:
        self.numpy, openvino = import_module("numpy"), import_module("openvino")
        optimum = import_module("optimum.intel")
        with tempfile.TemporaryDirectory(prefix="kestrel-openvino-") as folder:
            exported = optimum.OVModelForCausalLM.from_pretrained(
                path, export=True, compile=False, load_in_8bit=False
            )
            exported.save_pretrained(folder)
            core = openvino.Core()
            model = core.read_model(os.path.join(folder, "openvino_model.xml"))
            self._keep_last_position(model)
            settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": "1"}
            settings |= {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": dtype.lower()}
            compiled = core.compile_model(model, "CPU", settings)
        self.names = {name for each in compiled.inputs for name in each.get_names()}
        self.request = compiled.create_infer_request()
        self.facts = {"version": f"OpenVINO {openvino.__version__.split('-')[0]}"}

    def prefill(self, ids: list[int]) -> int:
        self.request.reset_state()
        self.length = 0
        return self._run(ids)

    def step(self, token: int) -> int:
        return self._run([token])

    def _run(self, ids: list[int]) -> int:
        start, self.length = self.length, self.length + len(ids)
        inputs = {
            "input_ids": self.numpy.array([ids]),
            "attention_mask": self.numpy.ones((1, self.length), dtype=self.numpy.int64),
            "position_ids": self.numpy.arange(start, self.length)[None],
            "beam_idx": self.numpy.zeros(1, dtype=self.numpy.int32),
        }
        inputs = {name: value for name, value in inputs.items() if name in self.names}
        self.request.infer(inputs, share_inputs=True, share_outputs=True)
        return int(self.request.get_output_tensor(0).data[0, -1].argmax())

    def _keep_last_position(self, model) -> None:
        # As OpenVINO GenAI does before it compiles: the head over a whole prompt is wasted.
        opset = import_module("openvino.opset13")
        node = model.output(0).get_node().input_value(0).get_node()
        while node.get_type_name() != "MatMul":
            node = node.input_value(0).get_node()
        ends = (self.numpy.array([value]) for value in (-1, -2, -1, 1))
        last = opset.slice(node.input_value(0), *ends)
        node.input(0).replace_source_output(last.output(0))
        model.validate_nodes_and_infer_types()


SIDES = {
    "Kestrel": Kestrel,
    "llama.cpp": LlamaCpp,
    "transformers": Transformers,
    "OpenVINO": OpenVino,
}


def generate(side, ids: list[int], new_tokens: int) -> dict:
    """Seconds of the prefill, seconds of the cached steps after it, and all tokens."""
    started = time.perf_counter()
    tokens = [side.prefill(ids)]
    first = time.perf_counter()
    for _ in range(new_tokens):
        tokens.append(side.step(tokens[-1]))
    return {"prefill": first - started, "steps": time.perf_counter() - first, "tokens": tokens}


def answer(side, job: dict) -> object:
    """The result of a job: its ``kind`` and that function's arguments."""
    arguments = {name: value for name, value in job.items() if name != "kind"}
    if job["kind"] == "generate":
        return generate(side, **arguments)
    return getattr(side, job["kind"])(**arguments)


def main() -> None:
    """Serve until standard input ends."""
    # Libraries write to descriptor 1 as they like: answers go to a copy, theirs to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    name, path, dtype, threads = sys.argv[1:]
    try:
        side = SIDES[name](path, dtype, int(threads))
        print(json.dumps(side.facts), file=answers, flush=True)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=answers, flush=True)
        return
    for line in sys.stdin:
        print(json.dumps(answer(side, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()

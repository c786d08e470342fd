"""Model: a loaded checkpoint on a backend; safe to share between threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence as AbstractSequence
from pathlib import Path
from typing import TYPE_CHECKING, Union, overload

from kestrel.backends import open_backend
from kestrel.cache.block_pool import BlockPool
from kestrel.cache.paged_cache import BLOCK_SIZE, PagedCache, kv_dtype, plan_capacity
from kestrel.checkpoint.checkpoint import Checkpoint
from kestrel.engine.engine import Engine, Generation, collect
from kestrel.engine.runner import Runner
from kestrel.engine.scoring import score, trace
from kestrel.errors import RequestError
from kestrel.generation import default_params, end_token_ids
from kestrel.models import family_for
from kestrel.models.config import Limits
from kestrel.models.decoder import decoder
from kestrel.models.weights import bind
from kestrel.program.recorder import Recorder
from kestrel.program.trace import Trace, TraceSpec
from kestrel.program.values import Dim
from kestrel.session import Session
from kestrel.tokenizer import Tokenizer

if TYPE_CHECKING:
    from kestrel.backends.base import Backend
    from kestrel.engine.request import Event
    from kestrel.sampling.params import SamplingParams

__all__ = ["DEMO_MODEL", "Generation", "Model", "Prompt", "load"]

#: The bundled demo model, package data.
DEMO_MODEL = Path(__file__).parent / "data" / "tales-5m"

#: Text, encoded with the tokenizer's own special tokens, or token ids, taken as they are.
Prompt = Union[str, AbstractSequence[int]]

#: Logit rows of a scoring step: more would only make its output array larger.
_SCORING_ROWS = 64


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    backend: str = "auto",
    limits: Limits | None = None,
    threads: int | None = None,
    isa: str | None = None,
    kv_dtype: str = "float32",
    mmap: bool = True,
) -> "Model":
    """Load a Hugging Face folder; without a path, the bundled demo model.

    Args:
        path: a folder with config.json, safetensors files and tokenizer.json.
        backend: ``auto``, ``cpu``, ``reference`` or ``null``.
        limits: tokens and sequences in a step, context, bytes of cache.
        threads: of the cpu backend; None takes KESTREL_THREADS or what the system grants.
        isa: highest instruction set of the cpu backend; None takes KESTREL_ISA or the best.
        kv_dtype: ``float32`` or ``float16``, how keys and values are cached.
        mmap: False reads the weights into memory, for network disks that may cut a file.

    Raises CheckpointError, ConfigError, TokenizerError for the folder; BackendError for the
    device; CapacityError when the cache does not fit.
    """
    checkpoint = Checkpoint(DEMO_MODEL if path is None else path, mmap=mmap)
    return Model(checkpoint, open_backend(backend, threads=threads, isa=isa), limits, kv_dtype)


class Model:
    """Weights, cache and compiled program. Made by ``load``.

    Attributes:
        config: the DecoderConfig as understood.
        tokenizer: text to ids and back.
        defaults: SamplingParams from generation_config.json; ``default_sources`` says of each
            option where it comes from.
        end_ids: token ids that end an answer, each with the files that say so.
        context_limit: most tokens of one sequence.
        notes: what a user should know about this checkpoint; ``kestrel inspect`` prints them.
    """

    def __init__(
        self, checkpoint: Checkpoint, backend: "Backend", limits: Limits | None, kv: str
    ) -> None:
        limits = limits or Limits()
        family = family_for(checkpoint.config, checkpoint.folder)
        self.folder = checkpoint.folder
        self.config = family.parse(checkpoint.config, checkpoint.folder / "config.json")
        self._weights, notes = bind(checkpoint, self.config, family)
        self.tokenizer = Tokenizer.from_folder(checkpoint.folder)
        self.defaults, self.default_sources = default_params(checkpoint.generation_config)
        self.end_ids = end_token_ids(
            checkpoint.config, checkpoint.generation_config, self.tokenizer
        )
        self.backend = backend
        self.limits = limits
        dtype = kv_dtype(kv)
        capacity = plan_capacity(self.config, limits, dtype)
        self.context_limit = capacity.max_context
        self.cache = PagedCache(backend, self.config, capacity.num_blocks, dtype)
        self.pool = BlockPool(capacity.num_blocks, BLOCK_SIZE)
        self.notes = [*checkpoint.notes, *notes, *capacity.notes]
        rows = limits.max_logit_rows or min(limits.max_seqs, limits.max_tokens)
        self._runner = self._compile(limits.max_tokens, rows)
        self._scoring: Runner | None = None
        self._scoring_lock = threading.Lock()

    # -- what users call -------------------------------------------------------------------

    def session(self) -> Session:
        """A new, empty sequence over this model, to be driven step by step."""
        return Session(self._runner, self.pool)

    @overload
    def generate(self, prompt: str, params: "SamplingParams | None" = None) -> Generation: ...
    @overload
    def generate(
        self, prompt: AbstractSequence[Prompt], params: "SamplingParams | None" = None
    ) -> list[Generation]: ...

    def generate(self, prompt, params=None):
        """Continue one prompt (text or ids), or each of a list of them, batched continuously.

        ``params`` default to the checkpoint's own (``defaults``). Prompts of one call with the
        same seed draw the same numbers, so each answer is what it would be alone.
        Raises RequestError for an empty prompt, one that does not fit the context, or ids outside
        the vocabulary; CapacityError when the cache cannot hold one of them.
        """
        prompts = _prompt_list(prompt)
        engine = self._engine()
        order = [engine.add(self.encode(each), params or self.defaults) for each in prompts]
        answers = collect(engine, order)
        return answers[0] if _is_single(prompt) else answers

    def stream(
        self, prompt: Prompt, params: "SamplingParams | None" = None
    ) -> Iterator["Event"]:
        """Yield a Token event for each token as it comes, then one Finished event.

        Checks the prompt at once, before the first event is asked for. Raises as ``generate``.
        Closing the iterator early gives the request's blocks back.
        """
        engine = self._engine()
        engine.add(self.encode(prompt), params or self.defaults)
        return engine.events()

    def score(self, prompt: Prompt) -> list[float]:
        """Natural-log probability of each token given those before it: one less than tokens."""
        ids = self.encode(prompt)
        if len(ids) < 2:
            raise RequestError(f"score: expected at least 2 tokens, found {len(ids)}")
        with self._scoring_lock:
            if self._scoring is None:
                self._scoring = self._compile(_SCORING_ROWS, _SCORING_ROWS)
            return score(self._scoring, self.pool, ids)

    def trace(
        self,
        prompt: Prompt | AbstractSequence[Prompt],
        stages: AbstractSequence[str] = ("*",),
        chunk: int | None = None,
    ) -> Trace | list[Trace]:
        """Run a prompt, or a list of them as one batch, and keep what the stages computed.

        The traced program is a program of its own: nothing is observed in the normal one.

        Args:
            stages: shell patterns over Hugging Face names, such as ``model.layers.*.mlp.*``.
            chunk: most tokens of one sequence in a step; None takes what fits. Changes no bit.
        """
        sequences = [self.encode(each) for each in _prompt_list(prompt)]
        longest = max(map(len, sequences))
        rows = min(sum(map(len, sequences)), self.limits.max_tokens)
        runner = self._compile(rows, rows, TraceSpec(tuple(stages)))
        if not runner.executable.taps:
            raise RequestError(
                f"trace: no stage matches {', '.join(stages)}; str(model.program) lists the stages"
            )
        traces = trace(runner, self.pool, sequences, min(chunk or longest, longest))
        return traces[0] if _is_single(prompt) else traces

    @property
    def program(self):
        """The recorded forward pass; ``print(model.program)`` lists it."""
        return self._runner.program

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: text is encoded as the tokenizer's post-processor says."""
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def close(self) -> None:
        """Stop the backend's threads; the model is not to be used afterwards."""
        self.backend.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- machinery -------------------------------------------------------------------------

    def _engine(self) -> Engine:
        return Engine(self._runner, self.pool, self.tokenizer, frozenset(self.end_ids))

    def _compile(self, tokens: int, logit_rows: int, spec: TraceSpec | None = None) -> Runner:
        maxima = {
            Dim.TOKENS: tokens,
            Dim.SEQUENCES: self.limits.max_seqs,
            Dim.LOGIT_ROWS: logit_rows,
        }
        recorder = Recorder(maxima, -(-self.context_limit // BLOCK_SIZE), spec)
        program = decoder(recorder, self.config, self._weights, self.cache)
        return Runner(program, self.backend.compile(program), self.pool, self.context_limit)


def _is_single(prompt: object) -> bool:
    return isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))


def _prompt_list(prompt: object) -> list[Prompt]:
    if _is_single(prompt):
        return [prompt]
    prompts = list(prompt)
    if not prompts:
        raise RequestError("no prompt: expected text, token ids, or a list of at least one of them")
    return prompts

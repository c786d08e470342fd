"""Model: a loaded checkpoint on a backend; safe to share between threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence as AbstractSequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from kestrel.backends import open_backend
from kestrel.cache.block_pool import BlockPool
from kestrel.cache.paged_cache import BLOCK_SIZE, PagedCache, kv_dtype, plan_capacity
from kestrel.cache.sequence import Sequence
from kestrel.checkpoint.checkpoint import Checkpoint
from kestrel.engine.arguments import Prompt, params_list, pattern_list, prompt_list
from kestrel.engine.engine import Engine, Generation, collect
from kestrel.engine.runner import Runner
from kestrel.engine.scoring import check_prompt, score, trace
from kestrel.engine.turns import Turns
from kestrel.errors import RequestError
from kestrel.generation import read_generation
from kestrel.hub import Snapshot, model_folder
from kestrel.integers import integer, token_ids
from kestrel.laps import Laps
from kestrel.models import understand
from kestrel.models.decoder import decoder
from kestrel.models.limits import Limits
from kestrel.program.recorder import Recorder
from kestrel.program.trace import Trace, TraceSpec
from kestrel.program.values import Dim
from kestrel.sampling.params import SamplingParams
from kestrel.session import Session
from kestrel.text.prompt_tokens import explain
from kestrel.tokenizer import Tokenizer

if TYPE_CHECKING:
    from kestrel.backends.base import Backend
    from kestrel.engine.request import Event
    from kestrel.program.program import Program

__all__ = ["DEMO_MODEL", "Generation", "Model", "Prompt", "load"]

#: The bundled demo model, package data.
DEMO_MODEL = Path(__file__).parent / "data" / "tales-5m"

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
    refresh: bool = False,
) -> "Model":
    """Load a Hugging Face model; without a path, the bundled demo model.

    Args:
        path: a folder with config.json, safetensors files and tokenizer.json; or the id of a model
            on the hub, ``org/name[@revision]``, found in its local cache or fetched into it.
        backend: ``auto``, ``cpu``, ``reference`` or ``null``.
        limits: tokens and sequences in a step, context, bytes of cache.
        threads: of the cpu backend; None takes KESTREL_THREADS or what the system grants.
        isa: highest instruction set of the cpu backend; None takes KESTREL_ISA or the best.
        kv_dtype: ``float32`` or ``float16``, how keys and values are cached.
        mmap: False copies the weights into memory: for network disks, which may cut a file, and
            for large pages, which mapped files do not have on every system.
        refresh: ask the hub for the newest commit of a branch that the cache has already.

    Raises CheckpointError, ConfigError, TokenizerError for the folder, HubError, a CheckpointError,
    where an id leads to none (see ``kestrel.hub.model_folder``); BackendError for the
    device; CapacityError when the cache does not fit; RequestError for arguments of another type.
    """
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise RequestError(f"load: path: expected the path of a folder, found {path!r:.80}")
    if not isinstance(mmap, bool):
        raise RequestError(f"load: mmap: expected True or False, found {mmap!r:.80}")
    folder = model_folder(path, refresh)
    laps = Laps()
    checkpoint = Checkpoint(DEMO_MODEL if folder is None else folder, mmap=mmap)
    laps.lap("files")
    device = open_backend(backend, threads=threads, isa=isa)
    laps.lap("backend")
    return Model(checkpoint, device, limits, kv_dtype, laps)


class Model:
    """Weights, cache and compiled program. Made by ``load``.

    Attributes:
        name: what to call it: the folder's name, or ``org/name`` for a model of the hub.
        config: the DecoderConfig as understood.
        tokenizer: text to ids and back.
        defaults: SamplingParams of the checkpoint; ``default_sources`` says of each
            option where it comes from.
        end_ids: token ids that end an answer, each with the files that say so.
        context_limit: most tokens of one sequence.
        notes: what a user should know about this checkpoint; ``kestrel inspect`` prints them.
        weights: the checkpoint's tensors by use (DecoderWeights).
        runner: the compiled program, which every session and engine of the model takes turns in.
        load_seconds: what loading took, part by part.
    """

    def __init__(
        self, checkpoint: Checkpoint, backend: "Backend", limits: Limits | None, kv: str,
        laps: Laps | None = None,
    ) -> None:  # fmt: skip
        laps = laps or Laps()
        self.load_seconds = laps.seconds
        limits = Limits() if limits is None else limits
        if not isinstance(limits, Limits):
            raise RequestError(f"limits: expected kestrel.Limits, found {limits!r:.80}")
        self.folder = checkpoint.folder
        self.config, self.weights, notes = understand(checkpoint)
        laps.lap("weights")
        self.tokenizer = Tokenizer.from_folder(checkpoint.folder)
        laps.lap("tokenizer")
        generation = read_generation(checkpoint, self.tokenizer)
        self.defaults, self.default_sources = generation.defaults, generation.sources
        self.end_ids = generation.end_ids
        self.backend = backend
        self.limits = limits
        dtype = kv_dtype(kv)
        capacity = plan_capacity(self.config, limits, dtype)
        self.context_limit = capacity.max_context
        self.cache = PagedCache(backend, self.config, capacity.num_blocks, dtype)
        self.pool = BlockPool(
            capacity.num_blocks,
            BLOCK_SIZE,
            window=self.config.attention_window,
            rope_length_range=self.config.rope_length_range,
            restarts=self.config.rope_restarts,
        )
        snapshot = Snapshot.of(checkpoint.folder)
        self.name = checkpoint.folder.name if snapshot is None else snapshot.label
        self.notes = [] if snapshot is None else snapshot.notes()
        self.notes += [*notes, *generation.notes]
        self.notes += self.tokenizer.warnings
        self.notes += self.tokenizer.notes_for(self.config.vocab_size)
        self.notes += capacity.notes
        self._turns = Turns()
        rows = limits.max_logit_rows or limits.max_seqs
        self.runner = self._compile(limits.max_tokens, rows)
        laps.lap("program")
        self._scoring: Runner | None = None

    # -- what users call -------------------------------------------------------------------

    def session(self) -> Session:
        """A new, empty sequence over this model, to be driven step by step."""
        self._check_open()
        return Session(self.runner, Sequence(self.pool))

    def engine(self) -> Engine:
        """A new Engine, for whoever adds requests while others run; to be closed at the end."""
        self._check_open()
        return Engine(self.runner, self.pool, self.tokenizer, frozenset(self.end_ids))

    @overload
    def generate(
        self, prompt: str, params: SamplingParams | None = None, **options: object
    ) -> Generation: ...
    @overload
    def generate(
        self,
        prompt: AbstractSequence[Prompt],
        params: SamplingParams | AbstractSequence[SamplingParams] | None = None,
        **options: object,
    ) -> list[Generation]: ...

    def generate(self, prompt, params=None, **options):
        """Continue one prompt (text or ids), or each of a list of them, batched continuously.

        ``options`` such as ``max_tokens=64`` change the checkpoint's own settings (``defaults``).
        ``params`` stand for all settings at once: for all prompts, or a list with those of each.
        Without max_tokens an answer may be as long as the context. Prompts of one call with the
        same seed draw the same numbers, so each answer is what it would be alone.

        Raises RequestError for an empty prompt, one that does not fit the context, ids outside
        the vocabulary, or options that leave no token; CapacityError when the cache cannot hold
        one of them; NumericalError when logits are not finite.
        """
        prompts, is_single = prompt_list(prompt)
        engine = self.engine()
        each_params = params_list(params, options, self.defaults, len(prompts))
        order = [engine.add(self.encode(each), p) for each, p in zip(prompts, each_params)]
        answers = collect(engine, order)
        return answers[0] if is_single else answers

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: object
    ) -> Iterator["Event"]:
        """Yield a Token event for each token as it comes, then one Finished event.

        Checks the prompt at once, before the first event is asked for. Raises as ``generate``.
        Closing the iterator early gives the request's blocks back.
        """
        engine = self.engine()
        engine.add(self.encode(prompt), *params_list(params, options, self.defaults, 1))
        return engine.events()

    def score(self, prompt: Prompt) -> list[float]:
        """Natural-log probability of each token given those before it: one less than tokens."""
        self._check_open()
        ids = self.encode(prompt)
        if len(ids) < 2:
            raise RequestError(f"score: expected at least 2 tokens, found {len(ids)}")
        if self._scoring is None:
            # Two threads may both compile it; one of the two is then used.
            self._scoring = self._compile(_SCORING_ROWS, _SCORING_ROWS)
        return score(self._scoring, self.pool, ids)

    def trace(
        self,
        prompt: Prompt | AbstractSequence[Prompt],
        stages: str | AbstractSequence[str] = "*",
        chunk: int | None = None,
    ) -> Trace | list[Trace]:
        """Run a prompt, or a list of them as one batch, and keep what the stages computed.

        The traced program is one of its own, unfolded, of all rows; the normal one is not observed.

        Args:
            stages: shell patterns over Hugging Face names, such as ``model.layers.*.mlp.*``.
            chunk: most tokens of one sequence in a step; None takes what fits. Changes no bit.

        Raises RequestError as ``generate``, and when no stage matches.
        """
        self._check_open()
        prompts, is_single = prompt_list(prompt)
        patterns = pattern_list(stages)
        if chunk is not None:
            chunk = integer(chunk, "trace: chunk", 1)
        sequences = [self.encode(each) for each in prompts]
        for ids in sequences:
            check_prompt(self.runner, ids)
        rows = min(sum(map(len, sequences)), self.limits.max_tokens)
        runner = self._compile(rows, rows, TraceSpec(patterns))
        if not runner.executable.taps:
            raise RequestError(
                f"trace: no stage matches {patterns!r:.200}; list(model.trace('a')) has all names"
            )
        traces = trace(runner, self.pool, sequences, chunk or rows)
        for one, text in zip(traces, prompts):
            one.tokens = explain(self.tokenizer, text if isinstance(text, str) else one.ids)
        return traces[0] if is_single else traces

    @property
    def program(self) -> "Program":
        """The recorded forward pass; ``print(model.program)`` lists it."""
        return self.runner.program

    def encode(self, prompt: Prompt, *, plain_content: bool = False) -> list[int]:
        """Token ids of a prompt: text is encoded as the tokenizer's post-processor says.

        ``plain_content`` makes control words in a text, such as ``</s>``, text like any other. For
        messages see ``kestrel.text.chat_template.encode_chat``. Raises RequestError when the prompt
        is neither text nor integers.
        """
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, plain_content=plain_content)
        return token_ids(prompt, "prompt: expected text or a list of token ids")

    def close(self) -> None:
        """Stop the backend's threads; whatever is asked of the model then gives a BackendError.

        Waits for the step of another thread. In a signal handler that interrupted a step of its own
        thread, it cancels that step, which then raises BackendError.
        """
        self._turns.close(self.backend)

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> None:
        raise TypeError("a Model holds threads and mapped files: load it in each process instead")

    # -- machinery -------------------------------------------------------------------------

    def _check_open(self) -> None:
        self._turns.check_open()

    def _compile(self, tokens: int, logit_rows: int, spec: TraceSpec | None = None) -> Runner:
        maxima = {
            Dim.TOKENS: tokens,
            Dim.SEQUENCES: self.limits.max_seqs,
            Dim.LOGIT_ROWS: logit_rows,
        }
        recorder = Recorder(maxima, -(-self.context_limit // BLOCK_SIZE), spec)
        program = decoder(recorder, self.config, self.weights, self.cache)
        executable = self.backend.compile(program)
        return Runner(program, executable, self.pool, self.context_limit, self._turns)

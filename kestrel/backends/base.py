"""The backend seam: what a device must offer to run a Program.

Three protocols. A backend compiles a Program once; then each step is one ``submit`` and one
``wait``. Nothing in a Program changes between steps: what differs lies in StepInputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy

    from kestrel.checkpoint.safetensors_file import TensorView
    from kestrel.program.program import Program

__all__ = ["Backend", "BackendInfo", "Buffer", "Executable", "StepInputs"]


@dataclass(frozen=True)
class BackendInfo:
    """What a backend is, for people: shown by ``kestrel devices`` and in the figures.

    ``why`` says why a backend that is not available is not; ``details`` are further lines.
    """

    name: str
    available: bool
    device: str
    isa: str = ""
    threads: int = 1
    why: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StepInputs:
    """int32, C-contiguous, at fixed addresses for the life of the executable. Axes: N tokens,
    S sequences, L logit rows, at their maxima."""

    token_ids: "numpy.ndarray"  # [N]
    positions: "numpy.ndarray"  # [N] absolute position of each token
    rope_lengths: "numpy.ndarray"  # [N] length of the sequence by which each token is rotated
    slots: "numpy.ndarray"  # [N] block * 16 + offset
    seq_start: "numpy.ndarray"  # [S + 1] prefix sums: tokens of s are seq_start[s]:seq_start[s + 1]
    context_len: "numpy.ndarray"  # [S] positions visible to the last new token of s
    block_table: "numpy.ndarray"  # [S, max_blocks]; blocks wholly before the window: any id
    logit_rows: "numpy.ndarray"  # [L]


class Buffer(Protocol):
    """Device memory that outlives a step: the KV cache of one layer."""

    nbytes: int

    def read(self, offset: int, into: memoryview) -> None:
        """Copy ``into.nbytes`` bytes at ``offset`` to the host."""

    def write(self, offset: int, data: memoryview) -> None:
        """Copy host bytes to ``offset``."""


class Executable(Protocol):
    """A compiled Program. It serves one step at a time."""

    inputs: StepInputs
    logits: "numpy.ndarray"  # float32 [L, V], valid between wait and the next submit
    greedy: "numpy.ndarray"  # int32 [L]: the lowest id of the largest logit; -1: not finite
    taps: Mapping[str, "numpy.ndarray"]  # stage -> float32 [rows, width]

    def submit(self, n_tokens: int, n_seqs: int, n_logit_rows: int) -> None:
        """Start one step over ``inputs``. Raises SessionBusyError when one is under way."""

    def wait(self) -> None:
        """Finish the step. Raises DeviceError with command and stage; lets signals in."""

    def cancel(self) -> None:
        """Drop the step under way, if any, from any thread; in a forked child its parent's, too."""


class Backend(Protocol):
    """A device. Loaded weights and compiled programs may be shared by threads."""

    info: BackendInfo

    def allocate(self, nbytes: int) -> Buffer:
        """Zeroed memory aligned to 64 bytes; pages that are never touched cost nothing."""

    def adopt(self, tensor: "TensorView") -> object:
        """Make a weight usable by commands: without a copy where the device can."""

    def compile(self, program: "Program") -> Executable:
        """Raises UnsupportedOperationError naming the stage."""

    def close(self) -> None:
        """Release threads and memory."""

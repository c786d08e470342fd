"""The null backend does nothing, correctly shaped: it measures the host's share of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kestrel.backends.base import BackendInfo
from kestrel.backends.host import HostBuffer, host_array, make_step_inputs
from kestrel.errors import SessionBusyError

if TYPE_CHECKING:
    from kestrel.checkpoint.safetensors_file import TensorView
    from kestrel.program.program import Program

__all__ = ["INFO", "NullBackend"]

INFO = BackendInfo("null", True, "no device: every logit is 0, every greedy token is id 0")


class NullExecutable:
    """Accepts steps and computes nothing."""

    def __init__(self, program: "Program") -> None:
        maxima = dict(program.maxima)
        self.inputs = make_step_inputs(program)
        self.logits = host_array(program.logits, maxima)  # [L, V]
        self.greedy = host_array(program.greedy, maxima)  # [L]
        self.taps = {name: host_array(value, maxima) for name, value in program.taps.items()}
        self._busy = False

    def submit(self, n_tokens: int, n_seqs: int, n_logit_rows: int) -> None:
        """Start a step."""
        if self._busy:
            raise SessionBusyError("a step is under way: wait for it before the next submit")
        self._busy = True

    def wait(self) -> None:
        """Finish it."""
        self._busy = False

    def cancel(self) -> None:
        """Drop it."""
        self._busy = False


class NullBackend:
    """See the module's first line."""

    info = INFO

    def allocate(self, nbytes: int) -> HostBuffer:
        """Zeroed memory, never touched."""
        return HostBuffer(nbytes)

    def adopt(self, tensor: "TensorView") -> "TensorView":
        """The view itself."""
        return tensor

    def compile(self, program: "Program") -> NullExecutable:
        """Any program compiles."""
        return NullExecutable(program)

    def close(self) -> None:
        """Nothing to release."""

"""Command and Program: what the recorder writes and a backend compiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kestrel.program.values import Dim, Storage, Value

__all__ = ["OPERATIONS", "Command", "Program"]

#: The closed list of operations, in the order of native/include/kestrel/ops.def.
OPERATIONS = (
    "embed",
    "rotary_embedding",
    "rms_norm",
    "linear",
    "rope",
    "kv_write",
    "attention",
    "swiglu",
    "add",
    "soft_cap",
    "gather_rows",
    "argmax",
    "copy",
)


@dataclass(frozen=True, eq=False)
class Command:
    """One operation on values.

    ``inputs`` follow native/include/kestrel/args.h; an absent optional input is None. ``stage`` is
    the Hugging Face name under which errors, traces and profiles speak of the command.
    """

    operation: str
    stage: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)

    @property
    def rows(self) -> Dim:
        """The axis that counts this command's rows."""
        axis = self.outputs[0].shape[0]
        return axis if isinstance(axis, Dim) else Dim.TOKENS

    def reads(self) -> list[Value]:
        """The values that the command reads."""
        return [value for value in self.inputs if value is not None]

    def __str__(self) -> str:
        outputs = ", ".join(map(str, self.outputs))
        inputs = ", ".join(value.name for value in self.reads())
        attributes = ", ".join(f"{key}={value}" for key, value in self.attributes.items())
        line = f"{self.operation:16} {outputs} <- {inputs}"
        return f"{line}  ({attributes})" if attributes else line


@dataclass(frozen=True, eq=False)
class Program:
    """A recorded forward pass: immutable, printable, compiled once by each backend.

    ``maxima`` bound the symbolic axes, ``logits`` and ``greedy`` are its outputs, and ``taps`` maps
    the name of each traced stage to the output that holds its copy.
    """

    commands: tuple[Command, ...]
    maxima: Mapping[Dim, int]
    max_blocks: int
    vocab_size: int
    logits: Value
    greedy: Value
    taps: Mapping[str, Value]

    def values(self) -> list[Value]:
        """Every value once, in order of first use."""
        seen: dict[int, Value] = {}
        for command in self.commands:
            for value in (*command.reads(), *command.outputs):
                seen.setdefault(id(value), value)
        return list(seen.values())

    def weight_bytes(self) -> int:
        """Bytes of weights that one step reads, each matrix once (embedding rows not counted)."""
        read = {id(v) for c in self.commands if c.operation != "embed" for v in c.reads()}
        return sum(
            value.nbytes(dict(self.maxima))
            for value in self.values()
            if value.storage is Storage.WEIGHT and id(value) in read
        )

    def __str__(self) -> str:
        from kestrel.program.plan import plan

        memory = plan(self)
        lines = []
        for index, command in enumerate(self.commands):
            barrier = "|" if memory.barriers[index] else " "
            lines.append(f"{index:4} {barrier} {command.stage:44} {command}")
        lines.append(f"arena {memory.arena_bytes:,} bytes, {sum(memory.barriers)} barriers")
        return "\n".join(lines)

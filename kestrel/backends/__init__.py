"""Backends: open one by name, list those that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kestrel.errors import BackendUnavailableError
from kestrel.runtime import settings

if TYPE_CHECKING:
    from kestrel.backends.base import Backend, BackendInfo

__all__ = ["NAMES", "available", "open_backend"]

#: In the order in which "auto" would prefer them, fastest first.
NAMES = ("cpu", "reference", "null")


def open_backend(
    name: str = "auto", *, threads: int | None = None, isa: str | None = None
) -> "Backend":
    """Open a backend: ``cpu``, ``reference``, ``null``, or ``auto`` for KESTREL_BACKEND, else cpu.

    ``threads`` and ``isa`` are for the cpu backend; None takes KESTREL_THREADS and KESTREL_ISA, or
    what fits the machine. Raises BackendUnavailableError, UnsupportedIsaError.
    """
    if name == "auto":
        name = settings().backend or "cpu"
    if name == "cpu":
        from kestrel.backends.cpu import CpuBackend

        return CpuBackend(threads=threads, isa=isa)
    for option, value in (("threads", threads), ("isa", isa)):
        if value is not None:
            raise BackendUnavailableError(
                f"{option}={value!r} is an option of the cpu backend: backend {name!r} has none"
            )
    if name == "reference":
        from kestrel.backends.reference import ReferenceBackend

        return ReferenceBackend()
    if name == "null":
        from kestrel.backends.null import NullBackend

        return NullBackend()
    raise BackendUnavailableError(
        f"unknown backend {name!r}: expected auto, {', '.join(NAMES)}"
    )


def available() -> list["BackendInfo"]:
    """What each backend is, and why one that is not available is not."""
    from kestrel.backends import null, reference
    from kestrel.backends.base import BackendInfo

    try:
        from kestrel.backends.cpu import CpuBackend

        backend = CpuBackend()
        cpu = backend.info
        backend.close()
    except BackendUnavailableError as error:
        cpu = BackendInfo("cpu", False, "this processor", why=str(error))
    return [cpu, reference.INFO, null.INFO]

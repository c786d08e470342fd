"""Settings of a run: the environment, read once and in one place.

``kestrel devices`` prints them, with the processors of kestrel/processors.py.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

from kestrel.errors import BackendUnavailableError, ConfigError

__all__ = ["MAX_THREADS", "Settings", "native_ops", "read_settings", "settings"]

#: What the native pool can hold.
MAX_THREADS = 256  # KST_MAX_THREADS of native/include/kestrel/cpu.h

#: Variables that belong to the build (setup.py) and the benchmarks, and so say nothing here.
_OTHER_VARIABLES = frozenset(
    "KESTREL_" + name
    for name in "ISAS BLAS METAL METALLIB METAL_STANDIN CUDA NATIVE DEBUG SANITIZE ANNOTATE ABI3"
    " BENCHMARK_QUICK".split()
)
_RUN_VARIABLES = ("KESTREL_ISA", "KESTREL_THREADS", "KESTREL_BACKEND", "KESTREL_EAGER")


@dataclass(frozen=True)
class Settings:
    """What the environment asks for; None or False where it asks for nothing.

    Attributes:
        isa: KESTREL_ISA, the highest instruction set that the CPU backend may use.
        threads: KESTREL_THREADS, the number of threads of the CPU backend.
        backend: KESTREL_BACKEND, what ``backend="auto"`` stands for.
        eager: KESTREL_EAGER=1, run command by command and stop at the first value not finite.
    """

    isa: str | None = None
    threads: int | None = None
    backend: str | None = None
    eager: bool = False


@lru_cache(maxsize=None)
def settings() -> Settings:
    """The settings of this process: os.environ is read at the first call and never again."""
    return read_settings(os.environ)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the four run-time variables; an empty value counts as absent.

    A KESTREL_ variable that neither the run nor the build knows gives a RuntimeWarning: it may
    belong to another program, but is more often a typing error.

    Raises:
        ConfigError: a value that is not understood; ``key`` names the variable.
    """
    for name in sorted(environ):
        if name.startswith("KESTREL_") and name not in _OTHER_VARIABLES.union(_RUN_VARIABLES):
            known = ", ".join(_RUN_VARIABLES)
            message = f"{name} is set, but means nothing to Kestrel; it knows {known}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
    return Settings(
        isa=environ.get("KESTREL_ISA") or None,
        threads=_threads(environ.get("KESTREL_THREADS", "")),
        backend=_backend(environ.get("KESTREL_BACKEND", "")),
        eager=_switch("KESTREL_EAGER", environ.get("KESTREL_EAGER", "")),
    )


def _threads(text: str) -> int | None:
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 5:
        if 1 <= int(text) <= MAX_THREADS:
            return int(text)
    raise ConfigError(
        f"KESTREL_THREADS: expected a whole number from 1 to {MAX_THREADS}, found {text!r}; "
        "unset it to use the processors that the system grants",
        key="KESTREL_THREADS",
    )


def _backend(text: str) -> str | None:
    if not text:
        return None
    from kestrel.backends import NAMES  # that module imports this one

    if text not in NAMES:
        raise ConfigError(
            f"KESTREL_BACKEND: expected one of {', '.join(NAMES)}, found {text!r}",
            key="KESTREL_BACKEND",
        )
    return text


def _switch(name: str, text: str) -> bool:
    if text in ("", "0", "1"):
        return text == "1"
    raise ConfigError(f"{name}: expected 0 or 1, found {text!r}", key=name)


def native_ops() -> ModuleType:
    """The compiled module kestrel._ops. Raises BackendUnavailableError where it is not built."""
    try:
        from kestrel import _ops
    except ImportError as error:
        folder = os.path.dirname(os.path.abspath(__file__))
        raise BackendUnavailableError(
            f"the cpu backend is not built: {folder} has no usable _ops extension for this Python "
            f"({error}); run `pip install .` in the source folder, or choose backend='reference'"
        ) from error
    return _ops

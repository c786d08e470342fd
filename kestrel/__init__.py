"""Kestrel runs Llama-family models from Hugging Face folders, exact to the bit on every CPU.

    import kestrel

    model = kestrel.load()  # the demo model; "path/to/folder" or "org/name" for another
    print(model.generate("Once upon a time"))

Names are loaded at their first use: importing kestrel loads neither NumPy nor native code.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

TYPE_CHECKING = False  # as that of typing, whose import takes longer than all else here
if TYPE_CHECKING:
    from kestrel import errors as errors
    from kestrel.model import Generation as Generation
    from kestrel.model import Model as Model
    from kestrel.model import load as load
    from kestrel.models.limits import Limits as Limits
    from kestrel.sampling.params import SamplingParams as SamplingParams
    from kestrel.session import Session as Session

_MODULE_OF = {
    "Generation": "kestrel.model",
    "Limits": "kestrel.models.limits",
    "Model": "kestrel.model",
    "SamplingParams": "kestrel.sampling.params",
    "Session": "kestrel.session",
    "load": "kestrel.model",
}

__all__ = ["__version__", "errors", *_MODULE_OF]


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("kestrel.errors")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'kestrel' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _prefer_installed() -> None:
    """Become the installed package where this one is a source folder without its extension.

    ``pip install . && python -m kestrel`` in a clone's root finds ./kestrel before site-packages,
    but the extension lies only in the installed copy. Code and extension must come from one build,
    so the installed package runs in this module's place, submodules included. With no installed
    copy this folder stays, and the cpu backend says that it is not built.
    """
    import os
    import sys
    from importlib.machinery import EXTENSION_SUFFIXES, PathFinder

    def has_extension(folder: str) -> bool:
        return any(os.path.exists(os.path.join(folder, "_ops" + s)) for s in EXTENSION_SUFFIXES)

    here = os.path.dirname(os.path.abspath(__file__))
    if has_extension(here):
        return
    root = os.path.realpath(os.path.dirname(here))
    elsewhere = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != root]
    spec = PathFinder.find_spec("kestrel", elsewhere)
    if spec is None or not any(map(has_extension, spec.submodule_search_locations or ())):
        return
    module = sys.modules[__name__]
    module.__spec__, module.__file__ = spec, spec.origin
    module.__path__ = spec.submodule_search_locations
    spec.loader.exec_module(module)


_prefer_installed()

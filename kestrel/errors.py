"""The exception hierarchy of Kestrel.

Every message answers: which file, which tensor or option, what was expected, what was found, and
what to do. Standard bases are mixed in, so ``except ValueError`` catches what a user expects.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "BackendUnavailableError",
    "CapacityError",
    "CheckpointError",
    "ConfigError",
    "DeviceError",
    "DtypeError",
    "HeaderError",
    "HubError",
    "HubUnavailableError",
    "KestrelError",
    "MissingTensorError",
    "NumericalError",
    "RequestError",
    "SessionBusyError",
    "ShapeError",
    "TokenizerError",
    "UnexpectedTensorError",
    "UnsupportedIsaError",
    "UnsupportedModelError",
    "UnsupportedOperationError",
]


class KestrelError(Exception):
    """Base of every error that Kestrel raises on purpose."""

    def __str__(self) -> str:
        # KeyError would print the repr of its argument: messages here are whole sentences.
        return str(self.args[0]) if self.args else ""


class CheckpointError(KestrelError):
    """A model folder or one of its files is not what it should be.

    Attributes:
        file: path of the offending file or folder, as the user would type it.
    """

    def __init__(self, message: str, file: object = None) -> None:
        super().__init__(message)
        self.file = None if file is None else str(file)


class HeaderError(CheckpointError, ValueError):
    """Not a safetensors file, or one whose header is broken; the message says why."""


class MissingTensorError(CheckpointError, KeyError):
    """A tensor that the model needs is not in the checkpoint; near names are listed."""


class UnexpectedTensorError(CheckpointError, ValueError):
    """The checkpoint holds a tensor that the model would leave unused."""


class ShapeError(CheckpointError, ValueError):
    """A tensor's shape disagrees with the config."""


class DtypeError(CheckpointError, TypeError):
    """A tensor's element type is not supported where it stands."""


class TokenizerError(CheckpointError, ValueError):
    """tokenizer.json, tokenizer_config.json or a chat template cannot be used."""


class HubError(CheckpointError):
    """A hub id cannot be turned into a folder: no such repository, revision, or usable weights."""


class HubUnavailableError(HubError):
    """The hub is needed and gives nothing: no network, offline flag, no access, no library."""


class ConfigError(KestrelError, ValueError):
    """config.json or generation_config.json has a key with a value that cannot be used.

    Attributes:
        key: the offending key, or None when the file as a whole is wrong.
        file: path of the file, or None when the config was given as a dict.
    """

    def __init__(self, message: str, key: str | None = None, file: object = None) -> None:
        super().__init__(message)
        self.key = key
        self.file = None if file is None else str(file)


class UnsupportedModelError(ConfigError):
    """A model_type or a feature that Kestrel does not implement; lists what it does."""


class RequestError(KestrelError, ValueError):
    """A prompt or a sampling option that cannot be served."""


class SessionBusyError(KestrelError, RuntimeError):
    """A second thread entered a Session, or an Executable, that is already at work."""


class CapacityError(KestrelError, MemoryError):
    """Cache or device memory does not suffice: needed, available, which limit to change."""


class BackendError(KestrelError, RuntimeError):
    """A backend failed."""


class BackendUnavailableError(BackendError):
    """The backend is not built, has no device here, or is for another system."""


class UnsupportedIsaError(BackendError):
    """KESTREL_ISA asks for an instruction set that this processor or system lacks."""


class UnsupportedOperationError(BackendError):
    """The backend lacks an operation, or a weight dtype for it, at the named stage."""


class DeviceError(BackendError):
    """A step failed on the device; carries the command index and its stage.

    Attributes:
        command: index of the command in the program, or -1.
        stage: Hugging Face name of the stage, or "".
    """

    def __init__(self, message: str, command: int = -1, stage: str = "") -> None:
        super().__init__(message)
        self.command = command
        self.stage = stage


class NumericalError(KestrelError, ArithmeticError):
    """A step gave logits that are not finite."""

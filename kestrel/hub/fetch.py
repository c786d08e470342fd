"""Fetch a model into the hub's cache with huggingface_hub: only the files that are read."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kestrel import __version__
from kestrel.checkpoint.files import read_json_object
from kestrel.checkpoint.folder import find_weights
from kestrel.checkpoint.shard_index import ShardIndex
from kestrel.errors import ConfigError, HubError, HubUnavailableError
from kestrel.hub.cache import OPTIONAL, REQUIRED
from kestrel.models import family_for

if TYPE_CHECKING:
    from types import ModuleType

    from kestrel.hub.cache import CachedRepo, Snapshot
    from kestrel.hub.names import HubId

__all__ = ["fetch"]

_T = TypeVar("_T")

_AGENT = {"library_name": "kestrel", "library_version": __version__}
_MORE_TEMPLATES = "additional_chat_templates/"

_FULL = (errno.ENOSPC, errno.EDQUOT)

#: Seconds to wait for an answer about a repository; huggingface_hub's own for a file's metadata.
_TIMEOUT = 10


def fetch(hub_id: HubId, repo: CachedRepo, state: str) -> Snapshot:
    """Ask the hub where a revision is and fetch what the cache lacks of it.

    File by file in this thread, with huggingface_hub's bars: its snapshot_download fetches in a
    pool of threads that Ctrl-C has to wait for until whole shards are through. The config comes
    first, so that a model of another kind is refused before its weights are fetched. The branch is
    moved in the cache only at the end: what is cut off leaves the old one in use, and the next
    call goes on from the files that are there.

    Args:
        hub_id: what to fetch.
        repo: where it goes in the cache.
        state: a sentence on what the cache has, for messages.

    Raises HubUnavailableError when there is no library, network or access; HubError when there is
    no such repository, revision, or file that can be used; ConfigError for other kinds of models.
    """
    hub = _library(hub_id, state)
    asked = _Asking(hub, hub_id, repo.folder.parent, state)
    api = hub.HfApi(**_AGENT)
    info = asked(lambda: api.model_info(hub_id.repo, revision=hub_id.revision, timeout=_TIMEOUT))
    names = sorted(sibling.rfilename for sibling in info.siblings or ())
    weights = find_weights(Path(hub_id.repo), [name for name in names if "/" not in name])
    for name in REQUIRED:
        if name not in names:
            raise HubError(_absent(hub_id, name, names), hub_id)

    def download(name: str) -> Path:
        options = {"revision": info.sha, "cache_dir": repo.folder.parent}
        path = asked(lambda: hub.hf_hub_download(hub_id.repo, name, **options, **_AGENT))
        return Path(path)

    config = download("config.json")
    _refuse_other_kinds(config)
    for name in names:
        is_template = name.startswith(_MORE_TEMPLATES) and name.endswith(".jinja")
        if name in (*REQUIRED, *OPTIONAL) or is_template:
            download(name)
    if weights.index is None:
        download(weights.single.name)
    else:
        for shard in ShardIndex(download(weights.index.name)).shards:
            if shard not in names:
                raise HubError(
                    f"{hub_id}: {weights.index.name} names {shard}, which the repository does not "
                    "have: its upload is incomplete: choose another revision (org/name@revision)",
                    hub_id,
                )
            download(shard)
    snapshot = repo.snapshot(info.sha)
    repo.record(hub_id.revision, snapshot, [name for name in OPTIONAL if name not in names])
    return snapshot


def _library(hub_id: HubId, state: str) -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise HubUnavailableError(
            f"{hub_id}: {state}, and huggingface_hub, which would fetch it, cannot be imported "
            f"({error}): pip install huggingface_hub (the extra [hub]), or give a folder",
            hub_id,
        ) from error
    return huggingface_hub


def _refuse_other_kinds(path: Path) -> None:
    config = read_json_object(path, lambda message: ConfigError(message, file=path))
    family_for(config, path).parse(config, path)


def _absent(hub_id: HubId, name: str, names: list[str]) -> str:
    found = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
    if name == "config.json":
        advice = "it is no model of transformers; give the id of one"
    else:
        advice = (
            'write it into a folder with transformers: python -c "from transformers import '
            f"AutoTokenizer as A; A.from_pretrained('{hub_id.repo}').save_pretrained('DIR')\", "
            "put config.json and the weights beside it, and give that folder"
        )
    return f"{hub_id}: the repository has no {name} (it has {found}): {advice}"


class _Asking:
    """Calls huggingface_hub, and turns what goes wrong into one sentence that says what to do."""

    def __init__(self, hub: ModuleType, hub_id: HubId, cache: Path, state: str) -> None:
        self._hub = hub
        self._cache = cache
        self._id = hub_id
        self._state = state

    def __call__(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except Exception as error:  # of huggingface_hub, its HTTP library or the system
            failure = self._explained(error)
            if isinstance(failure, HubUnavailableError):
                raise failure from error
        raise failure  # a wrong id: no cause, for the system has not failed

    def _explained(self, error: Exception) -> HubError:
        errors, url = self._hub.errors, f"{self._hub.constants.ENDPOINT}/{self._id.repo}"
        status = getattr(getattr(error, "response", None), "status_code", None)
        has_token = status is not None and self._hub.get_token() is not None
        login = "set HF_TOKEN to your access token, or run `hf auth login`"
        if isinstance(error, errors.GatedRepoError):
            return self._unavailable(
                f"the model is gated ({status}): accept its licence at {url} with your account"
                + (" (that of the token in use has no access yet)" if has_token else "")
                + f", then {login}"
            )
        if status == 401 and has_token and not isinstance(error, errors.RevisionNotFoundError):
            return self._unavailable(
                f"the hub refuses the token in use, or has no such model ({url}): correct or unset "
                "HF_TOKEN, or run `hf auth login`"
            )
        if isinstance(error, errors.RepositoryNotFoundError):
            return HubError(
                f"{self._id}: there is no folder of that name, and the hub has no such model, or a "
                f"private one: check the spelling ({url}); for a private model {login}",
                self._id,
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return HubError(
                f"{self._id}: the model has no revision {self._id.revision!r}: {url}/tree/main "
                "lists its branches, tags and commits",
                self._id,
            )
        if status is not None:
            return self._unavailable(
                f"the hub answered {status} ({_first_line(error)}): try again later"
            )
        root = _root(error)
        if isinstance(root, OSError) and (root.filename or root.errno in _FULL):
            return self._unavailable(
                f"it cannot be written into {self._cache}: {_first_line(root)}: make room or give "
                "permission there, or set HF_HUB_CACHE to another folder"
            )
        return self._unavailable(
            f"it could not be fetched from {self._hub.constants.ENDPOINT}: "
            f"{_first_line(root)}: check the network and try again (what is fetched "
            "already is kept), or give a folder"
        )

    def _unavailable(self, sentence: str) -> HubUnavailableError:
        return HubUnavailableError(f"{self._id}: {sentence}; {self._state}", self._id)


def _root(error: BaseException) -> BaseException:
    """The first error of a chain: a library wraps what the system said several times."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0] or type(error).__name__

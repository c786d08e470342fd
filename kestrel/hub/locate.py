"""Turn what a user gives as a model into a folder."""

from __future__ import annotations

import os
from typing import TypeAlias

from kestrel.errors import HubUnavailableError, RequestError
from kestrel.hub.cache import CachedRepo, Snapshot, cache_folder, offline_flag
from kestrel.hub.names import HubId

__all__ = ["is_cached", "model_folder"]

_Path: TypeAlias = "str | os.PathLike[str]"


def model_folder(model: _Path | None, refresh: bool = False) -> _Path | None:
    """The folder of a model: ``model`` itself, or a snapshot in the hub's cache.

    What exists as a path is that path. Any other text of the shape ``org/name[@revision]`` is an
    id of the Hugging Face hub. When the cache has a complete snapshot of it, that is used, and the
    network is not asked: a branch stays where it was when it was fetched, so a model gives the
    same bits until somebody asks for a newer one. Else it is fetched by huggingface_hub.

    Args:
        model: a folder, or as text the id of a model on the hub; None stays None.
        refresh: ask the hub where the branch is now, and fetch what is new.

    Raises HubUnavailableError when the hub is needed and gives nothing, HubError when it has no
    such thing, RequestError for ``refresh`` with a folder. A path that is no folder is left to
    whoever opens it.
    """
    if not isinstance(refresh, bool):
        raise RequestError(f"load: refresh: expected True or False, found {refresh!r:.80}")
    hub_id = _hub_id(model)
    if hub_id is None:
        if refresh:
            raise RequestError(
                "refresh: expected a model of the hub (org/name) with it, found "
                f"{'the demo model' if model is None else os.fspath(model)}: leave it out"
            )
        return model
    repo = CachedRepo.of(cache_folder(), hub_id.repo)
    snapshot = repo.find(hub_id.revision)
    is_complete = snapshot is not None and not snapshot.missing()
    if is_complete and not refresh:
        return snapshot.folder
    state = _state(repo, snapshot)
    if is_complete:
        state += " and can be used without refresh"
    if flag := offline_flag():
        raise HubUnavailableError(
            f"{hub_id}: {flag} forbids to ask the hub; {state}: unset it, or give a folder", model
        )
    from kestrel.hub.fetch import fetch

    return fetch(hub_id, repo, state).folder


def is_cached(text: str) -> bool:
    """Whether a text is the id of a model that the cache has."""
    hub_id = _hub_id(text)
    return hub_id is not None and (
        CachedRepo.of(cache_folder(), hub_id.repo).find(hub_id.revision) is not None
    )


def _state(repo: CachedRepo, snapshot: Snapshot | None) -> str:
    """What the cache has of a revision, for messages; ``snapshot`` is what it finds of it."""
    if snapshot is not None:
        missing = snapshot.missing()
        if missing:
            return f"its copy in the cache is incomplete: {snapshot.describe_missing(missing)}"
        return f"its copy in the cache is {snapshot.folder}"
    state = f"the cache {repo.folder.parent} does not have it"
    others = repo.snapshots()
    complete = [other.label for other in others if not other.missing()]
    if complete:
        return f"{state}, only {', '.join(complete[:4])}"
    if others:
        missing = others[0].missing()
        return f"{state}, only a part: {others[0].describe_missing(missing)}"
    return state


def _hub_id(model: _Path | None) -> HubId | None:
    if not isinstance(model, str) or os.path.lexists(model):
        return None
    return HubId.parse(model)

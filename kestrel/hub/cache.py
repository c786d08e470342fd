"""Read the hub's local cache: which snapshot a revision is, and whether it is complete.

The layout is huggingface_hub's ("Understand caching" in its documentation)::

    models--org--name/refs/main                    the commit that the branch was at
    models--org--name/snapshots/COMMIT/config.json     -> ../../blobs/HASH
    models--org--name/blobs/HASH                   HASH.*incomplete: a download that was cut
    models--org--name/.no_exist/COMMIT/NAME        an empty file: the commit has no file NAME
    models--org--name/trees/COMMIT.json            the files that the commit has

Nothing here asks the network or imports huggingface_hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kestrel.checkpoint.files import broken_link, read_json_object
from kestrel.checkpoint.folder import INDEX_NAME, find_weights
from kestrel.checkpoint.shard_index import ShardIndex
from kestrel.errors import CheckpointError, HubError
from kestrel.hub.names import DEFAULT_REVISION

__all__ = ["OPTIONAL", "REQUIRED", "CachedRepo", "Snapshot", "cache_folder", "offline_flag"]

#: Without these and its weights a snapshot is incomplete.
REQUIRED = ("config.json", "tokenizer.json")

#: Files that only some models have; what is read of a folder beside the required ones.
OPTIONAL = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)

_TRUE = ("1", "ON", "YES", "TRUE")  # what huggingface_hub takes for true, in any case
_COMMIT = re.compile(r"[A-Za-z0-9_-]+")


def cache_folder() -> Path:
    """The hub's cache, by the environment variables of huggingface_hub; empty ones are not set."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return _expanded(os.environ[name])
    if os.environ.get("HF_HOME"):
        return _expanded(os.environ["HF_HOME"]) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def offline_flag() -> str | None:
    """The variable that forbids to ask the hub, as ``NAME=value``; None when none does."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        value = os.environ.get(name)
        if value:  # the first that is set decides, also when it says no
            return f"{name}={value}" if value.upper() in _TRUE else None
    return None


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(path)))


@dataclass(frozen=True)
class Snapshot:
    """The files of one commit in the cache, ``.../models--ORG--NAME/snapshots/COMMIT``.

    The names in ``folder`` are links; it is used as it is, never resolved.
    """

    folder: Path

    @classmethod
    def of(cls, folder: Path) -> Snapshot | None:
        """The snapshot that a folder is by its place in a cache; None for any other folder."""
        parent = folder.parent
        in_cache = parent.name == "snapshots" and parent.parent.name.startswith("models--")
        return cls(folder) if in_cache else None

    @property
    def repo(self) -> str:
        """``org/name``."""
        return self.folder.parent.parent.name.removeprefix("models--").replace("--", "/")

    @property
    def commit(self) -> str:
        """The commit's hash."""
        return self.folder.name

    @cached_property
    def refs(self) -> list[str]:
        """Branches and tags that stood at this commit when the hub was last asked about them."""
        refs = self.folder.parent.parent / "refs"
        found = [path for path in sorted(refs.rglob("*")) if path.is_file()]
        return [path.relative_to(refs).as_posix() for path in found if _commit(path) == self.commit]

    @property
    def label(self) -> str:
        """The id that leads here: ``org/name`` on the main branch, else with a revision."""
        if DEFAULT_REVISION in self.refs:
            return self.repo
        return f"{self.repo}@{self.refs[0] if self.refs else self.commit[:12]}"

    def missing(self) -> list[str]:
        """Names of files that the snapshot lacks and no model can do without.

        Raises CheckpointError when its weight index is no such file.
        """
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            names = []
        needed = list(REQUIRED)
        try:
            weights = find_weights(self.folder, names)
        except CheckpointError:  # none, or shards without their index
            has_some = any(name.endswith(".safetensors") for name in names)
            return [*self._without(needed), INDEX_NAME if has_some else "model.safetensors"]
        if weights.index is None:
            needed.append(weights.single.name)
        elif os.path.exists(weights.index):
            needed += ShardIndex(weights.index).shards
        else:
            needed.append(weights.index.name)
        return self._without(needed)

    def describe_missing(self, names: list[str]) -> str:
        """Say what of ``missing()`` is not there, and why as far as the cache shows it."""
        first = self.folder / names[0]
        what = broken_link(first)
        if what is None:
            what = f"{self.folder} lacks {', '.join(names[:4])}"
            what += f" and {len(names) - 4} more" if len(names) > 4 else ""
        blobs = self.folder.parent.parent / "blobs"
        cut = len(list(blobs.glob("*.incomplete")))
        if cut:
            what += f" ({cut} download{'s were' if cut > 1 else ' was'} cut off in {blobs})"
        return what

    def notes(self) -> list[str]:
        """What a user should know: files that the repository may have and the cache has not."""
        # Only who fetches a repository whole has this file of git's, so nothing else is missing.
        if (self.folder / ".gitattributes").exists():
            return []
        unknown = [name for name in self._without(OPTIONAL) if not self.lacks_for_sure(name)]
        if not unknown:
            return []
        return [
            f"{self.folder}: not in the cache, and not known whether {self.repo} has them: "
            f"{', '.join(unknown)}: --refresh (load: refresh=True) fetches what there is"
        ]

    def lacks_for_sure(self, name: str) -> bool:
        """Whether the cache knows that the commit has no such file."""
        repo = self.folder.parent.parent
        if (repo / ".no_exist" / self.commit / name).exists():
            return True
        tree = repo / "trees" / f"{self.commit}.json"
        try:
            files = read_json_object(tree, lambda message: HubError(message, tree)).get("files")
        except HubError:  # absent, or of no use: then it is not known
            return False
        return isinstance(files, dict) and name not in files

    def _without(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not os.path.exists(self.folder / name)]


@dataclass(frozen=True)
class CachedRepo:
    """What the cache holds of one repository; ``folder`` need not exist."""

    folder: Path

    @classmethod
    def of(cls, cache: Path, repo: str) -> CachedRepo:
        """The repository ``org/name`` in a cache."""
        return cls(cache / ("models--" + repo.replace("/", "--")))

    def snapshot(self, commit: str) -> Snapshot:
        """The snapshot of a commit, which need not exist."""
        return Snapshot(self.folder / "snapshots" / commit)

    def find(self, revision: str) -> Snapshot | None:
        """The snapshot of a branch, a tag or a commit; None when the cache knows none.

        Raises HubError when the cache cannot be read.
        """
        commit = _commit(self.folder / "refs" / revision)
        if commit is None and "/" not in revision and self.snapshot(revision).folder.is_dir():
            commit = revision
        return None if commit is None else self.snapshot(commit)

    def snapshots(self) -> list[Snapshot]:
        """Every snapshot, complete or not."""
        return [Snapshot(path) for path in sorted(self.folder.glob("snapshots/*"))]

    def record(self, revision: str, snapshot: Snapshot, absent: Iterable[str]) -> None:
        """Write down that a revision is now this complete snapshot, which has no file ``absent``.

        As huggingface_hub does, so that other programs find it too.
        """
        for name in absent:
            marker = self.folder / ".no_exist" / snapshot.commit / name
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        if revision != snapshot.commit:
            ref = self.folder / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            # Whoever reads it meanwhile sees the old commit or the new one, never half a line.
            new = ref.with_name(f"{ref.name}.{os.getpid()}.new")
            new.write_text(snapshot.commit)
            os.replace(new, ref)


def _commit(ref: Path) -> str | None:
    """The commit that a file below refs/ names; None when it is absent, empty or garbled."""
    try:
        text = ref.read_bytes().decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise HubError(f"{ref}: cannot be read: {error.strerror}", ref) from error
    return text if _COMMIT.fullmatch(text) else None

"""The id of a model on the Hugging Face hub: ``org/name`` or ``org/name@revision``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kestrel.errors import HubError

__all__ = ["DEFAULT_REVISION", "HubId"]

DEFAULT_REVISION = "main"

# As the hub names things: letters, digits, "_", "-" and "."; the last two not at either end.
_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPO = re.compile(f"{_WORD}/{_WORD}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")
_LONGEST = 96


@dataclass(frozen=True, slots=True)
class HubId:
    """A repository and one of its revisions: a branch, a tag or a commit."""

    repo: str
    revision: str = DEFAULT_REVISION

    @classmethod
    def parse(cls, text: str) -> HubId | None:
        """The id that a text is, or None when it has not the shape of one.

        Raises HubError when a revision follows that cannot be one.
        """
        repo, at, revision = text.partition("@")
        if not _REPO.fullmatch(repo) or len(repo) > _LONGEST or repo.endswith(".git"):
            return None
        if ".." in repo or "--" in repo:  # the cache separates by the second, so none has it
            return None
        if not at:
            return cls(repo)
        # It becomes a path below refs/ in the cache, and must stay there.
        if not _REVISION.fullmatch(revision) or ".." in revision or revision.endswith("/"):
            raise HubError(
                f"{text}: expected a branch, a tag or a commit after the @, found {revision!r}",
                text,
            )
        return cls(repo, revision)

    def __str__(self) -> str:
        if self.revision == DEFAULT_REVISION:
            return self.repo
        return f"{self.repo}@{self.revision}"

"""How much one model may take at a time."""

from __future__ import annotations

from dataclasses import dataclass

from kestrel.errors import ConfigError, RequestError
from kestrel.models.checks import INT32_MAX, check_integer

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """How much one model may take at a time; the sizes of everything allocated at load.

    Attributes:
        max_tokens: tokens in one step, N; longer prompts are prefilled in chunks of it.
        max_seqs: sequences in one step, S; at most max_tokens.
        max_context: tokens in one sequence; None: max_position_embeddings.
        cache_bytes: memory for the KV cache; None: chosen at load and printed.
        max_logit_rows: rows of logits in one step, L; None: chosen at load.

    Raises RequestError naming the option.
    """

    max_tokens: int = 512
    max_seqs: int = 16
    max_context: int | None = None
    cache_bytes: int | None = None
    max_logit_rows: int | None = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is None and name not in ("max_tokens", "max_seqs"):
                continue
            maximum = 2**63 - 1 if name == "cache_bytes" else INT32_MAX
            try:
                check_integer(name, value, maximum=maximum)
            except ConfigError as error:
                raise RequestError(f"limits: {error}") from None
        if self.max_seqs > self.max_tokens:
            raise RequestError(
                f"limits: max_seqs: expected at most max_tokens ({self.max_tokens}), since every "
                f"running sequence computes a token in each step, found {self.max_seqs}"
                + " (the default)" * (self.max_seqs == type(self).max_seqs)
            )
        if self.max_logit_rows is not None and self.max_logit_rows > self.max_tokens:
            raise RequestError(
                f"limits: max_logit_rows: expected at most max_tokens ({self.max_tokens}), since "
                f"each row belongs to a token of the step, found {self.max_logit_rows}"
            )

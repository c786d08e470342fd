"""What transformers takes for RoPE settings that yarn or longrope leave out."""

from __future__ import annotations

import math

from kestrel.errors import ConfigError
from kestrel.models.fields import Fallback, default, implied

__all__ = ["complete"]

_LENGTH = "original_max_position_embeddings"
_RATIO = f"max_position_embeddings / {_LENGTH}"


def complete(values: dict[str, Fallback], context: int, is_factor_null: bool) -> None:
    """Add to ``values`` what the type needs and the file lacks.

    Args:
        values: setting to its value and source; ``rope_type`` and ``rope_theta`` are there.
        context: ``max_position_embeddings``.
        is_factor_null: the file says null for ``factor``. yarn takes the ratio of the two contexts
            then, but is refused without the key, as in transformers.

    Raises ConfigError for an original context that has no logarithm to divide by.
    """
    kind = values["rope_type"].value
    if kind not in ("yarn", "longrope"):
        return
    values.setdefault(_LENGTH, implied(context, "max_position_embeddings"))
    ratio = implied(context / values[_LENGTH].value, _RATIO)
    if kind == "longrope":
        values.setdefault("attention_factor", _longrope_scale(values, values.get("factor", ratio)))
        return
    values.setdefault("beta_fast", default(32.0))
    values.setdefault("beta_slow", default(1.0))
    values.setdefault("truncate", default(True))
    if is_factor_null:
        values.setdefault("factor", ratio)
    if "factor" in values:
        values.setdefault("attention_factor", _yarn_scale(values))


def _yarn_scale(values: dict[str, Fallback]) -> Fallback:
    """``0.1 ln factor + 1`` (Peng and others 2023, arXiv:2309.00071), or DeepSeek's ratio of two
    such with a factor on the logarithm."""
    factor = values["factor"].value
    by = f"factor ({factor:g})"
    zero = Fallback(0.0, "")
    scales = [values.get(key, zero).value for key in ("mscale", "mscale_all_dim")]
    top, bottom = scales if all(scales) else (1.0, 0.0)
    if all(scales):
        by += f", mscale ({top:g}) and mscale_all_dim ({bottom:g})"

    def stretch(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    return implied(stretch(top) / stretch(bottom), by)


def _longrope_scale(values: dict[str, Fallback], factor: Fallback) -> Fallback:
    """``sqrt(1 + ln factor / ln original)`` (Ding and others 2024, arXiv:2402.13753)."""
    original = values[_LENGTH].value
    name = "factor" if "factor" in values else _RATIO
    by = f"{name} ({factor.value:g})"
    if factor.value <= 1:
        return implied(1.0, by)
    if original < 2:
        raise ConfigError(
            f"{_LENGTH}: expected at least 2, since its logarithm is divided by, found {original}",
            _LENGTH,
        )
    return implied(math.sqrt(1 + math.log(factor.value) / math.log(original)), by)

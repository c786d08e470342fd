"""The rotary embedding: its tables, and their use on queries and keys."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kestrel.bounds.arithmetic import TINY, UNIT32, Arithmetic, Array, Bounded

__all__ = ["rope", "rotary"]


def rotary(
    positions: Array,
    lengths: Array,
    half: int,
    parameters: Mapping[str, object],
    how: Arithmetic,
) -> tuple[Bounded, Bounded]:
    """cos and sin of position times frequency, each [N, half] with its bound.

    Positions and lengths are [N]: where each token stands, and how long its sequence was at the
    end of the call that brought it, by which some types choose their frequencies. ``half`` is half
    of the columns of a head that are rotated. ``parameters`` is the ``rope_parameters`` block of a
    config: rope_theta, rope_type and what the type needs, and the config's
    ``max_position_embeddings``.

    transformers computes ``1 / theta ** (2 i / D)``, scales it and multiplies by
    the position in float32. So the frequency carries the exponent's rounding (which pow magnifies
    by ln(theta) times the exponent), theta's, pow's and the reciprocal's, and scaling adds its
    own. The llama3 blend's weight ``(L / wavelength - low) / (high - low)`` has an absolute error
    of at most ``high / (high - low)`` times its five roundings and the frequency's; four
    roundings follow. Scaling only lowers a frequency, so the unscaled one gives the error's size.
    """
    theta = float(parameters["rope_theta"])
    exponent = np.arange(half) / half
    plain = theta**-exponent
    error = 1 + exponent * (1 + np.log(theta)) + 2 * how.pow_ulps
    error[0] = 0.0  # theta ** 0 is 1 exactly
    frequency = plain
    if parameters["rope_type"] == "linear":
        frequency = plain / parameters["factor"]
        error = error + 1
    elif parameters["rope_type"] == "llama3":
        low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
        turns = parameters["original_max_position_embeddings"] * plain / (2 * np.pi)
        blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
        frequency = plain * (blend + (1 - blend) / parameters["factor"])
        error = error + high / (high - low) * (5 + error) + 4
    elif parameters["rope_type"] != "default":
        raise ValueError(
            f"rope_type: expected default, linear or llama3, found {parameters['rope_type']!r}"
        )
    positions = np.asarray(positions, np.float64)[:, None]
    angle = positions * frequency
    # transformers keeps the tables in float32 even in a float64 model: UNIT32 for every `how`.
    angle_error = UNIT32 * positions * (plain * error + frequency)

    def bounded(table: Array) -> Bounded:
        return table, angle_error + UNIT32 * 2 * how.trig_ulps * np.abs(table) + TINY

    return bounded(np.cos(angle)), bounded(np.sin(angle))


def rope(x: Array, cos: Array, sin: Array, heads: int, how: Arithmetic) -> Bounded:
    """Rotate the first columns of each head of x [N, heads * D] by the tables cos, sin [N, half].

    ``(a cos - b sin, b cos + a sin)`` for the first and the second ``half`` columns a and b, as
    ``apply_rotary_pos_emb`` of transformers: one product and one sum on each path. The columns
    after them are copied.
    """
    x = np.asarray(x, np.float64)
    half = cos.shape[-1]
    a, b, rest = np.split(x.reshape(len(x), heads, -1), [half, 2 * half], axis=-1)
    cos, sin = (np.asarray(t, np.float64)[:, None, :] for t in (cos, sin))
    value = np.concatenate((a * cos - b * sin, b * cos + a * sin, rest), axis=-1)
    a, b, cos, sin = (np.abs(t) for t in (a, b, cos, sin))
    rotated = np.concatenate((a * cos + b * sin, b * cos + a * sin), axis=-1)
    bound = np.concatenate((rotated * how.gamma(0, 2) + TINY, np.zeros_like(rest)), axis=-1)
    return value.reshape(x.shape), bound.reshape(x.shape)

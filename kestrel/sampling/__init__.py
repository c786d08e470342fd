"""Sampling: options, the transforms they stand for, and counter-based random numbers."""

from .history import TokenHistory
from .params import SamplingParams
from .rng import fresh_seed, uniform
from .sampler import Sampled, Sampler, build

__all__ = [
    "Sampled",
    "Sampler",
    "SamplingParams",
    "TokenHistory",
    "build",
    "fresh_seed",
    "uniform",
]

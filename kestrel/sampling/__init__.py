"""Sampling: options, the transforms they stand for, and counter-based random numbers."""

from kestrel.sampling.history import TokenHistory
from kestrel.sampling.params import SamplingParams
from kestrel.sampling.rng import fresh_seed, uniform
from kestrel.sampling.sampler import Sampled, Sampler, build

__all__ = [
    "Sampled",
    "Sampler",
    "SamplingParams",
    "TokenHistory",
    "build",
    "fresh_seed",
    "uniform",
]

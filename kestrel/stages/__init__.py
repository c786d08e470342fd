"""What each stage of a decoder is: a function of earlier stages and of the weights.

This is the definition that `kestrel diff` and the golden tests hold an implementation to. It is
written from transformers' modeling files (``models/llama/modeling_llama.py`` and those of the
other families) and knows nothing of Kestrel's own forward pass, its recorder or its backends:
tests/golden compares both with transformers.
"""

from kestrel.stages.definitions import Stage, rope_lengths, stages_of
from kestrel.stages.geometry import Geometry, LayerGeometry
from kestrel.stages.named_weights import NamedWeights

__all__ = ["Geometry", "LayerGeometry", "NamedWeights", "Stage", "rope_lengths", "stages_of"]

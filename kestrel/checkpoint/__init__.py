"""Checkpoints: Hugging Face model folders and the safetensors files in them."""

from kestrel.checkpoint.checkpoint import Checkpoint
from kestrel.checkpoint.header import ForeignDtype
from kestrel.checkpoint.safetensors_file import SafetensorsFile, TensorView

__all__ = ["Checkpoint", "ForeignDtype", "SafetensorsFile", "TensorView"]

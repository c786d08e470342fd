"""What tells one model family from another: data, and one function that reads its config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kestrel.errors import ConfigError
from kestrel.models.config import DecoderConfig
from kestrel.models.fields import Fields

__all__ = ["LLAMA_LAYER_NAMES", "PROJECTION_NAMES", "Family", "locate"]

#: LayerWeights field to the module's name below ``model.layers.{i}.``: the projections, which
#: most families name alike, and with Llama's norms.
PROJECTION_NAMES = MappingProxyType(
    {
        "q_proj": "self_attn.q_proj",
        "k_proj": "self_attn.k_proj",
        "v_proj": "self_attn.v_proj",
        "o_proj": "self_attn.o_proj",
        "gate_proj": "mlp.gate_proj",
        "up_proj": "mlp.up_proj",
        "down_proj": "mlp.down_proj",
    }
)
LLAMA_LAYER_NAMES = MappingProxyType(
    {
        "input_norm": "input_layernorm",
        **PROJECTION_NAMES,
        "mlp_norm": "post_attention_layernorm",
    }
)


@dataclass(frozen=True)
class Family:
    """A model family.

    Attributes:
        model_type: its name in config.json.
        architectures: the classes of transformers whose checkpoints it reads.
        read: takes config.json's fields. What it does not take is judged by ``Fields.finish``.
        layer_names: LayerWeights field to module name. A norm that is not named is not there.
            Fields with one module share its tensor: its rows are theirs, in the order named.
        skipped: ``fnmatch`` patterns of tensors that public checkpoints carry without need, under
            standard names (``model.layers.0...``).
    """

    model_type: str
    architectures: tuple[str, ...]
    read: Callable[[Fields], DecoderConfig]
    layer_names: Mapping[str, str] = field(default_factory=lambda: LLAMA_LAYER_NAMES)
    skipped: tuple[str, ...] = ()

    def parse(self, config: Mapping[str, object], file: object = None) -> DecoderConfig:
        """Understand a config.json of this family, or refuse it.

        Args:
            config: its content.
            file: its path, for messages.

        Raises ConfigError for a value that cannot be right, UnsupportedModelError for a setting
        that is not implemented or not known; both name the key and the file.
        """
        fields = Fields(config)
        fields.take("architectures")  # judged by family_for
        try:
            fields.choice("model_type", (self.model_type,))
            parsed = self.read(fields)
            fields.finish()
        except ConfigError as error:
            raise locate(error, file) from None
        return replace(parsed, sources=fields.sources, notes=tuple(fields.notes))


def locate(error: ConfigError, file: object) -> ConfigError:
    """The same error with the file in front of its message."""
    return error if file is None else type(error)(f"{file}: {error}", error.key, file)

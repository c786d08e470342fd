#!/usr/bin/env python3
"""Run a model in torch + transformers and write every stage: the dump for `kestrel diff`.

    python tools/dump_reference.py MODEL --prompt "Once upon a time" -o dump.safetensors
    kestrel diff MODEL --reference dump.safetensors

Eager attention, float32 computed from the stored weights, one thread unless told otherwise. The
file holds token_ids [N], each stage [N, width] in float32 by its Hugging Face name, with --double
also each stage of the same code run in float64 under float64/, and versions in its metadata.
Needs torch and transformers (`pip install '.[reference]'`); Kestrel itself does not.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
from safetensors.numpy import save_file

try:
    import torch
    import transformers
    from torch.overrides import TorchFunctionMode
except ImportError as error:
    MISSING, TorchFunctionMode = error, object
else:
    MISSING = None

FORMAT = "kestrel-reference-dump"


class _InFloat64(TorchFunctionMode):
    """Code that asks for float32 by name (norms, softmax) gets float64 instead.

    The rotary tables are left out: there float32 is part of the definition.
    """

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if not self.paused:
            args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
            if func is torch.Tensor.float:
                func = torch.Tensor.double
        return func(*args, **kwargs)


def load(folder: str | Path) -> "transformers.PreTrainedModel":
    """The model of a folder, float32 from the stored values, eager attention."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()


def record(
    model: "transformers.PreTrainedModel",
    ids: Sequence[int],
    double: bool = False,
    run: "Callable[[transformers.PreTrainedModel, list[int], Callable], None] | None" = None,
) -> dict[str, np.ndarray]:
    """Every stage [N, width] over ``ids``; with ``double`` all of it in float64.

    The ids come in one call, or as ``run(model, ids, forget)`` calls the model: rows of later calls
    stand behind those of earlier ones, and ``forget()`` drops what was kept so far. ``double``
    turns the model's parameters to float64 for good; and frequencies that follow the length of the
    sequence stay those of the last call, so a second recording wants a model loaded anew.
    """
    mode = _InFloat64()
    recorder = _Recorder(model, mode)
    if double:
        model.double()
    with torch.no_grad(), recorder.hooks(), mode if double else nullcontext():
        if run is None:
            model(torch.tensor([list(ids)]), use_cache=False)
        else:
            run(model, list(ids), recorder.forget)
    return recorder.stages()


def versions() -> dict[str, str]:
    """What made the numbers."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


class _Recorder:
    """Hooks on the modules of a decoder of the Llama kind, whichever class of transformers it is.

    Stages bear the names of Llama's modules: the parts of a fused projection have one each.
    """

    def __init__(self, model: "transformers.PreTrainedModel", mode: _InFloat64) -> None:
        self.model, self.config, self.mode = model, model.config, mode
        self._pieces: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._handles: list = []

    def stages(self) -> dict[str, np.ndarray]:
        """What was kept, rows of later calls behind those of earlier ones."""
        kept = {name: torch.cat(pieces) for name, pieces in self._pieces.items()}
        if "logits" in kept and torch.equal(kept["logits"], kept["lm_head"]):
            del kept["logits"]
        return {name: tensor.numpy() for name, tensor in kept.items()}

    def forget(self) -> None:
        """Drop what was kept so far."""
        self._pieces.clear()

    def keep(self, name: str, tensor: "torch.Tensor") -> None:
        """[1, N, ...] -> [N, width]; a copy, since later code may work in place."""
        self._pieces[name].append(tensor.detach().reshape(tensor.shape[1], -1).clone())

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Keep every stage of the calls made inside."""
        base = self.model.model
        self._rotary(base.rotary_emb)
        # Some classes scale embeddings after the module: the first layer's input is what counts.
        self._input("model.embed_tokens", base.layers[0])
        names = {}
        for index, layer in enumerate(base.layers):
            names[layer.self_attn] = f"model.layers.{index}.self_attn"
            self._layer(f"model.layers.{index}", layer)
        self._output("model.norm", base.norm)
        self._output("lm_head", self.model.lm_head)
        self._output("logits", self.model, lambda out: out.logits)
        # q and k after the rotation are locals of the attention's forward: seen at the next call.
        source = sys.modules[type(base.layers[0].self_attn).__module__]
        eager = source.eager_attention_forward

        def recording(module, query, key, *rest, **options):
            if getattr(module, "use_rope", True):
                new = query.shape[2]  # [1, heads, N, D], the keys behind those of the cache
                for part, tensor in (("q_rope", query), ("k_rope", key[:, :, -new:])):
                    self.keep(f"{names[module]}.{part}", tensor.transpose(1, 2))
            return eager(module, query, key, *rest, **options)

        try:
            with mock.patch.object(source, "eager_attention_forward", recording):
                yield
        finally:
            for handle in self._handles:
                handle.remove()

    def _layer(self, at: str, layer: "torch.nn.Module") -> None:
        attn, mlp = layer.self_attn, layer.mlp
        for name, module in layer.named_children():
            if type(module).__name__.endswith("RMSNorm"):
                self._output(f"{at}.{name}", module)
        width = self.config.num_key_value_heads * attn.head_dim
        query = self.config.num_attention_heads * attn.head_dim
        sizes = {"q_proj": query, "k_proj": width, "v_proj": width}
        self._projections(f"{at}.self_attn", attn, "qkv_proj", sizes)
        for name in ("q_norm", "k_norm"):
            if hasattr(attn, name):
                self._output(f"{at}.self_attn.{name}", getattr(attn, name), self._heads_behind)
        self._input(f"{at}.self_attn.attn_output", attn.o_proj)
        self._output(f"{at}.self_attn.o_proj", attn.o_proj)
        self._input(f"{at}.self_attn.residual", self._second_half(layer))
        inner = self.config.intermediate_size
        self._projections(f"{at}.mlp", mlp, "gate_up_proj", {"gate_proj": inner, "up_proj": inner})
        self._input(f"{at}.mlp.swiglu", mlp.down_proj)
        self._output(f"{at}.mlp.down_proj", mlp.down_proj)
        self._output(at, layer)

    @staticmethod
    def _second_half(layer: "torch.nn.Module") -> "torch.nn.Module":
        """What reads the residual stream between attention and MLP."""
        if hasattr(layer, "pre_feedforward_layernorm"):
            return layer.pre_feedforward_layernorm
        if hasattr(layer, "input_layernorm"):
            return layer.post_attention_layernorm
        return layer.mlp  # norms after the blocks alone

    def _heads_behind(self, out: "torch.Tensor") -> "torch.Tensor":
        """Gemma 3 norms queries and keys after it has put the heads before the tokens."""
        return out.transpose(1, 2) if self.config.model_type == "gemma3_text" else out

    def _projections(
        self, at: str, block: "torch.nn.Module", fused: str, sizes: dict[str, int]
    ) -> None:
        if not hasattr(block, fused):
            for name in sizes:
                self._output(f"{at}.{name}", getattr(block, name))
            return

        def split(module: "torch.nn.Module", args: tuple, out: "torch.Tensor") -> None:
            for name, part in zip(sizes, out.split(list(sizes.values()), dim=-1)):
                self.keep(f"{at}.{name}", part)

        self._handles.append(getattr(block, fused).register_forward_hook(split))

    def _rotary(self, module: "torch.nn.Module") -> None:
        def before(module: "torch.nn.Module", args: tuple, kwargs: dict) -> None:
            self.mode.paused = True

        def after(module: "torch.nn.Module", args: tuple, kwargs: dict, out: tuple) -> None:
            self.mode.paused = False
            kind = kwargs.get("layer_type", args[2] if len(args) > 2 else None)
            name = rotary_name(self.config, kind)
            for part, table in zip(("cos", "sin"), out if name else ()):
                self.keep(f"{name}.{part}", table[..., : table.shape[-1] // 2])

        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after, with_kwargs=True))

    def _input(self, name: str, module: "torch.nn.Module") -> None:
        def hook(module: "torch.nn.Module", args: tuple, kwargs: dict) -> None:
            self.keep(name, args[0] if args else kwargs["hidden_states"])

        self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def _output(
        self, name: str, module: "torch.nn.Module", of: "Callable | None" = None
    ) -> None:
        def hook(module: "torch.nn.Module", args: tuple, out: object) -> None:
            self.keep(name, of(out) if of else out)

        self._handles.append(module.register_forward_hook(hook))


def rotary_name(config: "transformers.PretrainedConfig", kind: str | None) -> str | None:
    """Stage of the rotary tables of a kind of layers, which is the same for all where the tables
    are; None when they have been named for another kind."""
    if kind is None:
        return "model.rotary_emb"
    first, *others = sorted(set(config.layer_types))
    if any(config.rope_parameters[other] != config.rope_parameters[first] for other in others):
        return f"model.rotary_emb.{kind}"
    return "model.rotary_emb" if kind == first else None


def save(
    path: str | Path,
    ids: Sequence[int],
    stages: dict[str, np.ndarray],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write a dump; ``stages`` of the float64 run carry the prefix ``float64/``."""
    tensors = {"token_ids": np.asarray(ids, np.int64), **stages}
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    about = {"format": FORMAT, "versions": json.dumps(versions(), sort_keys=True)}
    save_file(tensors, str(path), metadata={**about, **(metadata or {})})


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a Hugging Face checkpoint")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="text, encoded by the folder's tokenizer.json")
    prompt.add_argument("--ids", nargs="+", type=int, metavar="ID", help="token ids")
    parser.add_argument("-o", "--output", required=True, help="file to write")
    parser.add_argument("--double", action="store_true", help="record a float64 run as well")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1)")
    options = parser.parse_args(argv)
    if MISSING is not None:
        parser.error(f"needs torch and transformers: pip install '.[reference]' ({MISSING})")
    torch.set_num_threads(options.threads)
    ids = options.ids
    if ids is None:
        from tokenizers import Tokenizer

        ids = Tokenizer.from_file(str(Path(options.model) / "tokenizer.json")).encode(
            options.prompt
        ).ids
    stages = record(load(options.model), ids)
    if options.double:
        double = record(load(options.model), ids, double=True)
        stages |= {f"float64/{name}": tensor for name, tensor in double.items()}
    save(options.output, ids, stages, {"model": str(options.model)})
    print(f"{options.output}: {len(ids)} tokens, {len(stages)} stages")
    return 0


if __name__ == "__main__":
    sys.exit(main())

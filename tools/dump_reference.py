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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from torch.overrides import TorchFunctionMode

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
        return func(*args, **kwargs)


def load(folder: str | Path) -> "transformers.PreTrainedModel":
    """The model of a folder, float32 from the stored values, eager attention."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()


def record(
    model: "transformers.PreTrainedModel", ids: Sequence[int], double: bool = False
) -> dict[str, np.ndarray]:
    """Every stage [N, width] of one run over ``ids``; with ``double`` all of it in float64.

    ``double`` turns the model's parameters to float64 for good.
    """
    mode = _InFloat64()
    stages: dict[str, torch.Tensor] = {}
    with torch.no_grad(), _hooks(model, stages, mode):
        if double:
            model.double()
            with mode:
                model(torch.tensor([list(ids)]), use_cache=False)
        else:
            model(torch.tensor([list(ids)]), use_cache=False)
    return {name: tensor.detach().numpy().copy() for name, tensor in stages.items()}


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


@contextmanager
def _hooks(
    model: "transformers.PreTrainedModel", stages: dict[str, torch.Tensor], mode: _InFloat64
) -> Iterator[None]:
    def keep(name: str, tensor: torch.Tensor) -> None:
        # [1, N, width] -> [N, width]; a copy, since later code may work in place
        stages[name] = tensor.reshape(tensor.shape[1], -1).clone()

    def output(name: str, module: torch.nn.Module) -> list:
        return [module.register_forward_hook(lambda m, args, out: keep(name, out))]

    def input_and_output(name: str, before: str, module: torch.nn.Module) -> list:
        hook = module.register_forward_pre_hook(lambda m, args: keep(before, args[0]))
        return [hook, *output(name, module)]

    def rotary(module: torch.nn.Module, args: tuple, out: tuple) -> None:
        mode.paused = False
        for part, table in zip(("cos", "sin"), out):
            keep(f"model.rotary_emb.{part}", table[..., : table.shape[-1] // 2])

    base = model.model
    handles = output("model.embed_tokens", base.embed_tokens)
    handles += [
        base.rotary_emb.register_forward_pre_hook(lambda m, args: setattr(mode, "paused", True)),
        base.rotary_emb.register_forward_hook(rotary),
    ]
    names = {}
    for index, layer in enumerate(base.layers):
        at = f"model.layers.{index}"
        attn, mlp = layer.self_attn, layer.mlp
        names[attn] = f"{at}.self_attn"
        handles += output(f"{at}.input_layernorm", layer.input_layernorm)
        for part in ("q_proj", "k_proj", "v_proj"):
            handles += output(f"{at}.self_attn.{part}", getattr(attn, part))
        handles += input_and_output(
            f"{at}.self_attn.o_proj", f"{at}.self_attn.attn_output", attn.o_proj
        )
        handles += input_and_output(
            f"{at}.post_attention_layernorm",
            f"{at}.self_attn.residual",
            layer.post_attention_layernorm,
        )
        for part in ("gate_proj", "up_proj"):
            handles += output(f"{at}.mlp.{part}", getattr(mlp, part))
        handles += input_and_output(f"{at}.mlp.down_proj", f"{at}.mlp.swiglu", mlp.down_proj)
        handles += output(at, layer)
    handles += output("model.norm", base.norm) + output("lm_head", model.lm_head)

    # q and k after the rotation are locals of the attention's forward: seen at the next call.
    source = sys.modules[type(base.layers[0].self_attn).__module__]
    eager = source.eager_attention_forward

    def recording(module, query, key, *rest, **options):
        for part, tensor in (("q_rope", query), ("k_rope", key)):
            keep(f"{names[module]}.{part}", tensor.transpose(1, 2))
        return eager(module, query, key, *rest, **options)

    try:
        with mock.patch.object(source, "eager_attention_forward", recording):
            yield
    finally:
        for handle in handles:
            handle.remove()


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
    torch.set_num_threads(options.threads)
    ids = options.ids
    if ids is None:
        from tokenizers import Tokenizer

        ids = Tokenizer.from_file(str(Path(options.model) / "tokenizer.json")).encode(
            options.prompt
        ).ids
    model = load(options.model)
    stages = record(model, ids)
    if options.double:
        stages |= {f"float64/{name}": t for name, t in record(model, ids, double=True).items()}
    save(options.output, ids, stages, {"model": str(options.model)})
    print(f"{options.output}: {len(ids)} tokens, {len(stages)} stages")
    return 0


if __name__ == "__main__":
    sys.exit(main())

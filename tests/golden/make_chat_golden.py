#!/usr/bin/env python3
"""Make the golden strings of chat templates: what transformers makes of every case.

    python tests/golden/make_chat_golden.py

Needs transformers at the version that pyproject.toml pins, and the shared models. Each file holds
the digest of its template and, by the name of the case, the texts without and with generation
prompt; or in place of a text the error. Real tokenizers add the ids of the latter, and those with
the control words of the messages as plain text.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "models"


def own_template(name: str) -> Any:
    """A tokenizer of transformers that has one of our templates, and only its named tokens."""
    from golden.chat_cases import DATA, NAMED_TOKENS
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    source = (DATA / f"{name}.jinja").read_text(encoding="utf-8")
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(BPE()), chat_template=source, **NAMED_TOKENS
    )


def real(folder: Path) -> Any:
    """The tokenizer of a folder, with all its added tokens as control words."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_control_tokens = list(tokenizer.get_added_vocab())
    return tokenizer


def live(tokenizer: Any, with_ids: bool) -> dict[str, Any]:
    """Everything that a golden file holds, computed now."""
    import transformers
    from golden.chat_cases import CASES

    source = tokenizer.get_chat_template()
    return {
        "transformers": transformers.__version__,
        "template_sha256": hashlib.sha256(source.encode("utf-8")).hexdigest(),
        "cases": {case.name: _outcome(tokenizer, case, with_ids) for case in CASES},
    }


def _outcome(tokenizer: Any, case: Any, with_ids: bool) -> dict[str, Any]:
    def apply(**options: Any) -> Any:
        try:
            return tokenizer.apply_chat_template(case.messages, **case.options, **options)
        except Exception as error:  # whatever the template runs into is the golden answer
            return {"error": str(error)}

    texts = [apply(tokenize=False, add_generation_prompt=header) for header in (False, True)]
    outcome = {"texts": texts}
    if with_ids and isinstance(texts[1], str):
        options = {"add_generation_prompt": True, "return_dict": False}
        outcome["ids"] = apply(**options)
        outcome["plain_ids"] = apply(**options, sanitize_control_tokens=True)
    return outcome


def main() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from golden.chat_cases import DATA, OWN_TEMPLATES, REAL_TOKENIZERS

    goldens = {name: live(own_template(name), False) for name in OWN_TEMPLATES}
    goldens.update({name: live(real(SHARED / name), True) for name in REAL_TOKENIZERS})
    for name, golden in goldens.items():
        (DATA / f"{name}.json").write_text(_as_json(golden), encoding="utf-8")
        print(name, len(golden["cases"]), "cases")


def _as_json(golden: dict[str, Any]) -> str:
    """One line a case, so that a change of one is seen as such."""
    cases = golden["cases"].items()
    rows = (f"  {json.dumps(name)}: {json.dumps(case, ensure_ascii=False)}" for name, case in cases)
    head = json.dumps({**golden, "cases": None}, indent=1).removesuffix("null\n}")
    return head + "{\n" + ",\n".join(rows) + "\n }\n}\n"


if __name__ == "__main__":
    main()

"""Prints the shell script that the README's ```sh and ```python blocks make, in order."""

import re
from pathlib import Path

readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
print("set -euxo pipefail")
for language, block in re.findall(r"^```(sh|python)\n(.*?)^```$", readme, re.S | re.M):
    print(block if language == "sh" else f"python - <<'END_OF_BLOCK'\n{block}END_OF_BLOCK")

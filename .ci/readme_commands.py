"""Prints the shell script that the README's ```sh blocks make, in order, word for word."""

import re
from pathlib import Path

readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
print("set -euxo pipefail")
print("\n".join(re.findall(r"^```sh\n(.*?)^```$", readme, re.S | re.M)))

"""``kestrel PROMPT`` imports what it needs and no more: most of the time to its first token.

Which modules are there is asserted, never how long they take: benchmarks/test_load.py measures
that, as test_first_token_of_command.
"""

import sys

from processes import run_python

#: Runs a command as a user would, then prints what was imported beside NumPy's and tokenizers' own
#: modules, which differ by their versions.
GENERATE = """
    import sys
    import numpy, tokenizers
    before = set(sys.modules)
    from kestrel.cli import main
    status = main(["Once upon a time", "--max-tokens", "4", "--quiet", *{options}])
    print()
    print(*sorted(set(sys.modules) - before))
    sys.exit(status)
"""


def imported(*options: str) -> set[str]:
    return set(run_python(GENERATE.format(options=list(options))).stdout.splitlines()[-1].split())


def test_generate_imports_no_other_package():
    for options in ((), ("--greedy",), ("--json", "--seed", "3", "--top-p", "0.9")):
        run_python("""
            import sys
            own = sys.stdlib_module_names | {{"kestrel", "numpy", "tokenizers"}}
            import numpy, tokenizers
            before = {{name.partition(".")[0] for name in sys.modules}}
            from kestrel.cli import main
            assert main(["Once upon a time", "--max-tokens", "4", *{options}]) == 0
            packages = {{name.partition(".")[0] for name in sys.modules}} - before - own
            packages = {{name for name in packages if "cython" not in name}}  # within kestrel._ops
            assert not packages, packages
        """.format(options=list(options)))  # fmt: skip


def test_generate_imports_nothing_that_it_does_not_use():
    found = imported()
    if sys.platform != "darwin":  # where it asks sysctl
        assert "subprocess" not in found
    assert "kestrel.cli.generate" in found and "kestrel._ops" in found
    for name in (
        "numpy.ma",  # np.unique and others import it at their first call
        "numpy.random",
        "numpy.testing",
        "secrets",  # brings OpenSSL
        "kestrel.backends.reference",
        "kestrel.bounds",
        "kestrel.cli.bench",
        "kestrel.cli.chat",
        "kestrel.diff",
        "kestrel.hub.fetch",
        "kestrel.inspection",
        "kestrel.stages",
        "kestrel.text.chat_template",
        "kestrel.text.jinja_environment",
    ):
        assert name not in found, f"{name} is imported by a plain generate"


def test_generate_imports_the_family_of_its_model_alone():
    from kestrel.models import FAMILIES

    families = {f"kestrel.models.{name}" for name in FAMILIES}
    assert imported("--greedy") & families == {"kestrel.models.llama"}

"""The suite of ``pytest benchmarks --benchmark-only``: what every benchmark shares.

KESTREL_BENCHMARK_QUICK=1 takes few rounds and leaves out large models: for CI, which wants to know
that the suite runs and its results agree, not how fast a busy machine is. KESTREL_THREADS and
KESTREL_ISA act as always: with one thread the figures are those of a core. To compare two states of
the code on an idle machine: ``--benchmark-save NAME``, then ``--benchmark-compare``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE))  # the modules beside this file, which are no package

import machine  # noqa: E402
import models  # noqa: E402
from figures import Measure, Work, summary_lines  # noqa: E402
from limits import QUICK  # noqa: E402

from kestrel.errors import KestrelError  # noqa: E402

_LINES = pytest.StashKey[list]()
_FACTS = pytest.StashKey[dict]()
_CLOCK = pytest.StashKey[machine.Clock]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--with-1b-f32",
        action="store_true",
        help="also measure the 1B shape in F32: 5 GB on disk and in memory",
    )
    parser.addoption(
        "--no-mmap",
        action="store_true",
        help="copy weights into memory that can have large pages, as kestrel --no-mmap does",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "large(f32): a large model, left out of the quick mode")
    config.stash[_LINES] = []
    try:
        config.stash[_FACTS] = machine.report()
    except KestrelError as error:  # most of all: the extension is not built
        raise pytest.UsageError(str(error)) from error
    config.stash[_CLOCK] = machine.Clock()


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = machine.report_lines(config.stash[_FACTS])
    if QUICK:
        lines.append("KESTREL_BENCHMARK_QUICK=1: few rounds, small models, times mean little")
    return lines


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict) -> None:
    machine_info.update(config.stash[_FACTS], quick=QUICK)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    # Around pytest-benchmark's own wrapper, which writes its report before it yields.
    for line in session.config.stash[_LINES]:
        line.complete()
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config) -> None:
    lines = config.stash[_LINES]
    if not lines:
        return
    others = config.stash[_CLOCK].others()
    terminalreporter.section("figures" + " (quick mode: times mean little)" * QUICK)
    for line in machine.report_lines(config.stash[_FACTS]):
        terminalreporter.write_line(line)
    terminalreporter.write_line(
        "median and best of the rounds; share of what the machine can do, the best seen in this "
        "run: read bandwidth, or float32 multiply-adds where they take longer; beside: the share "
        "of what it could do at that time, measured between the rounds"
    )
    if others is not None:
        terminalreporter.write_line(
            f"others: processors that other processes kept busy; {others:.2f} over the whole run"
            + ("; read the figures with care" if others > 0.05 else "")
        )
    for line in summary_lines(lines):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def quick() -> bool:
    """Whether this is a run for CI."""
    return QUICK


@pytest.fixture(scope="session")
def facts(pytestconfig: pytest.Config) -> dict:
    """The machine report."""
    return pytestconfig.stash[_FACTS]


@pytest.fixture(scope="session")
def work(facts: dict) -> Callable[..., Work]:
    """Makes a Work; threads and isa are those that the cpu backend takes by itself."""

    def make(**kwargs: object) -> Work:
        return Work(**{"threads": facts["threads"], "isa": facts["isa"]} | kwargs)

    return make


@pytest.fixture
def measure(benchmark, request: pytest.FixtureRequest) -> Measure:
    """Times a call and keeps its figure; see figures.Measure."""
    name = request.node.name.removeprefix("test_")
    return Measure(benchmark, name, QUICK, request.config.stash[_LINES])


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of real checkpoints beside the repository; the benchmark is skipped without it."""
    folder = _HERE.parent.parent / "shared" / "models"
    if not folder.is_dir():
        pytest.skip(f"shared models absent: {folder} is not a folder")
    return folder


@pytest.fixture(scope="session")
def checkpoint(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str], Path]]:
    """Gives the folder of a model: ``(name, dtype)``, a name of models.SHAPES or of shared_models.

    Synthetic ones are written when first asked for, and removed at the end.
    """
    root = Path(tempfile.mkdtemp(prefix="kestrel-benchmarks-"))

    def folder(name: str, dtype: str) -> Path:
        if name not in models.SHAPES:
            return request.getfixturevalue("shared_models") / name
        target = root / f"{name}-{dtype}"
        if not target.exists():
            if name.startswith("1B") and shutil.disk_usage(root).free < 8 << 30:
                pytest.skip(f"{root}: less than 8 GiB free for the {name} checkpoint")
            models.write_model(target, name, dtype)
        return target

    yield folder
    shutil.rmtree(root)


@pytest.fixture
def open_model(checkpoint, pytestconfig: pytest.Config) -> Iterator[Callable]:
    """Loads a model: ``(name, dtype, **options of kestrel.load)``; closed after the benchmark."""
    import kestrel

    mmap = not pytestconfig.getoption("--no-mmap")
    with ExitStack() as stack:

        def load(name: str, dtype: str, **options: object) -> kestrel.Model:
            folder = checkpoint(name, dtype)
            model = stack.enter_context(kestrel.load(folder, mmap=mmap, **options))
            models.touch_cache(model)
            return model

        yield load


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        large = item.get_closest_marker("large")
        if large and QUICK:
            item.add_marker(pytest.mark.skip(reason="quick mode: large models are left out"))
        if large and "f32" in large.args and not config.getoption("--with-1b-f32"):
            item.add_marker(pytest.mark.skip(reason="needs --with-1b-f32"))

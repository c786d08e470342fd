"""Compiles the C of the CPU backend and the programs beside this file, and runs them.

natively, under the sanitizers, and where cross compiler and emulator are installed on arm64 and on
an x86-64 processor without AVX.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent.parent / "native"
FLAGS = (
    "-O3 -std=c11 -fvisibility=hidden -fno-math-errno -fno-trapping-math -ffp-contract=off -Wall"
    " -Wextra -Werror -pthread"
).split()
AVX2 = "-mavx2 -mfma -mf16c".split()
AVX512 = [*AVX2, *"-mavx512f -mavx512bw -mavx512dq -mavx512vl".split()]
ISAS = {
    "x86_64": {
        "scalar": [],
        "avx2": AVX2,
        "avx512": AVX512,
        "avx512vbmi": [*AVX512, "-mavx512vbmi"],
    },
    "arm64": {"scalar": [], "neon": []},
}
MACHINE = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())

# The hash that test_bits.c prints last, over the outputs of all its cases: the same on every
# machine, compiler and instruction set. It changes when cases.c or the order of a sum does.
BITS = "502fe0f896e67f2e"

Build = Callable[..., list[Path]]


def call(*command: object, timeout: float = 600, **env: str) -> str:
    # A sanitizer preloaded for the interpreter is none of theirs: a fork in a program would catch
    # its locks. Programs that want one are linked with it.
    own = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    result = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**own, **env},
    )
    assert result.returncode == 0, f"{command}: {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """build(compiler, machine, *flags) -> objects of the whole backend, made once."""
    made: dict[object, list[Path]] = {}

    def compile_all(compiler: tuple[str, ...], machine: str, *flags: str) -> list[Path]:
        key = (compiler, machine, flags)
        if key in made:
            return made[key]
        folder = tmp_path_factory.mktemp("objects")
        isas = ISAS.get(machine, {"scalar": []})
        cpu = NATIVE / "cpu"
        jobs = []
        for source in sorted(cpu.glob("*.c")):
            if source.name != "isa_table.c":
                with_isas = [f"-DKST_WITH_{isa.upper()}" for isa in isas if isa != "scalar"]
                jobs.append((source, folder / f"{source.stem}.o", with_isas))
        for isa, own in isas.items():
            for source in [cpu / "isa_table.c", *sorted((cpu / "kernels").glob("*.c"))]:
                extra = [f"-DKST_ISA={isa}", *own]
                jobs.append((source, folder / f"{source.stem}_{isa}.o", extra))

        def compile_one(job: tuple[Path, Path, list[str]]) -> Path:
            source, target, extra = job
            call(*compiler, *FLAGS, *flags, *extra, *includes(), "-c", source, "-o", target)
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            made[key] = list(pool.map(compile_one, jobs))
        return made[key]

    return compile_all


def includes() -> list[str]:
    return [f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'cpu'}", f"-I{HERE}"]


def link(compiler: tuple[str, ...], objects: list[Path], name: str, *flags: str) -> Path:
    """A program of tests/native beside its objects."""
    program = objects[0].parent / name
    sources = [HERE / f"{name}.c"]
    if name in ("test_bits", "test_values"):
        sources += [HERE / "cases.c", HERE / "case_data.c"]
    gnu = ["-D_GNU_SOURCE"]
    inputs = [*includes(), *sources, *objects]
    call(*compiler, *FLAGS, "-O1", *gnu, *flags, *inputs, "-o", program, "-lm")
    return program


def c_compiler() -> tuple[str, ...]:
    found = os.environ.get("CC", "cc").split()
    if not shutil.which(found[0]):
        pytest.skip(f"no C compiler: {found[0]} is not installed")
    return tuple(found)


def cross_compiler() -> tuple[str, ...]:
    for name in ("aarch64-linux-gnu-gcc", "qemu-aarch64"):
        if not shutil.which(name):
            pytest.skip(f"{name} is not installed: arm64 is not tested here")
    return ("aarch64-linux-gnu-gcc", "-static")


def sanitizer(compiler: tuple[str, ...], names: str, folder: Path) -> list[str]:
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    flags = [f"-fsanitize={names}"]
    command = [*compiler, *flags, probe, "-o", folder / "probe"]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"{compiler[0]} cannot link -fsanitize={names}")
    # A fork can catch a thread that holds a lock of the sanitizer's. Full debug information takes
    # gcc minutes where structs of 16 lanes meet instrumented code.
    flags += ["-DKST_TEST_NO_FORK", "-g1", "-O1"]
    return [*flags, "-fno-sanitize-recover=all", "-DKST_DEBUG"]


@pytest.mark.parametrize(
    "name", ["test_detect", "test_simd", "test_values", "test_pool", "test_cancel"]
)
def test_program(build: Build, name: str) -> None:
    compiler = c_compiler()
    call(link(compiler, build(compiler, MACHINE), name))


def test_every_instruction_set_gives_the_same_bits(build: Build) -> None:
    compiler = c_compiler()
    printed = call(link(compiler, build(compiler, MACHINE), "test_bits"), "-q")
    assert f"all {BITS}, 0 failures" in printed


@pytest.mark.slow
def test_pool_that_sleeps_on_condition_variables(build: Build) -> None:
    compiler = c_compiler()
    call(link(compiler, build(compiler, "none", "-DKST_NO_FUTEX"), "test_pool", "-DKST_NO_FUTEX"))


@pytest.mark.slow
@pytest.mark.parametrize("park", [[], ["-DKST_NO_FUTEX"]], ids=["futex", "condition-variable"])
def test_pool_under_the_thread_sanitizer(build: Build, tmp_path: Path, park: list[str]) -> None:
    compiler = c_compiler()
    flags = [*sanitizer(compiler, "thread", tmp_path), *park]
    objects = build(compiler, "none", *flags)
    for name in ("test_pool", "test_cancel"):
        call(link(compiler, objects, name, *flags))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["test_bits", "test_pool", "test_cancel", "test_simd", "test_detect"]
)
def test_under_the_memory_sanitizers(build: Build, tmp_path: Path, name: str) -> None:
    compiler = c_compiler()
    flags = sanitizer(compiler, "address,undefined", tmp_path)
    program = link(compiler, build(compiler, MACHINE, *flags), name, *flags)
    call(program, ASAN_OPTIONS="detect_leaks=0")  # the cases live as long as the program


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["test_bits", "test_simd", "test_detect", "test_pool", "test_cancel"]
)
def test_arm64(build: Build, name: str) -> None:
    compiler = cross_compiler()
    # The emulator cannot fork a process with threads.
    program = link(compiler, build(compiler, "arm64"), name, "-DKST_TEST_NO_FORK")
    printed = call("qemu-aarch64", program)
    if name == "test_bits":
        assert "isa neon: compared" in printed
        assert f"all {BITS}, 0 failures" in printed


@pytest.mark.slow
@pytest.mark.skipif(MACHINE != "x86_64", reason="the emulated processor is x86-64")
def test_processor_without_avx(build: Build) -> None:
    """S47: no illegal instruction; what is missing is named."""
    if not shutil.which("qemu-x86_64"):
        pytest.skip("qemu-x86_64 is not installed")
    compiler = c_compiler()
    emulator = ["qemu-x86_64", "-cpu", "Nehalem"]
    objects = build(compiler, MACHINE)
    printed = call(*emulator, link(compiler, objects, "test_detect"))
    missing = "the processor lacks avx, fma, f16c, avx2"
    assert f"isa avx2 compiled=1 supported=0 missing={missing}" in printed
    printed = call(*emulator, link(compiler, objects, "test_bits"), "-q", "in one share")
    assert f"all {BITS}, 0 failures" in printed


@pytest.mark.slow
@pytest.mark.parametrize("target", ["aarch64-macos", "x86_64-macos"])
def test_macos(build: Build, target: str, tmp_path: Path) -> None:
    """The sources compile for macOS and link into one library without a missing symbol."""
    pytest.importorskip("ziglang", reason="ziglang is not installed: macOS is not tested here")
    compiler = (sys.executable, "-m", "ziglang", "cc", "-target", target)
    machine = {"aarch64-macos": "arm64", "x86_64-macos": "x86_64"}[target]
    objects = build(compiler, machine)
    call(*compiler, "-shared", *objects, "-o", tmp_path / "libkestrel.dylib")
    assert (tmp_path / "libkestrel.dylib").stat().st_size > 10_000

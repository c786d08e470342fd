"""The option functions of setup.py, with every platform's values; nothing is compiled here."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("setuptools", reason="setuptools is not installed: pip install '.[test]'")
from setuptools.errors import SetupError  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def build():
    """setup.py as a module; it builds only when it is the main program."""
    spec = importlib.util.spec_from_file_location("kestrel_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- options ---------------------------------------------------------------------------------------


def test_defaults(build):
    assert build.read_options({}, "x86_64") == (None, False, False, False, "")
    off = {"KESTREL_BLAS": "none", "KESTREL_CUDA": "0", "KESTREL_METAL": "", "KESTREL_ISAS": ""}
    assert build.read_options(off, "arm64") == build.Options()


def test_every_option_is_read(build):
    environ = {
        "KESTREL_ISAS": "avx2",
        "KESTREL_NATIVE": "1",
        "KESTREL_DEBUG": "1",
        "KESTREL_ANNOTATE": "1",
        "KESTREL_SANITIZE": "undefined, address",
        "KESTREL_ISA": "scalar",  # of the run, not of the build
    }
    expected = (("scalar", "avx2"), True, True, True, "address,undefined")
    assert build.read_options(environ, "x86_64") == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"KESTREL_ISAS": "avx3"}, "KESTREL_ISAS: expected names among scalar, avx2, .*'avx3'"),
        ({"KESTREL_ISAS": "neon"}, "KESTREL_ISAS: neon is for arm64, this build for x86_64"),
        ({"KESTREL_SANITIZE": "memory"}, "KESTREL_SANITIZE: expected address, .*'memory'"),
        ({"KESTREL_SANITIZE": "address,thread"}, "found 'address,thread'"),
        ({"KESTREL_DEBUG": "yes"}, "KESTREL_DEBUG: expected 0 or 1, found 'yes'"),
        ({"KESTREL_BLAS": "openblas"}, "KESTREL_BLAS=openblas: this version cannot build that"),
        ({"KESTREL_CUDA": "1"}, "KESTREL_CUDA=1: .* unset it, or use 0"),
        ({"KESTREL_METAL": "1"}, "KESTREL_METAL=1: this version cannot build that"),
        ({"KESTREL_ABI3": "1"}, "KESTREL_ABI3=1: this version cannot build that"),
        ({"KESTREL_SANITISE": "address"}, "KESTREL_SANITISE means nothing to this build; it knows"),
        ({"CFLAGS": "-O2 -ffast-math"}, "CFLAGS holds -ffast-math: results would not be exact"),
        ({"LDFLAGS": "-Ofast"}, "LDFLAGS holds -Ofast"),
    ],
)
def test_what_is_not_understood_is_refused(build, environ, message):
    with pytest.raises(SetupError, match=message):
        build.read_options(environ, "x86_64")


def test_flags_of_the_options(build):
    assert build.Options().flags() == []
    assert "-DKST_DEBUG" in build.Options(debug=True).flags()
    assert "-fsanitize=thread" in build.Options(sanitize="thread").flags()


# -- target ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "tag", "host", "machine"),
    [
        ("linux", "linux-x86_64", "x86_64", "x86_64"),
        ("linux", "linux-aarch64", "x86_64", "arm64"),  # _PYTHON_HOST_PLATFORM of a cross build
        ("linux", "linux-riscv64", "riscv64", "riscv64"),
        ("darwin", "macosx-11.0-arm64", "arm64", "arm64"),
        ("darwin", "macosx-10.13-x86_64", "x86_64", "x86_64"),
        ("darwin", "macosx-10.13-x86_64", "arm64", "x86_64"),  # Rosetta
        ("darwin", "macosx-10.13-universal2", "arm64", "arm64"),
        ("darwin", "macosx-10.13-universal2", "x86_64", "x86_64"),
    ],
)
def test_target_machine(build, system, tag, host, machine):
    assert build.target_machine({}, system, tag, host) == machine


def test_one_arch_flag_decides(build):
    for flags in ("-arch x86_64", "-arch x86_64 -arch x86_64"):
        environ = {"ARCHFLAGS": flags}
        args = (environ, "darwin", "macosx-11.0-universal2", "arm64")
        assert build.target_machine(*args) == "x86_64"


def test_two_arch_flags_are_refused_with_the_reason(build):
    environ = {"ARCHFLAGS": "-arch arm64 -arch x86_64"}
    with pytest.raises(SetupError, match="arm64 and x86_64 in one build, but -mavx2 means nothing"):
        build.target_machine(environ, "darwin", "macosx-11.0-universal2", "arm64")


def test_windows_is_refused(build):
    with pytest.raises(SetupError, match="builds on Linux and macOS; this is win32"):
        build.target_machine({}, "win32", "win-amd64", "AMD64")


@pytest.mark.parametrize(
    ("environ", "machine", "configured", "target", "tag"),
    [
        ({}, "arm64", "11.0", "11.0", "macosx-11.0-arm64"),
        ({}, "x86_64", "10.13", "11.0", "macosx-11.0-x86_64"),
        ({}, "arm64", "14.0", "14.0", "macosx-14.0-arm64"),  # Homebrew's Python
        ({}, "arm64", None, "11.0", "macosx-11.0-arm64"),
        ({"MACOSX_DEPLOYMENT_TARGET": "13.0"}, "arm64", "11.0", "13.0", "macosx-13.0-arm64"),
        (
            {"_PYTHON_HOST_PLATFORM": "macosx-12.0-arm64", "MACOSX_DEPLOYMENT_TARGET": "12.0"},
            "arm64",
            "11.0",
            "12.0",
            "macosx-12.0-arm64",
        ),
    ],
)
def test_macos_environment(build, environ, machine, configured, target, tag):
    assert build.macos_environment(environ, machine, configured) == {
        "ARCHFLAGS": f"-arch {machine}",
        "MACOSX_DEPLOYMENT_TARGET": target,
        "_PYTHON_HOST_PLATFORM": tag,
    }


# -- native objects --------------------------------------------------------------------------------


def test_kernels_are_compiled_once_per_instruction_set(build, monkeypatch):
    monkeypatch.chdir(ROOT)
    units = build.native_units(["scalar", "avx2"], build.Options())
    objects = [(source, folder) for source, folder, _ in units]
    assert len(objects) == len(set(objects))
    kernels = sorted((ROOT / "native/cpu/kernels").glob("*.c"))
    for isa, flag in (("scalar", "-DKST_ISA=scalar"), ("avx2", "-mavx2")):
        sources = [source for source, folder, flags in units if folder == isa]
        names = [path.relative_to(ROOT).as_posix() for path in kernels]
        assert sources == ["native/cpu/isa_table.c", *names]
        assert all(flag in flags for _, folder, flags in units if folder == isa)
    baseline = {source: flags for source, folder, flags in units if folder == "baseline"}
    assert {"native/cpu/detect.c", "native/cpu/dispatch.c", "native/cpu/pool.c"} <= set(baseline)
    assert not any(flag.startswith("-m") for flags in baseline.values() for flag in flags)
    assert "-DKST_WITH_AVX2" in baseline["native/cpu/dispatch.c"]
    assert "-DKST_WITH_AVX512" not in baseline["native/cpu/dispatch.c"]
    assert all({"-ffp-contract=off", "-fno-lto"} <= set(flags) for _, _, flags in units)


def test_a_kernel_named_after_an_instruction_set_is_for_it_alone(build, monkeypatch, tmp_path):
    for name in ("isa_table.c", "kernels/add.c", "kernels/linear_avx2.c", "kernels/linear_f16.c"):
        path = tmp_path / "native/cpu" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    units = build.native_units(["scalar", "avx2"], build.Options())
    folders = {}
    for source, folder, _ in units:
        folders.setdefault(Path(source).name, []).append(folder)
    assert folders["linear_avx2.c"] == ["avx2"]
    assert folders["linear_f16.c"] == folders["add.c"] == ["scalar", "avx2"]


def test_native_builds_for_this_machine_and_says_so(build, monkeypatch):
    monkeypatch.chdir(ROOT)
    for _, folder, flags in build.native_units(["scalar"], build.Options(native=True)):
        assert ("-march=native" in flags) == (folder != "baseline")

    from setuptools import Distribution

    def finalized(tag):
        command = build.BdistWheel(Distribution({"name": "kestrel", "version": "0"}))
        command.plat_name = tag
        command.finalize_options()
        return command

    assert finalized(None).build_number is None
    monkeypatch.setenv("KESTREL_NATIVE", "1")
    assert finalized(None).build_number == "1native"
    with pytest.raises(SetupError, match="for this processor alone, .* manylinux_2_28_x86_64"):
        finalized("manylinux_2_28_x86_64")


def test_run_time_and_build_know_each_others_variables(build):
    from kestrel import runtime

    assert set(build.RUN_TIME) == set(runtime._RUN_VARIABLES)
    known = {"KESTREL_ISAS", "KESTREL_SANITIZE", *build.SWITCHES, *build.ABSENT}
    assert known <= runtime._OTHER_VARIABLES

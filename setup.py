"""Build logic, all of it: options, target, native objects, extension, main.

native/cpu/kernels/*.c and isa_table.c are compiled once per instruction set, each into a folder of
its own. setuptools' build_clib cannot do that: it compiles every library into one build_temp and
skips objects that look up to date, so a second instruction set would get the first one's objects.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, SetupError


class Isa(NamedTuple):
    """An instruction set: its machine (None: any), its flags, a source that needs them."""

    machine: str | None
    flags: list[str]
    probe: str


AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
X86 = "#include <immintrin.h>\n"
FMA = "__m256 f(__m256 a, __m128i h) { return _mm256_fmadd_ps(a, a, _mm256_cvtph_ps(h)); }"
AND = "__m512 f(__m512 a, __m512 b) { return _mm512_and_ps(_mm512_fmadd_ps(a, b, a), b); }"
PERMUTE = "__m512i f(__m512i a, __m512i b) { return _mm512_permutexvar_epi8(a, b); }"
ISAS = {
    "scalar": Isa(None, [], ""),
    "avx2": Isa("x86_64", AVX2, X86 + FMA),
    "avx512": Isa("x86_64", AVX512, X86 + AND),
    "avx512vbmi": Isa("x86_64", [*AVX512, "-mavx512vbmi"], X86 + PERMUTE),
    "neon": Isa("arm64", [], ""),
}
INCLUDES = ["native/include", "native/cpu"]
FLAGS = (
    "-O3 -std=c11 -fvisibility=hidden -fno-math-errno -fno-trapping-math -ffp-contract=off -fno-lto"
    " -pthread -Wall -Wextra -Werror=implicit"
).split()

SWITCHES = ("KESTREL_NATIVE", "KESTREL_DEBUG", "KESTREL_ANNOTATE")
SANITIZERS = ("", "address", "undefined", "address,undefined", "thread")
# What this version does not have yet can only be "off".
ABSENT = {f"KESTREL_{name}": "0" for name in ("METAL", "METALLIB", "CUDA", "ABI3")}
ABSENT["KESTREL_BLAS"] = "none"
RUN_TIME = ("KESTREL_ISA", "KESTREL_THREADS", "KESTREL_BACKEND", "KESTREL_EAGER")
# Compiler flags that reorder sums, or link code that flushes subnormals in the whole process.
INEXACT = {"ffast-math", "Ofast", "funsafe-math-optimizations", "fassociative-math"}


class Options(NamedTuple):
    """What the environment asks of the build. ``isas`` None: all that the compiler can build."""

    isas: tuple[str, ...] | None = None
    native: bool = False
    debug: bool = False
    annotate: bool = False
    sanitize: str = ""

    def flags(self) -> list[str]:
        """Flags for every object; those that begin with -f go to the linker too."""
        flags = ["-DKST_DEBUG", "-UNDEBUG"] if self.debug else []
        if self.debug or self.sanitize:
            # gcc takes minutes for full debug information of instrumented 16-lane structs.
            flags += ["-O1", "-g1" if self.sanitize else "-g"]
        if self.sanitize:
            flags += ["-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
            flags += [f"-fsanitize={self.sanitize}"]
        return flags


def read_options(environ: Mapping[str, str], machine: str) -> Options:
    """The build variables. One that is not understood, or not supported yet, is refused."""
    known = {"KESTREL_ISAS", "KESTREL_SANITIZE", *SWITCHES, *ABSENT, *RUN_TIME}
    for name in sorted(environ):
        if name.startswith("KESTREL_") and name not in known:
            names = ", ".join(sorted(known))
            raise SetupError(f"{name} means nothing to this build; it knows {names}")
    for name, off in ABSENT.items():
        if environ.get(name) not in (None, "", off):
            found = f"{name}={environ[name]}"
            raise SetupError(f"{found}: this version cannot build that; unset it, or use {off}")
    for name in SWITCHES:
        if environ.get(name) not in (None, "", "0", "1"):
            raise SetupError(f"{name}: expected 0 or 1, found {environ[name]!r}")
    for name in ("CFLAGS", "CPPFLAGS", "LDFLAGS"):
        for flag in shlex.split(environ.get(name, "")):
            if flag.lstrip("-") in INEXACT:
                raise SetupError(f"{name} holds {flag}: results would not be exact; drop it")
    sanitize = ",".join(sorted(_words(environ.get("KESTREL_SANITIZE", ""))))
    if sanitize not in SANITIZERS:
        expected = "address, undefined, both, or thread"
        raise SetupError(f"KESTREL_SANITIZE: expected {expected}, found {sanitize!r}")
    isas = _wanted_isas(environ.get("KESTREL_ISAS", ""), machine)
    return Options(isas, *(environ.get(name) == "1" for name in SWITCHES), sanitize)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _wanted_isas(text: str, machine: str) -> tuple[str, ...] | None:
    wanted = _words(text)
    for name in wanted:
        if name not in ISAS:
            names = ", ".join(ISAS)
            raise SetupError(f"KESTREL_ISAS: expected names among {names}, found {name!r}")
        if ISAS[name].machine not in (None, machine):
            owner = ISAS[name].machine
            raise SetupError(f"KESTREL_ISAS: {name} is for {owner}, this build for {machine}")
    return tuple(name for name in ISAS if name == "scalar" or name in wanted) if wanted else None


def target_machine(environ: Mapping[str, str], system: str, tag: str, host: str) -> str:
    """The machine to build for: ``x86_64``, ``arm64`` or another name, which gets scalar alone.

    ``system`` is sys.platform, ``tag`` sysconfig.get_platform() (_PYTHON_HOST_PLATFORM overrides it
    in cross builds), ``host`` platform.machine().
    """
    if system != "darwin" and not system.startswith("linux"):
        raise SetupError(f"Kestrel builds on Linux and macOS; this is {system} (Windows: use WSL)")
    machine = tag.rpartition("-")[2]
    if system == "darwin":
        arches = sorted(set(re.findall(r"-arch\s+(\S+)", environ.get("ARCHFLAGS", ""))))
        if len(arches) > 1:
            raise SetupError(
                f"ARCHFLAGS asks for {' and '.join(arches)} in one build, but -mavx2 means nothing "
                "to the arm64 half: build one wheel for each, with one -arch flag"
            )
        machine = arches[0] if arches else host if machine == "universal2" else machine
    return {"amd64": "x86_64", "aarch64": "arm64"}.get(machine.lower(), machine.lower())


def macos_environment(environ: Mapping[str, str], machine: str, configured: object) -> dict:
    """Variables with which a universal2 Python builds, and tags, a wheel for one machine.

    ``configured`` is the deployment target of Python itself; setuptools refuses one below it.
    """
    oldest = max("11.0", str(configured or "0"), key=lambda v: [int(n) for n in v.split(".")])
    target = environ.get("MACOSX_DEPLOYMENT_TARGET") or oldest
    tag = environ.get("_PYTHON_HOST_PLATFORM") or f"macosx-{target}-{machine}"
    names = ("ARCHFLAGS", "MACOSX_DEPLOYMENT_TARGET", "_PYTHON_HOST_PLATFORM")
    return dict(zip(names, (f"-arch {machine}", target, tag)))


def current_machine() -> str:
    """`target_machine` of this process."""
    where = (sys.platform, sysconfig.get_platform(), platform.machine())
    return target_machine(os.environ, *where)


Unit = tuple[str, str, list[str]]  # an object: its source, its folder below build_temp, flags


def native_units(isas: list[str], options: Options) -> list[Unit]:
    """Every object of the CPU backend: baseline sources once, kernels once per instruction set,
    and a kernel file whose name ends in ``_<isa>`` for that instruction set alone.
    """
    table = "native/cpu/isa_table.c"
    common = FLAGS + options.flags()
    with_isas = [f"-DKST_WITH_{isa.upper()}" for isa in isas]
    baseline = [path for path in native_files(".c") if path.count("/") == 2 and path != table]
    kernels = [path for path in native_files(".c") if path.startswith("native/cpu/kernels/")]
    units = [(path, "baseline", common + with_isas) for path in baseline]
    for isa in isas:
        flags = [*common, *ISAS[isa].flags, f"-DKST_ISA={isa}", *["-march=native"] * options.native]
        for path in [table, *kernels]:
            owner = Path(path).stem.rpartition("_")[2]
            if owner not in ISAS or owner == isa:
                units.append((path, isa, flags))
    return units


def native_files(*suffixes: str) -> list[str]:
    """Files below native/include and native/cpu with one of the suffixes."""
    found = [path for top in INCLUDES for path in Path(top).rglob("*") if path.suffix in suffixes]
    return sorted(path.as_posix() for path in found)


class BuildExt(build_ext):
    """Compiles the native objects, then kestrel._ops, which is linked with them."""

    def build_extensions(self) -> None:
        machine = current_machine()
        options = read_options(os.environ, machine)
        isas = self._buildable(options, machine)
        print(f"kestrel: {machine}, instruction sets {', '.join(isas)}")
        # Objects of other flags would look up to date: the stamp says what the last ones were.
        stamp = Path(self.build_temp, "kestrel-build.txt")
        state = repr((options, isas, FLAGS, ISAS, self.compiler.compiler_so))
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != state:
            stamp.unlink(missing_ok=True)
            self.force = True
        [ops] = self.extensions
        words = ["native"] * options.native + ["debug"] * options.debug + [options.sanitize]
        ops.define_macros.append(("KST_BUILD_OPTIONS", f'"{" ".join(words).strip()}"'))
        ops.extra_compile_args += options.flags()
        ops.extra_link_args += [flag for flag in options.flags() if flag.startswith("-f")]
        ops.extra_objects = self._compile(native_units(isas, options))
        ops.sources = self._cythonize(ops.name, options)
        super().build_extensions()
        stamp.write_text(state, encoding="utf-8")

    def _buildable(self, options: Options, machine: str) -> list[str]:
        """The instruction sets to build. What the compiler cannot build is left out, and named."""
        isas = []
        for name in options.isas or [n for n in ISAS if ISAS[n].machine in (None, machine)]:
            source = Path(self.build_temp, f"probe_{name}.c")
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text(ISAS[name].probe + "\n", encoding="ascii")
            try:
                flags = ISAS[name].flags
                self.compiler.compile([str(source)], self.build_temp, extra_postargs=flags)
                isas.append(name)
            except CompileError as error:
                if name == "scalar" or options.isas:
                    raise SetupError(f"the compiler cannot build {name}: {error}") from error
                print(f"kestrel: {name} left out, the compiler cannot build it: {error}")
        return isas

    def _compile(self, units: list[Unit]) -> list[str]:
        """Compile what is older than its source or any header, in parallel; returns all objects."""
        newest = max(os.path.getmtime(path) for path in native_files(".h", ".def"))

        def compile_one(unit: Unit) -> str:
            source, folder, flags = unit[0], os.path.join(self.build_temp, unit[1]), unit[2]
            [result] = self.compiler.object_filenames([source], output_dir=folder)
            changed = max(newest, os.path.getmtime(source))
            if self.force or not os.path.exists(result) or os.path.getmtime(result) <= changed:
                self.compiler.compile([source], folder, None, INCLUDES, extra_postargs=flags)
            return result

        with ThreadPoolExecutor(self.parallel or min(8, os.cpu_count() or 1)) as pool:
            return list(pool.map(compile_one, units))

    def _cythonize(self, name: str, options: Options) -> list[str]:
        from Cython.Build import cythonize

        checks = dict.fromkeys(("boundscheck", "wraparound", "initializedcheck"), options.debug)
        directives = {"language_level": 3, "binding": True, **checks}
        extension = Extension(name, ["kestrel/_ops.pyx"])
        how = {"compiler_directives": directives, "annotate": options.annotate}
        folder, force = self.build_temp, bool(self.force)
        return cythonize([extension], build_dir=folder, force=force, **how)[0].sources


class BdistWheel(bdist_wheel):
    """Marks a wheel built with -march=native, and refuses to call it portable."""

    def finalize_options(self) -> None:
        if os.environ.get("KESTREL_NATIVE") == "1":
            self.build_number = self.build_number or "1native"
            if re.match("manylinux|musllinux", self.plat_name or ""):
                raise SetupError(
                    "KESTREL_NATIVE=1 builds for this processor alone, and a wheel tagged "
                    f"{self.plat_name} would crash on others: unset KESTREL_NATIVE"
                )
        super().finalize_options()


def main() -> None:
    """Called by pip, build and ``python setup.py``."""
    from build_manpages import build_manpages

    machine = current_machine()
    if sys.byteorder != "little":
        raise SetupError("Kestrel reads weights in place, as little-endian: this machine is not")
    if sys.platform == "darwin":
        configured = sysconfig.get_config_var("MACOSX_DEPLOYMENT_TARGET")
        os.environ.update(macos_environment(os.environ, machine, configured))
    ops = Extension(
        "kestrel._ops",
        ["kestrel/_ops.pyx"],
        include_dirs=INCLUDES,
        # setuptools relinks when one of these is newer than the extension.
        depends=[*map(str, Path("kestrel").glob("*.pxd")), *native_files(".c", ".h", ".def")],
        extra_compile_args=["-fvisibility=hidden", "-pthread"],
        extra_link_args=["-pthread"],
        libraries=["m"],
    )
    commands = {"build_ext": BuildExt, "bdist_wheel": BdistWheel, "build_manpages": build_manpages}
    setup(ext_modules=[ops], cmdclass=commands)


if __name__ == "__main__":
    main()

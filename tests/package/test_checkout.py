"""An installed dlbridge is imported from everywhere, also in a checkout that is not compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("dlbridge", "include", "pyproject.toml", "setup.py", "_dlbridge_pytest.py", "README.md")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout without anything that was compiled."""
    folder = tmp_path_factory.mktemp("clone")
    for name in (*PARTS, "LICENSE", "MANIFEST.in", "CHANGELOG.md", "SECURITY.md"):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("*.so", "__pycache__", "_cffi.c")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with an installed dlbridge: this one."""
    (tmp_path / "dlbridge").symlink_to(ROOT / "dlbridge")
    return tmp_path


def python(
    *arguments: str, folder: Path, path: Path | None = None, **changes: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path or ""), **changes}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


FILE = "import dlbridge; print(dlbridge.__file__)"


@pytest.mark.fast(lambda arguments: len(arguments[1]) < 60)
@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", FILE),
        ("-c", f"import dlbridge.graph, dlbridge.check; {FILE}"),
        ("-c", f"from dlbridge.errors import ExchangeError; {FILE}"),
        ("-c", f"from dlbridge import *; {FILE}; assert to_numpy"),
    ],
)
def test_in_a_checkout_the_installed_one_is_imported(
    clone: Path, site: Path, arguments: tuple[str, ...]
) -> None:
    done = python(*arguments, folder=clone, path=site)
    assert done.stderr == ""
    assert Path(done.stdout.strip()) == site / "dlbridge" / "__init__.py"


def test_modules_run_in_a_checkout(clone: Path, site: Path) -> None:
    done = python("-m", "dlbridge", "version", folder=clone, path=site)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("dlbridge ")


@pytest.mark.full
def test_each_module_is_imported_once(clone: Path, site: Path) -> None:
    code = (
        "import sys, dlbridge, dlbridge.registry as registry\n"
        "assert sys.modules['dlbridge'] is dlbridge and dlbridge.registry is registry\n"
        "files = [str(getattr(x, '__file__', '')) for x in list(sys.modules.values())]\n"
        f"assert not [file for file in files if file.startswith({str(clone)!r})], files"
    )
    done = python("-c", code, folder=clone, path=site)
    assert done.returncode == 0, done.stderr
    ledger = python("-c", "import dlbridge", folder=clone, path=site, DLBRIDGE_LEDGER="1")
    once = python("-c", "import dlbridge", folder=site, path=site, DLBRIDGE_LEDGER="1")
    assert ledger.stderr.count("\n") == once.stderr.count("\n") > 0


def test_a_checkout_alone_says_what_to_do(clone: Path) -> None:
    code = f"import sys; sys.path[:0] = [{str(clone)!r}]; import dlbridge"
    done = python("-I", "-S", "-c", code, folder=clone)
    assert done.returncode == 1
    text = done.stderr.splitlines()[-1]
    assert text.startswith(f"ImportError: dlbridge: {clone / 'dlbridge'} are sources whose native")
    assert "no dlbridge is installed for this Python; run `pip install .`" in text
    assert "pip install --editable ." in text


def test_an_installed_one_of_another_version_is_named(clone: Path, tmp_path: Path) -> None:
    other = tmp_path / "dlbridge"
    (other / "_core").mkdir(parents=True)
    (other / "__init__.py").write_text('__version__ = "0.0.1"\n')
    for compiled in (ROOT / "dlbridge" / "_core").glob("_cffi*.so"):
        (other / "_core" / compiled.name).symlink_to(compiled)
    code = f"import sys; sys.path[:0] = [{str(clone)!r}, {str(tmp_path)!r}]; import dlbridge"
    done = python("-I", "-S", "-c", code, folder=clone)
    assert "the installed dlbridge is version 0.0.1, and they are" in done.stderr, done.stderr


def test_make_demo_says_first_what_it_installs_and_shows_progress(clone: Path) -> None:
    make = shutil.which("make") or pytest.skip("there is no make")
    shutil.copy(ROOT / "Makefile", clone)
    done = subprocess.run(
        [make, "-n", "demo"], cwd=clone, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("make")]
    assert lines[0].startswith('echo ".venv: installing dlbridge with NumPy, PyTorch')
    install = next(line for line in lines if " pip install " in line)
    assert "-q" not in install.split()
    assert "-qq" not in install.split()
    assert "pip install -qq" not in done.stdout


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_printed_commands_run_in_a_fresh_clone(clone: Path, tmp_path: Path) -> None:
    """`pip install .` and Python in the same folder; and the editable install of the targets."""
    pytest.importorskip("setuptools")
    pip = ("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation")
    for name, options in (("site", ()), ("editable", ("--editable",))):
        path = tmp_path / name
        done = python(*pip, "--target", str(path), *options, ".", folder=clone)
        assert done.returncode == 0, done.stderr
        found = python("-c", FILE, folder=clone, path=path)
        place = path if name == "site" else clone
        assert Path(found.stdout.strip()) == place / "dlbridge" / "__init__.py", found.stderr
        version = python("-m", "dlbridge", "version", folder=clone, path=path)
        assert version.stdout.startswith("dlbridge "), version.stderr
    package = tmp_path / "site" / "dlbridge"
    assert (package / "include" / "dlbridge_kernel.h").is_file()
    assert (package / "include" / "dlbridge_kernelConfig.cmake").is_file()
    assert (package / "kernels" / "template" / "src" / "NAME" / "kernels.cpp.in").is_file()
    lines = [file.read_text().strip() for file in (tmp_path / "editable").glob("*.pth")]
    assert str(clone) in lines  # no import hook, which editors do not run

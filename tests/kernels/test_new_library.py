"""`python -m dlbridge new-kernel-library`: what it writes builds, and its own tests pass."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import dlbridge
from dlbridge import cli
from dlbridge.errors import ArgumentError
from dlbridge.kernels.project import write_project
from dlbridge.testing import check_kernel

ROOT = Path(__file__).resolve().parents[2]


def run(*command: object, folder: Path, path: Path | None = None) -> str:
    """Return what a command prints, which must end well, with dlbridge importable."""
    places = [str(place) for place in (path, ROOT) if place is not None]
    places += [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_cmake_builds_it_and_its_operator_is_right(tmp_path: Path) -> None:
    if shutil.which("cmake") is None or not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("CMake or a C++ compiler is missing")
    write_project("mylib", tmp_path)
    build = tmp_path / "build"
    python = f"-DPython_EXECUTABLE={sys.executable}"
    run("cmake", "-S", tmp_path / "mylib", "-B", build, python, folder=tmp_path)
    run("cmake", "--build", build, folder=tmp_path)
    library = dlbridge.load_library(build / "libmylib.so")
    assert library.silu.vjp is library.silu_vjp
    check_kernel(library.silu, lambda x: x / (1 + np.exp(-x)), frameworks=["numpy"])


@pytest.mark.full
@pytest.mark.timeout(300)
def test_its_wheel_is_for_every_python_and_its_tests_pass(tmp_path: Path) -> None:
    """Installed beside the frameworks of this environment, each of which its test asks."""
    if importlib.util.find_spec("scikit_build_core") is None:
        pytest.skip("scikit-build-core is not installed")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("a C++ compiler is missing")
    write_project("mylib", tmp_path)
    for name in ("loops.h", "more.cpp"):  # sources stay out of the wheel
        (tmp_path / "mylib" / "src" / "mylib" / name).write_text("")
    project, installed = tmp_path / "mylib", tmp_path / "installed"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", "dist", ".", folder=project)
    (wheel,) = (project / "dist").iterdir()
    assert wheel.name.startswith("mylib-0.1.0-py3-none-")
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if name.startswith("mylib/")]
    assert sorted(names) == ["mylib/__init__.py", "mylib/libmylib.so", "mylib/py.typed"]
    run(*pip, "install", "--no-deps", "--target", installed, wheel, folder=project)
    out = run(sys.executable, "-m", "pytest", "-q", folder=project, path=installed)
    assert "1 passed" in out


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new-kernel-library", "waves", "--into", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    files = [path for path in (tmp_path / "waves").rglob("*") if path.is_file()]
    assert {str(path) for path in files} == {*out.partition("\n\n")[0].splitlines()}
    assert {path.name for path in files} == {
        "CMakeLists.txt", "README.md", ".gitignore", "pyproject.toml", "__init__.py", "kernels.cpp",
        "test_waves.py", "py.typed",
    }  # fmt: skip
    assert "NAME" not in "".join(path.read_text() for path in files)
    assert f"cd {tmp_path / 'waves'} && pip install --no-build-isolation . && pytest" in out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my-lib", "'my_lib' could be one"),
        ("MyLib", "'mylib' could be one"),
        ("2d", "in lower case: got '2d'"),
        ("", "in lower case: got ''"),
        ("_hidden", "'hidden' could be one"),
        ("lambda", "means something else to Python"),
        ("json", "means something else to Python"),
        ("dlbridge", "means something else to Python"),
        ("../up", "'up' could be one"),
    ],
)
def test_names_that_no_package_can_have_are_refused(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"new-kernel-library: .*{text}"):
        write_project(name, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mylib").mkdir()
    write_project("mylib", tmp_path)  # an empty folder is as none
    (tmp_path / "mylib" / "README.md").write_text("mine")
    assert cli.main(["new-kernel-library", "mylib", "--into", str(tmp_path)]) == 2
    assert "mylib is there already" in capsys.readouterr().err
    assert (tmp_path / "mylib" / "README.md").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words, without the number of the error."""
    (tmp_path / "file").write_text("mine")
    nowhere, long = tmp_path / "nowhere", tmp_path / ("a" * 300)
    places = {
        nowhere: f"cannot write into {nowhere}: it does not exist; create it first",
        tmp_path / "file": f"cannot write into {tmp_path / 'file'}: it is not a folder",
        long: f"cannot write {long}: file name too long",
    }
    for into, text in places.items():
        assert cli.main(["new-kernel-library", "mylib", "--into", str(into)]) == 2
        assert capsys.readouterr().err == f"dlbridge new-kernel-library: {text}\n"
    if os.path.isdir("/proc/self"):  # where not even root makes a folder
        assert cli.main(["new-kernel-library", "mylib", "--into", "/proc"]) == 2
        said = capsys.readouterr().err.partition(": cannot write /proc/mylib: ")[2]
        assert said in ("no such file or directory\n", "permission denied\n")


def test_config_prints_the_folder_that_cmake_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--cmake"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert (folder / "dlbridge_kernelConfig.cmake").is_file()
    assert (folder / "dlbridge_kernel.h").is_file()

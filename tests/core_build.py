"""Builds of the core with a few lines changed, each beside a copy of the package.

Everything is compiled once, without optimisation; a changed build compiles what changed and links.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "dlbridge"
CORE = Path(PACKAGE) / "_core"
FLAGS = ("-std=c11", "-O0", "-fPIC", "-fexceptions", "-fvisibility=hidden", "-w",
         "-D_CFFI_NO_LIMITED_API")  # fmt: skip
SOURCES = shutil.ignore_patterns("*.c", "*.h", "*.o", "*.so", "__pycache__")


class CoreBuild:
    """A copy of the package in `directory`, with the objects of its core."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        ignored = shutil.ignore_patterns("*.so", "*.o", "__pycache__")
        for name in (PACKAGE, "include"):
            shutil.copytree(ROOT / name, directory / name, ignore=ignored)
        from dlbridge._core.build import make_builder

        builder = make_builder()
        builder.emit_c_code(str(directory / CORE / "_cffi.c"))
        _, _, _, self.keywords = builder._assigned_source
        sources = sorted((directory / CORE).rglob("*.c"))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self.objects = dict(zip(sources, pool.map(self._compile, sources), strict=True))
        self._link(self.objects, directory)

    def change(self, file: str, old: str, new: str, directory: Path) -> None:
        """Put a package into `directory` with `old`, once in `file`, replaced by `new`."""
        source = self.directory / CORE / file
        text = source.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{file} has this {text.count(old)} times, not once:\n{old}")
        shutil.copytree(self.directory / PACKAGE, directory / PACKAGE, ignore=SOURCES)
        self.rebuild(file, text.replace(old, new), directory)

    def rebuild(self, file: str, text: str, directory: Path) -> None:
        """Write `text` to `file` in the package in `directory`, and rebuild its core."""
        changed = directory / CORE / file
        changed.write_text(text)
        source = self.directory / CORE / file
        self._link({**self.objects, source: self._compile(changed)}, directory)

    def _compile(self, source: Path) -> Path:
        """Compile one file; return its object."""
        made = source.with_suffix(".o")
        includes = [
            self.directory / "include",
            self.directory / CORE,
            sysconfig.get_path("include"),
        ]
        includes += [path for path in self.keywords["include_dirs"] if os.path.isabs(path)]
        run(
            *compiler(),
            *FLAGS,
            *(f"-D{name}={value}" for name, value in self.keywords["define_macros"]),
            *(f"-I{path}" for path in includes),
            *("-c", str(source), "-o", str(made)),
        )
        return made

    def _link(self, objects: dict[Path, Path], directory: Path) -> None:
        """Make the shared object that the package in `directory` loads."""
        target = directory / CORE / f"_cffi{sysconfig.get_config_var('EXT_SUFFIX')}"
        libraries = [f"-l{name}" for name in self.keywords["libraries"]]
        run(*compiler(), "-shared", "-o", str(target), *map(str, objects.values()), *libraries)


def compiler() -> list[str]:
    return (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()


def run(*command: str) -> None:
    """Run a command; raise with what it says if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")

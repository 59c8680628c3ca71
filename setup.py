import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HEADERS = sorted(path for path in Path("include").iterdir() if path.is_file())


class BuildWithHeaders(build_py):
    """Installs include/ as dlbridge/include."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for target, header in zip(self._targets(), HEADERS, strict=True):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(header, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *map(str, self._targets())]

    def _targets(self) -> list[Path]:
        return [Path(self.build_lib, "dlbridge", "include", header.name) for header in HEADERS]


class BuildInParallel(build_ext):
    """Compiles as many files of the core at a time as there are processors."""

    def build_extensions(self) -> None:
        compile_all = self.compiler.compile

        def compile_each(sources: list[str], *args: object, **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_all([source], *args, **options), sources)
                return [name for names in made for name in names]

        self.compiler.compile = compile_each
        super().build_extensions()


# cffi's hook has no pyproject.toml spelling. All packages lie in one folder, and `package_dir` says
# so: an editable install is then a line in a .pth file, which editors and type checkers can read.
setup(
    cffi_modules=["dlbridge/_core/build.py:FFI_BUILDER"],
    cmdclass={"build_py": BuildWithHeaders, "build_ext": BuildInParallel},
    packages=find_packages(include=["dlbridge", "dlbridge.*"]),
    py_modules=["_dlbridge_pytest"],  # outside, so that pytest does not import dlbridge
    package_dir={"": "."},
)

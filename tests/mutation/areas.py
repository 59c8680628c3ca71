"""Which tests look after which folder, and which of them are nearest to a mistake."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SLOW = {"torch", "jax", "tensorflow"}  # whose import takes longer than most tests
_PACKAGE = ("tests/test_*.py", "tests/core", "tests/exchange", "tests/package", "tests/tensor")
_EXCHANGE = (*_PACKAGE, "tests/peers")
_TORCH = ("tests/kernels/test_torch_*.py", "tests/peers/test_torch.py", *_EXCHANGE)

# Folder of the package -> tests; a file belongs to the row of its innermost folder.
TESTS: dict[str, tuple[str, ...]] = {
    "_core": _EXCHANGE,
    "_core/abi": ("tests/kernels",),
    "_core/call": ("tests/kernels", "tests/package/test_fast_paths.py"),
    "_core/cuda": ("tests/cuda",),
    "_core/engine": ("tests/execution", "tests/graph"),
    "_core/exchange": (*_EXCHANGE, "tests/cuda"),
    "_core/kernel": ("tests/kernels",),
    "_core/layout": (*_EXCHANGE, "tests/kernels/test_core*.py"),
    "_core/memory": (*_EXCHANGE, "tests/kernels/test_core*.py"),
    "_core/python": (*_EXCHANGE, "tests/kernels"),
    "_core/tensor": (*_EXCHANGE, "tests/cuda"),
    "_core/tensorflow": ("tests/kernels/test_tensorflow*.py", "tests/package/test_fast_paths.py"),
    "_core/torch": _TORCH,
    "_core/torch_op": _TORCH,
    "_core/xla": ("tests/kernels/test_jax*.py", "tests/kernels/test_kernels_together.py",
                  "tests/kernels/test_exceptions.py", "tests/kernels/test_import_order.py",
                  "tests/package/test_fast_paths.py", "tests/cuda/test_jax_on_gpu.py"),
    "": _EXCHANGE,
    "check": ("tests/check", *_EXCHANGE),
    "cuda": ("tests/cuda", *_PACKAGE),
    "exchange": (*_EXCHANGE, "tests/cuda"),
    "execution": ("tests/execution", "tests/graph"),
    "frameworks": (*_EXCHANGE, "tests/kernels", "tests/cuda", "tests/graph/test_call.py"),
    "graph": ("tests/graph", "tests/execution"),
    "graph/graphdef": ("tests/graph", "tests/proto"),
    "kernels": ("tests/kernels", *_PACKAGE, "tests/cuda"),
    "mpi": ("tests/mpi", "tests/graph"),
    "proto": ("tests/proto", "tests/graph"),
    "tensor": (*_EXCHANGE, "tests/cuda"),
}  # fmt: skip


def area_of(file: str) -> str:
    """Return the folder of the package under whose tests a file is."""
    folder = file.removeprefix("dlbridge/")
    while folder:
        folder = folder.rpartition("/")[0]
        if folder in TESTS:
            return folder
    return ""


def nearest_tests(root: Path, file: str, near: str) -> list[str]:
    """Return the tests of a file's area; first those that have most words of `near` and its path.

    A word counts the more, the fewer tests have it, and a test of another framework counts less.
    """
    tests = _words_of_tests(root)
    patterns = TESTS[area_of(file)]
    chosen = [test for test in tests if any(_matches(test, pattern) for pattern in patterns)]
    having = Counter(word for test in chosen for word in tests[test])
    wanted = _words(near) | _words(file.rpartition(".")[0])

    def score(test: str) -> float:
        shared = wanted & tests[test]
        named = _words(Path(test).stem)
        found = sum(
            math.log(len(chosen) / having[word]) * (1 + 3 * (word in named)) for word in shared
        )
        cost = 1 + len(SLOW & tests[test] - wanted)
        return found / cost / math.sqrt(len(tests[test]) + 1)

    return sorted(chosen, key=score, reverse=True)


def _matches(test: str, pattern: str) -> bool:
    return test.startswith(f"{pattern}/") or (
        Path(test).match(pattern) and (Path(test).parent == Path(pattern).parent)
    )


@cache
def _words_of_tests(root: Path) -> dict[str, frozenset[str]]:
    """Return the words of each file of tests by its path, its name's words among them."""
    paths: Sequence[Path] = sorted((root / "tests").rglob("test_*.py"))
    names = [path.relative_to(root).as_posix() for path in paths]
    return {
        name: frozenset(_words(path.read_text()) | _words(name))
        for name, path in zip(names, paths, strict=True)
        if not name.startswith(("tests/gpu/", "tests/mutation/"))
    }


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]{2,}\d*|[A-Z]{2,}\d*", text)}

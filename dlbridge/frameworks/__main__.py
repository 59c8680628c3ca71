"""Write the declarations that follow from the rows of the table of frameworks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dlbridge import registry
from dlbridge.files import write_file

_BEGIN = "# Written by `python -m dlbridge.frameworks`"
_END = "# End of the written part."
# The type of a framework's arrays for type checkers, by the name of its row, after its module.
TYPES = {
    "cupy": ("cupy", "cupy.ndarray"),
    "dlbridge": ("dlbridge.tensor.tensor", "dlbridge.tensor.tensor.Tensor"),
    "dpnp": ("dpnp", "dpnp.ndarray"),
    "jax": ("jax", "jax.Array"),
    "mlx": ("mlx.core", "mlx.core.array"),
    "mxnet": ("mxnet", "mxnet.nd.NDArray"),
    "numpy": ("numpy", "numpy.ndarray[Any, Any]"),
    "onnxruntime": ("onnxruntime", "onnxruntime.OrtValue"),
    "paddle": ("paddle", "paddle.Tensor"),
    "pyarrow": ("pyarrow", "pyarrow.Tensor"),
    "tensorflow": ("tensorflow", "tensorflow.Tensor"),
    "torch": ("torch", "torch.Tensor"),
    "tvm": ("tvm_ffi", "tvm_ffi.Tensor"),
    "warp": ("warp", "warp.array[Any]"),
}
_PACKAGE = Path(__file__).resolve().parent.parent


def converters() -> list[str]:
    """Return the declarations of `to_<name>`, and what `convert` returns for which name."""
    rows = sorted(row.name for row in _own())
    names = [f"to_{name}" for name in rows if name != "dlbridge"]
    modules = sorted((TYPES[name][0] for name in rows), key=lambda x: (x.startswith("dlb"), x))
    modules.insert(-1, "")  # our own come last, apart from the others
    return [
        "if TYPE_CHECKING:",
        *(f"    import {module}" if module else "" for module in modules),
        "",
        *(line for name in rows for line in _overload(name)),
        "    @overload",
        "    def convert(x: object, /, to: object, **policies: Unpack[Policies]) -> Any: ...",
        "    def convert(x: object, /, to: object, **policies: Any) -> Any: ...",
        "",
        "",
        *(f"to_{name}: native.Converter[{TYPES[name][1]}]" for name in rows if name != "dlbridge"),
        "",
        *_exports(names),
    ]


def _overload(name: str) -> list[str]:
    """Return what `convert` returns for a framework, in the lines that ruff makes of it."""
    arguments = f'x: object, /, to: Literal["{name}"], **policies: Unpack[Policies]'
    end = f") -> {TYPES[name][1]}: ..."
    line = f"    def convert({arguments}{end}"
    lines = (
        [line] if len(line) <= 100 else ["    def convert(", f"        {arguments}", f"    {end}"]
    )
    return ["    @overload", *lines]


def functions() -> list[str]:
    """Return the declarations of `to_<name>_func`."""
    names = sorted(row.func for row in _own() if row.name != "dlbridge")
    return [*(f"{name}: ToFunc" for name in names), "", *_exports([*names, "convert_func"])]


def bound() -> list[str]:
    """Return the declarations of `kernel.<name>`."""
    return [f"    {row.name}: Callable[..., Any]" for row in _own()]


WRITTEN = {
    _PACKAGE / "frameworks" / "conversions.py": converters,
    _PACKAGE / "kernels" / "functions.py": functions,
    _PACKAGE / "kernels" / "kernel.py": bound,
}


def rewritten(path: Path) -> str:
    """Return the text of a module with its written part replaced."""
    lines = path.read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if line.lstrip().startswith(_BEGIN))
    last = next(at for at, line in enumerate(lines) if line.strip() == _END)
    return "\n".join([*lines[: first + 1], *WRITTEN[path](), *lines[last:]]) + "\n"


def _own() -> list[registry.Row]:
    return [row for row in registry.rows() if row.package.startswith("dlbridge.")]


def _exports(names: list[str]) -> list[str]:
    return ["__all__ = [", *(f'    "{name}",' for name in sorted(names)), "]"]


def main() -> int:
    """Write each part that is not up to date, or with `--check` only name it."""
    parser = argparse.ArgumentParser(prog="python -m dlbridge.frameworks", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    options = parser.parse_args()
    stale = [path for path in WRITTEN if path.read_text() != rewritten(path)]
    for path in stale:
        sys.stdout.write(f"{path}\n")
        if not options.check:
            write_file(path, [rewritten(path).encode()])
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())

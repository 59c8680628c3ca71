"""The exchange of tensors: each pair of frameworks, tensors of each size, and the import."""

from __future__ import annotations

import importlib
import mmap
import os
import re
import subprocess
import sys
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import dlbridge
from benchmarks.timing import QUICK, THOROUGH, Effort, compare, describe_machine, render


class Pair(NamedTuple):
    """One row: our call, the peer's, and the ratio of their times to reach (None: no target)."""

    ours: str
    peer: str
    target: float | None = None


# Names as in `make_names`: `a` is a NumPy array that is 64-byte aligned, `o` an ordinary one of
# 1 KiB that is not, `l` one of 64 MiB, `w` memory of its size that was written before, `t` a torch
# tensor, `j` a JAX array, `g` a TensorFlow tensor, `v` a tvm_ffi tensor; functions are bound
# beforehand on both sides.
PAIRS = [
    Pair("from_dlpack(a)", "tvm_ffi_from_dlpack(a)", 0.5),
    Pair("from_dlpack(t)", "tvm_ffi_from_dlpack(t)", 0.9),
    Pair("from_dlpack(j)", "tvm_ffi_from_dlpack(j)", 0.3),
    Pair("to_numpy(t)", "np_from_dlpack(t)", 0.2),
    Pair("to_numpy(t)", "t.numpy()", 0.8),
    Pair("to_torch(a)", "torch_from_dlpack(a)", 0.4),
    Pair("to_torch(j)", "torch_from_dlpack(j)", 0.25),
    Pair("to_jax(t)", "jax_from_dlpack(t)", 0.3),
    Pair("to_jax(a)", "jax_from_dlpack(a)", 0.3),
    Pair("to_jax(o)", "jax_from_dlpack(o)", 0.2),
    Pair("to_jax(o)", "jnp_asarray(o)", 0.2),
    Pair("to_jax(l)", "np_copyto(w, l)", 1.05),
    Pair("to_tensorflow(a)", "tf_from_dlpack(a.__dlpack__())", 1.0),
    Pair("to_tensorflow(o)", "tf_constant(o)", 0.2),
    Pair("to_tensorflow(l)", "np_copyto(w, l)", 1.05),
    Pair("to_torch(o[::-1])", "torch_from_numpy(o[::-1].copy())", 1.0),
    Pair("empty((1,), float32)", "torch_empty(1)", 0.5),
    Pair("fill(empty((2**24,), float32))", "fill(np_empty(2**24, 'f4'))", 1.2),
    Pair("fill(empty_after_trim((2**24,), float32))", "fill(np_empty(2**24, 'f4'))", 1.2),
    # For information.
    Pair("to_numpy(t)", "np_asarray(t)"),
    Pair("to_numpy(j)", "np_from_dlpack(j)"),
    Pair("to_numpy(j)", "np_asarray(j)"),
    Pair("to_numpy(g)", "g.numpy()"),
    Pair("to_numpy(v)", "np_from_dlpack(v)"),
    Pair("to_torch(a)", "torch_from_numpy(a)"),
    Pair("to_torch(g)", "torch_from_dlpack(g)"),
    Pair("to_torch(v)", "torch_from_dlpack(v)"),
    Pair("to_jax(g)", "jax_from_dlpack(g)"),
    Pair("to_tensorflow(t)", "tf_from_dlpack(torch_to_dlpack(t))"),
    Pair("to_tensorflow(j)", "tf_from_dlpack(j.__dlpack__())"),
    Pair("to_tvm(a)", "tvm_ffi_from_dlpack(a)"),
    Pair("to_tvm(t)", "tvm_ffi_from_dlpack(t)"),
    Pair("to_tvm(j)", "tvm_ffi_from_dlpack(j)"),
]

# The names that the table shows in place of the short ones.
LEGEND = {
    "a": "numpy",
    "o": "ordinary_numpy",
    "l": "numpy_64MiB",
    "w": "warm_64MiB",
    "t": "torch",
    "j": "jax",
    "g": "tensorflow",
    "v": "tvm",
}
MODULES = {
    "tvm_ffi": "tvm_ffi.",
    "np": "np.",
    "torch": "torch.",
    "jax": "jax.dlpack.",
    "jnp": "jnp.",
    "tf": "tf.experimental.dlpack.",
}

SIZES = {"8 B": 8, "4 KiB": 2**12, "4 MiB": 2**22, "4 GiB": 2**32}
SIZED = [
    ("from_dlpack(a)", "numpy"),
    ("from_dlpack(t)", "torch"),
    ("to_numpy(t)", "torch"),
    ("to_torch(a)", "torch"),
    ("to_jax(a)", "jax"),
    ("to_tensorflow(a)", "tensorflow"),
]

IMPORT_TARGET = 1.25
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


def run(*, quick: bool) -> dict[str, Any]:
    """Measure and print everything; return the figures, times in nanoseconds."""
    effort = QUICK if quick else THOROUGH
    names = make_names()
    figures: dict[str, Any] = {
        "machine": describe_machine(),
        "versions": find_versions(),
        "pairs": measure_pairs(names, effort),
        "sizes": measure_sizes(names, effort),
        "import": measure_import(3 if quick else 31),
    }
    print(*(f"{name} {value}" for name, value in figures["versions"].items()), sep=", ")
    print_pairs([*figures["pairs"], figures["import"]])
    print_sizes(figures["sizes"])
    return figures


# ---- what takes part ----


def make_names() -> dict[str, Any]:
    """Return what the statements mean; what is not installed is absent."""
    names: dict[str, Any] = {name: getattr(dlbridge, name) for name in dlbridge.__all__}
    with dlbridge.aligned_numpy():
        array = np.zeros((4, 4), np.float32)
    names |= {"a": array, "np_from_dlpack": np.from_dlpack, "np_asarray": np.asarray}
    names |= {"o": misaligned(2**10), "l": misaligned(2**26), "np_copyto": np.copyto}
    names |= {"w": np.ones_like(names["l"])}
    names |= {"fill": fill, "empty_after_trim": empty_after_trim, "np_empty": np.empty}
    os.environ |= QUIET | os.environ
    if torch := import_module("torch"):
        names |= {"t": torch.ones(4, 4), "torch_from_dlpack": torch.from_dlpack}
        names |= {
            "torch_from_numpy": torch.from_numpy,
            "torch_empty": torch.empty,
            "torch_to_dlpack": torch.utils.dlpack.to_dlpack,
        }
    if jax := import_module("jax"):
        names |= {"j": jax.numpy.ones((4, 4)), "jax_from_dlpack": jax.dlpack.from_dlpack}
        names |= {"jnp_asarray": jax.numpy.asarray}
    if tvm_ffi := import_module("tvm_ffi"):
        names |= {"v": tvm_ffi.from_dlpack(array), "tvm_ffi_from_dlpack": tvm_ffi.from_dlpack}
    if tensorflow := import_module("tensorflow"):
        names |= {"g": tensorflow.ones((4, 4))}
        names |= {"tf_from_dlpack": tensorflow.experimental.dlpack.from_dlpack}
        names |= {"tf_constant": tensorflow.constant}
    return names


def fill(x: Any) -> None:
    """Write each element of new memory once."""
    np.asarray(x).fill(1)


def empty_after_trim(*arguments: Any) -> Any:
    """Return memory that nothing has used before."""
    dlbridge.trim()
    return dlbridge.empty(*arguments)


def misaligned(nbytes: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a NumPy array that begins 16 bytes after a multiple of 64, as most do."""
    memory = np.ones(nbytes // 4 + 32, np.float32)
    start = (-memory.ctypes.data % 64 + 16) // 4
    return memory[start : start + nbytes // 4]


def import_module(name: str) -> Any:
    """Return the module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def find_versions() -> dict[str, str]:
    """Return the versions of what was imported."""
    names = ("numpy", "torch", "jax", "tensorflow", "tvm_ffi")
    return {name: sys.modules[name].__version__ for name in names if name in sys.modules}


def works(statement: str, names: dict[str, Any]) -> bool:
    """Return whether everything that the statement needs is here."""
    return (
        set(compile(statement, "", "eval").co_names) - {"numpy", "__dlpack__", "copy"}
        <= names.keys()
    )


# ---- pairs ----


def measure_pairs(names: dict[str, Any], effort: Effort) -> list[dict[str, Any]]:
    """Measure every pair whose frameworks are installed."""
    figures = []
    for pair in PAIRS:
        if works(pair.ours, names) and works(pair.peer, names):
            ours, peer = compare([pair.ours, pair.peer], names, effort)
            what, against = legible(pair.ours), legible(pair.peer)
            figures.append(describe(what, against, ours, peer, pair.target))
    return figures


def describe(
    what: str, against: str, ours: float, peer: float, target: float | None
) -> dict[str, Any]:
    """Return one row of figures."""
    ratio = ours / peer
    return {
        "what": what,
        "against": against,
        "ours_ns": round(ours, 1),
        "peer_ns": round(peer, 1),
        "ratio": round(ratio, 3),
        "target": target,
        "reached": None if target is None else ratio <= target,
    }


def legible(statement: str) -> str:
    """Return the statement with frameworks in place of the short names."""
    statement = re.sub(r"\b([aolwtjgv])\.", lambda match: f"{LEGEND[match[1]]}_tensor.", statement)
    statement = re.sub(r"\b([aolwtjgv])\b", lambda match: LEGEND[match[1]], statement)
    statement = re.sub(r"\b(torch|tf)_(constant|empty|from_numpy)\b", r"\1.\2", statement)
    return re.sub(
        r"\b(tvm_ffi|np|torch|jax|jnp|tf)_(?!tensor)", lambda match: MODULES[match[1]], statement
    )


def print_pairs(figures: list[dict[str, Any]]) -> None:
    """Print a table of the pairs, those with a target first."""
    rows = [
        [
            row["what"],
            row["against"],
            f"{row['ours_ns']:,.0f}",
            f"{row['peer_ns']:,.0f}",
            f"{row['ratio']:.2f}",
            "" if row["target"] is None else f"{row['target']:.2f}",
            {None: "", True: "yes", False: "NO"}[row["reached"]],
        ]
        for row in sorted(figures, key=lambda row: row["target"] is None)
    ]
    header = ["dlbridge", "against", "ours/ns", "theirs/ns", "ratio", "target", "reached"]
    print("", render(header, rows), sep="\n")


# ---- sizes ----


def measure_sizes(names: dict[str, Any], effort: Effort) -> list[dict[str, Any]]:
    """Measure the same statement over tensors of each size, interleaved."""
    tensors: dict[str, Any] = {}
    for index, nbytes in enumerate(SIZES.values()):
        tensors[f"a{index}"] = np.frombuffer(untouched(nbytes), np.float32)
        if "torch_from_numpy" in names:
            tensors[f"t{index}"] = names["torch_from_numpy"](tensors[f"a{index}"])
    figures = []
    for statement, needs in SIZED:
        sized = [statement.replace(")", f"{index})") for index in range(len(SIZES))]
        if needs in sys.modules:
            times = compare(sized, names | tensors, effort)
            figures.append(
                {
                    "what": legible(statement),
                    "ns": {size: round(ns, 1) for size, ns in zip(SIZES, times, strict=True)},
                    "growth": round(times[-1] / times[0], 3),
                }
            )
    return figures


def untouched(nbytes: int) -> mmap.mmap:
    """Return memory that costs nothing until somebody touches it."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, nbytes, flags=flags)


def print_sizes(figures: list[dict[str, Any]]) -> None:
    """Print a table with one column for each size."""
    rows = [
        [row["what"], "ns", *(f"{ns:,.0f}" for ns in row["ns"].values()), f"{row['growth']:.2f}"]
        for row in figures
    ]
    print("", render(["dlbridge", "", *SIZES, "last/first"], rows), sep="\n")


# ---- import ----


def measure_import(rounds: int) -> dict[str, Any]:
    """Measure `import dlbridge` against `import numpy`, each in fresh processes, in turn."""
    samples: dict[str, list[float]] = {"dlbridge": [], "numpy": []}
    for number in range(rounds + 1):
        for name, sample in samples.items():
            ns = time_import(name)
            if number:  # the first reads the files from the disk
                sample.append(ns)
    ours, peer = (median(sample) for sample in samples.values())
    return describe("import dlbridge", "import numpy", ours, peer, IMPORT_TARGET)


def time_import(name: str) -> float:
    """Return the nanoseconds that a fresh process takes for one import."""
    code = f"from time import perf_counter_ns as now; t = now(); import {name}; print(now() - t)"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return float(subprocess.check_output([sys.executable, "-c", code], env=env))

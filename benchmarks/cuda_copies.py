"""Copies from 1 KiB to 4 GiB between the host and the device, against torch and CuPy."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np

import dlbridge
from benchmarks.timing import render
from dlbridge import cuda

TARGET = 0.95  # of the best peer's bytes per second
SIZES = {
    "1 KiB": 1 << 10,
    "16 KiB": 1 << 14,
    "256 KiB": 1 << 18,
    "4 MiB": 1 << 22,
    "64 MiB": 1 << 26,
    "1 GiB": 1 << 30,
    "4 GiB": 1 << 32,
}
SMALL = ("1 KiB", "256 KiB", "4 MiB")
WIDTH = 256  # columns of strided copies, of float32
COLUMNS = {"rows of 64 bytes": 32, "rows of 512 bytes": 256, "rows of 4096 bytes": 2048}
Views = tuple[Any, Any]
STRIDED: dict[str, Callable[[Any, Any], Views]] = {
    "every second column": lambda source, target: (source[:, ::2], target[:, ::2]),
    "transposed": lambda source, target: (source.T, target.reshape((WIDTH, -1))),
    # The left half of each row, into a matrix that has nothing else.
    **dict.fromkeys(COLUMNS, lambda source, target: (_left(source), _upper(target))),
}
KINDS = ("host to device", "device to host", "pinned to device", "device to pinned", "on device",
         *STRIDED)  # fmt: skip

Copy = Callable[[], object]


def _left(matrix: Any) -> Any:
    return matrix[:, : matrix.shape[1] // 2]


def _upper(matrix: Any) -> Any:
    """Return the upper half of a matrix, as rows half as long."""
    rows, columns = matrix.shape
    return matrix[: rows // 2].reshape((rows, columns // 2))


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Measure each kind and size; who copies takes turns."""
    figures = []
    for size in SMALL if quick else SIZES:
        for kind in KINDS:
            if SIZES[size] < 8 * COLUMNS.get(kind, 0):
                continue  # not two rows
            copies = make_copies(kind, SIZES[size])
            times = time_copies(copies, rounds(SIZES[size], quick=quick))
            del copies
            figures.append(describe(kind, size, times))
    return figures


def rounds(nbytes: int, *, quick: bool) -> int:
    """Return how often to copy: about a GiB in all, but a few times at least."""
    return 3 if quick else max(5, min(200, (1 << 30) // nbytes))


def time_copies(copies: dict[str, Copy], count: int) -> dict[str, float]:
    """Return the median seconds of each copy, until the device is through."""
    samples: dict[str, list[float]] = {name: [] for name in copies}
    for number in range(count + 1):
        for name, copy in copies.items():
            cuda.synchronize()
            begin = time.perf_counter()
            copy()
            cuda.synchronize()
            if number:  # the first one finds pages and compiles kernels
                samples[name].append(time.perf_counter() - begin)
    return {name: median(sample) for name, sample in samples.items()}


def describe(kind: str, size: str, seconds: dict[str, float]) -> dict[str, Any]:
    """Return one row of figures: bytes per second of each, ours over the best."""
    rates = {name: SIZES[size] / taken for name, taken in seconds.items()}
    peers = {name: rate for name, rate in rates.items() if name != "dlbridge"}
    ratio = rates["dlbridge"] / max(peers.values()) if peers else None
    return {
        "what": kind,
        "size": size,
        "gigabytes_per_second": {name: round(rate / 1e9, 4) for name, rate in rates.items()},
        "ratio": None if ratio is None else round(ratio, 3),
        "target": TARGET,
        "reached": None if ratio is None else ratio >= TARGET,
    }


# ---- who copies ----------------------------------------------------------------------------------


def make_copies(kind: str, nbytes: int) -> dict[str, Copy]:
    """Return one copy for each who can: the same memory, everyone's own function."""
    made = {"dlbridge": _our_copy(kind, nbytes)}
    for name, make in {"torch": _torch_copy, "cupy": _cupy_copy}.items():
        with suppress(ImportError):
            copy = make(kind, nbytes)
            if copy is not None:
                made[name] = copy
    return made


def _places(kind: str) -> tuple[str, str]:
    names = {"host": "cpu", "pinned": "cuda_host", "device": "cuda:0"}
    source, _, target = kind.partition(" to ")
    return names.get(source, "cuda:0"), names.get(target, "cuda:0")


def _host(place: str, nbytes: int) -> Any:
    """Return host memory as everyone takes it, a NumPy array: ordinary, or pinned."""
    if place == "cpu":
        return np.ones(nbytes, np.uint8)
    return dlbridge.to_numpy(dlbridge.full((nbytes,), 1, "uint8", device=place))


def _our_copy(kind: str, nbytes: int) -> Copy:
    def memory(place: str) -> Any:
        if place == "cpu":
            return dlbridge.from_dlpack(_host(place, nbytes))
        return dlbridge.full((nbytes,), 1, "uint8", device=place)

    source, target = (memory(place) for place in _places(kind))
    if kind in STRIDED:
        source, target = (
            x.reshape((-1, 4 * COLUMNS.get(kind, WIDTH))).view("float32") for x in (source, target)
        )
        source, target = STRIDED[kind](source, target)

    def dlbridge_copy() -> None:
        target[...] = source

    return dlbridge_copy


def _torch_copy(kind: str, nbytes: int) -> Copy | None:
    module = import_module("torch")
    if not module.cuda.is_available():
        return None

    def memory(place: str) -> Any:
        if place == "cuda:0":
            return module.ones(nbytes, dtype=module.uint8, device="cuda")
        return module.from_numpy(_host(place, nbytes))

    source, target = (memory(place) for place in _places(kind))
    if kind in STRIDED:
        source, target = (
            x.view(-1, 4 * COLUMNS.get(kind, WIDTH)).view(module.float32) for x in (source, target)
        )
        source, target = STRIDED[kind](source, target)

    def torch_copy() -> None:
        target.copy_(source, non_blocking=True)

    return torch_copy


def _cupy_copy(kind: str, nbytes: int) -> Copy | None:
    module = import_module("cupy")
    if not module.cuda.is_available():
        return None
    places = _places(kind)

    def memory(place: str) -> Any:
        return module.ones(nbytes, np.uint8) if place == "cuda:0" else _host(place, nbytes)

    source, target = (memory(place) for place in places)
    if kind in STRIDED:
        source, target = (
            x.reshape(-1, 4 * COLUMNS.get(kind, WIDTH)).view(np.float32) for x in (source, target)
        )
        source, target = STRIDED[kind](source, target)

    def cupy_copy() -> None:
        if places[0] != "cuda:0":
            target.set(source)
        elif places[1] != "cuda:0":
            source.get(out=target, blocking=False)
        else:
            target[...] = source

    return cupy_copy


def print_copies(figures: list[dict[str, Any]]) -> None:
    """Print a table of rates."""
    names = list(dict.fromkeys(name for row in figures for name in row["gigabytes_per_second"]))
    rows = [
        [
            row["what"],
            row["size"],
            *(f"{row['gigabytes_per_second'].get(name, 0):.3f}" for name in names),
            "" if row["ratio"] is None else f"{row['ratio']:.2f}",
            {None: "", True: "yes", False: "NO"}[row["reached"]],
        ]
        for row in figures
    ]
    header = ["copy, GB/s", "size", *names, "ours/best", "reached"]
    print("", render(header, rows), sep="\n")

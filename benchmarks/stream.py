"""Batches of 1 MiB through `dlbridge.stream`, against the loader's own time without it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

import dlbridge
from benchmarks.timing import describe_machine, render
from dlbridge.exchange import adapter

ROWS, COLUMNS = 256, 1024  # 1 MiB of float32
TARGET = 1.1
BATCHES, ROUNDS = 100, 15
QUICK_BATCHES, QUICK_ROUNDS = 10, 3


class Row(NamedTuple):
    """One loader and where its batches go."""

    what: str
    loader: Callable[[int], Iterable[Any]]
    to: str
    needs: tuple[str, ...]
    policies: dict[str, Any]


def torch_loader(count: int) -> Iterable[Any]:
    """Return a DataLoader of images and int64 labels."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    images, labels = torch.randn(ROWS * count, COLUMNS), torch.arange(ROWS * count)
    loader: Iterable[Any] = DataLoader(TensorDataset(images, labels), batch_size=ROWS, shuffle=True)
    return loader


def tensorflow_dataset(count: int) -> Iterable[Any]:
    """Return a dataset that shuffles, scales and batches rows."""
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices(
        np.random.default_rng(0).random((ROWS * count, COLUMNS), np.float32)
    )
    scaled = rows.shuffle(1024).map(lambda row: row * 2 - 1)
    batches: Iterable[Any] = scaled.batch(ROWS, drop_remainder=True)
    return batches


class _Overwriting:
    """A loader in NumPy that fills one buffer again and again."""

    def __init__(self, count: int) -> None:
        self.data = np.random.default_rng(0).random((ROWS * count, COLUMNS), np.float32)
        self.buffer = np.empty((ROWS, COLUMNS), np.float32)

    def __iter__(self) -> Iterator[Any]:
        order = np.random.default_rng(1).permutation(len(self.data))
        for rows in order.reshape(-1, ROWS):
            np.take(self.data, rows, axis=0, out=self.buffer)
            self.buffer -= self.buffer.mean(axis=0)
            self.buffer /= self.buffer.std(axis=0) + 1e-6
            yield {"x": self.buffer}


LOADERS = [
    Row("torch DataLoader", torch_loader, "jax", ("torch", "jax"), {"narrow": "checked"}),
    Row("torch DataLoader", torch_loader, "numpy", ("torch",), {}),
    Row("tf.data", tensorflow_dataset, "torch", ("tensorflow", "torch"), {}),
    Row("tf.data", tensorflow_dataset, "jax", ("tensorflow", "jax"), {}),
    Row("one NumPy buffer, filled again", _Overwriting, "torch", ("torch",), {}),
    Row("one NumPy buffer, filled again", _Overwriting, "jax", ("jax",), {}),
]


def run(*, quick: bool) -> dict[str, Any]:
    """Measure and print all rows and their copies; return the figures, times in nanoseconds."""
    batches, rounds = (QUICK_BATCHES, QUICK_ROUNDS) if quick else (BATCHES, ROUNDS)
    figures = []
    for row in LOADERS:
        if all(map(adapter.is_installed, row.needs)):
            figures.append(measure(row, batches, rounds))
            print(row.what, "to", row.to, "...", flush=True)
    print_figures(figures)
    return {"machine": describe_machine(), "rows": figures}


def measure(row: Row, batches: int, rounds: int) -> dict[str, Any]:
    """Return the median nanoseconds of a batch, of the loader alone and through a stream."""
    loader = row.loader(batches)
    stream = partial(dlbridge.stream, loader, row.to, **row.policies)
    with stream() as warm:
        deque(warm, maxlen=0)
    alone, through = [], []
    for _ in range(rounds):
        alone.append(time_of(loader))
        through.append(time_of(stream()))
    return {
        "loader": row.what,
        "to": row.to,
        "alone": median(alone) / batches,
        "through": median(through) / batches,
        "ratio": median(map(ratio_of, zip(through, alone, strict=True))),
        "report": str(warm.report()),
    }


def time_of(batches: Iterable[Any]) -> int:
    """Return the nanoseconds that a loop over all batches takes."""
    start = perf_counter_ns()
    deque(batches, maxlen=0)
    return perf_counter_ns() - start


def ratio_of(pair: tuple[int, int]) -> float:
    """Return the ratio of the two times of a round."""
    return pair[0] / pair[1]


def print_figures(figures: list[dict[str, Any]]) -> None:
    """Print the table of times and, for each loader, who copied."""
    rows = [
        [
            *(each["loader"], each["to"]),
            *(f"{each[name] / 1e3:,.0f}" for name in ("alone", "through")),
            *(f"{each['ratio']:.2f}", f"{TARGET:.2f}"),
        ]
        for each in figures
    ]
    print("\nMicroseconds for a batch of 1 MiB")
    print(render(["loader", "to", "alone", "stream", "ratio", "target"], rows))
    for each in figures:
        print(f"\n{each['loader']}: {each['report']}")

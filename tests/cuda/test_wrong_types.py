"""Public functions of CUDA and methods of its classes with one argument of a wrong type.

As in tests/graph/test_wrong_types_of_methods.py: what is wrong is refused in the name of the call,
by an error of dlbridge or a TypeError that names the argument, and leaves nothing behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dlbridge
from dlbridge import cuda
from dlbridge.errors import DLBridgeError

IMAGE = Path(__file__).with_name("kernels.ptx")
WRONG = [None, -7, "wrogn", ["a"], object(), 1.5, {}, True, b"", 1 << 70, f"n * {1 << 70}"]
GRID = {"grid": "(n + 255) // 256", "block": 256}


def entered(block: Any) -> None:
    with block:
        pass


def wrapped(**changes: Any) -> Any:
    kernel = cuda.Module(IMAGE)["add_one"]
    given = {**GRID, "abi": "void(const float *x, float *out, int64_t n)", **changes}
    return dlbridge.wrap(kernel, "wrong_types::add_one(x: f32[n]) -> f32[n]", **given)


CALLS: dict[str, Callable[[Any], Any]] = {
    "as_stream(stream)": lambda wrong: cuda.as_stream(wrong),
    "current_stream(device)": lambda wrong: cuda.current_stream(wrong),
    "memory_info(device)": lambda wrong: cuda.memory_info(wrong),
    "stream(stream)": lambda wrong: entered(cuda.stream(wrong)),
    "stream(device)": lambda wrong: entered(cuda.stream(1, wrong)),
    "synchronize(device)": lambda wrong: cuda.synchronize(wrong),
    "Module(image)": lambda wrong: cuda.Module(wrong),
    "Module.__getitem__(name)": lambda wrong: cuda.Module(IMAGE)[wrong],
    "wrap(grid)": lambda wrong: wrapped(grid=wrong),
    "wrap(block)": lambda wrong: wrapped(block=wrong),
    "wrap(shared)": lambda wrong: wrapped(shared=wrong),
    "empty(device)": lambda wrong: dlbridge.empty((2,), "float32", device=wrong),
}


# A kernel's name is looked for at its first launch; shared memory may be left out.
TAKEN: dict[str, list[Any]] = {"Module.__getitem__(name)": WRONG[2::8], "wrap(shared)": [None]}


def refusal(name: str, wrong: Any) -> str | None:
    """Return the text of the error that a call with a wrong argument ends in, None for no error."""
    try:
        CALLS[name](wrong)
    except DLBridgeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused_in_the_name_of_the_call(fake_machine, name):
    answers = [(wrong, refusal(name, wrong)) for wrong in WRONG]
    assert [wrong for wrong, text in answers if text is None] == TAKEN.get(name, [])
    call = re.split(r"[(.]", name)[0]
    texts = [text for _, text in answers if text is not None]
    assert [text for text in texts if not re.match(rf"({call}|cuda): ", text)] == []

"""Tensors have at most 254 dimensions: one limit, checked by every way in, in C and in Python."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from dlbridge import shape
from dlbridge._core import lib
from dlbridge.kernels.schema import bind
from dlbridge.proto import tensors

RANKS = r"""
import sys
import numpy as np
import torch
import dlbridge



def peek(x):
    x.copy()
    return dlbridge.zeros((), "float32")


peek = dlbridge.wrap(peek, "ranks::peek(x: f32[...]) -> f32[]", abi="python:dlbridge")
like = "(x: f32[...]) -> f32[...]"
copy = dlbridge.wrap(lambda x: x.copy(), "ranks::copy" + like, abi="python:dlbridge")
twice = dlbridge.wrap(lambda x: x * 2, "ranks::twice" + like, abi="python:torch")


def change(x):
    x[...] = x.copy()


write = dlbridge.wrap(change, "ranks::write(x!: f32[...])", abi="python:dlbridge")
for kernel in (copy, peek, write, twice):
    kernel.torch(torch.ones(1))


def text(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        return type(error).__name__
    return "taken"


WAYS = {
    "peek": peek,
    "peek in torch": peek.torch,
    "peek operator": lambda x: torch.ops.ranks.peek(x),
    "direct": copy,
    "torch": copy.torch,
    "in place": write,
    "of torch": twice,
    "operator": lambda x: torch.ops.ranks.copy(x),
    "operator in place": lambda x: torch.ops.ranks.write(x),
    "operator out": lambda x: torch.ops.ranks.copy.out(torch.ones(1), out=x),
    "from_dlpack": dlbridge.from_dlpack,
    "convert": lambda x: dlbridge.convert(x, "dlbridge"),
    "bfloat16": lambda x: dlbridge.from_dlpack(x.to(torch.bfloat16)),
}
for name in sys.argv[1:] or WAYS:
    said = [text(WAYS[name], torch.ones([1] * rank)) for rank in (254, 255, 300, 2000)]
    print(repr((name, said)), flush=True)
"""


def test_python_and_c_have_one_limit() -> None:
    assert shape.MAX_RANK == bind.MAX_RANK == tensors.MAX_RANK == lib.DLB_SHAPE_MAX_RANK == 254


@pytest.mark.full
@pytest.mark.preloaded("torch")
def test_torch_tensors_of_higher_rank_are_refused(framework: Any, run_python: Any) -> None:
    """torch itself has no limit; arrays on the stack of C have."""
    framework("torch")
    lines = run_python(RANKS).check().splitlines()
    said = dict([ast.literal_eval(line) for line in lines])
    assert len(said) == 13
    for name, (taken, *refused) in said.items():
        assert "taken" not in refused, name
        assert taken == "taken" or name == "operator out", name

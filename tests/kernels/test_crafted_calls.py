"""A compiled program of JAX is data: whatever its calls say of a kernel, no memory is at risk.

`jax.export` writes programs for others. Their attributes, operands and results are made up here, by
hand where XLA itself would refuse them. `python -m tests.fuzz calls` looks for more.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from xla_calls import F32, F64, S8, S32, U32, Operand, Xla

import dlbridge
from dlbridge.text import escape_controls

SCHEMAS = {
    "twice": "calls::twice(x!: f32[...])",
    "axpy": "calls::axpy(x: f32[n], y: f32[n], *, alpha: float = 1.0) -> f32[n]",
    "give": "calls::give(x: f32[...], *, a: float, b: int) -> f32[...]",
    "maybe": "calls::maybe(x: f32[n], y: f32[]? = None) -> f32[n]",
}

ROOM = np.zeros(4096, np.uint8)


def operand(
    *shape: int, dtype: int = F32, address: int = ROOM.ctypes.data, offset: int = 0
) -> Operand:
    return Operand(address + offset if address else 0, shape, dtype)


def result(*shape: int, dtype: int = F32) -> Operand:
    return operand(*shape, dtype=dtype, offset=2048)


@pytest.fixture
def call(make: Callable[..., Any]) -> Callable[..., str]:
    """Return `call(name, operands, results, attributes)`: the text of the error, "" if none."""
    for text in SCHEMAS.values():
        kernel = make("nothing", text, may_overlap=True)
        kernel.publish(kernel.name)

    def run(
        name: str,
        operands: Sequence[Operand],
        results: Sequence[Operand],
        attributes: Mapping[str, int | float | str] | None = None,
    ) -> str:
        return Xla(0, platform="cpu").run(f"calls::{name}", operands, results, attributes) or ""

    return run


CASES: dict[str, tuple[tuple[Any, ...], str]] = {
    "a result of one element": (
        ("twice", [operand(100)], [result(1)], {"layout": "m"}),
        "another dtype or shape",
    ),
    "a result of another dtype": (
        ("twice", [operand(100)], [result(100, dtype=S8)], {"layout": "m"}),
        "another dtype or shape",
    ),
    "a result of an unknown dtype": (
        ("twice", [operand(100)], [result(100, dtype=-5)], {"layout": "m"}),
        "another dtype or shape",
    ),
    "a result of another rank": (
        ("twice", [operand(10, 10)], [result(100)], {"layout": "m"}),
        "another dtype or shape",
    ),
    "a result without memory": (
        ("twice", [operand(10)], [operand(10, address=0)], {"layout": "m"}),
        "another dtype or shape",
    ),
    "in place where the kernel does not write": (
        ("give", [operand(9)], [result(9)], {"layout": "m", "s00": 1.0, "s01": 1}),
        "trace and export it again",
    ),
    "more in place than results": (
        ("twice", [operand(9), operand(9)], [result(9)], {"layout": "mm"}),
        "fewer results",
    ),
    "more letters than operands": (("twice", [], [], {"layout": "m"}), "fewer operands"),
    "more letters than tensors": (
        ("twice", [operand(1)], [], {"layout": "-" * 99}),
        "too many tensors",
    ),
    "an empty scalar": (
        ("give", [operand(9), operand(0, address=0)], [result(9)], {"layout": "tA", "s01": 1}),
        "scalar 0 has rank 1",
    ),
    "a scalar without memory": (
        ("give", [operand(9), operand(address=0)], [result(9)], {"layout": "tA", "s01": 1}),
        "scalar 0 has rank 0",
    ),
    "an empty block of scalars": (
        ("give", [operand(9), operand(4, dtype=U32, address=0)], [result(9)], {"layout": "t#AfBi"}),
        "no uint32",
    ),
    "scalars of another dtype": (
        ("give", [operand(9), operand(4, dtype=S32)], [result(9)], {"layout": "t#AfBi"}),
        "no uint32",
    ),
    "a scalar of no dtype": (
        ("give", [operand(9), operand(dtype=99)], [result(9)], {"layout": "tA", "s01": 1}),
        "type number 99",
    ),
    "a scalar of no number": (("give", [operand(9)], [result(9)], {"s!!": 1.0}), "scalar -"),
    "a scalar of other signs than digits": (
        ("give", [operand(9)], [result(9)], {"s0:": 1.0}),
        "scalar -1",
    ),
    "a text with a zero byte": (
        ("give", [operand(9)], [result(9)], {"s00": "a\0b", "s01": 1}),
        "zero byte",
    ),
    "scalar 99": (("give", [operand(9)], [result(9)], {"s99": 1.0}), "scalar 99"),
    "a text for a number": (
        ("give", [operand(9)], [result(9)], {"s00": "a", "s01": 1}),
        "expected float, got str",
    ),
    "an operand of rank 300": (
        ("twice", [operand(*[1] * 300)], [result(*[1] * 300)], {"layout": "m"}),
        "of 300 dimensions",
    ),
    "a result of rank 300": (
        ("give", [operand(1)], [result(*[1] * 300)], {"s00": 1.0, "s01": 1}),
        "of 300 dimensions",
    ),
    "elements beyond 64 bits": (
        ("twice", [operand(2**40, 2**40)], [result(2**40, 2**40)], {"layout": "m"}),
        "overflow",
    ),
    "no elements beyond 64 bits": (
        ("twice", [operand(0, 2**62, 2**62)], [result(0, 2**62, 2**62)], {"layout": "m"}),
        "overflow",
    ),
    "a negative extent": (("twice", [operand(-9)], [result(-9)], {"layout": "m"}), "shape"),
    "left out where it must be": (
        ("give", [], [result(9)], {"layout": "-", "s00": 1.0, "s01": 1}),
        "expected f32[...]",
    ),
    "33 operands": (("twice", [operand(1)] * 33, []), "more than 32"),
    "33 results": (("twice", [operand(1)], [result(1)] * 33), "more than 32"),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_that_do_not_agree_with_their_kernel_are_refused(
    call: Callable[..., str], name: str
) -> None:
    """Before anything is read or written."""
    ROOM[:] = 1
    arguments, text = CASES[name]
    assert text in call(*arguments)
    assert (ROOM == 1).all()


def test_calls_that_agree_are_made(call: Callable[..., str]) -> None:
    """What is written in place is first copied to where XLA wants it."""
    ROOM[:] = 1
    assert call("twice", [operand(3)], [result(3)], {"layout": "m"}) == ""
    assert call("give", [operand(3), operand(dtype=F64), operand(dtype=S32)], [result(3)],
                {"layout": "tAB"}) == ""  # fmt: skip
    assert call("give", [operand(3), operand(4, dtype=U32)], [result(3)],
                {"layout": "t#AfBi"}) == ""  # fmt: skip
    assert call("maybe", [operand(3)], [result(3)], {"layout": "t-"}) == ""
    assert call("twice", [operand(0, address=0)], [operand(0, address=0)], {"layout": "m"}) == ""


def test_the_name_of_an_unknown_kernel_is_shown_without_control_characters(
    call: Callable[..., str],
) -> None:
    text = call("\x1b[2J\n\u202e\x85", [], [])
    assert r"calls::\x1b[2J\x0a\xe2\x80\xae\xc2\x85: no kernel of this name" in text
    assert call("x" * 5000, [], []).startswith("calls::" + "x" * 100)


SAY = """
#include <dlbridge_kernel.h>
int say(dlb_context *context, DLTensor *tensors, int count) {
    return dlb_set_error(context, "%s", context->scalars[0].value.s);
}
"""


@pytest.mark.usefixtures("compiled")
def test_the_text_of_an_error_has_the_control_characters_escaped_that_python_escapes() -> None:
    """Every character but those of more than 16 bits, which are none."""
    dlbridge.compile_c(SAY, "say", "calls::say(*, text: str)")
    xla = Xla(0, platform="cpu")
    codes = [code for code in range(1, 2**16) if not 0xD800 <= code < 0xE000] + [0x1F600]
    for start in range(0, len(codes), 100):
        text = "".join(map(chr, codes[start : start + 100]))
        said = xla.run("calls::say", [], [], {"s00": text})
        assert said == "calls::say: " + escape_controls(text, lines=True)
    assert len(xla.run("calls::say", [], [], {"s00": "\x1b" * 1000}) or "") > 900


EXPORT = r"""
import sys
import jax, jax.numpy as jnp
import numpy as np
from jax import export
from kernels import jax_kernels

kernel = jax_kernels.scale()
kernel.jax


def call(x, shape, **attributes):
    "The text of the error that a program makes, written and read again."
    made = jax.ffi.ffi_call("dlbridge", jax.ShapeDtypeStruct(shape, "float32"))
    program = jax.jit(lambda x: made(x, kernel=kernel.name, **attributes))
    checks = [export.DisabledSafetyCheck.custom_call("dlbridge")]
    written = export.export(program, disabled_checks=checks)(x).serialize()
    try:
        return np.asarray(export.deserialize(written).call(x)).tolist()
    except Exception as error:
        return str(error)


x = jnp.ones(100_000, "float32")
CASES = {
    "good": lambda: call(x[:2], (2,), layout="m", s00=np.float64(3)),
    "small": lambda: call(x, (1,), layout="m", s00=np.float64(3)),
    "empty": lambda: call(x[:0], (3,), layout="A"),
    "deep": lambda: call(x[:1].reshape([1] * 300), [1] * 300, layout="m", s00=np.float64(3)),
}
for name in sys.argv[1:] or CASES:
    print(repr((name, CASES[name]())), flush=True)
"""


@pytest.mark.full
@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
@pytest.mark.usefixtures("jax", "compiled")
def test_exported_programs_that_are_crafted_are_refused(run_python: Any) -> None:
    pytest.importorskip("jax.ffi")
    pytest.importorskip("flatbuffers")
    lines = run_python(EXPORT).check().splitlines()
    said = dict([ast.literal_eval(line) for line in lines])
    assert said.pop("good") == [3, 3]
    assert "another dtype or shape" in said.pop("small")
    assert "scalar 0 has rank 1" in said.pop("empty")
    assert "dimensions" in said.pop("deep")
    assert not said

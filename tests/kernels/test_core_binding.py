"""The native core binds and refuses exactly what `Schema.bind` does, with the same texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels.schema_strategies import SOME_DTYPES, bound_calls

from dlbridge._core import native
from dlbridge.errors import DLBridgeError
from dlbridge.kernels.schema import Described, Schema

F32 = 2 | 32 << 8 | 1 << 16
CPU = 1


def encode(address: int, schema: Schema) -> native.KernelBase:
    return native.KernelBase(
        schema.qualified,
        schema.encode(),
        schema.encode_arguments(),
        [(CPU, "dltensors", address, None)],
        schema=schema,
    )


def allocate(described: Described | None) -> Any:
    return None if described is None else native.allocate(described.shape, described.dtype.triple)


def outcome(call: Callable[[], object]) -> tuple[type, str] | None:
    try:
        call()
    except DLBridgeError as error:
        return type(error), str(error)
    return None


@st.composite
def calls(draw: Any) -> tuple[Schema, list[Described | None], list[Any], list[Described]]:
    """Return a schema, its inputs, scalars, and buffers for its results; most of them fit."""
    schema, inputs, scalars = draw(bound_calls())
    try:
        expected = schema.results_of(schema.bind(inputs, scalars))
    except DLBridgeError:
        expected = [((2,), SOME_DTYPES[0])] * len(schema.results)
    outs = []
    for shape, dtype in expected:
        if draw(st.integers(0, 9)) == 0:
            dtype = draw(st.sampled_from(SOME_DTYPES))
        if draw(st.integers(0, 9)) == 0:
            shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
        outs.append(Described(shape, dtype, "numpy.ndarray", "cpu"))
    return schema, inputs, scalars, outs


@given(call=calls())
def test_c_and_python_agree_on_every_call(functions: Any, call: Any) -> None:
    """One schema drives everything, so there must not be two opinions about it."""
    schema, inputs, scalars, outs = call
    kernel = encode(functions("nothing"), schema)
    tensors = [allocate(one) for one in [*inputs, *outs]]

    def in_python() -> None:
        bindings = schema.bind(inputs, scalars)
        schema.results_of(bindings)
        schema.check_out(bindings, outs)

    expected = outcome(in_python)
    assert outcome(lambda: kernel.run(tensors, scalars, "numpy.ndarray")) == expected


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        ("n, 2*n", (3, 6)),
        ("2*n, n", (6, 3)),
        ("n, n-3, 3-n", (3, 0, 0)),
        ("n, n//2, (n+1)//2, (0-n)//2 + n", (5, 2, 3, 2)),
        ("m, n, (m+n)*(m-n)", (3, 2, 5)),
        ("*b, n, 3", (7, 7, 7, 2, 3)),
        ("n, *b, n", (2, 2)),
        ("n, *b, n+1", (2, 9, 9, 3)),
        ("_, 0, _", (9, 0, 8)),
        ("", ()),
    ],
)
def test_these_shapes_fit(functions: Any, dims: str, shape: tuple[int, ...]) -> None:
    kernel = encode(functions("nothing"), Schema.parse(f"a::f(x: f32[{dims}])"))
    kernel.run([native.allocate(shape, (2, 32, 1))])


def test_expressions_beyond_64_bits_and_by_zero_fit_nothing(functions: Any) -> None:
    empty = native.allocate((0, 2**40, 0), (2, 32, 1))
    for text in ("m*m", "m*m - m*m", "m//n", "m*m//m"):
        kernel = encode(functions("nothing"), Schema.parse(f"a::f(x: f32[n, m, {text}])"))
        with pytest.raises(DLBridgeError, match="argument 'x': expected"):
            kernel.run([empty])


def test_results_of_rank_beyond_the_limit_are_refused(functions: Any) -> None:
    kernel = encode(functions("nothing"), Schema.parse("a::f(x: f32[*b]) -> f32[*b, 2]"))
    fits, full = (native.allocate((1,) * rank, (2, 32, 1)) for rank in (253, 254))
    kernel.run([fits, native.allocate((1,) * 253 + (2,), (2, 32, 1))])
    with pytest.raises(DLBridgeError, match="result 'out': expected at most 254 dimensions"):
        kernel.run([full, full])


# ---- signatures that are none ------------------------------------------------------------------

X = (0, (("n", 0),), False, False)
GOOD: dict[str, Any] = {
    "dtypes": ((F32,),),
    "names": 1,
    "packs": 1,
    "inputs": (X,),
    "results": (X[:2],),
    "scalars": (),
    "solutions": (),
}


DOUBLE = (0, (("e", (("c", 2), ("n", 0), ("*", 0))),), False, False)


def wrong_dims(*dims: Any) -> dict[str, Any]:
    return {"inputs": ((0, dims, False, False),)}


@pytest.mark.parametrize(
    "change",
    [
        {"dtypes": 5},
        {"dtypes": (F32,)},
        {"dtypes": ((-1,),)},
        {"dtypes": ((2**40,),)},
        {"dtypes": ((),) * 17},
        {"names": 65537},
        {"names": -1},
        {"names": "n"},
        {"packs": 65537},
        {"inputs": (X,) * 4096},
        {"inputs": ((0, (("n", 0),)),)},
        {"inputs": ((1, (), False, False),)},
        {"results": (X,)},
        {"scalars": (("int", False, -1, -1, -1, -1),) * 17},
        {"scalars": (("complex", False, -1, -1),)},
        {"scalars": (("int", False, -1),)},
        {"scalars": ("int",)},
        {"scalars": (("int", False, 1, -1, -1, -1),)},
        {"scalars": (("int", False, -2, -1, -1, -1),)},
        {"scalars": (("int", False, 2**40, -1, -1, -1),)},
        {"scalars": (("int", False, None, -1, -1, -1),)},
        {"scalars": (("int", True, 0, -1, -1, -1),)},
        {"scalars": (("bool", False, 0, -1, -1, -1),)},
        {"scalars": (("dtype", False, 0, -1, -1, -1),)},
        {"scalars": (("dtype", False, -1, 1, -1, -1),)},
        {"scalars": (("dtype", False, -1, -2, -1, -1),)},
        {"scalars": (("int", False, -1, 0, -1, -1),)},
        {"scalars": (("float", False, 0, -1, -1, -1),)},
        {"scalars": (("int", False, -1, -1),)},
        {"scalars": (("int", False, -1, -1, 0, -1),)},
        {"scalars": (("int", False, -1, -1, -1, 1),)},
        {"scalars": (("int[]", False, -1, -1, 1, -1),)},
        {"scalars": (("int[]", True, -1, -1, 0, -1),)},
        {"scalars": (("int[]", False, 0, -1, -1, -1),)},
        {"scalars": (("int[]", False, -1, -1, -1, 65),)},
        {"scalars": (("float[]", False, -1, -1, 0, -1),)},
        {"scalars": (("bool[]", False, -1, -1, -1, -1),)},
        wrong_dims("n"),
        wrong_dims(("x", 0)),
        wrong_dims(("é", 0)),
        wrong_dims(("n", 1)),
        wrong_dims(("n",)),
        wrong_dims(("c", -1)),
        wrong_dims(("c", 2**63)),
        wrong_dims(("c", 1.5)),
        wrong_dims(("p", 1)),
        wrong_dims(("p", 0), ("p", 0)),
        wrong_dims(("e", ())),
        wrong_dims(("e", 5)),
        wrong_dims(("e", (("n",),))),
        wrong_dims(("e", (("n", 1),))),
        wrong_dims(("e", (("+", 0),))),
        wrong_dims(("e", (("c", 1), ("c", 2)))),
        wrong_dims(("e", (("c", 1), ("^", 0)))),
        wrong_dims(("e", (("c", 1),) * 17 + (("+", 0),) * 16)),
        *[
            {"inputs": (DOUBLE,), "solutions": each}
            for each in (
                5,
                (5,),
                ((0, 0),),
                ((1, 0, 0),),
                ((-1, 0, 0),),
                ((0, 1, 0),),
                ((0, 0, 1),),
                ((0, 0, -1),),
                ((0, 0, 0, 0),),
                ((0, 0, 0),) * 65537,
            )
        ],
        {"inputs": (X,), "solutions": ((0, 0, 0),)},
        {"inputs": ((*DOUBLE[:2], True, False),), "solutions": ((0, 0, 0),)},
        {"inputs": (), "solutions": ((0, 0, 0),)},
        {"names": 2, "inputs": (DOUBLE,), "solutions": ((0, 0, 1),)},
    ],
)
def test_a_signature_that_is_none_is_refused(functions: Any, change: dict[str, Any]) -> None:
    """Nothing is trusted that was not checked: C reads the tables at every call."""
    signature = tuple({**GOOD, **change}.values())
    arguments = (("x", "tensor", 0, False, False, None),)
    targets = [(CPU, "dltensors", functions("nothing"), None)]
    with pytest.raises((TypeError, ValueError, OverflowError)):
        native.KernelBase("a::f", signature, arguments, targets)
    native.KernelBase("a::f", tuple(GOOD.values()), arguments, targets)

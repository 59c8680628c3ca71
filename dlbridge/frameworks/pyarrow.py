"""PyArrow: arrays without nulls and tensors out, tensors in."""

from __future__ import annotations

import sys
from functools import partial
from inspect import signature
from typing import Any

from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.exchange import protocol
from dlbridge.exchange.adapter import Expressions, Framework, Quirk, Sign
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.shape import positive_strides, row_major
from dlbridge.tensor.values import READ_ONLY

_DTYPES = [
    *((code, bits, 1) for code in (0, 1) for bits in (8, 16, 32, 64)),
    *((2, bits, 1) for bits in (16, 32, 64)),
]
_PLAIN_ARRAYS = frozenset(
    (
        *(f"{sign}Int{bits}Array" for sign in ("", "U") for bits in (8, 16, 32, 64)),
        *("HalfFloatArray", "FloatArray", "DoubleArray"),
    )
)
_SPARSE = ("SparseCOOTensor", "SparseCSRMatrix", "SparseCSCMatrix", "SparseCSFTensor")


class PyArrow(Framework):
    """pyarrow.Array, ChunkedArray (copied when in several pieces), Tensor and Buffer; tables."""

    name = "pyarrow"
    extra = "pyarrow"
    module = "pyarrow"
    to_dtype = '{x}.cast("{dtype}")'
    roots = ("pyarrow",)
    way_in = "`__dlpack__`"
    way_out = "versioned capsule"
    zero_copy = "both ways, no negative strides"
    notes = "gives pyarrow.Tensor; arrays are read-only; no nulls, bool, bfloat16 or complex"
    quirks = (
        Quirk(
            16,
            "26",
            "a legacy capsule of an array is not marked read-only",
            "marked here",
            "Ask for max_version=(1, 0) or later",
        ),
        Quirk(
            19,
            "26",
            "takes versioned capsules only",
            "gets one, whatever the producer gave",
            "Pass an object whose __dlpack__ knows max_version",
            sign=Sign("refused", traits=("legacy",)),
        ),
        Quirk(
            27,
            "26",
            "refuses with a TypeError",
            "refused before: masked or dtype",
            "Fill nulls, and cast types that Arrow tensors lack",
        ),
        Quirk(
            30,
            "26",
            "takes no negative strides",
            "copied, or refused: strides",
            "Copy reversed views first",
            sign=Sign("refused", traits=("negative",)),
        ),
        Quirk(
            30,
            "26",
            "not even of single elements",
            "their sign is dropped",
            "Copy arrays with negative strides of single elements first",
        ),
        Quirk(
            34,
            "26",
            "calls the deleter without the GIL",
            "deleters take it themselves",
            "Deleters must take the GIL themselves",
        ),
    )
    expressions = Expressions(
        {"pa": "pyarrow"},
        make="pa.Tensor.from_numpy(a)",
        from_dlpack="pa.Tensor.from_dlpack({})",
        values="x.to_numpy()",
        address="x.to_numpy().ctypes.data",
        is_view=True,
    )

    def recognises(self, cls: type) -> bool:
        pyarrow = sys.modules.get("pyarrow")
        return pyarrow is not None and issubclass(cls, _kinds(pyarrow))

    def array_type(self) -> type | None:
        kind: type = self.import_module().Tensor
        return kind

    def classify(self, cls: type) -> tuple[str, object] | None:
        """Return the C path of tensors, and of arrays of plain numbers that have no nulls."""
        pyarrow = sys.modules["pyarrow"]
        if cls is pyarrow.Tensor:
            return "buffer", None
        export = getattr(cls, "__dlpack__", None)
        if export is None or cls.__name__ not in _PLAIN_ARRAYS:
            return None
        if "max_version" not in signature(export).parameters:
            return None
        versioned = partial(export, max_version=protocol.VERSION)
        return "capsule", (versioned, "null_count", 0, -1, READ_ONLY, None)

    def take(self, x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
        """Take the memory, marked read-only unless Arrow calls it mutable."""
        pyarrow = sys.modules["pyarrow"]
        if isinstance(x, pyarrow.Buffer):
            return protocol.take(memoryview(x), policy, context)
        if type(x).__name__ in _SPARSE:
            raise ExchangeError("sparse", f"from_dlpack: {protocol.describe(x)} is not dense")
        if isinstance(x, pyarrow.ChunkedArray):
            x = _one_chunk(x, policy, context)
        if isinstance(x, pyarrow.FixedSizeListArray):
            return _take_lists(x, policy, context)
        if isinstance(x, pyarrow.Array):
            x = _plain_array(x, pyarrow)
        tensor = protocol.take_dlpack(x, policy, context)
        if isinstance(x, pyarrow.Tensor) and x.is_mutable:
            return tensor
        return tensor._view(tensor.shape, tensor.strides, set_flags=READ_ONLY)

    def columns(self, x: Any) -> list[tuple[str, Any]] | None:
        pyarrow = sys.modules.get("pyarrow")
        if pyarrow is None or not isinstance(x, (pyarrow.Table, pyarrow.RecordBatch)):
            return None
        return list(zip(x.schema.names, x.columns, strict=True))

    def limits(self) -> native.Limits:
        return _LIMITS

    def start(self, converter: native.Converter) -> None:
        """Open the C path, by NumPy: faster than `from_dlpack` there, and the same Tensor."""
        kind = self.import_module().Tensor
        converter.activate("array", _LIMITS, kind.from_numpy, kind)

    def entry(self, tensor: native.TensorBase | None) -> str:
        imports = hasattr(self.import_module().Tensor, "from_dlpack")
        return "pyarrow.Tensor.from_dlpack" if imports else "pyarrow.Tensor.from_numpy"

    def give(self, tensor: native.TensorBase, policy: Policy, context: ExchangeContext) -> Any:
        """Return a pyarrow.Tensor; Arrow looks at strides also where there is but one element."""
        kind = self.import_module().Tensor
        if hasattr(kind, "from_dlpack"):
            plain = tensor._view(tensor.shape, positive_strides(tensor.shape, tensor.strides))
            return kind.from_dlpack(plain)
        return kind.from_numpy(native.give_numpy(tensor))


def _kinds(pyarrow: Any) -> tuple[type, ...]:
    sparse = [getattr(pyarrow, name) for name in _SPARSE]
    return (pyarrow.Array, pyarrow.ChunkedArray, pyarrow.Tensor, pyarrow.Buffer, *sparse)


def _one_chunk(x: Any, policy: Policy, context: ExchangeContext) -> Any:
    if x.num_chunks == 1:
        return x.chunk(0)
    if x.num_chunks == 0:
        return sys.modules["pyarrow"].array([], x.type)
    if policy.copy is False:
        raise ExchangeError(
            "copy_required",
            f"from_dlpack: a pyarrow.ChunkedArray of {x.num_chunks} chunks is not a single piece "
            "of memory; exchange its chunks one by one, or allow a copy with copy=None",
        )
    joined = context.copying("pyarrow", "copy_required", x.combine_chunks)
    return joined.chunk(0) if hasattr(joined, "num_chunks") else joined


def _take_lists(x: Any, policy: Policy, context: ExchangeContext) -> native.TensorBase:
    """Return lists of one length, and such lists in them, as one more dimension each."""
    pyarrow, shape = sys.modules["pyarrow"], [len(x)]
    while isinstance(x, pyarrow.FixedSizeListArray):
        _refuse_nulls(x, x.null_count)
        shape.append(x.type.list_size)
        x = x.flatten()
    tensor = protocol.take_dlpack(_plain_array(x, pyarrow), policy, context)
    return tensor._view(tuple(shape), row_major(shape), set_flags=READ_ONLY)


def _refuse_nulls(x: Any, nulls: int) -> None:
    if nulls:
        raise ExchangeError(
            "masked",
            f"from_dlpack: {nulls} nulls of the {protocol.describe(x)} would be lost; "
            "pass x.fill_null(value)",
        )


def _plain_array(x: Any, pyarrow: Any) -> Any:
    """Return an array whose memory is its values, or refuse: nulls, bits, text, dates."""
    holds_tensors = type(x).__name__ == "FixedShapeTensorArray"
    _refuse_nulls(x, x.null_count + (x.storage.flatten().null_count if holds_tensors else 0))
    if holds_tensors:
        return x.to_tensor()
    if pyarrow.types.is_integer(x.type) or pyarrow.types.is_floating(x.type):
        return x
    advice = next(
        (advice for is_of, advice in _ADVICE if getattr(pyarrow.types, is_of)(x.type)), ""
    )
    if not advice and pyarrow.types.is_temporal(x.type):
        advice = f'no plain numbers; pass x.cast("int{x.type.bit_width}")'
    advice = advice or "no numbers; cast it, or leave it out"
    raise ExchangeError("dtype", f"from_dlpack: a pyarrow array of {x.type} holds {advice}")


# Advice for types that are not numbers, by the function of pyarrow.types that recognises them.
_ADVICE = (
    ("is_boolean", 'bits; cast it to uint8, as x.cast("uint8") does'),
    ("is_decimal", 'no plain numbers; pass x.cast("float64")'),
    ("is_dictionary", "places in a dictionary; pass x.indices of the array, or of each chunk"),
    ("is_list", "lists; pass pyarrow.compute.list_flatten(x) for what is in all of them"),
    ("is_large_list", "lists; pass pyarrow.compute.list_flatten(x) for what is in all of them"),
    ("is_struct", "several columns; pass pyarrow.Table.from_struct_array(x) to convert_tree"),
)


_LIMITS = native.Limits(
    "pyarrow", dtypes=_DTYPES, devices=[1], layout="non_negative", protects_readonly=True
)
ADAPTER = PyArrow()

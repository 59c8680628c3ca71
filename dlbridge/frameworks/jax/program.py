"""Programs: a kernel as a JAX function, for one way in which the arguments travel.

A program calls the one target of XLA, "dlbridge", with the kernel's name as an attribute; what
travels how is described in `_core/xla.h`. Arguments are checked while JAX traces, by the schema.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dlbridge._core import native
from dlbridge.dtype import DType, as_dtype
from dlbridge.errors import DLBridgeError, UnsupportedTypeError
from dlbridge.frameworks.jax import transforms
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.schema import Described

try:
    from jax import ffi  # since 0.5
except ImportError:
    from jax.extend import ffi

TARGET = "dlbridge"
SOURCE = "jax.Array"

# Before 0.4.38 XLA takes no aliases: the handler copies, and a donated array is not reused.
_HAS_ALIASES = jax.__version_info__ >= (0, 4, 38)
# Before 0.6 elements narrower than a byte had no type, or lay in another order.
_HAS_NARROW = jax.__version_info__ >= (0, 6)


class Plan(NamedTuple):
    """How the arguments of a call travel.

    Attributes:
        present: for each tensor of the schema, whether it was given.
        static: (index, value) of the scalars that are compiled in.
        traced: the scalars that have an operand of their own.
        block: (index, kind) of the scalars that share one operand, 64 bits each: their values may
            change from call to call without a new compilation, and keep all their bits.
        eager: no other trace is around the call: failures leave a number to find them by.
    """

    present: tuple[bool, ...]
    static: tuple[tuple[int, Any], ...] = ()
    traced: tuple[int, ...] = ()
    block: tuple[tuple[int, str], ...] = ()
    eager: bool = False


class Program:
    """A kernel as a function of JAX arrays: the tensors that are present, then the scalars.

    Behind the tensors come an array for each traced scalar; then, where there is a block, its
    uint32 array and, for derivatives in Python, each of its scalars once more, as JAX passes it.
    """

    def __init__(self, kernel: Kernel, plan: Plan) -> None:
        self.kernel = kernel
        self.plan = plan
        self.tensor_count = sum(plan.present)
        self.written = kernel.written(len(plan.present))
        self.attributes = _attributes(kernel, plan, self.written)
        core = transforms.with_batch_rule(self)
        self.differentiable = transforms.with_gradients(self, core)
        self.jitted = jax.jit(self._outermost, inline=True)

    def __call__(self, *operands: Any) -> Any:
        """Run, or trace, the kernel; return as the user sees it: bare, a tuple, or None."""
        return self.jitted(*operands)

    def _outermost(self, *operands: Any) -> Any:
        outcome = tuple(self.differentiable(*operands))
        return outcome if len(outcome) > 1 else (outcome[0] if outcome else None)

    def scalars(self, operands: Sequence[Any]) -> list[Any]:
        """Return the scalars in the schema's order: compiled in, or out of the operands."""
        schema = self.kernel.schema
        values: list[Any] = [None] * (0 if schema is None else len(schema.scalars))
        for index, value in self.plan.static:
            values[index] = value
        place = self.tensor_count
        for index in self.plan.traced:
            values[index] = operands[place]
            place += 1
        for number, (index, _) in enumerate(self.plan.block, place + 1):
            values[index] = operands[number]
        return values

    def describe(self, array: Any) -> Described:
        """Return an operand as the schema looks at it."""
        return describe(self.kernel, array)

    # ---- shapes --------------------------------------------------------------------------------

    def spread(self, operands: Sequence[Any]) -> list[Any]:
        """Return one value for each tensor of the schema, None for one that is left out."""
        left = iter(operands)
        return [next(left) if present else None for present in self.plan.present]

    def shapes(self, operands: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
        """Return shape and dtype of each result, then of each tensor that is written in place.

        Raises:
            UnsupportedTypeError, ArgumentError: the operands do not fit the schema.
        """
        tensors = self.spread(operands)
        made = []
        schema = self.kernel.schema
        if schema is not None:
            described = [None if each is None else self.describe(each) for each in tensors]
            static = dict(self.plan.static)  # dimensions are among them
            scalars = [static.get(index) for index in range(len(schema.scalars))]
            found = schema.results_of(schema.bind(described, scalars))
            made = [
                self._struct(result.name, shape, dtype)
                for result, (shape, dtype) in zip(schema.results, found, strict=True)
            ]
        written = [tensors[index] for index in self.written if tensors[index] is not None]
        return [*made, *[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in written]]

    def _struct(self, name: str, shape: Any, dtype: DType) -> jax.ShapeDtypeStruct:
        own = dtype.to("numpy")
        text = f"{self.kernel.name}: result {name!r}"
        if shape is None or None in shape:
            raise UnsupportedTypeError(f"{text}: the arguments given do not say its shape")
        if jax.dtypes.canonicalize_dtype(own) != own:
            raise UnsupportedTypeError(
                f"{text}: JAX has {dtype} only with jax.config.update('jax_enable_x64', True)"
            )
        return jax.ShapeDtypeStruct(shape, own)

    # ---- the call ------------------------------------------------------------------------------

    def call(self, *operands: Any) -> tuple[Any, ...]:
        """Call XLA's target: without gradients, batches one by one."""
        shapes = self.shapes(operands)
        used = self.tensor_count + len(self.plan.traced) + bool(self.plan.block)
        options: dict[str, Any] = {"has_side_effect": not shapes}
        if _HAS_ALIASES and self.written:
            options["input_output_aliases"] = self._aliases(len(shapes))
        call = ffi.ffi_call(TARGET, tuple(shapes), vmap_method="sequential", **options)
        return _vary(call(*operands[:used], **self.attributes), operands[:used])

    def _aliases(self, outcome_count: int) -> dict[int, int]:
        places = np.cumsum(self.plan.present) - 1
        inputs = [int(places[index]) for index in self.written if self.plan.present[index]]
        first = outcome_count - len(inputs)
        return {place: first + number for number, place in enumerate(inputs)}


def describe(kernel: Kernel, array: Any) -> Described:
    """Return an array, or a tracer, as the schema looks at it."""
    try:
        dtype = as_dtype(array.dtype)
    except DLBridgeError as error:
        raise UnsupportedTypeError(f"{kernel.name}: {error} (a {SOURCE})") from None
    if dtype.bits < 8 and not _HAS_NARROW:
        raise UnsupportedTypeError(
            f"{kernel.name}: JAX hands {dtype} to foreign functions from 0.6 on; cast it to int8"
        )
    return Described(tuple(array.shape), dtype, SOURCE, jax.default_backend())


def _varying_axes(arrays: Sequence[Any]) -> frozenset[Any]:
    """Return along which axes of a mesh the arrays differ, within shard_map of newer JAX."""
    axes: frozenset[Any] = frozenset()
    for each in arrays:
        aval = getattr(each, "aval", None)
        kind = getattr(aval, "manual_axis_type", None)
        axes |= getattr(aval, "vma", None) or axes if kind is None else kind.varying
    return axes


def _vary(outcome: Sequence[Any], operands: Sequence[Any]) -> tuple[Any, ...]:
    """Say of results that they differ along the axes along which the operands do."""
    axes = _varying_axes(operands)
    missing = [tuple(axes - _varying_axes([each])) for each in outcome]
    if not any(missing):
        return tuple(outcome)
    if hasattr(jax.lax, "pcast"):
        vary = functools.partial(jax.lax.pcast, to="varying")
    else:
        vary = jax.lax.pvary
    pairs = zip(outcome, missing, strict=True)
    return tuple(vary(each, names) if names else each for each, names in pairs)


def _attributes(kernel: Kernel, plan: Plan, written: Sequence[int]) -> dict[str, Any]:
    attributes: dict[str, Any] = {"kernel": kernel.name}
    for index, value in plan.static:
        if value is not None:
            attributes[f"s{index:02}"] = _attribute(value)
    letters = [
        ("m" if index in written else "t") if present else "-"
        for index, present in enumerate(plan.present)
    ]
    letters += [_letter(index) for index in plan.traced]
    if plan.block:
        letters += ["#", *[f"{_letter(index)}{kind[0]}" for index, kind in plan.block]]
    if set(letters) - {"t"}:
        attributes["layout"] = "".join(letters)
    if plan.eager:
        attributes["eager"] = np.int64(1)
    return attributes


def _letter(scalar: int) -> str:
    return chr(ord("A") + scalar)


def _attribute(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return np.float64(value) if isinstance(value, float) else np.int64(value)


def make_block(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return the operand that carries numbers with all their bits: uint32, two for each."""
    wide = [np.float64(each) if isinstance(each, float) else np.int64(each) for each in values]
    return np.frombuffer(b"".join(each.tobytes() for each in wide), np.uint32)


def register() -> None:
    """Tell XLA the target, once in a process."""
    for platform in ("cpu", "CUDA", "ROCM"):
        ffi.register_ffi_target(TARGET, native.xla_handler(platform), platform=platform)

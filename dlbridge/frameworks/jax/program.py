"""Programs: a kernel as a JAX function, for one way in which the arguments travel.

A program calls the one target of XLA, "dlbridge", with the kernel's name as an attribute; what
travels how is described in `_core/xla.h`. Arguments are checked while JAX traces, by the schema.

Under jax.grad, jax.jvp and jax.vmap it goes by `vjp=`, `jvp=` and `batch=`. A kernel without `vjp=`
and `jvp=` raises as soon as a derivative would pass through it: never a silent zero.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from dlbridge._core import native
from dlbridge.dtype import DType, as_dtype
from dlbridge.errors import ArgumentError, DLBridgeError, KernelError, UnsupportedTypeError
from dlbridge.frameworks.jax.sharding import (
    needs_devices,
    partitioned,
    sharding_of,
    stacked,
    with_sharding,
)
from dlbridge.kernels import gradients
from dlbridge.kernels.gradients import Jvp, Vjp
from dlbridge.kernels.kernel import Kernel, recorded
from dlbridge.kernels.numbers import names_of
from dlbridge.kernels.schema import Described, dtype_key, write_list
from dlbridge.signals import not_from_handler

try:
    from jax import ffi  # since 0.5
except not_from_handler(ImportError):
    from jax.extend import ffi
try:
    from jax.extend.core import Primitive
except not_from_handler(ImportError):  # before 0.4.36
    from jax.core import Primitive

TARGET = "dlbridge"
SOURCE = "jax.Array"

Call = Callable[..., tuple[Any, ...]]

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
        core = _with_batch_rule(self)
        self.differentiable = _with_gradients(self, core)
        self.jitted = jax.jit(self._outermost, inline=True)
        self.says_extents = _says_extents(kernel)

    def __call__(self, *operands: Any) -> Any:
        """Run, or trace, the kernel; return as the user sees it: bare, a tuple, or None."""
        # In a jitted function JAX traces the transpose, and a vjp could not read the extents.
        call = self.jitted
        if self.says_extents and any(isinstance(each, jax.core.Tracer) for each in operands):
            call = self._outermost
        try:
            return call(*operands)
        except not_from_handler(TypeError) as error:
            if _NO_FORWARD_MODE in str(error) and self.kernel.jvp is None:
                raise _missing_jvp(self) from None
            raise

    def _outermost(self, *operands: Any) -> Any:
        # The transpose of _vary is the sum over devices, which the rules themselves cannot make.
        outcome = tuple(self.differentiable(*_vary(operands, operands)))
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
            wide = _wide(self.kernel)
            made = [
                self._narrow(found, place, wide[place])
                if place in wide
                else self._struct(schema.results[place].name, shape, dtype)
                for place, (shape, dtype) in enumerate(found)
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

    def _narrow(
        self, found: Sequence[tuple[Any, DType]], place: int, kind: str
    ) -> jax.ShapeDtypeStruct:
        """Return what a number or an extent is to JAX, which has no 64-bit numbers now."""
        if kind != "extent":
            return jax.ShapeDtypeStruct((), np.float32 if kind == "float" else np.int32)
        places = self.kernel.whole.counted.places  # type: ignore[union-attr]
        rooms = [shape[0] for at, (shape, _) in enumerate(found) if places[at : at + 1] == [place]]
        if any(isinstance(room, int) and room > _MOST for room in rooms):
            raise UnsupportedTypeError(
                f"{self.kernel.name}: result {self.kernel.schema.results[place].name!r} could be "  # type: ignore[union-attr]
                f"{max(rooms)}, and JAX has int64 only with "
                "jax.config.update('jax_enable_x64', True)"
            )
        return jax.ShapeDtypeStruct((), np.int32)

    # ---- the call ------------------------------------------------------------------------------

    def call(self, *operands: Any) -> tuple[Any, ...]:
        """Call XLA's target: without gradients, batches one by one."""
        shapes = self.shapes(operands)
        used = self.tensor_count + len(self.plan.traced) + bool(self.plan.block)
        options: dict[str, Any] = {"has_side_effect": not shapes}
        if _HAS_ALIASES and self.written:
            options["input_output_aliases"] = self._aliases(len(shapes))
        wide = _wide(self.kernel)
        for place in wide:
            shapes[place] = jax.ShapeDtypeStruct((2,), np.int32)
        call = ffi.ffi_call(TARGET, tuple(shapes), vmap_method="sequential", **options)
        outcome = list(call(*operands[:used], **self.attributes))
        for place, kind in wide.items():
            outcome[place] = _NARROWED[kind](outcome[place][_LOW], outcome[place][1 - _LOW])
        return _vary(outcome, operands[:used])

    def split(self, *operands: Any) -> tuple[Any, ...]:
        """Call XLA's target in a way that XLA can split along the dimensions of `sharding=`."""
        kernel = self.kernel
        if kernel.schema is None or _varying_axes(operands):  # within shard_map
            return self.call(*operands)
        tensors = self.spread(operands[: self.tensor_count])
        call = partitioned(self.call, kernel.schema, kernel.sharding, tensors, operands)
        return call(*operands)

    def _aliases(self, outcome_count: int) -> dict[int, int]:
        places = np.cumsum(self.plan.present) - 1
        inputs = [int(places[index]) for index in self.written if self.plan.present[index]]
        first = outcome_count - len(inputs)
        return {place: first + number for number, place in enumerate(inputs)}


# An int64 or a float64 where JAX has none: two numbers of 32 bits, of which one is made.
_MOST = np.iinfo(np.int32).max
_LOW = 0 if sys.byteorder == "little" else 1


def has_wide() -> bool:
    """Return whether JAX has 64-bit numbers now."""
    return bool(jax.dtypes.canonicalize_dtype(np.int64) == np.int64)


def _wide(kernel: Kernel) -> dict[int, str]:
    """Return the results that are numbers or extents of 64 bits, and which, if JAX has none."""
    if kernel.schema is None or has_wide():
        return {}
    names = names_of(kernel)
    found = {
        place: names[result.name]
        for place, result in enumerate(kernel.schema.results)
        if names.get(result.name) in ("int", "float")
    }
    if _says_extents(kernel):
        places = kernel.whole.counted.places  # type: ignore[union-attr]
        found |= {place: "extent" for place in places if place >= 0}
    return found


def _to_int32(low: Any, high: Any) -> Any:
    """Return the int64 of two halves, or the int32 that is nearest to it."""
    limit = jnp.where(high < 0, np.iinfo(np.int32).min, np.iinfo(np.int32).max)
    return jnp.where(high == low >> 31, low, limit)


def _to_float32(low: Any, high: Any) -> Any:
    """Return the float64 whose bits these are, rounded; one below the normal float32 is 0."""
    low, high = low.astype(jnp.uint32), high.astype(jnp.uint32)
    exponent = (high >> 20 & 0x7FF).astype(jnp.int32)
    digits = 1 << 23 | (high & 0xFFFFF) << 3 | low >> 29
    rest, half = low & 0x1FFFFFFF, 1 << 28
    digits += ((rest > half) | ((rest == half) & (digits % 2 == 1))).astype(jnp.uint32)
    power = exponent - 1023 + (digits >> 24).astype(jnp.int32)  # digits of ones carry
    bits = (exponent - 1023 + 127 << 23) + (digits.astype(jnp.int32) - (1 << 23))
    is_nan = (exponent == 0x7FF) & ((high & 0xFFFFF | low) != 0)
    bits = jnp.where(power > 127, 0x7F800000, jnp.where(power < -126, 0, bits))
    bits = jnp.where(is_nan, 0x7FC00000, bits)
    signed = bits.astype(jnp.uint32) | (high & np.uint32(1 << 31))
    return jax.lax.bitcast_convert_type(signed, jnp.float32)


_NARROWED: dict[str, Callable[[Any, Any], Any]] = {
    "extent": lambda low, _: low,
    "int": _to_int32,
    "float": _to_float32,
}


def _says_extents(kernel: Kernel) -> bool:
    """Return whether the kernel reports extents of its results."""
    return kernel.whole is not None and kernel.whole.counted is not None


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
    return axes.union(*[_axes_of(getattr(each, "aval", None)) for each in arrays])


def _axes_of(aval: Any) -> frozenset[Any]:
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset((getattr(aval, "vma", None) or ()) if kind is None else kind.varying)


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
    attributes: dict[str, Any] = {"kernel": recorded(kernel)}
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
    if isinstance(value, tuple):
        return write_list(value)
    if isinstance(value, DType):
        return np.int64(dtype_key(value))
    return np.float64(value) if isinstance(value, float) else np.int64(value)


def make_block(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return the operand that carries numbers with all their bits: uint32, two for each."""
    wide = [np.float64(each) if isinstance(each, float) else np.int64(each) for each in values]
    return np.frombuffer(b"".join(each.tobytes() for each in wide), np.uint32)


def register() -> None:
    """Tell XLA the target, once in a process."""
    for platform in ("cpu", "CUDA", "ROCM"):
        ffi.register_ffi_target(TARGET, native.xla_handler(platform), platform=platform)


# ---- under JAX's transformations: jax.grad and jax.jvp by `vjp=` and `jvp=`, jax.vmap ------------


def _with_gradients(program: Program, call: Call) -> Any:
    """Return `call` with the kernel's own derivatives, or with a clear error in their place."""
    kernel = program.kernel
    jvp = gradients.make_jvp(kernel)
    if jvp is not None:
        return _with_jvp(program, call, jvp, gradients.make_vjp(kernel))
    if gradients.may_transpose(kernel):
        return _with_transposed_vjp(program, call)
    vjp = gradients.make_vjp(kernel)
    if vjp is not None:
        return _with_vjp(program, call, vjp)
    return _with_refusal(program, call)


def _is_differentiable(array: Any) -> bool:
    """Return whether JAX gives such values a tangent of their own dtype."""
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _is_zero(tangent: Any) -> bool:
    symbolic = isinstance(tangent, jax.custom_derivatives.SymbolicZero)
    return symbolic or tangent.dtype == jax.dtypes.float0


def _instantiate(tangent: Any) -> Any:
    """Return a tangent or cotangent as an array, or None where there is none."""
    if tangent.dtype == jax.dtypes.float0:
        return None
    if _is_zero(tangent):
        return _zeros(tangent)
    return jnp.asarray(tangent)  # JAX passes on NumPy's arrays where it was given them


def _zero_tangent(array: Any) -> Any:
    if _is_differentiable(array):
        return _zeros(array)
    return np.zeros(array.shape, jax.dtypes.float0)


# In a mesh with Explicit axes, a gradient or tangent must be sharded as what it is of.


def _zeros(like: Any) -> Any:
    return with_sharding(jnp.zeros(like.shape, like.dtype), sharding_of(like))


def _fitted(value: Any, like: Any) -> Any:
    """Return what a rule gave for `like`, zeros where it gave None."""
    return _zeros(like) if value is None else with_sharding(jnp.asarray(value), sharding_of(like))


def _struct(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding_of(array))


# ---- neither -------------------------------------------------------------------------------------


def _with_refusal(program: Program, call: Call) -> Any:
    made: Any = jax.custom_jvp(call)

    def refuse(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        outcome = made(*primals)  # not `call`: a second derivative passes here
        if not all(map(_is_zero, tangents)) and any(map(_is_differentiable, outcome)):
            raise _missing(program)
        return outcome, tuple(map(_zero_tangent, outcome))

    made.defjvp(refuse, symbolic_zeros=True)
    return made


def _missing(program: Program) -> KernelError:
    schema = program.kernel.schema
    writes = schema is not None and schema.mutated
    forward = "" if writes else ", and with jvp= for jax.jvp, jax.jacfwd and jax.hessian"
    return KernelError(
        f"{program.kernel.name}: a derivative would pass through this kernel, and it has none; "
        f"{gradients.remedy(program.kernel)}{forward}, or stop the derivative with "
        "jax.lax.stop_gradient"
    )


def _missing_jvp(program: Program) -> KernelError:
    return KernelError(
        f"{program.kernel.name}: forward-mode derivatives (jax.jvp, jax.jacfwd) need a jvp, and "
        "this kernel has only a vjp, a Kernel that has no vjp= of its own; give it one, "
        f"{gradients.remedy(program.kernel, 'jvp')} too, or use jax.grad, jax.vjp or jax.jacrev"
    )


_NO_FORWARD_MODE = "can't apply forward-mode autodiff"  # JAX's words, which name no function


# ---- vjp=, a kernel that has no gradient ---------------------------------------------------------


@jax.tree_util.register_pytree_node_class
class _Kept:
    """Residuals: what the backward call needs of the forward one.

    Attributes:
        arrays: tensors, scalars and results.
        operands: descriptions of the tensors.
        types: shape, dtype and sharding of each.
    """

    def __init__(self, arrays: Any, operands: tuple[Described, ...], types: Any) -> None:
        self.arrays = arrays
        self.operands = operands
        self.types = types

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.arrays,), (self.operands, self.types)

    @classmethod
    def tree_unflatten(cls, fixed: Any, children: Any) -> _Kept:
        return cls(children[0], *fixed)


def _with_vjp(program: Program, call: Call, vjp: Vjp) -> Any:
    """Differentiate backwards alone, with `vjp`.

    Where scalars are operands, JAX is asked which of them are differentiated: none may be.
    """
    made: Any = jax.custom_vjp(call)
    watched = bool(program.plan.traced)

    def forward(*operands: Any) -> Any:
        if watched:
            _refuse_scalars(program, [each.perturbed for each in operands])
            operands = tuple(each.value for each in operands)
        outcome = made(*operands)  # not `call`: a second derivative passes here
        return outcome, _keep(program, vjp, operands, outcome)

    def backward(kept: _Kept, cotangents: Sequence[Any]) -> Any:
        tensors, scalars, outcome = kept.arrays
        found = _pull_back(
            vjp,
            tensors,
            program.scalars([*[None] * program.tensor_count, *scalars]),
            outcome,
            list(map(_instantiate, cotangents)),
            program.spread(kept.operands),
        )
        gradients = [
            None if each is None else _fitted(each, like)
            for each, like in zip(_present(program, found), kept.types, strict=True)
        ]
        return (*gradients, *[None] * len(scalars))

    made.defvjp(forward, backward, symbolic_zeros=watched)
    return made


def _pull_back(
    vjp: Vjp,
    tensors: Sequence[Any],
    scalars: Sequence[Any],
    results: Sequence[Any],
    cotangents: Sequence[Any],
    expected: Sequence[Described | None] | None = None,
) -> list[Any]:
    """Return what the vjp gives, which has the conjugates of JAX's cotangents and gradients."""
    given = gradients.conjugates(cotangents)
    found = vjp(tensors, scalars, list(results), given, expected)
    return gradients.conjugates(None if each is None else jnp.asarray(each) for each in found)


def _keep(program: Program, vjp: Vjp, operands: Sequence[Any], outcome: Sequence[Any]) -> _Kept:
    tensors = program.spread(operands)
    arrays = (
        [each if place in vjp.saved.primals else None for place, each in enumerate(tensors)],
        list(operands[program.tensor_count :]),
        [each if place in vjp.saved.results else None for place, each in enumerate(outcome)],
    )
    given = operands[: program.tensor_count]
    return _Kept(arrays, tuple(map(program.describe, given)), tuple(map(_struct, given)))


def _present(program: Program, values: Sequence[Any]) -> list[Any]:
    """Leave out what belongs to tensors that were left out."""
    return [each for each, given in zip(values, program.plan.present, strict=True) if given]


def _refuse_scalars(program: Program, moving: Sequence[bool]) -> None:
    schema = program.kernel.schema
    for place, index in enumerate(program.plan.traced, program.tensor_count):
        if moving[place]:
            assert schema is not None
            raise KernelError(
                f"{program.kernel.name}: argument {schema.scalars[index].name!r}: no gradient "
                "passes to a scalar; make it a tensor of the schema, or stop the gradient with "
                "jax.lax.stop_gradient"
            )


# ---- vjp= ----------------------------------------------------------------------------------------


def _with_transposed_vjp(program: Program, call: Call) -> Any:
    """Differentiate backwards with the kernel's vjp, and forwards with its transpose.

    A vjp is linear in the cotangents. One that is derived is made when a derivative is asked for.
    JAX looks at the transpose only where it is needed: what the rule calls may have no derivative.
    """
    made: Any = jax.custom_jvp(call)

    def rule(operands: Sequence[Any], tangents: Sequence[Any]) -> Any:
        _refuse_scalars(program, [not _is_zero(each) for each in tangents])
        outcome = made(*operands)  # not `call`: a second derivative passes here
        count = program.tensor_count
        flags = [not _is_zero(each) for each in tangents[:count]]
        moving = [each for each, flag in zip(tangents, flags, strict=False) if flag]
        if not (moving and any(map(_is_differentiable, outcome))):
            return outcome, tuple(map(_zero_tangent, outcome))
        spread = program.spread(flags)
        vjp = gradients.make_vjp_for(program.kernel, [at for at, flag in enumerate(spread) if flag])
        assert vjp is not None
        kept, structure = jax.tree.flatten(_keep(program, vjp, operands, outcome))
        results = list(map(_struct, outcome))
        found = iter(_VjpRules(program, vjp, flags, structure, results).linear(kept, moving))
        return outcome, tuple(
            next(found) if _is_differentiable(each) else _zero_tangent(each) for each in outcome
        )

    made.defjvp(rule, symbolic_zeros=True)
    return made


class _VjpRules:
    """A vjp and its transpose. JAX keeps them in its programs, so they hold no values of a call.

    Attributes:
        flags: the tensors that are differentiated.
        structure: of the _Kept whose leaves are called `kept`.
        results: shape, dtype and sharding of each.
        linear: the transpose, from the tangents of the tensors that `flags` marks to those of the
            floating results, whose transpose is the vjp.
    """

    def __init__(
        self,
        program: Program,
        vjp: Vjp,
        flags: Sequence[bool],
        structure: Any,
        results: Sequence[jax.ShapeDtypeStruct],
    ) -> None:
        self.program = program
        self.vjp = vjp
        self.flags = flags
        self.structure = structure
        self.results = results
        self.linear = Linear(self.push, self.pull, list(filter(_is_differentiable, results)))

    def pull(self, kept: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        """Return the cotangents of the tensors that are marked, by the vjp."""
        values = jax.tree.unflatten(self.structure, kept)
        tensors, scalars, outcome = values.arrays
        left = iter(cotangents)
        wanted = [next(left) if _is_differentiable(each) else None for each in self.results]
        found = _pull_back(
            self.vjp,
            tensors,
            self.program.scalars([*[None] * self.program.tensor_count, *scalars]),
            outcome,
            wanted,
            self.program.spread(values.operands),
        )
        rows = zip(_present(self.program, found), values.types, self.flags, strict=True)
        return tuple(_fitted(each, like) for each, like, flag in rows if flag)

    def push(self, kept: Any, moving: Sequence[Any]) -> tuple[Any, ...]:
        """Return the tangents of the results: the derivative of the vjp by its cotangents."""
        zeros = list(map(_zeros, self.linear.shapes or ()))
        cotangents = list(_vary(zeros, (*kept, *moving)))  # else they would be summed over devices
        _, transpose = jax.vjp(lambda given: self.pull(kept, given), cotangents)
        (found,) = transpose(tuple(moving))
        return tuple(found)


# ---- jvp= ----------------------------------------------------------------------------------------


def _with_jvp(program: Program, call: Call, jvp: Jvp, vjp: Vjp | None) -> Any:
    """Differentiate forwards with `jvp`; backwards with `vjp`, or what JAX makes of `jvp`."""
    made: Any = jax.custom_jvp(call)
    transposed = vjp is None and not isinstance(jvp.rule.function, native.KernelBase)

    def rule(operands: Sequence[Any], tangents: Sequence[Any]) -> Any:
        _refuse_scalars(program, [not _is_zero(each) for each in tangents])
        outcome = made(*operands)  # not `call`: a second derivative passes here
        flags = [not _is_zero(each) for each in tangents[: program.tensor_count]]
        moving = tuple(each for each, flag in zip(tangents, flags, strict=False) if flag)
        rules = _LinearRules(program, jvp, vjp, flags, len(operands))
        kept = *operands, *outcome
        if transposed:
            found = iter(rules.forward(kept, moving))
        else:
            found = iter(Linear(rules.forward, rules.backward)(kept, moving))
        return outcome, tuple(
            next(found) if _is_differentiable(each) else _zero_tangent(each) for each in outcome
        )

    made.defjvp(rule, symbolic_zeros=True)
    return made


class _LinearRules:
    """From tangents to tangents, and from cotangents to cotangents, of what has such.

    `flags` says which tensors have a tangent that is not known to be zero: only they take part,
    since whoever transposes must not meet a constant among them.
    """

    def __init__(
        self, program: Program, jvp: Jvp, vjp: Vjp | None, flags: Sequence[bool], count: int
    ) -> None:
        self.program = program
        self.jvp = jvp
        self.vjp = vjp
        self.flags = flags
        self.count = count  # operands; behind them come the results

    def forward(self, kept: Any, moving: Sequence[Any]) -> tuple[Any, ...]:
        operands, outcome = kept[: self.count], kept[self.count :]
        tensors = operands[: self.program.tensor_count]
        left = iter(moving)
        tangents = [
            next(left) if flag else _instantiate(_zero_tangent(each))
            for each, flag in zip(tensors, self.flags, strict=True)
        ]
        spread = self.program.spread
        scalars = self.program.scalars(operands)
        found = self.jvp(spread(tensors), scalars, spread(tangents))
        return tuple(
            _fitted(each, like)
            for each, like in zip(found, outcome, strict=True)
            if _is_differentiable(like)
        )

    def backward(self, kept: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        operands, outcome = kept[: self.count], kept[self.count :]
        if self.vjp is None:
            raise _missing(self.program)
        left = iter(cotangents)
        wanted = [next(left) if _is_differentiable(each) else None for each in outcome]
        tensors = operands[: self.program.tensor_count]
        scalars = self.program.scalars(operands)
        found = _pull_back(self.vjp, self.program.spread(tensors), scalars, outcome, wanted)
        rows = zip(_present(self.program, found), tensors, self.flags, strict=True)
        return tuple(_fitted(each, like) for each, like, flag in rows if flag)


# ---- a linear map with its transpose: as jax.custom_derivatives.linear_call, but it batches ------

Arrays = Sequence[Any]
Map = Callable[[Arrays, Arrays], Arrays]


class Linear:
    """`forward(kept, moving)`, linear in `moving`, and `backward(kept, cotangents)`.

    Attributes:
        shapes: what `forward` gives, where that is known without a look into it; else None.
    """

    def __init__(
        self, forward: Map, backward: Map, shapes: Sequence[jax.ShapeDtypeStruct] | None = None
    ) -> None:
        self.forward = forward
        self.backward = backward
        self.shapes = shapes

    def __call__(self, kept: Arrays, moving: Arrays) -> list[Any]:
        """Apply the map."""
        arrays = _vary((*kept, *moving), (*kept, *moving))  # whose transpose sums over the axes
        call: Any = {"linear": self, "count": len(kept), "needs": needs_devices()}
        found: list[Any] = _linear.bind(*arrays, **call)
        return found

    def flat(self, count: int) -> Callable[..., list[Any]]:
        """Return `forward` as a function of all arrays in a row."""
        return lambda *arrays: list(self.forward(arrays[:count], arrays[count:]))

    def infer(self, count: int) -> Callable[..., list[Any]]:
        """Return what makes arrays like those of `flat`, of the same arrays."""
        shapes = self.shapes
        if shapes is None:
            return self.flat(count)
        return lambda *arrays: list(_vary(list(map(_zeros, shapes)), arrays))

    def batched(
        self, axes: Sequence[int | None], count: int, size: int, along: Any = None
    ) -> Linear:
        """Return the same for a batch, which comes out along axis 0, sharded `along` mesh axes."""
        kept_axes, moving_axes = list(axes[:count]), list(axes[count:])

        def forward(kept: Arrays, moving: Arrays) -> Arrays:
            mapped = jax.vmap(self.forward, in_axes=(kept_axes, moving_axes))
            found: Arrays = mapped(list(kept), list(moving))
            return found

        def backward(kept: Arrays, cotangents: Arrays) -> Arrays:
            mapped = jax.vmap(self.backward, in_axes=(kept_axes, 0))
            found = mapped(list(kept), list(cotangents))
            return [
                each.sum(0) if axis is None else jnp.moveaxis(each, 0, axis)
                for each, axis in zip(found, moving_axes, strict=True)
            ]

        shapes = self.shapes and [
            jax.ShapeDtypeStruct(
                (size, *each.shape), each.dtype, sharding=stacked(each.sharding, along)
            )
            for each in self.shapes
        ]
        return Linear(forward, backward, shapes)


# ---- the primitive -------------------------------------------------------------------------------


def _apply_linear(*arrays: Any, linear: Linear, count: int, **_: Any) -> list[Any]:
    # JAX passes on NumPy's arrays where it was given them.
    return linear.flat(count)(*map(jnp.asarray, arrays))


def _infer_linear(*avals: Any, linear: Linear, count: int, **_: Any) -> list[Any]:
    if not any(map(_axes_of, avals)) and not any(map(sharding_of, avals)):
        structs = list(map(_struct, avals))
        found = linear.shapes or jax.eval_shape(linear.flat(count), *structs)
        return [jax.core.ShapedArray(each.shape, each.dtype) for each in found]
    # Within shard_map, what comes out differs along the same axes of the same mesh; with Explicit
    # axes, types have shardings.
    return list(jax.make_jaxpr(linear.infer(count))(*avals).out_avals)


def _batch_linear(arrays: Arrays, axes: Any, *, linear: Linear, count: int, **_: Any) -> Any:
    marks = [axis if isinstance(axis, int) else None for axis in axes]
    first, mark = next(
        (each, mark) for each, mark in zip(arrays, marks, strict=True) if mark is not None
    )
    sharding = sharding_of(first)
    along = sharding and sharding.spec[mark]
    batched = linear.batched(marks, count, first.shape[mark], along)
    found = batched(arrays[:count], arrays[count:])
    return found, [0] * len(found)


def _transpose_linear(
    cotangents: Arrays, *arrays: Any, linear: Linear, count: int, **_: Any
) -> list[Any]:
    wanted = [
        ad.instantiate_zeros(each) if isinstance(each, ad.Zero) else each for each in cotangents
    ]
    found = Linear(linear.backward, linear.forward)(arrays[:count], wanted)
    return [None] * count + found


def _differentiate_linear(
    primals: Arrays, tangents: Arrays, *, linear: Linear, count: int, **_: Any
) -> Any:
    """Keep the transpose where only `moving` changes; else JAX looks into `forward`."""
    outcome = linear(primals[:count], primals[count:])
    moving = [ad.instantiate_zeros(each) for each in tangents[count:]]
    if all(isinstance(each, ad.Zero) for each in tangents[:count]):
        return outcome, linear(primals[:count], moving)
    both = [*map(ad.instantiate_zeros, tangents[:count]), *moving]
    return jax.jvp(linear.flat(count), tuple(primals), tuple(both))


_linear = Primitive("dlbridge_linear")
_linear.multiple_results = True
_linear.def_impl(_apply_linear)
_linear.def_abstract_eval(_infer_linear)
batching.primitive_batchers[_linear] = _batch_linear
ad.primitive_transposes[_linear] = _transpose_linear
ad.primitive_jvps[_linear] = _differentiate_linear
mlir.register_lowering(_linear, mlir.lower_fun(_apply_linear, multiple_results=True))


# ---- batches -------------------------------------------------------------------------------------


def _with_batch_rule(program: Program) -> Any:
    """Return the program's call with the kernel's own way to compute a batch."""
    kernel = program.kernel
    if not _has_outcome(program) or (kernel.batch == "sequential" and not kernel.sharding):
        return program.call
    rule = _RULES[kernel.batch] if isinstance(kernel.batch, str) else _call_rule

    call: Any = jax.custom_batching.custom_vmap(program.split if kernel.sharding else program.call)

    def batched(axis_size: int, is_batched: Sequence[bool], *operands: Any) -> Any:
        flags = [bool(each) for each in is_batched]
        outcome = tuple(rule(program, call, axis_size, flags, operands))
        return outcome, (True,) * len(outcome)

    call.def_vmap(batched)
    return call


def _has_outcome(program: Program) -> bool:
    schema = program.kernel.schema
    return bool(program.written) or (schema is not None and bool(schema.results))


def _sequential(
    _program: Program, call: Call, _size: int, flags: list[bool], operands: Sequence[Any]
) -> tuple[Any, ...]:
    return _one_by_one(call, flags, operands)


def _one_by_one(call: Call, flags: Sequence[bool], operands: Sequence[Any]) -> tuple[Any, ...]:
    """Return the outcomes of the single calls, stacked along axis 0."""
    moving = tuple(each for each, flag in zip(operands, flags, strict=True) if flag)

    def one(slices: Sequence[Any]) -> tuple[Any, ...]:
        left = iter(slices)
        merged = [next(left) if flag else each for each, flag in zip(operands, flags, strict=True)]
        return call(*merged)

    outcome: tuple[Any, ...] = jax.lax.map(one, moving)
    return outcome


# ---- batch="broadcast" ---------------------------------------------------------------------------


def _broadcast(
    program: Program, call: Call, axis_size: int, flags: list[bool], operands: Sequence[Any]
) -> tuple[Any, ...]:
    """Call the kernel once, with the batch as one more dimension in its pack.

    Tensors that start with a pack get the dimension, if need be by repetition; the others may not
    be batched, and scalars neither: then, the single calls it is.
    """
    count = program.tensor_count
    leading = _leading(program)
    if any(flags[count:]) or any(f and not lead for f, lead in zip(flags, leading, strict=False)):
        return _one_by_one(call, flags, operands)
    wide = [
        jnp.broadcast_to(each, (axis_size, *each.shape)) if lead and not flag else each
        for each, flag, lead in zip(operands, flags, leading, strict=False)
    ]
    try:
        program.shapes(wide)
    except DLBridgeError:
        return _one_by_one(call, flags, operands)
    return call(*wide, *operands[count:])


def _leading(program: Program) -> list[bool]:
    """Return which of the tensors that are present start with a pack."""
    schema = program.kernel.schema
    if schema is None:
        return [False] * program.tensor_count
    return [
        bool(tensor.dims) and tensor.dims[0].kind == "pack"
        for tensor, present in zip(schema.tensors, program.plan.present, strict=True)
        if present
    ]


_RULES: dict[Any, Any] = {"sequential": _sequential, "broadcast": _broadcast}


# ---- batch=function ------------------------------------------------------------------------------


def _call_rule(
    program: Program, call: Call, axis_size: int, flags: list[bool], operands: Sequence[Any]
) -> tuple[Any, ...]:
    """Call the author's rule; what it returns must be the single results, stacked."""
    count = program.tensor_count
    schema = program.kernel.schema
    assert schema is not None
    if any(flags[count:]):
        return _one_by_one(call, flags, operands)
    single = program.shapes(
        [
            jax.ShapeDtypeStruct(each.shape[flag:], each.dtype)
            for each, flag in zip(operands[:count], flags, strict=False)
        ]
    )
    tensors = program.spread(operands[:count])
    marks = [bool(each) for each in program.spread(flags[:count])]
    values = program.scalars(operands)
    named = {part.name: value for part, value in zip(schema.scalars, values, strict=True)}
    batch: Any = program.kernel.batch
    made = batch(axis_size, tuple(marks), *tensors, **named)
    outcome = tuple(made) if isinstance(made, tuple | list) else (made,)
    _check_batch(program, outcome, [(axis_size, *each.shape) for each in single], single)
    return outcome


def _check_batch(program: Program, made: Sequence[Any], shapes: Sequence[Any], single: Any) -> None:
    name = program.kernel.name
    if len(made) != len(shapes):
        raise KernelError(f"{name}: batch= returned {len(made)} results instead of {len(shapes)}")
    for index, (each, shape, like) in enumerate(zip(made, shapes, single, strict=True)):
        if tuple(each.shape) != tuple(shape) or each.dtype != like.dtype:
            raise ArgumentError(
                f"{name}: batch= returned {each.dtype}{list(each.shape)} as result {index}, "
                f"expected {like.dtype}{list(shape)}"
            )

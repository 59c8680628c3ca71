"""Functions of JAX that are modules of another framework; see `dlbridge.bridge`.

For each signature of its arguments a function has one kernel: shapes and dtypes are fixed, and all
else (compiled programs, gradients, batches) is that of any kernel. A kernel has few tensors, so
that the smallest of many travel as one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dlbridge import registry
from dlbridge._core import native
from dlbridge.dtype import DType, as_dtype
from dlbridge.errors import ArgumentError
from dlbridge.exchange import adapter
from dlbridge.exchange.protocol import describe
from dlbridge.frameworks.jax import is_alone_on_cpu
from dlbridge.frameworks.models import fixed, is_moving
from dlbridge.kernels.gradients import Automatic, Derivable
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.schema import Schema, join_parts
from dlbridge.kernels.schema.parts import MAX_CALL_TENSORS
from dlbridge.kernels.wrap import draft
from dlbridge.signals import not_from_handler

Form = tuple[tuple[int, ...], DType]

_serial = itertools.count(1)
# At most this many arguments, and results, are passed; the smallest are packed. The second
# derivative of a kernel has four times as many tensors.
_ALONE = (MAX_CALL_TENSORS - 1) // 8


class Module(Protocol):
    """A module of another framework: those of `torch.modules` and `tensorflow.modules`.

    Attributes:
        arrays: the framework whose arrays its functions take.
        advice: how a call can leave the buffers alone, for messages, or "".
    """

    name: str
    arrays: str
    advice: str
    platforms: tuple[str, ...]
    parameters: dict[str, Any]
    buffers: dict[str, Any]

    def modes(self) -> Hashable:
        """Return the modes of the other framework that a call depends on."""

    def trace(self, forms: Sequence[Form], rebuild: Any) -> Any:
        """Find out what a call does."""

    def function(self, rebuild: Any, traced: Any, taken: Packing, made: Packing) -> Derivable:
        """Return a function from packed operands to packed results and changed buffers."""

    def batched(self, function: Any, marks: Sequence[bool], size: int) -> Callable[..., Any]:
        """Return the function mapped over axis 0 of the marked arguments."""

    def is_buffer(self, place: int) -> bool:
        """Return whether the operand at `place` is a buffer."""


class _Call(NamedTuple):
    """One signature.

    Attributes:
        kernel: computes it.
        operands, results: how they are packed.
        traced: what the module does.
        updated: the names of the buffers that it changes.
    """

    kernel: Kernel
    operands: Packing
    results: Packing
    traced: Any
    updated: list[str]


def make_function(module: Module, mutable: bool, is_batched: bool) -> Callable[..., Any]:
    """Return the function for JAX; see `dlbridge.bridge`."""
    calls = _Calls(module, mutable, is_batched)

    def function(params: Any, /, *args: Any, rng: Any = None, **kwargs: Any) -> Any:
        return calls.call(params, args, kwargs, rng)

    function.__name__ = function.__qualname__ = module.name
    function.__doc__ = f"Call the module {module.name}: (params, *args, rng=None, **kwargs)."
    function.autograph_info__ = {}  # type: ignore[attr-defined]  # see Kernel
    return function


class _Calls:
    """The calls of one function, by their signatures."""

    def __init__(self, module: Module, mutable: bool, is_batched: bool) -> None:
        self.module = module
        self.mutable = mutable
        self.is_batched = is_batched
        self._array_type = adapter.adapter("jax").array_type()
        self._direct = _Direct(module)
        self._parts = tuple(module.parameters), tuple(module.buffers)
        self._known: dict[Any, _Call] = {}
        self._last: dict[Any, _Call] = {}  # of those that are direct, whatever their shapes
        self._lock = registry.lock()

    def call(self, params: Any, args: Any, kwargs: Any, rng: Any) -> Any:
        """Call the module, or trace its call."""
        is_direct = self._direct.is_possible()
        modes = jax.config.jax_enable_x64, self.module.modes()
        operands = _arrays_of(self._parts, params)
        leaves, structure = jax.tree.flatten((args, kwargs))
        call: _Call | None = None
        if operands is not None:
            operands += leaves
            if is_direct:
                call = self._last.get((structure, modes))
                if call is not None:  # the kernel compares shapes and dtypes in any case
                    made = self._direct(call.kernel, operands)
                    if made is not NotImplemented:
                        return self._finish(params, call, made)
            call = self._find_again(operands, leaves, structure, modes)
        is_plain = call is not None
        if call is None or operands is None:
            call, operands = self._find(params, leaves, structure, modes)
        _check_call(self.module, call, self.mutable, rng)
        made = self._compute(call, operands, rng, is_direct)
        is_plain = is_plain and call.operands.is_plain and bool(call.results.groups)
        if is_plain and is_direct and not call.traced.is_random:
            self._last[structure, modes] = call
        return self._finish(params, call, made)

    def _find_again(
        self, operands: Sequence[Any], leaves: Sequence[Any], structure: Any, modes: Hashable
    ) -> _Call | None:
        """Return what a call does that has only arrays of JAX, if its forms were seen before."""
        if set(map(type, operands)) - {self._array_type}:
            return None
        return self._known.get((structure, _shapes(operands), (None,) * len(leaves), modes))

    def _find(
        self, params: Any, leaves: Sequence[Any], structure: Any, modes: Hashable
    ) -> tuple[_Call, list[Any]]:
        """Return what a call does, and its operands, after checks."""
        own = _tensors_of(self.module, params)
        leaves = [jnp.asarray(each) if _is_array(each) else each for each in leaves]
        operands = [*own, *[each for each in leaves if _is_array(each)]]
        static = tuple(None if _is_array(each) else fixed(each) for each in leaves)
        shapes = _shapes(operands)
        key = structure, shapes, _hashable(self.module, static), modes
        with self._lock:
            call = self._known.get(key)
            if call is None:
                rebuild = _make_rebuild(structure, leaves)
                forms = [(shape, as_dtype(dtype)) for shape, dtype in shapes]
                call = _make_call(self.module, forms, rebuild, self.is_batched)
                self._known[key] = call
        return call, operands

    def _compute(self, call: _Call, operands: Sequence[Any], rng: Any, is_direct: bool) -> Any:
        packed = call.operands.pack(operands, jnp.concatenate)
        if call.traced.is_random:
            packed.append(jax.random.bits(rng, (), "uint32"))
        if not call.results.groups:
            return ()
        made = self._direct(call.kernel, packed) if is_direct else NotImplemented
        return call.kernel.jax(*packed) if made is NotImplemented else made

    def _finish(self, params: Any, call: _Call, made: Any) -> Any:
        """Return what the module returns, and the buffers if the function is to."""
        several = made if isinstance(made, tuple | list) else (made,)
        found = call.results.unpack(several)
        count = len(call.traced.results)
        outcome = call.traced.returned(found[:count])
        if not self.mutable:
            return outcome
        return outcome, params["buffers"] | dict(zip(call.updated, found[count:], strict=True))


class _Direct:
    """Calls of kernels on the memory of their operands, in this thread; JAX is given the results.

    Where all values are at hand, there is nothing that JAX could add to a single call. All else is
    a program of JAX; it alone can leave results uncommitted to a device.
    """

    def __init__(self, module: Module) -> None:
        self._is_clean = adapter.adapter("jax").untraced()
        self._give = adapter.converter("jax")
        self._is_on_cpu = "cpu" in module.platforms

    def is_possible(self) -> bool:
        """Return whether JAX traces nothing now, and looks at no results."""
        is_checking = jax.config.jax_debug_nans or jax.config.jax_debug_infs
        is_free = self._is_clean() and not is_checking
        return is_free and self._is_on_cpu and is_alone_on_cpu()

    def __call__(self, kernel: Kernel, operands: Sequence[Any]) -> Any:
        """Return the results; NotImplemented, before anything happened, if they need a program."""
        if any(getattr(each, "committed", False) for each in operands):
            return native.call_giving(kernel, self._give, *operands)
        return NotImplemented


_ARRAY = object()  # stands for one


def _shapes(arrays: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([(each.shape, each.dtype) for each in arrays])


def _arrays_of(parts: tuple[tuple[str, ...], ...], params: Any) -> list[Any] | None:
    """Return the leaves of `params` with these names; None if the names differ."""
    found: list[Any] = []
    for part, names in zip(("params", "buffers"), parts, strict=True):
        tree = params.get(part) if isinstance(params, dict) else None
        if not isinstance(tree, dict) or len(tree) != len(names):
            return None
        found += [tree.get(name) for name in names]
    return found


def _make_rebuild(structure: Any, leaves: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """Return what puts tensors in the places of the arrays, and gives the arguments."""
    if all(map(_is_array, leaves)):
        return lambda tensors: structure.unflatten(tensors)
    kept = [_ARRAY if _is_array(each) else each for each in leaves]

    def rebuild(tensors: Sequence[Any]) -> Any:
        left = iter(tensors)
        return structure.unflatten([next(left) if each is _ARRAY else each for each in kept])

    return rebuild


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _hashable(module: Module, static: Any) -> Any:
    try:
        hash(static)
    except not_from_handler(TypeError):
        wrong = next(each[1] for each in static if each and type(each[1]).__hash__ is None)
        raise ArgumentError(
            f"{module.name}: an argument must be an array of JAX, or a value that can be hashed, "
            f"got {describe(wrong)}"
        ) from None
    return static


def _tensors_of(module: Module, params: Any) -> list[Any]:
    """Return parameters and buffers in the order of the module."""
    found = []
    for part, expected in (("params", module.parameters), ("buffers", module.buffers)):
        given = params.get(part) if isinstance(params, dict) else None
        if not isinstance(given, dict) or given.keys() != expected.keys():
            raise ArgumentError(
                f"{module.name}: the first argument must be a dict of 'params' and 'buffers' as "
                f"dlbridge.bridge returned it; {_difference(part, given, expected)}"
            )
        for name, like in expected.items():
            array = given[name]
            if not _is_array(array) or tuple(array.shape) != tuple(like.shape):
                shape = list(array.shape) if _is_array(array) else describe(array)
                raise ArgumentError(
                    f"{module.name}: {part}[{name!r}] must be an array of shape "
                    f"{list(like.shape)}, got {shape}"
                )
            found.append(array if isinstance(array, jax.Array) else jnp.asarray(array))
    return found


def _difference(part: str, given: Any, expected: dict[str, Any]) -> str:
    if not isinstance(given, dict):
        return f"there is no dict {part!r}"
    missing = [name for name in expected if name not in given]
    if missing:
        return f"{part!r} lacks {missing[0]!r}"
    return f"{part!r} has {next(name for name in given if name not in expected)!r}"


def _check_call(module: Module, call: _Call, mutable: bool, rng: Any) -> None:
    if call.updated and not mutable:
        raise ArgumentError(
            f"{module.name}: the call changes the buffer {call.updated[0]!r}, and a function of "
            "JAX returns what it changes: pass mutable=True to dlbridge.bridge, which returns "
            f"(result, buffers){module.advice}"
        )
    if call.traced.is_random and rng is None:
        raise ArgumentError(
            f"{module.name}: the call draws random numbers; pass rng=, a key of jax.random, or "
            "bridge module.eval()"
        )


# ---- one signature -------------------------------------------------------------------------------


def _make_call(module: Module, forms: Sequence[Form], rebuild: Any, is_batched: bool) -> _Call:
    traced = module.trace(forms, rebuild)
    changed = [place for place in sorted(traced.written) if module.is_buffer(place)]
    names = [*module.parameters, *module.buffers]
    narrow = [(shape, _narrow(dtype)) for shape, dtype in traced.results]
    made = Packing.within([*narrow, *[forms[place] for place in changed]], _ALONE)
    taken = Packing.within(forms, _ALONE)
    arguments = [f"x{number}: {text}" for number, text in enumerate(taken.texts())]
    if traced.is_random:
        arguments.append("seed: uint32[]")
    results = [f"y{number}: {text}" for number, text in enumerate(made.texts())]
    name = re.sub(r"\W", "_", module.name)
    schema = _make_schema(f"bridge::{name}_{next(_serial)}", arguments, results)
    may_batch = is_batched and not traced.written and not traced.is_random
    wrap = partial(_wrap, module, may_batch)
    moves = bool(taken.moving_groups() and made.moving_groups())
    vjp = Automatic(module.arrays, wrap) if moves else None
    function = module.function(rebuild, traced, taken, made)
    kernel = wrap(function, schema, vjp=vjp)
    return _Call(kernel, taken, made, traced, [names[place] for place in changed])


def _narrow(dtype: DType) -> DType:
    return as_dtype(jax.dtypes.canonicalize_dtype(dtype.to("numpy")))


def _wrap(
    module: Module,
    is_batched: bool,
    function: Any,
    schema: Schema,
    abi: str | None = None,
    vjp: Any = None,
) -> Kernel:
    """Make the kernel of a function for one signature, or of its derivative."""
    batches: dict[Any, Kernel] = {}

    def batch(size: int, marks: tuple[bool, ...], *tensors: Any) -> Any:
        key = size, marks
        kernel = batches.get(key)
        if kernel is None:
            wide = _batch_schema(schema, size, marks)
            kernel = batches[key] = _wrap(module, True, module.batched(function, marks, size), wide)
        return kernel.jax(*tensors)

    if not _has_room(schema):
        vjp = None  # a second derivative: JAX is told that there is none
    options: Any = {"batch": batch} if is_batched else {}
    function.only_reads = True  # what the module writes was found by `trace`, and is copied first
    named = abi or f"python:{module.arrays}"
    abis = dict.fromkeys(module.platforms, named)
    return draft(schema, abis, dict.fromkeys(module.platforms, function), vjp=vjp, **options)


def _make_schema(name: str, arguments: Sequence[str], results: Sequence[str]) -> Schema:
    """Return the schema with these parts: up to MAX_CALL_TENSORS, more than a text may have."""
    taken = [Schema.parse(f"bridge::one({each}) -> f32[]").parameters[0] for each in arguments]
    made = [Schema.parse(f"bridge::one() -> ({each})").results[0] for each in results]
    namespace, _, name = name.partition("::")
    return Schema(namespace, name, taken, made, elements=True)


def _has_room(schema: Schema) -> bool:
    """Return whether the kernel of the derivative has few enough tensors to be one."""
    dtypes = [part.dtype for part in join_parts(schema.tensors, schema.results)]
    moving = [dtype for dtype in dtypes if dtype is not None and dtype.may_be_floating]
    return len(schema.tensors) + len(moving) <= MAX_CALL_TENSORS


def _batch_schema(schema: Schema, size: int, marks: Sequence[bool]) -> Schema:
    """Return the schema with one more dimension of the arguments marked, and of all results."""
    (axis,) = Schema.parse(f"bridge::batch(x: f32[{size}])").tensors[0].dims

    def wider(part: Any) -> Any:
        return part._replace(dims=(axis, *part.dims))

    tensors = [
        wider(part) if mark else part for part, mark in zip(schema.tensors, marks, strict=True)
    ]
    named = schema.named(f"{schema.qualified}_batch{next(_serial)}")
    return named.with_parts(tensors, map(wider, schema.results))


# ---- packing -------------------------------------------------------------------------------------


class Packing:
    """How tensors are passed: one by one, or several of one dtype concatenated to a vector.

    Attributes:
        forms: shape and dtype of each.
        groups: which of them travel together.
        is_plain: none do.
    """

    def __init__(self, forms: Sequence[Form], groups: list[list[int]]) -> None:
        self.forms = list(forms)
        self.groups = groups
        self.is_plain = groups == [[place] for place in range(len(self.forms))]

    @classmethod
    def within(cls, forms: Sequence[Form], room: int) -> Packing:
        """Return a packing into at most `room` tensors; the largest are passed one by one."""
        places = range(len(forms))
        if len(forms) <= room:
            return cls(forms, [[place] for place in places])
        dtypes = {dtype: None for _, dtype in forms}
        by_size = sorted(places, key=lambda place: -prod(forms[place][0]))
        alone = max(room - len(dtypes), 0)
        groups = [[place] for place in sorted(by_size[:alone])]
        rest = sorted(by_size[alone:])
        joined = [[p for p in rest if forms[p][1] == dtype] for dtype in dtypes]
        return cls(forms, groups + [group for group in joined if group])

    def moving(self) -> Packing:
        """Return the packing of only the tensors that can be differentiated."""
        return self.only(self.moving_groups())

    def only(self, places: Sequence[int]) -> Packing:
        """Return the packing of the tensors in the groups at these places."""
        groups = [self.groups[place] for place in places]
        kept = sorted(itertools.chain(*groups))
        places_of = [[kept.index(place) for place in group] for group in groups]
        return Packing([self.forms[place] for place in kept], places_of)

    def moving_groups(self) -> tuple[int, ...]:
        """Return the places of the groups that can be differentiated."""
        return tuple(
            place for place, group in enumerate(self.groups) if is_moving(self.forms[group[0]][1])
        )

    def __add__(self, other: Packing) -> Packing:
        """Return the packing of the tensors of both."""
        count = len(self.forms)
        shifted = [[count + place for place in group] for group in other.groups]
        return Packing([*self.forms, *other.forms], self.groups + shifted)

    def texts(self) -> list[str]:
        """Return each group in the notation of schemas."""
        return [f"{self.forms[group[0]][1]}[{self._extent(group)}]" for group in self.groups]

    def _extent(self, group: list[int]) -> str:
        if len(group) == 1:
            return ", ".join(map(str, self.forms[group[0]][0]))
        return str(sum(prod(self.forms[place][0]) for place in group))

    def pack(self, tensors: Sequence[Any], join: Callable[[Any], Any]) -> list[Any]:
        """Return one tensor for each group; `join` concatenates along the last axis."""
        if self.is_plain:
            return list(tensors)
        return [
            tensors[group[0]]
            if len(group) == 1
            else join([self._flat(tensors[place], self.forms[place][0]) for place in group])
            for group in self.groups
        ]

    def _flat(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        batch = tensor.shape[: len(tensor.shape) - len(shape)]
        return tensor.reshape((*batch, prod(shape)))

    def outcome(self, tensors: Sequence[Any], join: Callable[[Any], Any]) -> Any:
        """Return the packed tensors as a Python function of a kernel returns its results."""
        several = self.pack(tensors, join)
        return tuple(several) if len(several) > 1 else (several[0] if several else None)

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        """Return the tensors in order; batch axes stay in front."""
        if self.is_plain:
            return list(packed[: len(self.forms)])
        found: list[Any] = [None] * len(self.forms)
        for group, tensor in zip(self.groups, packed, strict=False):
            if len(group) == 1:
                found[group[0]] = tensor
                continue
            start, batch = 0, tensor.shape[:-1]
            for place in group:
                shape = self.forms[place][0]
                end = start + prod(shape)
                found[place] = tensor[..., start:end].reshape((*batch, *shape))
                start = end
        return found

"""JAX: a kernel as a function that jit, grad, vmap and export know how to treat.

`kernel.jax` is a builtin function. With plain arrays it goes straight to a jitted program, made
once for each form of call (`native.JaxCaller`); tracers come here, and become part of the user's
own program. An argument that a kernel writes in place is returned as a new value after its results:
JAX's values never change.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import jax
import numpy as np

from dlbridge import registry
from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, ExchangeError, KernelError, UnsupportedTypeError
from dlbridge.exchange import adapter
from dlbridge.frameworks.jax import program as jax_program
from dlbridge.frameworks.jax.program import Plan, Program, make_block
from dlbridge.kernels.binding import (
    Binding,
    Sliced,
    check_extent,
    framework_of,
    named_tensors,
)
from dlbridge.kernels.kernel import Kernel, is_native_to, recorded
from dlbridge.kernels.kinds.python_kernel import Support
from dlbridge.kernels.numbers import changed, in_row, names_of
from dlbridge.kernels.schema import (
    LIST_KINDS,
    Arguments,
    Parameter,
    Result,
    is_plain,
    refusal,
    type_name,
)
from dlbridge.signals import not_from_handler

_KEPT_PROGRAMS = 64
# So many values of a kernel's scalars are compiled in; then they become operands, which costs a
# little in each call and saves a compilation for each new value.
_STATIC_VALUES = 8
_NUMBERS = (bool, int, float)
_TRACED_KINDS = {
    "bool": (np.bool_,),
    "int": (np.integer,),
    "float": (np.integer, jax.numpy.floating),
}
_serial = registry.SerialNumbers()


class Calls:
    """The call-site cache of one kernel: its programs, and the forms of call that they serve."""

    def __init__(self, kernel: Kernel, array_type: type) -> None:
        self.kernel = _published(kernel)
        self.array_type = array_type
        # Derivatives and batch rules in Python need the numbers of a block as JAX's own as well.
        self.shadowed = bool(kernel.vjp or kernel.jvp or callable(kernel.batch))
        # Scalars that are dimensions: another value is another program.
        self.sizes = dict(kernel.schema.sizes) if kernel.schema is not None else {}
        self.lists = _lists(kernel)
        self.programs: OrderedDict[str, Program] = OrderedDict()
        self.lock = registry.lock()
        self.static_values: set[Any] = set()
        self.caller = native.JaxCaller(
            self.call_slowly, array_type, kernel.__name__, _document(kernel)
        )
        self.function = self.caller.function()
        if not _only_reads(kernel):
            self.caller.serve(kernel)

    # ---- calls ---------------------------------------------------------------------------------

    def call_slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve a call whose form is new, or that only Python understands."""
        kernel = self.kernel
        if kernel.schema is None:
            arguments = _arrange_positional(kernel, args, kwargs)
        else:
            arguments = kernel.schema.arrange(args, kwargs, traced=True)
        _check_framework(kernel, arguments)
        program, operands, plan = self.prepare(arguments)
        if plan is not None and plan.eager and not plan.traced:
            self._cache(args, kwargs, plan, program)
        return program(*operands)

    def evaluate(self, arguments: Arguments) -> Any:
        """Serve a call that was sorted before."""
        program, operands, _ = self.prepare(arguments)
        return program(*operands)

    def prepare(self, arguments: Arguments) -> tuple[Callable[..., Any], list[Any], Plan | None]:
        """Return what serves the call, what it takes, and how the arguments travel."""
        if arguments.out is not None:
            raise ExchangeError(
                "readonly",
                f"{self.kernel.name}: argument 'out': JAX arrays are immutable; leave out= away "
                "and use what the kernel returns",
            )
        self._refuse_traced_sizes(arguments.scalars)
        _refuse_deleted(self.kernel, arguments.tensors)
        present = [each for each in arguments.tensors if each is not None]
        if is_native_to(self.kernel, "jax"):
            return _own_function(self.kernel, arguments), present, None
        eager = all(type(each) is self.array_type for each in present)
        plan, numbers = self._plan(arguments, eager)
        traced = [self._as_operand(index, arguments.scalars[index]) for index in plan.traced]
        block = [make_block(numbers)] if plan.block else []
        shadows = numbers if self.shadowed else []
        return self._program(plan), [*present, *traced, *block, *shadows], plan

    # ---- programs ------------------------------------------------------------------------------

    def _plan(self, arguments: Arguments, eager: bool) -> tuple[Plan, list[Any]]:
        """Return how the arguments travel, and the numbers that go into the block."""
        present = tuple(each is not None for each in arguments.tensors)
        known = list(enumerate(arguments.scalars))
        traced = tuple(index for index, value in known if not is_plain(value))
        static = [(index, value) for index, value in known if index not in traced]
        movable = [pair for pair in static if pair[0] not in self.sizes]
        if self._is_usual(movable):
            return Plan(present, tuple(static), traced, (), eager), []
        numbers = [(index, value) for index, value in movable if type(value) in _NUMBERS]
        rest = [pair for pair in static if pair not in numbers]
        kinds = tuple((index, type(value).__name__) for index, value in numbers)
        return Plan(present, tuple(rest), traced, kinds, eager), [value for _, value in numbers]

    def _refuse_traced_sizes(self, scalars: Sequence[Any]) -> None:
        for index, name in self.sizes.items():
            if not is_plain(scalars[index]):
                hint = f"it is a dimension, so it must be static: jit(f, static_argnames={name!r})"
                expected = "int that is known while JAX traces"
                got = type_name(scalars[index])
                raise UnsupportedTypeError(refusal(self.kernel.name, name, expected, got, hint))
        for index, part in self.lists.items():
            for number, value in enumerate(scalars[index] or ()):
                if not is_plain(value):
                    name = f"{part.name}[{number}]"
                    hint = "lists are static: pass numbers, or make the list a tensor of the schema"
                    expected = f"{part.kind[:-2]} that is known while JAX traces"
                    text = refusal(self.kernel.name, name, expected, type_name(value), hint)
                    raise UnsupportedTypeError(text)

    def _is_usual(self, static: Sequence[tuple[int, Any]]) -> bool:
        """Return whether these values are to be compiled in."""
        numbers = [value for _, value in static if type(value) in _NUMBERS]
        if not numbers or jax.default_backend() != "cpu":
            return True
        if self.shadowed and any(
            abs(value) > _int_limit() for value in numbers if type(value) is int
        ):
            return True
        key = repr(static)
        if key not in self.static_values and len(self.static_values) < _STATIC_VALUES:
            self.static_values.add(key)
        return key in self.static_values

    def _program(self, plan: Plan) -> Program:
        key = repr(plan)  # repr tells 1, 1.0 and True apart, and nan is itself
        with self.lock:  # another thread may drop what is found
            program = self.programs.get(key)
            if program is None:
                program = self.programs[key] = Program(self.kernel, plan)
                if len(self.programs) > _KEPT_PROGRAMS:
                    self.programs.popitem(last=False)
            else:
                self.programs.move_to_end(key)
        return program

    def _as_operand(self, index: int, value: Any) -> Any:
        """Return a traced scalar as the handler reads it: it knows no 16-bit floats."""
        assert self.kernel.schema is not None
        part = self.kernel.schema.scalars[index]
        kinds = _TRACED_KINDS[part.kind]
        if (
            value.ndim
            or value.dtype == "uint64"
            or not any(jax.numpy.issubdtype(value.dtype, kind) for kind in kinds)
        ):
            got = f"{value.dtype}[{', '.join(map(str, value.shape))}] ({jax_program.SOURCE})"
            raise UnsupportedTypeError(refusal(self.kernel.name, part.name, part.type_text, got))
        is_float = jax.numpy.issubdtype(value.dtype, jax.numpy.floating)
        return value.astype("float32") if is_float and value.dtype.itemsize < 4 else value

    def _cache(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], plan: Plan, program: Any
    ) -> None:
        """Let calls of this form go to the program without coming here."""
        schema = self.kernel.schema
        values = [*args, *kwargs.values()]
        count = len(values)
        numbers: list[int] = []
        if schema is None:
            places: list[int] = list(range(count))
        else:
            names = [*schema.positional[: len(args)], *kwargs]
            at = {name: place for place, name in enumerate(names)}
            given = zip(schema.tensors, plan.present, strict=True)
            places = [at[tensor.name] for tensor, present in given if present]
            for index, kind in plan.block:
                part = schema.scalars[index]
                if part.name not in at:
                    at[part.name] = len(values)
                    values.append(part.default)
                numbers.append(at[part.name])
                if type(values[numbers[-1]]).__name__ != kind:
                    return  # it was converted
        for place in places:
            values[place] = None
        values = [tuple(each) if type(each) is list else each for each in values]
        self.caller.remember(
            tuple(values),
            tuple(kwargs),
            tuple(places),
            program.jitted,
            tuple(numbers),
            len(values) - count,
            self.shadowed,
        )


def _lists(kernel: Kernel) -> dict[int, Parameter]:
    """Return the scalars that are lists of numbers, by their places."""
    scalars = kernel.schema.scalars if kernel.schema is not None else ()
    return {index: part for index, part in enumerate(scalars) if part.kind in LIST_KINDS}


def _only_reads(kernel: Kernel) -> bool:
    if kernel.schema is None:
        return kernel.recipe.mutates == ()
    return not kernel.schema.results and not kernel.schema.mutated


def _int_limit() -> int:
    return int(np.iinfo(jax.dtypes.canonicalize_dtype(np.int64)).max)


# ---- kernels without a schema --------------------------------------------------------------------


def _published(kernel: Kernel) -> Kernel:
    """Return a kernel that the handler finds by name: one without a schema gets a name for that."""
    if kernel.schema is not None:
        return kernel
    recipe = dataclasses.replace(kernel.recipe, name=f"{kernel.name}#{next(_serial)}")
    named = Kernel(recipe)
    recorded(named)
    return named


def _arrange_positional(kernel: Kernel, args: tuple[Any, ...], kwargs: Any) -> Arguments:
    if kwargs or any(isinstance(each, (*_NUMBERS, str)) or each is None for each in args):
        raise UnsupportedTypeError(
            f"{kernel.name}: without a schema JAX can pass nothing but tensors by position; wrap "
            "it with a schema, which names its scalars"
        )
    return Arguments(list(args), [], None)


def _check_framework(kernel: Kernel, arguments: Arguments) -> None:
    named = zip(_names(kernel), arguments.tensors, strict=False)
    framework_of(kernel, "jax", [(name, value) for name, value in named if value is not None])


def _refuse_deleted(kernel: Kernel, tensors: Sequence[Any]) -> None:
    for name, value in zip(_names(kernel), tensors, strict=False):
        is_array = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
        if is_array and value.is_deleted():
            why = "was deleted or donated; call the kernel before that, or pass a copy"
            raise ExchangeError(
                "lazy", f"{kernel.name}: argument {name!r}: the {type_name(value)} {why}"
            )


def _names(kernel: Kernel) -> Iterable[str]:
    schema = kernel.schema
    return map(str, itertools.count()) if schema is None else [t.name for t in schema.tensors]


def _document(kernel: Kernel) -> str:
    """Return a builtin's docstring: Python reads its signature from the first lines."""
    signature = getattr(kernel, "__signature__", None)
    schema = kernel.schema
    if schema is None or signature is None:
        return kernel.__doc__ or ""
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=signature.empty))
    return f"{schema.name}{text}\n--\n\n{kernel.__doc__}"


# ---- kernels that are JAX functions themselves: traced by JAX like any other ---------------------


def _own_function(kernel: Kernel, arguments: Arguments) -> Callable[..., Any]:
    """Return the kernel's function of the tensors that are present, with checks around it."""
    schema = kernel.schema
    assert schema is not None
    function = next(iter(kernel.functions.values())).callable
    scalars = {
        part.name: value.to("numpy") if isinstance(value, DType) else value
        for part, value in zip(schema.scalars, arguments.scalars, strict=True)
    }
    present = [each is not None for each in arguments.tensors]
    numbers = names_of(kernel)

    def call(*tensors: Any) -> Any:
        left = iter(tensors)
        spread = [next(left) if given else None for given in present]
        seen = [None if each is None else jax_program.describe(kernel, each) for each in spread]
        bound = schema.bind(seen, arguments.scalars)
        made = function(*spread, **scalars)
        several = list(made) if isinstance(made, tuple | list) else [made]
        outcome = several if schema.results else []
        if any(not hasattr(each, "shape") for each in outcome):
            raise UnsupportedTypeError(f"{kernel.name}: the function returned {made!r}")
        found = [jax_program.describe(kernel, each) for each in outcome]
        for place, result in enumerate(schema.results[: len(found)]):
            if result.name in numbers:  # which may have 32 bits here
                found[place] = found[place]._replace(dtype=result.dtype.dtypes[0])
        schema.check_out(bound, found, returned=True)
        return tuple(outcome) if len(outcome) > 1 else (outcome[0] if outcome else None)

    return call


# ---- the binding ---------------------------------------------------------------------------------


_LETTERS = {"int": "iu", "float": "fV", "bool": "b"}  # of the dtypes of numbers


class Jax(Sliced):
    """jax.Array and tracers."""

    name = "jax"
    is_immutable = True

    def __init__(self) -> None:
        array_type = adapter.adapter("jax").array_type()
        assert array_type is not None
        self.array_type = array_type
        jax_program.register()

    def function(self, kernel: Kernel) -> Callable[..., Any]:
        if _only_reads(kernel):
            return super().function(kernel)  # the memory is borrowed, no program needed
        function: Callable[..., Any] = self.calls(kernel).function
        return function

    def positional(self, kernel: Kernel) -> Callable[..., Any]:
        function: Callable[..., Any] = self.calls(kernel).function
        return function

    def call(self, kernel: Kernel, arguments: Arguments) -> Any:
        return native.xla_call(self.calls(kernel).evaluate, arguments)

    def call_counted(self, kernel: Kernel, arguments: Arguments) -> Any:
        present = [each for each in arguments.tensors if each is not None]
        if is_native_to(kernel, "jax"):
            assert kernel.schema is not None
            try:
                return _own_function(kernel, arguments)(*present)
            except not_from_handler(*_NOT_KNOWN) as error:
                raise _refuse_extent(kernel.name, str(kernel.schema.counts[0].value)) from error
        if kernel.written(0) or any(type(each) is not self.array_type for each in present):
            return self.call_bounded(kernel, arguments)
        return Binding.call_counted(self, kernel, arguments)  # compiles no program for each extent

    def call_numbers(self, kernel: Kernel, arguments: Arguments) -> Any:
        assert kernel.numbers is not None
        if kernel.numbers.gives_constants(arguments):
            arguments = changed(_constant, arguments)
        present = [each for each in in_row(arguments.tensors) if each is not None]
        is_known = all(type(each) is self.array_type for each in present)
        if is_known and not kernel.written(0) and not jax_program.has_wide():
            return self._call_with_wide(kernel, arguments)
        return super().call_numbers(kernel, arguments)

    def _call_with_wide(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call a kernel whose numbers have 64 bits, of which JAX has no arrays now."""
        schema, numbers = kernel.schema, kernel.numbers
        assert schema is not None
        assert numbers is not None
        names = iter([name for name, _ in named_tensors(kernel, arguments)])
        like = next((each for each in in_row(arguments.tensors) if each is not None), None)

        def abstractly(tensors: list[Any]) -> Any:
            args, kwargs = schema.spell(tensors, arguments.scalars)
            return numbers.tensors.jax(*args, **kwargs)

        tensors = [
            None if value is None else self._take_all(kernel, next(names), value)
            for value in arguments.tensors
        ]
        args, kwargs = schema.spell(tensors, arguments.scalars)
        try:
            found = numbers.tensors.dlbridge(*args, **kwargs)
        except (UnsupportedTypeError, ArgumentError):
            jax.eval_shape(abstractly, arguments.tensors)  # whose refusal knows arrays of JAX
            raise
        several = found if isinstance(found, tuple) else (found,)
        results = [
            each if each is None or place in schema.numbers else self._give_all(each, like)
            for place, each in enumerate(several)
        ]
        return numbers.read(tuple(results) if isinstance(found, tuple) else results[0])

    def _take_all(self, kernel: Kernel, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self.take_argument(kernel, name, each, False) for each in value]
        return self.take_argument(kernel, name, value, False)

    def _give_all(self, value: Any, like: Any) -> Any:
        if isinstance(value, list):
            return [self.give(each, like) for each in value]
        return self.give(value, like)

    def read_number(self, kernel: Kernel, result: Result, value: Any) -> Any:
        try:
            return value.item()
        except not_from_handler(*_NOT_KNOWN):
            return jax.lax.stop_gradient(value)  # of a program that is traced

    def is_symbol(self, value: Any, kind: str) -> bool:
        is_scalar = isinstance(value, jax.Array) and value.shape == ()
        return is_scalar and value.dtype.kind in _LETTERS[kind]

    def number_maker(self, dtype: DType) -> Callable[[Any, Any], Any]:
        own = dtype.to("numpy")

        def make(number: Any, _: Any) -> Any:
            if not isinstance(number, jax.core.Tracer):
                return np.asarray(number, own)  # also where JAX has no 64-bit numbers
            return number.astype(jax.dtypes.canonicalize_dtype(own))

        return make

    def read_extent(self, kernel: str, name: str, value: Any, room: int) -> Any:
        try:
            extent = int(value)
        except not_from_handler(*_NOT_KNOWN):
            raise _refuse_extent(kernel, name) from None
        return check_extent(kernel, name, extent, room)

    def calls(self, kernel: Kernel) -> Calls:
        """Return the call-site cache of a kernel."""
        found: Calls | None = vars(kernel).get("_jax_calls")
        if found is None:
            found = vars(kernel).setdefault("_jax_calls", Calls(kernel, self.array_type))
        return found


def _constant(value: Any) -> Any:
    """Return a tensor whose derivative is zero; of a tracer of jax.grad, the value where known."""
    if not isinstance(value, jax.core.Tracer):
        return value
    return jax.numpy.asarray(jax.lax.stop_gradient(value))  # an array of NumPy may be in a tracer


# What JAX raises where a program would have to know values while it is traced.
_NOT_KNOWN = (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError)


def _refuse_extent(kernel: str, name: str) -> KernelError:
    return KernelError(
        f"{kernel}: the kernel says {name}, and within jax.jit, vmap and the like no shape can "
        "depend on data; call .bounded of the kernel there, which returns results as large as the "
        f"bound, and {name}"
    )


# ---- kernels that are functions of JAX arrays, called with others --------------------------------


class JaxSupport(Support):
    """Arrays of JAX, which never change."""

    immutable = True

    def contexts(self, kind: int, index: int, stream: int) -> Iterable[AbstractContextManager[Any]]:
        if native.inside_xla():
            raise KernelError(
                f"{self.name}: this function of JAX arrays is called from inside a computation of "
                "JAX on a device, where it would wait for itself; call it outside of jax.jit"
            )
        return super().contexts(kind, index, stream)

    def prepare(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, kept apart from what the calling thread traces or waits for."""
        is_clean = adapter.adapter("jax").untraced()

        def run(*args: Any, **kwargs: Any) -> Any:
            if native.inside_xla():
                return self._elsewhere(function, args, kwargs)
            if is_clean():
                return function(*args, **kwargs)
            with jax.ensure_compile_time_eval():
                return function(*args, **kwargs)

        return run

    def _elsewhere(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the function on a CPU device whose threads are not those that wait for it."""
        device = _spare_device()
        if device is None:
            raise KernelError(
                f"{self.name}: this function of JAX arrays is called from inside a computation of "
                "JAX, where it would wait for itself; call it outside of jax.jit"
            )
        moved = [None if x is None else jax.device_put(np.asarray(x), device) for x in args]
        with jax.default_device(device):
            return function(*moved, **kwargs)

    def settle(self, _: object) -> None:
        """Drop the references that jaxlib keeps until somebody with the GIL comes by."""
        for callback in gc.callbacks:
            if getattr(callback, "__module__", "") == "jax._src.lib":
                callback("stop", {})

    def save(self, tensor: Any, address: int) -> None:
        """Delete the array: using it raises then, instead of reading foreign memory."""
        if tensor is not None:
            tensor.delete()


@cache
def _spare_device() -> Any:
    """Return a CPU device with threads of its own, or None where jaxlib makes none."""
    try:
        client = sys.modules["jax._src.lib"].xla_client.make_cpu_client(asynchronous=False)
        return client.local_devices()[0]
    except not_from_handler(Exception):  # if a private function fails, there is no device
        return None


BINDING = Jax()
SUPPORT = JaxSupport

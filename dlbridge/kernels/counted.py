"""Kernels that say how large their results are: `nonzero(x: f32[n]) -> i64[k<=n]`.

Frameworks allocate results before a kernel runs. So a call is made by another kernel, `bounded`,
whose results have the bound and which has one more result for each extent that is said:

    mylib::nonzero(x: f32[n]) -> (out: i64[n], k: i64[])

It is a kernel like any other, in every framework, compiler and transform. What the call returns
are the first k rows of its results: views, which hold the memory of the bound. The core refuses
extents that are negative or beyond the bound, before anybody looks at the rows.

A function of C writes the extent where `k` is. One of Python returns its results as large as they
are or, if it has a parameter `out`, writes into memory of the bound and returns the extent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter as Item
from inspect import Signature
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge._core import native
from dlbridge.dtype import DType, as_dtype
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange import exchange
from dlbridge.kernels import binding, gradients
from dlbridge.kernels.gradients import Rule, Vjp
from dlbridge.kernels.inner import Inner
from dlbridge.kernels.kinds import Function, read_signature
from dlbridge.kernels.schema import Result, Schema, described
from dlbridge.signals import not_from_handler

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel

SUFFIX = "__bounded"  # of the key of `bounded`; see also registry.c


class Counted(Inner):
    """The calls of a kernel that says extents of its results.

    Attributes:
        whole: the kernel.
        places: of each result, which of the results of `bounded` has its extent; -1 if it is known.
        result_count: how many results `bounded` has.
    """

    def __init__(self, whole: Kernel) -> None:
        super().__init__(whole)
        names = [str(dim.value) for dim in self.schema.counts]
        count = len(self.schema.results)
        self.places = [
            -1 if name is None else count + names.index(name)
            for name in map(said_by, self.schema.results)
        ]
        self.result_count = count + len(names)
        # What is said of the only result; None where there are several.
        self._only = names[0] if self.places == [1] and self.result_count == 2 else None
        # Functions of torch that torch's tensors are given are not called by `bounded`.
        self._may_be_plain = all(each.framework != "torch" for each in whole.functions.values())

    @property
    def bounded(self) -> Kernel:
        """The kernel that makes the calls."""
        return self.kernel

    def _make(self) -> Kernel:
        whole = self.whole
        schema = self.schema.bounded()
        recipe = dataclasses.replace(
            whole.recipe,
            schema=schema,
            functions={
                platform: _bounded_function(function, self.schema)
                for platform, function in whole.functions.items()
            },
            vjp=self._rule(schema),
            jvp=None,
            whole=whole,
        )
        return type(whole)(recipe)

    def check(self) -> None:
        """Make the kernel that makes the calls, so that what cannot work is refused by `wrap`.

        Raises:
            DLBridgeError: as `wrap` does.
        """
        if self.whole.jvp is not None:
            raise ArgumentError(
                f"{self.schema.qualified}: jvp= cannot be given where the kernel says the size of "
                "a result; give vjp=, by whose transpose tangents go forwards"
            )
        if self.whole.batch == "broadcast":
            raise ArgumentError(
                f"{self.schema.qualified}: batch='broadcast' cannot be where the kernel says "
                f"{self.schema.counts[0].value}, which is one number for a whole batch"
            )
        gradients.make_vjp(self.bounded)

    def _rule(self, schema: Schema) -> Rule | None:
        """Return the vjp of the kernel for results of the bound, whose rows beyond are nobody's."""
        vjp = gradients.make_vjp(self.whole)
        return None if vjp is None else _bounded_rule(vjp, self.schema, schema, self.places)

    # ---- calls ---------------------------------------------------------------------------------

    def call(self, framework: str | None, args: Any, kwargs: Any) -> Any:
        """Call the kernel: with tensors of `framework`, or with those of any one.

        Raises:
            UnsupportedTypeError, ArgumentError: the arguments do not fit the schema.
        """
        found = self._call_plainly(framework, args, kwargs or {})
        if found is not NotImplemented:
            return found
        schema = self.schema
        arguments = schema.arrange(tuple(args), dict(kwargs or {}), traced=True)
        name = binding.framework_of(
            self.whole, framework, binding.named_tensors(self.whole, arguments)
        )
        return binding.binding(name).call_counted(self.whole, arguments)

    def _call_plainly(self, framework: str | None, args: Any, kwargs: Any) -> Any:
        """Return the results of a call that C makes, which `bounded` takes as it is.

        NotImplemented, and nothing has happened, where `call` must look: at tensors that are
        neither arrays of NumPy nor plain ones of torch, at `out`, and at functions of torch.
        """
        if not args or "out" in kwargs:
            return NotImplemented
        name = "numpy" if type(args[0]) is np.ndarray else "torch"
        if framework not in (None, name) or (name == "torch" and not self._may_be_plain):
            return NotImplemented
        if name == "numpy":
            found = self.bounded(*args, **kwargs)
        else:
            found = native.torch_call_plain(self.bounded, *args, **kwargs)
            if found is NotImplemented:
                return found
        if self._only is None:
            rows = self.cut(found, binding.binding(name))
            return rows[0] if len(rows) == 1 else tuple(rows)
        result, said = found
        extent = said.item()
        if name == "numpy":  # on the CPU the core has compared it with the bound
            return result[:extent]
        if not result.is_cpu:
            check_extent = binding.check_extent
            check_extent(self.schema.qualified, self._only, extent, result.shape[0])
        return result.narrow(0, 0, extent)

    def function(self, framework: str) -> Callable[..., Any]:
        """Return what `kernel.<framework>` is."""
        kernel = self.whole

        def call(*args: Any, **kwargs: Any) -> Any:
            if kernel.prepare("traced"):
                return kernel.traced(*args, **kwargs)
            return self.call(framework, args, kwargs)

        call.__name__ = kernel.__name__
        call.__qualname__ = kernel.__qualname__
        call.__doc__ = kernel.__doc__
        call.__signature__ = self.schema.signature()  # type: ignore[attr-defined]
        call.autograph_info__ = {}  # type: ignore[attr-defined]  # see Kernel
        return call

    def cut(self, found: Sequence[Any], made: binding.Binding) -> list[Any]:
        """Return the results of a call, of what `bounded` returned.

        Raises:
            KernelError: an extent is negative or beyond the bound.
        """
        said: dict[int, Any] = {}
        results = []
        for at, by in enumerate(self.places):
            if by < 0:
                results.append(found[at])
                continue
            if by not in said:
                name = str(said_by(self.schema.results[at]))
                room = found[at].shape[0]
                said[by] = made.read_extent(self.schema.qualified, name, found[by], room)
            results.append(made.first_rows(found[at], said[by]))
        return [*results, *found[self.result_count :]]  # new values of what it wrote


def said_by(result: Result) -> str | None:
    """Return the name of the extent of a result that the kernel says."""
    if result.dims and result.dims[0].kind == "counted":
        return str(result.dims[0].value)
    return None


def places_of(schema: Schema, whole: Schema) -> list[int]:
    """Return, for each result of a bounded schema, which result has its extent; -1 for none."""
    names = [result.name for result in schema.results]
    found = [-1 if said_by(each) is None else names.index(str(said_by(each)))
             for each in whole.results]  # fmt: skip
    return found + [-1] * len(whole.counts)


# ---- derivatives ---------------------------------------------------------------------------------


def _bounded_rule(vjp: Vjp, whole: Schema, schema: Schema, places: Sequence[int]) -> Rule:
    """Return a rule of results of the bound that calls one of results as the caller has them."""
    own, rule = gradients.cotangent_names(whole), vjp.rule
    cotangents = {name: f"grad_{whole.results[place].name}" for name, place in own.items()}
    if rule.is_derived:
        moving = [f"grad_{whole.results[place].name}" for place in sorted(set(own.values()))]
        names = [part.name for part in whole.tensors] + moving
        scalars = [part.name for part in whole.scalars]
    else:
        names, scalars = list(rule.names), []
    asked = list(dict.fromkeys(cotangents.get(name, name) for name in (*names, *scalars)))
    extents: dict[str, str] = {}  # of results and cotangents, by the names that `bounded` has
    for result, by in zip(whole.results, places, strict=True):
        if by >= 0:
            extents[result.name] = extents[f"grad_{result.name}"] = schema.results[by].name
    counts = list(dict.fromkeys(extents[name] for name in asked if name in extents))
    everything = list(dict.fromkeys((*asked, *counts)))

    def call(*values: Any) -> Any:
        given = dict(zip(everything, values, strict=True))
        given |= _cut_values(vjp, given, extents)
        if rule.is_derived:
            named = {name: given[name] for name in scalars}
            return rule.function(*[given[name] for name in names], **named)
        return rule({name: given[cotangents.get(name, name)] for name in rule.names})

    return Rule(tuple(everything), len(everything), call)


def _cut_values(vjp: Vjp, given: Mapping[str, Any], extents: Mapping[str, str]) -> dict[str, Any]:
    """Return the rows of results and cotangents that the kernel wrote."""
    found: dict[str, Any] = {}
    for name, by in extents.items():
        value = given.get(name)
        if value is None:
            continue
        made = binding.binding(binding.framework_name(value) or "dlbridge")
        extent = made.read_extent(vjp.schema.qualified, by, given[by], value.shape[0])
        found[name] = made.first_rows(value, extent)
    return found


# ---- functions -----------------------------------------------------------------------------------


def _bounded_function(function: Function, schema: Schema) -> Function:
    """Return the function as `bounded` calls it: one of Python gives results of the bound."""
    if function.framework is None or function.abi.startswith("triton"):
        return function
    called = _filling(function.callable, function.framework, schema)
    return dataclasses.replace(function, callable=called)


def _filling(function: Callable[..., Any], framework: str, schema: Schema) -> Callable[..., Any]:
    """Return a function that has what another one returns in memory of the bound."""
    signature = read_signature(function)
    takes_out = signature is not None and "out" in signature.parameters
    fills = signature is not None and framework != "jax"
    count = len(schema.results)

    def call(*tensors: Any, out: Any = None, **given: Any) -> Any:
        bound = _bind(schema, tensors, given)
        rooms = out if fills else [np.empty(shape, dtype.to("numpy")) for shape, dtype in
                                   schema.bounded().results_of(bound)]  # fmt: skip
        if takes_out:
            own = rooms[0] if count == 1 else tuple(rooms[:count])
            extents = _read_extents(schema, function(*tensors, out=own, **given))
        else:
            results = _several(schema, function(*tensors, **given))
            schema.check_out(bound, [described(each) for each in results], returned=True)
            extents = _fill(schema, rooms, results, framework if fills else "numpy")
        for room, extent in zip(rooms[count:], extents, strict=True):
            _write(room, int(extent), framework if fills else "numpy")
        return None if fills else tuple(rooms)

    call.__name__ = getattr(function, "__name__", schema.name)
    if signature is not None:
        call.__signature__ = _with_out(signature) if fills else signature  # type: ignore[attr-defined]
    return call


def _with_out(signature: Signature) -> Signature:
    if "out" in signature.parameters:
        return signature
    given = list(signature.parameters.values())
    at = len(given) - (bool(given) and given[-1].kind == Item.VAR_KEYWORD)
    given.insert(at, Item("out", Item.KEYWORD_ONLY))
    return signature.replace(parameters=given)


def _bind(schema: Schema, tensors: Sequence[Any], given: Mapping[str, Any]) -> Any:
    seen = [None if each is None else described(each) for each in tensors]
    scalars = [
        as_dtype(given[part.name])
        if part.kind == "dtype" and given[part.name] is not None
        and not isinstance(given[part.name], DType)
        else given[part.name]
        for part in schema.scalars
    ]  # fmt: skip
    return schema.bind(seen, scalars)


def _several(schema: Schema, found: Any) -> list[Any]:
    """Return what the function returned, for each result."""
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    count = len(schema.results)
    if len(results) != count or any(each is None for each in results):
        kinds = ", ".join(type(each).__name__ for each in results)
        raise UnsupportedTypeError(
            f"{schema.qualified}: the function must return {count} result{'s' * (count != 1)}, as "
            f"large as they are, or have a parameter 'out'; it returned {kinds}"
        )
    return results


def _read_extents(schema: Schema, found: Any) -> list[int]:
    """Return the extents that a function which writes into `out` returned."""
    names = [str(dim.value) for dim in schema.counts]
    several = list(found) if isinstance(found, (tuple, list)) else [found]
    try:
        extents = [] if any(isinstance(each, bool) for each in several) else [*map(index, several)]
    except not_from_handler(TypeError):  # no integer, such as a result
        extents = []
    if len(extents) != len(names):
        expected = f"the int {names[0]}" if len(names) == 1 else f"the ints {', '.join(names)}"
        raise UnsupportedTypeError(
            f"{schema.qualified}: the function writes into `out`, so it must return {expected}; "
            f"it returned {found!r}"
        )
    return extents


def _fill(
    schema: Schema, rooms: Sequence[Any], results: Sequence[Any], framework: str
) -> list[int]:
    """Write results into memory of the bound; return the extents."""
    extents: dict[str, int] = {}
    for result, room, value in zip(schema.results, rooms, results, strict=False):
        name = said_by(result)
        if name is not None:
            extents[name] = int(value.shape[0])
        rows = room if name is None else binding.binding(framework).first_rows(room, extents[name])
        _write(rows, value, framework)
    return [extents[str(dim.value)] for dim in schema.counts]


def _write(room: Any, value: Any, framework: str) -> None:
    """Write a tensor, or an int, into memory of the function's framework."""
    if not isinstance(value, int) and type(value) is not type(room):
        value = exchange.convert(value, framework, grad="detach")
    binding.binding(framework).write(room, value)

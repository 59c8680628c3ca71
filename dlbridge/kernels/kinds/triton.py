"""Triton kernels: launched by Triton itself, on the caller's stream and device.

The names of a kernel's parameters say what they are given, by the schema of the kernel:

    a tensor or result, `x` or `x_ptr`   the tensor; None for an optional one that is left out
    a named dimension                    its extent; the name of a pack: the product of its extents
    a scalar                             its value
    what `constants=` names              that value: constexpr parameters above all

Others have a default, or a configuration of the Autotuner or a heuristic says them. Where the names
are other ones, `abi="(x, out, n, n // 2)"` says what the first parameters are given, in order.

    @triton.jit
    def scale(x_ptr, out_ptr, a, n, BLOCK: tl.constexpr): ...

    wrap(scale, "mylib::scale(x: f32[n], *, a: float) -> f32[n]",
         grid="(n + BLOCK - 1) // BLOCK", constants={"BLOCK": 1024, "num_warps": 8})

Triton compiles a kernel when it first meets a device, a dtype, or other multiples of 16: call it
once before a CUDA graph is captured. Its driver works with torch's current device and stream, so
torch must be installed, whatever the framework of the tensors is.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dlbridge.errors import ArgumentError
from dlbridge.kernels.kinds import raw
from dlbridge.kernels.kinds.cuda_launch import Launch, Size
from dlbridge.kernels.schema import LIST_KINDS, Dim, Schema, join_parts, parse_expression

_SUFFIX = "_ptr"


class _Call(NamedTuple):
    """One call, from which parameters and grid are computed."""

    tensors: Sequence[Any]  # arguments, then results
    names: Mapping[str, Any]  # scalars, and the dimensions that are needed


Reader = Callable[[_Call], Any]


def launcher(
    kernel: Any, abi: str | None, schema: Schema | None, launch: Launch
) -> Callable[..., None]:
    """Return a Python function of torch tensors that launches a Triton kernel.

    Args:
        kernel: a JITFunction, an Autotuner or Heuristics around one, or one that is interpreted.
        abi: what the parameters are given, or None: their names say it.
        schema: the kernel's.
        launch: its grid and constants.

    Raises:
        ArgumentError: something is missing, or does not fit the schema.
    """
    if schema is None:
        raise ArgumentError(
            f"wrap: the Triton kernel {name_of(kernel)} needs a schema, which says what it takes"
        )
    _check_launch(schema, launch)
    signature = inspect.signature(_innermost(kernel))
    arguments = _Arguments(schema, launch, kernel)
    if abi is None:
        by_name = arguments.by_name(signature)
        readers: list[Reader] = []
    else:
        readers = arguments.by_position(abi, signature)
        by_name = arguments.by_name(signature, len(readers))
    arguments.check_results()
    grid = [arguments.size(signature, size) for size in launch.grid]
    return _make_caller(schema, kernel, _Plan(readers, by_name, grid, dict(launch.constants)))


def name_of(kernel: Any) -> str:
    """Return the name of a Triton kernel's Python function."""
    return str(getattr(_innermost(kernel), "__name__", "kernel"))


def _innermost(kernel: Any) -> Any:
    while not inspect.isfunction(kernel):
        kernel = kernel.fn
    return kernel


def _check_launch(schema: Schema, launch: Launch) -> None:
    if not launch.grid:
        raise ArgumentError(
            f"{schema.qualified}: a Triton kernel needs grid=, as in "
            "grid='(n + BLOCK - 1) // BLOCK'"
        )
    if launch.block or launch.shared:
        raise ArgumentError(
            f"{schema.qualified}: Triton chooses block and shared memory by itself; pass "
            "constants={'num_warps': 8} for its options"
        )


# ---- what the parameters are given ---------------------------------------------------------------


class _Arguments:
    """The meaning of names, and which of the schema's parts were used."""

    def __init__(self, schema: Schema, launch: Launch, kernel: Any) -> None:
        self.schema = schema
        self.constants = dict(launch.constants)
        self.chosen = set(_chosen_by_triton(kernel))
        self.places = {
            part.name: place
            for place, part in enumerate(join_parts(schema.tensors, schema.results))
        }
        self.used: set[int] = set()

    def by_name(self, signature: inspect.Signature, first: int = 0) -> dict[str, Reader]:
        """Return what the parameters from number `first` on are given, by their names."""
        readers = {}
        for name, parameter in list(signature.parameters.items())[first:]:
            if name in self.constants or name in self.chosen:
                continue
            reader = self._find(name) or self._find(name.removesuffix(_SUFFIX))
            if reader is not None:
                readers[name] = reader
            elif parameter.default is parameter.empty:
                self._refuse_parameter(name, parameter)
        return readers

    def by_position(self, abi: str, signature: inspect.Signature) -> list[Reader]:
        """Return what the first parameters are given, as the text says."""
        texts = [
            each.strip() for each in abi.strip().removeprefix("(").removesuffix(")").split(",")
        ]
        texts = [each for each in texts if each]
        if len(texts) > len(signature.parameters):
            raise ArgumentError(
                f"{self.schema.qualified}: abi={abi!r} has {len(texts)} arguments, but the kernel "
                f"takes {len(signature.parameters)}: {', '.join(signature.parameters)}"
            )
        return [self._find(each) or self._compute(each) for each in texts]

    def check_results(self) -> None:
        """Refuse a kernel that is given no memory for a result."""
        for name, place in self.places.items():
            if place >= len(self.schema.tensors) and place not in self.used:
                raise ArgumentError(
                    f"{self.schema.qualified}: the kernel must write {name!r}, but no parameter "
                    f"has this name or is {name}{_SUFFIX}"
                )

    def _find(self, name: str) -> Reader | None:
        if name in self.places:
            place = self.places[name]
            self.used.add(place)
            return lambda call: call.tensors[place]
        if name in _known(self.schema):
            return lambda call: call.names[name]
        return None

    def _compute(self, text: str) -> Reader:
        dim = self._parse("abi", text, _known(self.schema))
        return lambda call: dim.evaluate(call.names)

    def size(self, signature: inspect.Signature, size: Size) -> Callable[[Mapping[str, Any]], Any]:
        """Return one size of the grid as a function of names."""
        if isinstance(size, int):
            return lambda _: size
        constants = [name for name, each in signature.parameters.items() if _is_constant(each)]
        dim = self._parse("grid", size, [*_known(self.schema), *constants, *self.constants])
        return dim.evaluate

    def _parse(self, option: str, text: str, known: Sequence[str]) -> Dim:
        try:
            dim = parse_expression(text)
        except ArgumentError as error:
            reason = str(error).removeprefix("Schema: ")
            raise ArgumentError(f"{self.schema.qualified}: {option}: {reason}") from None
        for name in dim.names:
            if name not in known:
                raise ArgumentError(
                    f"{self.schema.qualified}: {option}: {name!r} means nothing here; names are "
                    f"{', '.join(dict.fromkeys(known))}"
                )
        return dim

    def _refuse_parameter(self, name: str, parameter: inspect.Parameter) -> None:
        known = ", ".join(dict.fromkeys([*self.places, *_known(self.schema)]))
        how = f"pass constants={{{name!r}: …}}" if _is_constant(parameter) else "use abi="
        raise ArgumentError(
            f"{self.schema.qualified}: the Triton kernel's parameter {name!r} means nothing here; "
            f"names are {known}; {how}"
        )


def _known(schema: Schema) -> list[str]:
    """Return the names of dimensions, packs and scalars; Triton takes no dtypes and no lists."""
    others = ("dtype", *LIST_KINDS)
    scalars = [part.name for part in schema.scalars if part.kind not in others]
    return [*raw.known_extents(schema), *scalars]


def _is_constant(parameter: inspect.Parameter) -> bool:
    return "constexpr" in str(parameter.annotation)


def _chosen_by_triton(kernel: Any) -> Iterator[str]:
    """Yield the parameters that configurations and heuristics say."""
    while not inspect.isfunction(kernel):
        for config in getattr(kernel, "configs", ()):
            yield from config.kwargs
        yield from getattr(kernel, "values", ())
        kernel = kernel.fn


# ---- the call ------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """How one kernel is called."""

    by_position: list[Reader]
    by_name: dict[str, Reader]
    grid: list[Callable[[Mapping[str, Any]], Any]]
    constants: dict[str, Any]


def _make_caller(schema: Schema, kernel: Any, plan: _Plan) -> Callable[..., None]:
    names = _extents(schema)
    single = len(schema.results) == 1

    def caller(*tensors: Any, out: Any = (), **scalars: Any) -> None:
        everything = (*tensors, out) if single else (*tensors, *out)
        call = _Call(everything, {**{name: read(everything) for name, read in names}, **scalars})

        def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
            known = {**meta, **plan.constants, **call.names}
            return tuple(size(known) for size in plan.grid)

        values = {name: read(call) for name, read in plan.by_name.items()}
        kernel[grid](*[read(call) for read in plan.by_position], **values, **plan.constants)

    tensors = [inspect.Parameter(f"tensor_{i}", _POSITIONAL) for i in range(len(schema.tensors))]
    named = [part.name for part in schema.scalars] + (["out"] if schema.results else [])
    caller.__name__ = schema.name
    caller.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*tensors, *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in named)]
    )
    return caller


_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY


def _extents(schema: Schema) -> list[tuple[str, Callable[[Sequence[Any]], int | None]]]:
    """Return how the dimensions that stand in a tensor are read from one."""
    names = raw.known_extents(schema)
    scalars = {part.name for part in schema.scalars}
    found = [(name, list(raw.find_extent(schema, name))) for name in names if name not in scalars]
    return [(name, _reader(places)) for name, places in found]


def _reader(places: list[tuple[int, slice]]) -> Callable[[Sequence[Any]], int | None]:
    def read(tensors: Sequence[Any]) -> int | None:
        for place, extents in places:
            if tensors[place] is not None:
                shape: Sequence[int] = tensors[place].shape
                return math.prod(shape[extents])
        return None

    return read

"""wrap: make a Kernel of a function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import index
from typing import Any, Literal, TypedDict, Unpack, get_args, overload

from dlbridge.calls import public
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.kernels import autocast as autocasting
from dlbridge.kernels import gradients, lists
from dlbridge.kernels import sharding as sharding_rules
from dlbridge.kernels.kernel import Kernel, Recipe, check_name, publish
from dlbridge.kernels.kinds import NO_LAUNCH, Function, device_type, read_launch, recognise
from dlbridge.kernels.schema import LIST_KINDS, Schema
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean

Batch = Literal["sequential", "broadcast"]
Layout = Literal["contiguous", "strided"]
Overlap = Literal["forbid", "allow"]
Gil = Literal["auto", "release", "hold"]
Stream = Literal["current", "default"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "batch": get_args(Batch),
    "layout": get_args(Layout),
    "overlap": get_args(Overlap),
    "gil": get_args(Gil),
    "stream": get_args(Stream),
}


class FurtherOptions(TypedDict, total=False):
    """The options of `wrap` that `compile_c` and `Library.wrap` pass on, for type checkers."""

    mutates: Iterable[str | int] | None
    vjp: Any
    jvp: Any
    batch: Batch | Callable[..., Any] | None
    layout: Layout | None
    overlap: Overlap | None
    align: int | None
    gil: Gil | None
    cost: int | str | None
    stream: Stream | None
    autocast: Any
    sharding: str | Iterable[str] | None
    version: int | None
    grid: Any
    block: Any
    shared: int | str | None
    constants: Mapping[str, Any] | None


def check_names(call: str, options: Mapping[str, object], own: Iterable[str] = ()) -> None:
    """Refuse what is no option of `wrap`, in the name of the function that passes them on.

    Args:
        call: its name.
        options: what it was given.
        own: its other keywords, which may have been meant.

    Raises:
        TypeError: as Python raises it of any other function.
    """
    for name in options:
        known = FurtherOptions.__annotations__
        if name not in known:
            nearest = did_you_mean(name, (*known, *own))
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}{nearest}")


class Options(FurtherOptions, total=False):
    """The options of `wrap`, for type checkers; it says what they mean."""

    abi: str | Mapping[str, str] | None
    name: str | None


class _Below:
    """Stands for the function where none was passed: it comes below the decorator."""

    def __repr__(self) -> str:
        return "..."


_DECORATOR: Any = _Below()


@overload
def wrap(
    fn: Any,
    schema: str | Schema | None = None,
    *,
    platforms: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> Kernel: ...


@overload
def wrap(
    *,
    platforms: Mapping[str, Any],
    schema: str | Schema | None = None,
    **options: Unpack[Options],
) -> Kernel: ...


@overload
def wrap(
    *, schema: str | Schema | None = None, **options: Unpack[Options]
) -> Callable[[Callable[..., Any]], Kernel]: ...


@public
def wrap(
    fn: Any = _DECORATOR,
    schema: str | Schema | None = None,
    *,
    abi: str | Mapping[str, str] | None = None,
    name: str | None = None,
    mutates: Iterable[str | int] | None = None,
    vjp: Any = None,
    jvp: Any = None,
    batch: Batch | Callable[..., Any] | None = None,
    layout: Layout | None = None,
    overlap: Overlap | None = None,
    align: int | None = None,
    platforms: Mapping[str, Any] | None = None,
    gil: Gil | None = None,
    cost: int | str | None = None,
    stream: Stream | None = None,
    autocast: Any = None,
    sharding: str | Iterable[str] | None = None,
    version: int | None = None,
    grid: Any = None,
    block: Any = None,
    shared: int | str | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Make a Kernel of a function: one that takes the tensors of every framework.

    With a schema, results are new tensors of the caller's framework, arguments are checked before
    the kernel starts, and the kernel works under the frameworks' compilers and transformations.
    Without one, arguments are positional and the kernel writes into the last tensor, as with TVM's
    `to_pytorch_func`.

    Without a function it is a decorator: `@wrap(schema="…", abi="python:torch")`.

    Args:
        fn: a ctypes or cffi function, a Numba cfunc or njit function, a tvm-ffi function or TVM
            module, a GPU kernel of Triton, CuPy or cuda.core, any Python callable, or a Kernel to
            be wrapped again: what is not given then stays as it was. Functions and their libraries
            are kept alive. Left out (without `platforms`), the call returns a decorator.
        schema: "namespace::name(x: f32[n], *, alpha: float = 1.0) -> f32[n]"; see
            `kernels.schema`.
        abi: how `fn` is called, where it does not say so by itself: "dltensors"
            (`int f(void *context, DLTensor *arguments, int count)`), "pointers" (one `DLTensor *`
            for each tensor), "tvm_ffi", "python:torch" (or numpy, jax, cupy, dlbridge: whose
            tensors a Python function takes), or a C signature with the schema's names
            ("void(const float *x, float *out, int64_t n)"). A dict by platform, where they differ.
        name: "namespace::name", instead of the schema's own.
        mutates: arguments that are written in place: names, or positions without a schema. None is
            what the schema marks with `!`, and the last tensor without a schema.
        vjp: the kernel's gradient: a Kernel, or a Python function whose parameters name what it
            needs (arguments, results, `grad`); "torch" or "jax" derives it of a Python function.
            Gradients of complex numbers are as torch has them; those of JAX are the conjugates.
        jvp: the same forwards: its parameters name arguments and `tangent_<argument>`. Without one,
            forward derivatives are by the transpose of a vjp that can be differentiated itself.
        batch: how a batch is computed under vmap: "sequential" (one by one, default), "broadcast"
            (the kernel takes leading dimensions by itself), or a function.
        layout: "contiguous": strided tensors are copied for the kernel (default with a schema);
            "strided": they are passed as they are.
        overlap: "forbid" (default) or "allow" results that share memory with inputs.
        align: bytes that data pointers must be multiples of, a power of two; others are copied for
            the kernel. None is what the kind needs.
        platforms: functions by platform: {"cpu": …, "cuda": …}; `fn` stands for "cpu". Without
            it, functions of tvm-ffi, "python:torch" and "python:jax" are for both, a GPU kernel and
            others for one.
        gil: "auto" (default) holds the GIL during calls on the CPU whose tensors, results
            included, have less than 32 KiB in sum, and releases it for all others: for a kernel
            that takes a microsecond, that costs more than it gives to other threads. "release" or
            "hold" it in every call. A kernel that waits for something (a lock, the network, another
            thread), or that calls back into Python code which may resize or free its tensors,
            needs "release". Python functions take it by themselves.
        cost: of a kernel with a schema: what `gil="auto"` compares with the 32 KiB instead of the
            sizes: the work of a call, about as many bytes as a simple loop would read and write in
            that time (16 in a nanosecond), as an integer or an expression over the schema's
            dimensions, "n * m * k".
        autocast: what calls in a region of `torch.autocast` do with floating arguments: "float16",
            "bfloat16" or "float32" (or a dtype of any framework) casts them to that,
            "lower_precision_fp" to the region's dtype, "promote" to the widest that they have. As
            for torch's own functions, float64 is left alone, arguments that are written are never
            cast, and calls with `out=` are not either. None (default) leaves all as they are.
        sharding: dimensions along which a call may be split, "m, n" or "...": a part of each
            argument with the dimension, and all of the others, give that part of each result.
            torch's DTensors and JAX's sharded arrays stay sharded along these, and are gathered
            along all others.
        version: of the operator, an integer from 1 (default) to 1000. Models of ONNX name the
            version of the operator set, the namespace, that they were made for, and ONNX Runtime
            refuses one that is older than an operator in it: raise it when results or arguments
            change. Nothing else depends on it.
        stream: "current" (default) runs on the caller's current stream of a device that has such,
            "default" on the device's default one, with events before and after.
        grid: of a GPU kernel that dlbridge launches: blocks, as one to three integers or
            expressions over the schema's dimensions, "(n + 255) // 256". Nothing is launched where
            one is 0.
        block: its threads in a block, likewise; at most 1024 in all.
        shared: its dynamic shared memory in bytes, likewise; more than 48 KiB, its static
            variables included, is asked for.
        constants: of a Triton kernel: values of parameters, {"BLOCK": 1024}, by whose names grid
            may be said, and Triton's own options, {"num_warps": 8}; see `kernels.kinds.triton`.

    Raises:
        UnsupportedTypeError: `fn` is nothing that can be called, or an integer address.
        ArgumentError: an argument has the wrong value, or the abi is needed.

    Example:
        >>> import ctypes, numpy
        >>> prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
        ...                              ctypes.c_int)
        >>> nothing = prototype(lambda context, tensors, count: 0)
        >>> kernel = wrap(nothing, "docs::nothing(x!: f32[n])")
        >>> kernel(numpy.zeros(3, "float32"))

        >>> @wrap(schema="docs::scale(x: f64[n], *, by: float) -> f64[n]", abi="python:numpy")
        ... def scale(x, *, by):
        ...     return x * by
        >>> scale(numpy.ones(2), by=3.0)
        array([3., 3.])
    """
    if fn is _DECORATOR:
        if platforms is None:
            return partial(
                wrap, schema=schema, abi=abi, name=name, mutates=mutates, vjp=vjp, jvp=jvp,
                batch=batch, layout=layout, overlap=overlap, align=align, gil=gil, cost=cost,
                stream=stream, autocast=autocast, sharding=sharding, version=version,
                grid=grid, block=block, shared=shared, constants=constants,
            )  # fmt: skip
        fn = None
    given = {
        "batch": batch, "layout": layout, "overlap": overlap, "align": align, "gil": gil,
        "cost": cost, "stream": stream, "autocast": autocast, "sharding": sharding,
        "version": version, "vjp": vjp, "jvp": jvp,
    }  # fmt: skip
    changes = _check_options(given)
    launch = read_launch(grid, block, shared, constants)
    if launch != NO_LAUNCH:
        changes["launch"] = launch
    if isinstance(fn, Kernel) and platforms is None:
        recipe = _rewrap(fn, schema, abi, mutates, name, changes)
    else:
        recipe = _wrap(_functions(fn, abi, platforms), schema, mutates, name, changes)
    return _finish(Kernel(recipe))


def _finish(kernel: Kernel) -> Kernel:
    """Check what needs the kernel itself, and make its name known."""
    _check(kernel)
    if kernel.schema is not None:
        publish(kernel)
    return kernel


def _check(kernel: Kernel) -> None:
    """Refuse derivatives, and functions of lists, that cannot work."""
    gradients.check(kernel, wrap)
    if kernel.schema is not None and kernel.autocast is not None:
        autocasting.check_rule(kernel.schema, kernel.autocast)
    if kernel.schema is not None and kernel.sharding:
        sharding_rules.check_names(kernel.schema, kernel.sharding)
    if kernel.numbers is not None:
        kernel.numbers.check()
        _check(kernel.tensors)
    if kernel.lists is not None:
        kernel.lists.check(wrap)
    if kernel.counted is not None:
        kernel.counted.check()


def draft(
    schema: Schema,
    abi: Mapping[str, str],
    platforms: Mapping[str, Any],
    doc: str = "",
    **options: Unpack[FurtherOptions],
) -> Kernel:
    """Make a Kernel as `wrap` does, all of it but that its name means it: see `publish`.

    Args:
        schema: as `wrap` takes it.
        abi: by platform.
        platforms: the functions by platform.
        doc: what the kernel does, for its docstring.
        **options: those of `wrap`.

    Raises:
        DLBridgeError: as `wrap` does.
    """
    others = "align", "cost", "autocast", "sharding", "version", "vjp", "jvp"
    given: dict[str, Any] = dict.fromkeys((*_CHOICES, *others))
    changes = _check_options({**given, **options})
    recipe = _wrap(_functions(None, abi, platforms), schema, None, None, changes)
    kernel = Kernel(dataclasses.replace(recipe, doc=doc))
    _check(kernel)
    return kernel


# ---- the recipe ----------------------------------------------------------------------------------


def _wrap(
    functions: Mapping[str, Function],
    schema: str | Schema | None,
    mutates: Iterable[str | int] | None,
    name: str | None,
    changes: dict[str, Any],
) -> Recipe:
    made = _schema(schema, mutates, name)
    if made is None:
        _refuse_named(changes)
        own = name or next(iter(functions.values())).name or "kernel"
        positions = _positions(mutates)
    else:
        own, positions = made.qualified, None
    if changes.get("launch", NO_LAUNCH) != NO_LAUNCH and not any(
        each.is_gpu or each.abi.startswith("triton") for each in functions.values()
    ):
        raise ArgumentError(f"wrap: {own}: grid=, block= and shared= are of GPU kernels")
    if made is not None:
        _refuse_lists(functions, made)
        lists.refuse_functions(functions, made)
    changes.setdefault("layout", _layout(functions, made))
    return Recipe(own, functions, made, positions, **changes)


def _refuse_lists(functions: Mapping[str, Function], schema: Schema) -> None:
    names = [part.name for part in schema.scalars if part.kind in LIST_KINDS]
    if names and any(function.abi == "tvm_ffi" for function in functions.values()):
        raise ArgumentError(
            f"wrap: {schema.qualified}: argument {names[0]!r}: a function of tvm-ffi cannot be "
            "given a list of numbers; take them as a tensor, or as scalars"
        )


def _rewrap(
    kernel: Kernel,
    schema: str | Schema | None,
    abi: object,
    mutates: Iterable[str | int] | None,
    name: str | None,
    changes: dict[str, Any],
) -> Recipe:
    """Return the recipe of a kernel with some parts replaced; gradients go with the schema."""
    if abi is not None:
        raise ArgumentError(f"wrap: {kernel.name} is wrapped already; its abi cannot change")
    before = kernel.recipe
    if schema is not None:
        kept = {"vjp": None, "jvp": None, "batch": "sequential", "layout": None}
        inherited = {
            option: getattr(before, option)
            for option in ("overlap", "align", "gil", "stream", "version", "launch")
        }
        given = kept | inherited | changes
        fresh = {option: value for option, value in given.items() if value is not None}
        return _wrap(before.functions, schema, mutates, name, fresh)
    made = before.schema
    if made is not None and (name is not None or mutates is not None):
        made = _schema(made, mutates, name)
    if made is None:
        _refuse_named(changes)
    own = made.qualified if made is not None else (name or before.name)
    positions = before.mutates if mutates is None or made is not None else _positions(mutates)
    return dataclasses.replace(before, name=own, schema=made, mutates=positions, **changes)


def _refuse_named(changes: Mapping[str, Any]) -> None:
    """Refuse options that refer to arguments or dimensions by name."""
    for option in ("vjp", "jvp", "cost", "autocast", "sharding"):
        if option in changes:
            raise ArgumentError(f"wrap: {option}= needs a schema, which names the arguments")


def _schema(
    schema: str | Schema | None, mutates: Iterable[str | int] | None, name: str | None
) -> Schema | None:
    if name is not None:
        check_name(name) if schema is not None else _check_text(name)
    if schema is None:
        return None
    made = schema if isinstance(schema, Schema) else Schema.parse(schema)
    if name is not None:
        made = made.named(name)
    if mutates is not None:
        if not isinstance(mutates, (str, Iterable)):
            raise UnsupportedTypeError(
                f"wrap: mutates must be a list of arguments of the schema, got {mutates!r}"
            )
        made = made.with_mutated((mutates,) if isinstance(mutates, str) else mutates)
    return made


def _layout(functions: Mapping[str, Function], schema: Schema | None) -> str:
    compiled = any(function.abi == "tvm_ffi" for function in functions.values())
    return "contiguous" if schema is not None or compiled else "strided"


# ---- the functions -------------------------------------------------------------------------------


def _functions(
    fn: Any, abi: str | Mapping[str, str] | None, platforms: Mapping[str, Any] | None
) -> dict[str, Function]:
    """Return the recognised functions by platform."""
    given: dict[str, Any] = {}
    if fn is not None or platforms is None:
        alone = recognise(fn, abi) if not isinstance(abi, Mapping) else None
        home = "cuda" if alone is not None and alone.is_gpu else "cpu"
        given[home] = fn
        if alone is not None and alone.is_on_any_device and platforms is None:
            given["cuda"] = fn
    for platform, each in (platforms or {}).items():
        device_type(platform)
        if given.setdefault(platform, each) is not each:
            raise ArgumentError(f"wrap: fn and platforms[{platform!r}] are two functions for it")
    abis = abi if isinstance(abi, Mapping) else dict.fromkeys(given, abi)
    strangers = ", ".join(repr(platform) for platform in abis if platform not in given)
    if strangers or not given:
        raise ArgumentError(f"wrap: there is no function for {strangers or 'any platform'}")
    found = {platform: _recognise(each, abis.get(platform)) for platform, each in given.items()}
    if "cpu" in found and found["cpu"].is_gpu:
        raise ArgumentError(
            f"wrap: {found['cpu'].kind} runs on a GPU only; pass platforms={{'cuda': kernel}}"
        )
    return found


def _recognise(fn: Any, abi: str | None) -> Function:
    if isinstance(fn, Kernel):
        raise ArgumentError(
            f"wrap: {fn.name} in platforms= is a Kernel; pass the function that it was made of"
        )
    return recognise(fn, abi)


# ---- checks --------------------------------------------------------------------------------------


def _check_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, checked."""
    for option in _CHOICES:
        _check_choice(option, given[option])
    _check_alignment(given["align"])
    _check_cost(given["cost"], given["gil"])
    _check_version(given["version"])
    given = {
        **given,
        "autocast": autocasting.read_rule(given["autocast"]),
        "sharding": sharding_rules.read_names(given["sharding"]),
    }
    return {option: value for option, value in given.items() if value is not None}


def _check_choice(option: str, value: object) -> None:
    if value is None or (option == "batch" and callable(value)):
        return
    if not isinstance(value, str) or value not in _CHOICES[option]:
        allowed = " or ".join(map(repr, _CHOICES[option]))
        other = ", or a function" if option == "batch" else ""
        nearest = did_you_mean(value, _CHOICES[option]) if isinstance(value, str) else ""
        raise ArgumentError(f"wrap: {option} must be {allowed}{other}, got {value!r}{nearest}")


def _check_alignment(align: object) -> None:
    if align is None:
        return
    whole = isinstance(align, int) and not isinstance(align, bool)
    if not whole or not 0 < align <= 4096 or align & (align - 1):  # type: ignore[operator]
        raise ArgumentError(f"wrap: align must be a power of two up to 4096, got {align!r}")


def _check_cost(cost: object, gil: object) -> None:
    if cost is None:
        return
    whole = isinstance(cost, int) and not isinstance(cost, bool) and cost >= 0
    if not whole and not isinstance(cost, str):
        raise ArgumentError(f"wrap: cost must be an integer from 0 or an expression, got {cost!r}")
    if gil not in (None, "auto"):
        raise ArgumentError(f"wrap: cost= is for gil='auto', got gil={gil!r}")


_LAST_VERSION = 1000  # ONNX Runtime knows no later one of a domain


def _check_version(version: object) -> None:
    if version is None:
        return
    whole = isinstance(version, int) and not isinstance(version, bool)
    if not whole or not 1 <= version <= _LAST_VERSION:  # type: ignore[operator]
        raise ArgumentError(
            f"wrap: version must be an integer from 1 to {_LAST_VERSION}, got {version!r}"
        )


def _positions(mutates: Iterable[str | int] | None) -> tuple[int, ...] | None:
    if mutates is None:
        return None
    try:
        positions = tuple(sorted({index(each) for each in mutates}))  # type: ignore[arg-type]
    except not_from_handler(TypeError):
        raise ArgumentError(
            f"wrap: without a schema mutates= takes positions of tensors, got {mutates!r}"
        ) from None
    if any(each < 0 for each in positions):
        raise ArgumentError(f"wrap: positions in mutates= count from 0, got {mutates!r}")
    return positions


def _check_text(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"wrap: name must be text, got {name!r}")

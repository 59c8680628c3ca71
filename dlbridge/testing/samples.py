"""Arguments for a kernel, made from its schema, and what its reference says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dlbridge._core import native
from dlbridge.dtype import DType, as_dtype
from dlbridge.errors import ArgumentError, DLBridgeError, FrameworkMissingError
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.lists import group_results
from dlbridge.kernels.schema import (
    MISSING,
    SEVERAL,
    Described,
    Dim,
    Flat,
    Schema,
    flatten,
    gather,
    lengths_of,
    same_shape,
)
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean

Array = np.ndarray[Any, Any]
Maker = Callable[..., Any]

EXTENTS = (4, 3, 5, 2, 6, 7)  # of the names of a schema, in order: different, so that none is mixed
PACK = (2, 3)
LENGTH = 2  # of lists of tensors
ANY_DTYPE = ("float64", "float32", "int32", "uint8", "bool")  # where a schema takes every dtype
# How far a result may be from the reference's, which computes in float64.
TOLERANCES = {
    "float64": 1e-9, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2,
    "complex128": 1e-9, "complex64": 1e-5,
}  # fmt: skip


class ImpossibleError(ArgumentError):
    """The schema has no arguments of these sizes."""


class Recipe(NamedTuple):
    """What the author gave: the kernel, its reference, and how arguments are made.

    Attributes:
        schema: of the kernel; with lists of tensors, that for lists of certain lengths.
        flat: how its tensors are grouped, with lists.
        left_out: optional tensor arguments that are None.
    """

    kernel: Kernel
    schema: Schema
    reference: Callable[..., Any]
    sizes: Mapping[str, Any]
    scalars: Mapping[str, Any]
    inputs: Mapping[str, Maker]
    rtol: float | None
    atol: float | None
    flat: Flat | None = None
    left_out: frozenset[str] = frozenset()

    def with_lists(self, length: int = LENGTH) -> Recipe:
        """Return the recipe for lists of these lengths, or of those that `sizes` says.

        Raises:
            ImpossibleError: the schema has no arguments of these lengths.
        """
        schema = self.kernel.schema
        assert schema is not None
        if not schema.has_lists:
            return self
        lists = []
        for part in schema.tensors:
            if part.many is not None:
                own = part.many.value if part.many.kind == "constant" else length
                own = self.sizes.get(str(part.many.value), own)
                lists.append([None] * self.sizes.get(part.name, own))
        left = iter(lists)
        tensors = [
            (None if part.name in self.left_out else True) if part.many is None else next(left)
            for part in schema.tensors
        ]
        scalars = [self.scalars.get(part.name, part.default) for part in schema.scalars]
        try:
            flat = flatten(schema, lengths_of(schema, tensors, scalars))
        except ArgumentError as error:
            raise ImpossibleError(f"check_kernel: {error}") from error
        return self._replace(schema=flat.schema, flat=flat)


class Sample(NamedTuple):
    """The arguments of one call, and what it must give.

    Attributes:
        recipe: what it was made by.
        dtypes: the dtype variables of the schema, bound.
        tensors: one Tensor for each tensor argument; None for one that is left out.
        scalars: by name.
        results: shape and dtype of each result, by the schema.
        expected: what the reference gave: results, then written arguments.
    """

    recipe: Recipe
    dtypes: dict[str, DType]
    tensors: list[Any]
    scalars: dict[str, Any]
    results: list[tuple[tuple[int, ...], DType]]
    expected: list[Array]

    @property
    def title(self) -> str:
        """The dtypes in short: "f32", "f32, i64"."""
        return ", ".join(dict.fromkeys(str(each.dtype) for each in self.tensors)) or "no tensors"

    def function(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of the tensors alone, which calls `kernel` with the scalars as well."""
        return bind(self.recipe, kernel, self.scalars)

    def given(self, framework: str) -> list[Any]:
        """Return the tensor arguments as tensors of a framework, in memory of their own."""
        return [
            None if each is None else native.convert(each, framework, copy=True)
            for each in self.tensors
        ]

    def moving(self) -> list[int]:
        """Return the places of the tensor arguments that can be differentiated."""
        return [
            place
            for place, each in enumerate(self.tensors)
            if each is not None and (each.dtype.is_floating or each.dtype.is_complex)
        ]

    def compare(self, got: Iterable[Any], what: str = "") -> None:
        """Raise AssertionError where values are not those that the reference gave."""
        named = names(self.recipe.schema, self.recipe.left_out)
        compare(self.recipe, list(got), self.expected, named, what)


def names(schema: Schema, left_out: frozenset[str] = frozenset()) -> list[str]:
    """Return the names of what a call gives: results, then written arguments."""
    written = [schema.tensors[place].name for place in schema.mutated]
    return [each.name for each in schema.results] + [x for x in written if x not in left_out]


def bind(
    recipe: Recipe, kernel: Callable[..., Any], scalars: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return a function of the tensors alone, by position, those of lists in a row."""
    flat, values = recipe.flat, [scalars[each.name] for each in recipe.schema.scalars]

    def function(*tensors: Any) -> Any:
        if flat is None:
            args, kwargs = recipe.schema.spell(tensors, values)
            return kernel(*args, **kwargs)
        args, kwargs = flat.whole.spell(gather(tensors, flat.counts), values)
        return tuple(several(kernel(*args, **kwargs)))

    return function


def group_out(recipe: Recipe, outs: Sequence[Any]) -> Any:
    """Return buffers for results as a call takes them as `out=`."""
    found = outs[0] if len(outs) == 1 else tuple(outs)
    return found if recipe.flat is None else group_results(recipe.flat, found)


def several(value: Any) -> list[Any]:
    """Return what a call gave as a list, the tensors of lists in a row."""
    if value is None:
        return []
    if not isinstance(value, SEVERAL):
        return [value]
    return [
        each
        for one in value
        if one is not None  # an optional result
        for each in (one if isinstance(one, SEVERAL) else [one])
    ]


# ---- making them ---------------------------------------------------------------------------------


def check_recipe(recipe: Recipe) -> None:
    """Refuse sizes, scalars and inputs that the schema does not have, and scalars that are missing.

    Raises:
        ArgumentError: with the nearest name.
    """
    schema = recipe.schema
    tensors = [each.name for each in schema.tensors]
    scalars = [each.name for each in schema.scalars]
    sizes = [*schema.names, *schema.packs]
    if recipe.flat is not None:
        lists = [each for each in recipe.flat.whole.tensors if each.many is not None]
        tensors += [each.name for each in lists]
        sizes += [each.name for each in lists]
        sizes += [str(each.many.value) for each in lists if each.many is not None]
    for option, given, known in (
        ("sizes", recipe.sizes, sizes),
        ("scalars", recipe.scalars, scalars),
        ("inputs", recipe.inputs, tensors),
    ):
        for name in given:
            if name not in known:
                raise ArgumentError(
                    f"check_kernel: {option}: {schema.qualified} has no {name!r}; it has "
                    f"{', '.join(known) or 'none'}{did_you_mean(name, known)}"
                )
    for each in schema.scalars:
        is_size = each.name in schema.names
        if each.name not in recipe.scalars and not is_size and each.default is MISSING:
            raise ArgumentError(
                f"check_kernel: {schema.qualified} needs a value of {each.name!r}: pass "
                f"scalars={{{each.name!r}: …}}"
            )


def dtype_choices(schema: Schema) -> list[dict[str, DType]]:
    """Return dtypes for the variables of a schema, so that each member of each comes once.

    The first has the widest floating dtypes, in which derivatives are compared.
    """
    sets, variables = [], []
    for each in schema.dtypes:
        if not each.text:  # a scalar says it
            continue
        variables.append(each.variable)
        members = list(each.dtypes or map(as_dtype, ANY_DTYPE))
        members.sort(key=lambda dtype: (not dtype.is_floating, -dtype.bits))
        sets.append(members)
    count = max(map(len, sets), default=1)
    return [
        {name: members[at % len(members)] for name, members in zip(variables, sets, strict=True)}
        for at in range(count)
    ]


def make_samples(recipe: Recipe) -> tuple[list[Sample], dict[str, str]]:
    """Return arguments for each choice of dtypes, and the dtypes that NumPy lacks here, with why.

    Raises:
        FrameworkMissingError: NumPy lacks one of every choice: ml_dtypes is not installed.
        ImpossibleError, ArgumentError: see `make_sample`.
    """
    made = []
    missing: dict[str, FrameworkMissingError] = {}
    for dtypes in dtype_choices(recipe.schema):
        lacking = {each.name: error for each in dtypes.values() if (error := _lack_of(each))}
        missing |= lacking
        if not lacking:
            made.append(make_sample(recipe, dtypes))
    for error in missing.values():
        if not made:
            raise error
    return made, {name: str(error) for name, error in missing.items()}


def _lack_of(dtype: DType) -> FrameworkMissingError | None:
    try:
        dtype.to("numpy")
    except FrameworkMissingError as error:
        return error
    return None


def make_sample(recipe: Recipe, dtypes: Mapping[str, DType], seed: int = 0, **empty: Any) -> Sample:
    """Return arguments of these dtypes.

    Raises:
        ImpossibleError: the schema has no arguments of these sizes.
        ArgumentError: the reference gives something else than the schema says.
    """
    schema = recipe.schema
    extents = dict(zip(schema.names, EXTENTS * 6, strict=False)) | dict(recipe.sizes) | empty
    scalars = {
        each.name: recipe.scalars.get(each.name, extents.get(each.name, each.default))
        for each in schema.scalars
    }
    extents |= {name: value for name, value in scalars.items() if name in extents}
    for each in schema.scalars:
        if each.kind == "dtype" and scalars[each.name] is not None:
            scalars[each.name] = as_dtype(scalars[each.name])
    dtypes = {**dtypes, **{name: scalars[name] for _, name in schema.typed}}
    packs = {name: tuple(empty.get(name, recipe.sizes.get(name, PACK))) for name in schema.packs}
    rng = np.random.default_rng(seed)
    tensors: list[Any] = []
    values: list[Any] = []
    for each in schema.tensors:
        assert each.dtype is not None
        if each.name in recipe.left_out:
            tensors.append(None)
            values.append(None)
            continue
        shape: list[int] = []
        for dim in each.dims:
            extent = _evaluate(schema, dim, extents)
            pack = (
                packs[str(dim.value)] if dim.kind == "pack" else (3 if extent is None else extent,)
            )
            shape += pack
        dtype = dtypes[each.dtype.variable]
        maker = recipe.inputs.get(each.name, recipe.inputs.get(each.name.partition("[")[0]))
        made = _random(rng, tuple(shape), dtype) if maker is None else maker(rng, tuple(shape))
        tensors.append(_tensor(np.asarray(made), dtype))
        values.append(wide(tensors[-1]))
    found = [
        None if each is None else Described(each.shape, each.dtype, "", "cpu") for each in tensors
    ]
    try:
        results = schema.results_of(schema.bind(found, list(scalars.values())))
    except ArgumentError as error:
        raise ImpossibleError(f"check_kernel: {error}") from error
    expected = _ask(recipe, values, scalars, results)
    return Sample(recipe, dict(dtypes), tensors, scalars, results, expected)


def _evaluate(schema: Schema, dim: Dim, extents: Mapping[str, Any]) -> Any:
    """Return the extent of a dimension of an argument; None where any will do."""
    try:
        extent = dim.evaluate(extents)
    except not_from_handler(ZeroDivisionError, OverflowError) as error:
        raise ImpossibleError(f"check_kernel: {schema.qualified}: {dim} {error}") from error
    if extent is not None and extent < 0:
        raise ImpossibleError(
            f"check_kernel: {schema.qualified}: {dim} is {extent}; pass other sizes={{…}}"
        )
    return extent


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_complex:
        return rng.normal(size=shape) + 1j * rng.normal(size=shape)
    if dtype.is_floating:
        return rng.normal(size=shape)
    return rng.integers(0, 4, shape)


def _tensor(array: Array, dtype: DType) -> native.TensorBase:
    """Return values, rounded to a dtype, in aligned memory."""
    wider = array if array.dtype.kind != "f" else array.astype(np.float64)
    if not (dtype.is_floating or dtype.is_complex):
        wider = array.astype(dtype.name)
    made: native.TensorBase = native.convert(
        np.array(wider, order="C"), "dlbridge", dtype=dtype.name, copy=True
    )
    return made


def wide(tensor: Any) -> Array:
    """Return the values of a tensor as an array of NumPy; floating ones as float64."""
    held = _held(tensor)
    dtype = held.dtype
    wider = "float64" if dtype.is_floating else "complex128" if dtype.is_complex else dtype.name
    array: Array = native.convert(held, "numpy", dtype=wider, copy=True)
    return array


def _held(tensor: Any) -> native.TensorBase:
    held: native.TensorBase = native.convert(tensor, "dlbridge", readonly="share", grad="detach")
    return held


def _ask(
    recipe: Recipe,
    values: Sequence[Any],
    scalars: Mapping[str, Any],
    results: Sequence[tuple[Any, DType]],
) -> list[Array]:
    """Return what the reference says, checked against the schema."""
    schema = recipe.schema
    copies: list[Any] = [None if each is None else each.copy() for each in values]
    got = several(bind(recipe, recipe.reference, scalars)(*copies))
    if len(got) != len(results):
        raise ArgumentError(
            f"check_kernel: the reference of {schema.qualified} returned {len(got)} results, the "
            f"schema has {len(results)}"
        )
    arrays = [np.asarray(each) for each in got]
    for part, array, (shape, _) in zip(schema.results, arrays, results, strict=True):
        if not same_shape(tuple(shape), array.shape):
            raise ArgumentError(
                f"check_kernel: the reference of {schema.qualified} returned {part.name!r} of "
                f"shape {array.shape}; by the schema it has {tuple(shape)}"
            )
    return arrays + [copies[place] for place in schema.mutated if copies[place] is not None]


# ---- comparing -----------------------------------------------------------------------------------


def compare(
    recipe: Recipe, got: Sequence[Any], expected: Sequence[Array], named: Sequence[str], what: str
) -> None:
    """Raise AssertionError that names the first value that is wrong."""
    if len(got) != len(expected):
        raise AssertionError(f"{what}it gave {len(got)} tensors, not {len(expected)}")
    for name, value, right in zip(named, got, expected, strict=True):
        dtype = _held(value).dtype.name
        tolerance = TOLERANCES.get(dtype, 0.0)
        compare_arrays(
            wide(value),
            right,
            f"{what}{name}",
            tolerance if recipe.rtol is None else recipe.rtol,
            tolerance if recipe.atol is None else recipe.atol,
        )


def compare_arrays(found: Array, right: Array, name: str, rtol: float, atol: float) -> None:
    """Raise AssertionError that names the element that is farthest from what is right."""
    if found.shape != right.shape:
        raise AssertionError(f"{name} has shape {found.shape}, not {right.shape}")
    close = np.isclose(found, right, rtol=rtol, atol=atol, equal_nan=True)
    if close.all():
        return
    with np.errstate(invalid="ignore"):
        difference = np.abs(np.asarray(found, complex) - np.asarray(right, complex))
    difference = np.where(close, -1.0, np.nan_to_num(difference, nan=np.inf))
    worst = np.unravel_index(int(np.argmax(difference)), found.shape)
    place = f"[{', '.join(map(str, worst))}]" if worst else ""
    raise AssertionError(
        f"{name}{place} is {found[worst]}, not {right[worst]}; {(~close).sum()} of {close.size} "
        "values are wrong"
    )


# ---- derivatives ---------------------------------------------------------------------------------


_GRADIENT_TOLERANCES = {"float64": 1e-5, "float32": 2e-3, "complex128": 1e-5, "complex64": 2e-3}


def weights(expected: Sequence[Array]) -> list[Array | None]:
    """Return a factor for each result, different for each element; None for integers."""
    turns = {"f": 1, "c": 1 - 0.5j}
    return [
        (1 + np.arange(each.size).reshape(each.shape) / (each.size or 1)) * turns[each.dtype.kind]
        if each.dtype.kind in turns
        else None
        for each in expected
    ]


def numeric_gradients(sample: Sample) -> list[Array]:
    """Return the gradients of the real part of the weighted sum, by central differences.

    They are the reference's, in float64, so that kernels of any floating dtype are compared. Of a
    complex number, the imaginary part is the derivative by the imaginary part.
    """
    cotangents = weights(sample.expected)
    values = [None if each is None else wide(each) for each in sample.tensors]
    function = bind(sample.recipe, sample.recipe.reference, sample.scalars)

    def loss(place: int, at: tuple[int, ...], step: complex) -> float:
        moved: list[Any] = [None if each is None else each.copy() for each in values]
        moved[place][at] += step
        results = several(function(*moved))
        _check_precision(sample.recipe.schema, results)
        return sum(
            float(np.sum(np.asarray(result) * weight).real)
            for result, weight in zip(results, cotangents, strict=True)
            if weight is not None
        )

    step, found = 1e-6, []
    for place in sample.moving():
        gradient = np.zeros_like(values[place])
        for unit in (1, 1j) if gradient.dtype.kind == "c" else (1,):
            for at in np.ndindex(gradient.shape):
                difference = loss(place, at, unit * step) - loss(place, at, -unit * step)
                gradient[at] += unit * difference / (2 * step)
        found.append(gradient)
    return found


def _check_precision(schema: Schema, results: Sequence[Any]) -> None:
    """Refuse results of a reference that are rounded more coarsely than differences need.

    Raises:
        ArgumentError: a result is of a floating or complex dtype below 64 bits for each number.
    """
    for part, result in zip(schema.results, results, strict=False):
        dtype = np.asarray(result).dtype
        if dtype.kind in "fc" and np.finfo(dtype).bits < 64:
            raise ArgumentError(
                f"check_kernel: the reference of {schema.qualified} returned {part.name!r} as "
                f"{dtype.name}, which is too coarse for the differences that gradients are "
                "compared with; return what it computed in float64 or complex128"
            )


def compare_gradients(sample: Sample, gradients: Sequence[Any]) -> None:
    """Raise AssertionError where gradients are not those of the reference."""
    places = sample.moving()
    for place, got, right in zip(places, gradients, numeric_gradients(sample), strict=True):
        part = sample.recipe.schema.tensors[place]
        dtype = sample.tensors[place].dtype.name
        found = np.zeros_like(right) if got is None else wide(got)
        tolerance = _GRADIENT_TOLERANCES.get(dtype, 0.1)
        compare_arrays(found, right, f"the gradient of {part.name}", tolerance, tolerance)


def directions(sample: Sample) -> list[Array]:
    """Return a tangent for each argument that can be differentiated."""
    values = [wide(sample.tensors[place]) for place in sample.moving()]
    return [each for each in weights(values) if each is not None]


def floating(sample: Sample, results: Any) -> list[Any]:
    """Return those results of a call that can be differentiated."""
    found = zip(several(results), sample.results, strict=True)
    return [each for each, (_, dtype) in found if dtype.is_floating or dtype.is_complex]


def of_moving(
    sample: Sample, function: Callable[..., Any], tensors: Sequence[Any]
) -> tuple[Callable[..., tuple[Any, ...]], tuple[Any, ...]]:
    """Return the function of the arguments that can be differentiated alone, and these arguments.

    It gives the results that can be differentiated.
    """
    places = sample.moving()

    def moving(*some: Any) -> tuple[Any, ...]:
        given = list(tensors)
        for place, each in zip(places, some, strict=True):
            given[place] = each
        return tuple(floating(sample, function(*given)))

    return moving, tuple([tensors[place] for place in places])


def compare_tangents(sample: Sample, tangents: Sequence[Any]) -> None:
    """Raise AssertionError where tangents, along `directions`, are not those of the reference."""
    function = bind(sample.recipe, sample.recipe.reference, sample.scalars)
    step, ends = 1e-6, []
    for sign in (1, -1):
        moved: list[Any] = [None if each is None else wide(each) for each in sample.tensors]
        for place, direction in zip(sample.moving(), directions(sample), strict=True):
            moved[place] = moved[place] + sign * step * direction
        results = several(function(*moved))
        _check_precision(sample.recipe.schema, results)
        ends.append(floating(sample, results))
    parts = floating(sample, [each.name for each in sample.recipe.schema.results])
    dtypes = floating(sample, [dtype.name for _, dtype in sample.results])
    for name, dtype, got, *pair in zip(parts, dtypes, tangents, *ends, strict=True):
        right = (np.asarray(pair[0]) - np.asarray(pair[1])) / (2 * step)
        found = np.zeros_like(right) if got is None else wide(got)
        tolerance = _GRADIENT_TOLERANCES.get(dtype, 0.1)
        compare_arrays(found, right, f"the tangent of {name}", tolerance, tolerance)


def why_not(error: BaseException) -> str | None:
    """Return why a framework cannot be asked: it has no such tensors; None for other errors."""
    reason = getattr(error, "reason", None) if isinstance(error, DLBridgeError) else None
    return str(error) if reason in ("dtype", "shape", "readonly", "device", "missing") else None

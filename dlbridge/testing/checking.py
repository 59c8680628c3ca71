"""check_kernel: an operator against its reference, in every framework and under each compiler.

What holds for all frameworks is here; `torch_checks`, `jax_checks` and `tensorflow_checks` have
what one framework can do to a function: trace it, differentiate it, make it a batch.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from dlbridge import frameworks, registry
from dlbridge._core import native
from dlbridge.errors import ArgumentError, DLBridgeError
from dlbridge.exchange import adapter
from dlbridge.exchange.protocol import describe
from dlbridge.kernels.kernel import Kernel, is_native_to
from dlbridge.kernels.sharding import splits
from dlbridge.signals import not_from_handler
from dlbridge.testing import samples
from dlbridge.testing.samples import Recipe, Sample
from dlbridge.text import did_you_mean

THREADS, CALLS = 4, 8
GUARD = 64  # bytes before and behind a result that a kernel must leave alone
FILL = 0xA5
CLASHES = (("tensorflow", "paddle"),)  # the second crashes when it is imported after the first
WITH_MEMORY = ("numpy", "torch")

Check = Callable[["Subject"], None]


class Inapplicable(Exception):  # noqa: N818  (no error: it ends a check that says nothing here)
    """A check does not apply to this kernel, for the reason given."""


class Subject(NamedTuple):
    """What is checked: a kernel in one framework.

    Attributes:
        recipe: the kernel, its reference and how arguments are made.
        framework: the name.
        sample: arguments in the widest floating dtype, which most checks use.
        others: samples of the other dtypes.
    """

    recipe: Recipe
    framework: str
    sample: Sample
    others: list[Sample]

    @property
    def call(self) -> Callable[..., Any]:
        """The kernel's function for this framework."""
        function: Callable[..., Any] = getattr(self.recipe.kernel, self.framework)
        return function

    @property
    def static_call(self) -> Callable[..., Any]:
        """The same where no shape can depend on data: results have the bounds, see `rows`."""
        function: Callable[..., Any] = getattr(self.recipe.kernel.bounded, self.framework)
        return function

    def rows(self, got: Any) -> list[Any]:
        """Return the results of a call of `static_call` as a call of the kernel has them."""
        found, counted = samples.several(got), self.recipe.kernel.counted
        if counted is None:
            return found
        arrays = [samples.wide(each) for each in found]
        rows = [
            arrays[at] if by < 0 else arrays[at][: int(arrays[by])]
            for at, by in enumerate(counted.places)
        ]
        return rows + arrays[counted.result_count :]

    def choices(self) -> Iterator[tuple[str, Subject]]:
        """Yield the call in words and the subject, as it is and with optional tensors left out.

        Each of them is left out alone, and then all.
        """
        yield "", self
        schema = self.recipe.kernel.schema
        assert schema is not None
        names = [part.name for part in schema.tensors if part.optional]
        for left_out in [{name} for name in names] + ([set(names)] if len(names) > 1 else []):
            recipe = self.recipe._replace(left_out=frozenset(left_out)).with_lists()
            sample = samples.make_sample(recipe, self.sample.dtypes)
            words = ", ".join(f"{name}=None" for name in names if name in left_out)
            yield words, self._replace(recipe=recipe, sample=sample, others=[])

    @property
    def returns_written(self) -> bool:
        """Whether written arguments come back as new values, after the results."""
        return self.framework in ("jax", "tensorflow")

    def again(self, seed: int) -> Sample:
        """Return other arguments of the same dtypes and shapes."""
        return samples.make_sample(self.recipe, self.sample.dtypes, seed)

    def outputs(self, function: Callable[..., Any], tensors: list[Any]) -> list[Any]:
        """Call a function of tensors; return results and written arguments."""
        got = samples.several(function(*tensors))
        if not self.returns_written:
            written = [tensors[place] for place in self.recipe.schema.mutated]
            got += [each for each in written if each is not None]
        return got

    def require_gradient(self) -> None:
        """End the check where there is nothing to differentiate."""
        kernel, schema = self.recipe.kernel, self.recipe.schema
        if kernel.vjp is None and not is_native_to(kernel, self.framework):
            raise Inapplicable("the kernel has no vjp")
        if schema.mutated:
            raise Inapplicable("it writes its arguments")
        if not self.sample.moving() or not any(
            each is not None for each in samples.weights(self.sample.expected)
        ):
            raise Inapplicable("no argument, or no result, is floating or complex")

    def require_jvp(self) -> None:
        """End the check where there is no jvp, or nothing to differentiate."""
        if self.recipe.kernel.jvp is None:
            raise Inapplicable("the kernel has no jvp")
        if self.recipe.schema.mutated:
            raise Inapplicable("it writes its arguments")
        if not self.sample.moving() or not samples.floating(self.sample, self.sample.expected):
            raise Inapplicable("no argument, or no result, is floating or complex")

    def require_batch(self) -> None:
        """End the check where there is nothing to batch."""
        if self.recipe.schema.mutated:
            raise Inapplicable("it writes its arguments")
        if not self.recipe.schema.tensors:
            raise Inapplicable("it takes no tensor")

    def batch(self, size: int = 3) -> tuple[list[Any], list[Sample]]:
        """Return stacked arguments as arrays of NumPy, and the samples that they are of."""
        each = [self.again(seed) for seed in range(size)]
        stacked = [
            np.stack([native.convert(one.tensors[place], "numpy") for one in each])
            for place in range(len(self.sample.tensors))
        ]
        return stacked, each

    def compare_batch(self, got: Any, each: list[Sample]) -> None:
        """Raise AssertionError where a batch is not what its elements give."""
        if self.recipe.kernel.counted is None:
            named = samples.names(self.recipe.schema)
            expected = [
                np.stack(parts) for parts in zip(*[one.expected for one in each], strict=True)
            ]
            samples.compare(self.recipe, samples.several(got), expected, named, "as a batch, ")
            return
        arrays = [samples.wide(one) for one in samples.several(got)]
        for at, sample in enumerate(each):
            sample.compare(self.rows([array[at] for array in arrays]), f"as element {at}, ")


class CheckRow(NamedTuple):
    """One check.

    Attributes:
        framework: where.
        check: its name, as in `skip=`.
        status: "passed", "failed" or "skipped".
        text: what was wrong, or why it does not apply.
    """

    framework: str
    check: str
    status: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.framework}.{self.check}: {self.status}{self.text and ': '}{self.text}"


class KernelReport(NamedTuple):
    """What `check_kernel` found: its text has a line for each check.

    Attributes:
        kernel: the name.
        rows: one CheckRow for each framework and check.
    """

    kernel: str
    rows: tuple[CheckRow, ...]

    @property
    def failed(self) -> tuple[CheckRow, ...]:
        """The checks that failed."""
        return tuple([row for row in self.rows if row.status == "failed"])

    def __str__(self) -> str:
        counts = [
            f"{sum(row.status == status for row in self.rows)} {status}"
            for status in ("passed", "failed", "skipped")
        ]
        order = {"failed": 0, "skipped": 1, "passed": 2}
        rows = sorted(self.rows, key=lambda row: order[row.status])
        return "\n    ".join([f"{self.kernel}: {', '.join(counts)}", *map(str, rows)])


def check_kernel(
    kernel: Kernel,
    reference: Callable[..., Any],
    *,
    sizes: Mapping[str, Any] | None = None,
    scalars: Mapping[str, Any] | None = None,
    inputs: Mapping[str, samples.Maker] | None = None,
    frameworks: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    rtol: float | None = None,
    atol: float | None = None,
) -> KernelReport:
    """Check an operator in every installed framework: one call for each, in an author's tests.

    Arguments are made from the schema. Checked are, in each framework: `values` against the
    reference, in every dtype; `inputs`, which must stay as they were; `empty` tensors; `threads`,
    which call it at once; `optional`, without its optional tensors, and with each choice of
    optional results; `sharding`, that halves of arguments give halves of results, and in JAX
    with several devices, that sharded arguments give the same results; of a kernel whose results
    are numbers its `.tensors`, and that the kernel itself gives these `numbers`. In NumPy and
    PyTorch: `layouts` (strided, transposed and, in NumPy, reversed, misaligned and read-only
    memory) and `out=`, of which it must write every element and nothing around it. In PyTorch:
    `opcheck`, `compile`, `export`, `vmap`, `gradient`, in float64 `gradcheck`, and `autocast`; in
    JAX, with 64-bit types: `jit`, `export`, `vmap`, `gradient`; in TensorFlow: `function`
    (tf.function), `vmap` (tf.vectorized_map), `gradient`; of a kernel with a jvp, in each of these
    three, `jvp`. Values of bfloat16 and other dtypes that
    NumPy lacks are made with ml_dtypes; where that is not installed, these dtypes are skipped.

    Gradients are compared with differences of the reference, also without optional tensors; those
    of complex numbers as torch has them, of which JAX's are the conjugates. What does not apply (a
    gradient where the kernel has no vjp, a dtype or a shape that the framework does not have) is
    skipped, and the report says why. A kernel that crashes ends the process: nothing runs in
    another one.

    Args:
        kernel: with a schema, for the CPU.
        reference: the same in NumPy, for the same arguments. It gets floating arrays as float64,
            complex ones as complex128, an optional tensor that is left out as None, and writes
            into its arguments where the kernel does. Its results need no cast to the kernel's
            dtype, and must have float64 or complex128 where gradients are compared.
        sizes: extents of named dimensions, a tuple for a pack: {"n": 5, "...": (2, 3)}; lengths of
            lists of tensors, by their names or those of the lists, otherwise 2.
        scalars: values of scalars; those that are left out have their defaults.
        inputs: functions that make an argument, of a random generator and a shape:
            {"positions": lambda rng, shape: rng.integers(0, 9, shape)}. Otherwise floating values
            are normal, integers below 4.
        frameworks: names; None is every one that is installed.
        skip: checks to leave out: "threads", "torch.vmap", or "mlx".
        rtol: relative tolerance of values; None is what suits the dtype.
        atol: absolute tolerance of values, likewise.

    Returns:
        The report, of which nothing failed.

    Raises:
        AssertionError: a check failed; the text says in which framework, and what was wrong.
        ArgumentError: the arguments of this call are wrong.

    Example:
        >>> import dlbridge, numpy
        >>> def double(x):
        ...     return 2 * x
        >>> double = dlbridge.wrap(double, "docs::double(x: f64[n]) -> f64[n]", abi="python:numpy")
        >>> report = check_kernel(double, lambda x: x + x, frameworks=["numpy"])
        >>> print(str(report).splitlines()[0])
        docs::double: 6 passed, 0 failed, 0 skipped
    """
    schema = _check_kernel(kernel, reference)
    recipe = Recipe(
        kernel.tensors,  # which all checks but one call: compilers have tensors
        schema.as_tensors() if schema.numbers else schema,
        reference,
        sizes or {},
        scalars or {},
        inputs or {},
        rtol,
        atol,
    ).with_lists()
    samples.check_recipe(recipe)
    chosen = _choose(frameworks)
    left_out = _check_skip(skip)
    made, missing = samples.make_samples(recipe)
    rows = [CheckRow("numpy", dtype, "skipped", why) for dtype, why in missing.items()]
    first = [crashes for _, crashes in CLASHES]
    for name in sorted(chosen, key=first.__contains__, reverse=True):
        rows += _check_in(Subject(recipe, name, made[0], made[1:]), left_out)
    report = KernelReport(kernel.name, tuple(rows))
    if report.failed:
        raise AssertionError(f"check_kernel: {report}")
    if not any(row.status == "passed" for row in rows):
        raise AssertionError(f"check_kernel: nothing could be checked: {report}")
    return report


# ---- the call ------------------------------------------------------------------------------------


def _check_kernel(kernel: object, reference: object) -> Any:
    """Return the schema of a kernel that can be checked."""
    if not isinstance(kernel, Kernel):
        raise ArgumentError(f"check_kernel: kernel must be a Kernel, got {describe(kernel)}")
    if kernel.schema is None:
        raise ArgumentError(f"check_kernel: {kernel.name} has no schema to make arguments from")
    if "cpu" not in kernel.platforms:
        raise ArgumentError(
            f"check_kernel: {kernel.name} has functions for {', '.join(kernel.platforms)} only; "
            "kernels are checked on the CPU"
        )
    if not callable(reference):
        raise ArgumentError(
            f"check_kernel: reference must be a function of NumPy arrays, got {describe(reference)}"
        )
    return kernel.schema


def _choose(names: Iterable[str] | None) -> list[str]:
    if names is None:
        return frameworks.installed()
    if isinstance(names, str):
        raise ArgumentError(f"check_kernel: frameworks must be a list of names, got {names!r}")
    return [registry.row(name, "check_kernel").name for name in names]


def _check_skip(skip: Iterable[str]) -> frozenset[str]:
    """Return the checks to leave out, which must be known: a misspelt one would leave out none."""
    left_out = frozenset([skip] if isinstance(skip, str) else skip)
    known = frameworks.names()
    for name in frameworks.names():
        checks = [
            *CHECKS,
            *LIST_CHECKS,
            *OPTIONAL_CHECKS,
            *NUMBER_CHECKS,
            *SHARDING_CHECKS,
            *(MEMORY_CHECKS if name in WITH_MEMORY else ()),
        ]
        checks += OWN_CHECKS.get(name, ())
        known += [part for check in checks for part in (check, f"{name}.{check}")]
    for each in left_out:
        if each not in known:
            raise ArgumentError(
                f"check_kernel: skip: there is no check {each!r}{did_you_mean(each, known)}"
            )
    return left_out


def _check_in(subject: Subject, left_out: frozenset[str]) -> list[CheckRow]:
    """Return the rows of one framework."""
    name = subject.framework
    if name in left_out:
        return [CheckRow(name, "all", "skipped", "left out by skip=")]
    for other, crashes in CLASHES:
        if name == crashes and registry.is_loaded(other) and not registry.is_loaded(name):
            text = f"importing {name} after {other} crashes the process"
            return [CheckRow(name, "all", "skipped", text)]
    try:
        adapter.start(adapter.adapter(name))
    except DLBridgeError as error:
        return [CheckRow(name, "all", "skipped", str(error))]
    fitting, refused = _fitting(subject)
    if fitting is None:
        return [CheckRow(name, "all", "skipped", refused)]
    subject = fitting
    checks = CHECKS | (MEMORY_CHECKS if name in WITH_MEMORY else {})
    schema = subject.recipe.kernel.schema
    assert schema is not None
    checks |= LIST_CHECKS if any(part.is_list for part in schema.tensors) else {}
    has_optional = schema.has_optional_results or any(part.optional for part in schema.tensors)
    checks |= OPTIONAL_CHECKS if has_optional else {}
    checks |= NUMBER_CHECKS if subject.recipe.kernel.recipe.outer is not None else {}
    checks |= SHARDING_CHECKS if subject.recipe.kernel.sharding else {}
    working = _working(name)
    own = _own_module(name)
    checks |= {each: getattr(own, f"check_{each}") for each in OWN_CHECKS.get(name, ())}
    rows = []
    for each, check in checks.items():
        if {each, f"{name}.{each}"} & left_out:
            rows.append(CheckRow(name, each, "skipped", "left out by skip="))
        else:
            rows.append(_run(subject, each, check, working))
    return rows


def _fitting(subject: Subject) -> tuple[Subject | None, str]:
    """Return the subject with the first sample whose dtypes the framework has; or None and why."""
    every = [subject.sample, *subject.others]
    refused = ""
    with _working(subject.framework)():
        for sample in every:
            try:
                sample.given(subject.framework)
            except DLBridgeError as error:
                refused = refused or str(error)
                if samples.why_not(error) is None:
                    raise
                continue
            others = [each for each in every if each is not sample]
            return subject._replace(sample=sample, others=others), ""
    return None, refused


def _run(
    subject: Subject, name: str, check: Check, working: Callable[[], AbstractContextManager[Any]]
) -> CheckRow:
    try:
        with working():
            check(subject)
    except Inapplicable as reason:
        return CheckRow(subject.framework, name, "skipped", str(reason))
    except not_from_handler(Exception) as error:
        why = samples.why_not(error)
        if why is not None:
            return CheckRow(subject.framework, name, "skipped", why)
        kind = "" if type(error) is AssertionError else f"{type(error).__name__}: "
        return CheckRow(subject.framework, name, "failed", f"{kind}{error}")
    return CheckRow(subject.framework, name, "passed")


# ---- checks in every framework -------------------------------------------------------------------


def check_values(subject: Subject) -> None:
    """The reference's values, in each dtype that the framework has."""
    for sample in (subject.sample, *subject.others):
        try:
            tensors = sample.given(subject.framework)
        except DLBridgeError as error:
            if samples.why_not(error) is None:
                raise
            continue
        got = subject.outputs(sample.function(subject.call), tensors)
        sample.compare(got, f"with {sample.title}, ")


def check_numbers(subject: Subject) -> None:
    """Results that are numbers, in the frameworks and not only as tensors."""
    whole = subject.recipe.kernel.recipe.outer
    assert whole.schema is not None
    function = subject.sample.function(getattr(whole, subject.framework))
    got = subject.outputs(function, subject.sample.given(subject.framework))
    kinds = {result.name: result.number for result in whole.schema.results if result.number}
    for result, value in zip(subject.recipe.schema.results, got, strict=False):
        kind = kinds.get(result.name)
        if kind is not None and type(value).__name__ != kind:
            raise AssertionError(f"{result.name!r} is {describe(value)}, and no {kind}")
    subject.sample.compare([np.asarray(each) if isinstance(each, bool | int | float) else each
                            for each in got], "as numbers, ")  # fmt: skip


def check_inputs(subject: Subject) -> None:
    """Arguments that the schema does not mark with `!` are as before."""
    tensors = subject.sample.given(subject.framework)
    subject.sample.function(subject.call)(*tensors)
    written = () if subject.returns_written else subject.recipe.schema.mutated
    for place, (tensor, before) in enumerate(zip(tensors, subject.sample.tensors, strict=True)):
        if place not in written:
            name = subject.recipe.schema.tensors[place].name
            what = f"the argument {name}, which the schema does not mark with `!`, was written:"
            samples.compare_arrays(samples.wide(tensor), samples.wide(before), what, 0, 0)


def check_empty(subject: Subject) -> None:
    """Each named dimension, and each pack, in turn has no elements."""
    recipe, done = subject.recipe, 0
    scalars = [each.name for each in recipe.schema.scalars]
    extents: dict[str, Any] = {name: 0 for name in recipe.schema.names if name not in scalars}
    extents |= dict.fromkeys(recipe.schema.packs, (2, 0))
    for name, extent in extents.items():
        try:
            sample = samples.make_sample(recipe, subject.sample.dtypes, **{name: extent})
        except samples.ImpossibleError:
            continue  # other dimensions would be negative
        tensors = sample.given(subject.framework)
        got = subject.outputs(sample.function(subject.call), tensors)
        sample.compare(got, f"with {name} = {extent}, ")
        done += 1
    if not done:
        raise Inapplicable("no dimension can be 0")


def check_lists(subject: Subject) -> None:
    """Lists of no tensor, of one and of three, where the schema and `sizes` leave that open."""
    done = 0
    for length in (0, 1, 3):
        try:
            recipe = subject.recipe.with_lists(length)
            sample = samples.make_sample(recipe, subject.sample.dtypes)
        except samples.ImpossibleError:
            continue
        done += 1
        if not sample.tensors:
            continue  # whose framework nobody knows
        got = subject._replace(recipe=recipe).outputs(
            sample.function(subject.call), sample.given(subject.framework)
        )
        sample.compare(got, f"with lists of {length}, ")
    if not done:
        raise Inapplicable("lists have one length only")


def check_optional(subject: Subject) -> None:
    """Optional tensors left out, and each choice of the bools that decide on results."""
    schema = subject.recipe.kernel.schema
    assert schema is not None
    for words, choice in subject.choices():
        sample = choice.sample
        if words and any(each is not None for each in sample.tensors):
            with naming_choice(words):
                got = choice.outputs(sample.function(choice.call), sample.given(choice.framework))
                sample.compare(got)
    names = dict.fromkeys(part.condition for part in schema.results if part.condition)
    flags = [name for name in names if schema.by_name[name].kind == "bool"]
    for values in itertools.product((False, True), repeat=len(flags)):
        chosen = dict(zip(flags, values, strict=True))
        recipe = subject.recipe._replace(scalars={**subject.recipe.scalars, **chosen}).with_lists()
        sample = samples.make_sample(recipe, subject.sample.dtypes)
        got = subject._replace(recipe=recipe).outputs(
            sample.function(subject.call), sample.given(subject.framework)
        )
        words = ", ".join(f"{name}={value}" for name, value in chosen.items())
        sample.compare(got, f"with {words}, ")


def check_sharding(subject: Subject) -> None:
    """Halves of arguments along each dimension of `sharding=` give those halves of results."""
    recipe, sample, done = subject.recipe, subject.sample, 0
    arrays = [native.convert(each, "numpy") for each in sample.tensors]
    for axes, result_axes in splits(recipe.schema, recipe.kernel.sharding, map(np.ndim, arrays)):
        split = [
            (array, axis) for array, axis in zip(arrays, axes, strict=True) if axis is not None
        ]
        extent = split[0][0].shape[split[0][1]] if split else 0
        if extent < 2:
            continue
        done += 1
        for half in (slice(extent // 2), slice(extent // 2, None)):
            tensors = [
                native.convert(_rows(array, axis, half), subject.framework, copy=True)
                for array, axis in zip(arrays, axes, strict=True)
            ]
            got = subject.outputs(sample.function(subject.call), tensors)
            expected = [
                _rows(each, axis, half)
                for each, axis in zip(sample.expected, result_axes, strict=True)
            ]
            what = f"of one half along axis {split[0][1]} of the first argument that is split, "
            samples.compare(recipe, got, expected, samples.names(recipe.schema), what)
    if not done:
        raise Inapplicable("no dimension that sharding= names has two elements")
    check_shards = getattr(_own_module(subject.framework), "check_shards", None)
    if check_shards is not None:
        check_shards(subject)


def _rows(array: Any, axis: int | None, half: slice) -> Any:
    if axis is None:
        return array
    return np.ascontiguousarray(array[(slice(None),) * axis + (half,)])


def check_threads(subject: Subject) -> None:
    """Several threads call it at once, each with arguments of its own."""
    each = [subject.again(seed) for seed in range(THREADS)]
    given = [sample.given(subject.framework) for sample in each]
    start = threading.Barrier(THREADS)
    working = _working(subject.framework)

    def call(sample: Sample, tensors: list[Any]) -> list[list[Any]]:
        start.wait()
        with working():
            function = sample.function(subject.call)
            calls = 1 if subject.recipe.schema.mutated else CALLS
            return [subject.outputs(function, tensors) for _ in range(calls)]

    with ThreadPoolExecutor(THREADS) as pool:
        for sample, several in zip(each, pool.map(call, each, given), strict=True):
            for got in several:
                sample.compare(got, "called by several threads, ")


@contextmanager
def naming_choice(words: str) -> Iterator[None]:
    """Name the choice of optional arguments in the text of what fails in the block."""
    try:
        yield
    except not_from_handler(Exception) as error:
        if not words or isinstance(error, Inapplicable) or samples.why_not(error) is not None:
            raise
        kind = "" if type(error) is AssertionError else f"{type(error).__name__}: "
        raise AssertionError(f"with {words}, {kind}{error}") from error


def in_each_choice(check: Check) -> Check:
    """Return a check that is made of the call as it is, and without its optional tensors."""

    def run(subject: Subject) -> None:
        for words, choice in subject.choices():
            try:
                with naming_choice(words):
                    check(choice)
            except Inapplicable:
                if not words:
                    raise

    return run


def _own_module(name: str) -> ModuleType | None:
    """Return the module with the checks for one framework, or None."""
    if name not in OWN_CHECKS:
        return None
    return registry.load(import_module, f"{__package__}.{name}_checks")


def _working(name: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return the block in which calls of a framework are made."""
    return getattr(_own_module(name), "working", nullcontext)


# ---- checks where memory can be looked at --------------------------------------------------------


def check_layouts(subject: Subject) -> None:
    """Memory that is strided, in another order, reversed, misaligned or read-only."""
    arrays = [native.convert(each, "numpy", copy=True) for each in subject.sample.tensors]
    function = subject.sample.function(subject.call)
    for name, lay in LAYOUTS.items():
        if subject.framework == "torch" and name in ("reversed", "misaligned", "read-only"):
            continue
        if name == "read-only" and subject.recipe.schema.mutated:
            continue
        tensors = [lay(each) for each in arrays]
        if subject.framework == "torch":
            tensors = [native.convert(each, "torch", copy=False) for each in tensors]
        subject.sample.compare(subject.outputs(function, tensors), f"with {name} memory, ")


def _strided(array: samples.Array) -> samples.Array:
    if not array.ndim:
        return array.copy()
    wider = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wider[..., ::2] = array
    return wider[..., ::2]


def _reversed(array: samples.Array) -> samples.Array:
    return array[..., ::-1].copy()[..., ::-1] if array.ndim else array.copy()


def _misaligned(array: samples.Array) -> samples.Array:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    moved = np.ndarray(array.shape, array.dtype, memory.data, 1)
    moved[...] = array
    return moved


def _read_only(array: samples.Array) -> samples.Array:
    made = array.copy()
    made.flags.writeable = False
    return made


LAYOUTS: dict[str, Callable[[samples.Array], samples.Array]] = {
    "strided": _strided,
    "transposed": lambda array: array.copy(order="F"),
    "reversed": _reversed,
    "misaligned": _misaligned,
    "read-only": _read_only,
}


def check_out(subject: Subject) -> None:
    """Each element of `out=` is written, whatever was there, and nothing beside it."""
    if not subject.recipe.schema.results:
        raise Inapplicable("it has no results")
    if subject.recipe.schema.counts:
        raise Inapplicable("it says the size of a result")
    sample, align = subject.sample, max(GUARD, subject.recipe.kernel.align or 1)
    around = [_guarded(shape, dtype.to("numpy"), align) for shape, dtype in sample.results]
    outs = [out for _, out, _ in around]
    given = [native.convert(each, subject.framework, copy=False) for each in outs]

    def call(*args: Any, **kwargs: Any) -> Any:
        return subject.call(*args, **kwargs, out=samples.group_out(subject.recipe, given))

    own = sample.given(subject.framework)
    sample.compare(subject.outputs(sample.function(call), own), "into out=, ")
    for part, (memory, out, begin) in zip(subject.recipe.schema.results, around, strict=True):
        end = begin + out.nbytes
        beside = np.concatenate([memory[:begin], memory[end:]])
        if (beside != FILL).any():
            raise AssertionError(f"it wrote beside {part.name!r}, whose memory is too small for it")


def _guarded(
    shape: tuple[int, ...], dtype: Any, align: int
) -> tuple[samples.Array, samples.Array, int]:
    """Return memory full of FILL, an array in its middle, and where that begins."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.full(size + 4 * align, FILL, np.uint8)
    begin = align + -(memory.ctypes.data + align) % align
    return memory, np.ndarray(shape, dtype, memory.data, begin), begin


CHECKS: dict[str, Check] = {
    "values": check_values,
    "inputs": check_inputs,
    "empty": check_empty,
    "threads": check_threads,
}
LIST_CHECKS: dict[str, Check] = {"lists": check_lists}  # where the schema has lists of tensors
NUMBER_CHECKS: dict[str, Check] = {"numbers": check_numbers}  # where results are numbers
# Where a tensor, or a result, is optional.
OPTIONAL_CHECKS: dict[str, Check] = {"optional": check_optional}
SHARDING_CHECKS: dict[str, Check] = {"sharding": check_sharding}  # where it has sharding=
# Where memory can be laid out as one likes, and looked at.
MEMORY_CHECKS: dict[str, Check] = {"layouts": check_layouts, "out": check_out}
# Each is `check_<name>` in "<framework>_checks", which is imported with the framework.
OWN_CHECKS = {
    "torch": ("opcheck", "compile", "export", "vmap", "gradient", "gradcheck", "jvp", "autocast"),
    "jax": ("jit", "export", "vmap", "gradient", "jvp"),
    "tensorflow": ("function", "vmap", "gradient", "jvp"),
}

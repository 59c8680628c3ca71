"""Derivatives nested at random: a kernel gives what its formula gives, or it is refused.

A case is a framework, up to three transforms inside of each other, and a kernel at each level, that
also sees the variable of the level around it. The same program is run with kernels and with their
formula written in the framework. `DLBRIDGE_NESTED=10000` sets how many cases the long ring tries,
`DLBRIDGE_NESTED_SEED` where it begins; the counts are printed (`make nested`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from kernels.nested_samples import (
    JVP_SCHEMA,
    SCHEMA,
    SOURCE,
    VJP_SCHEMA,
    formula,
    jvp,
    second_jvp,
    second_vjp,
    vjp,
)

import dlbridge
from dlbridge.errors import DLBridgeError

CASES = int(os.environ.get("DLBRIDGE_NESTED", "100"))
SEED = int(os.environ.get("DLBRIDGE_NESTED_SEED", "0"))
PARTS = 20  # tests that the cases of the long ring are dealt out to
QUICK = 16  # cases of each framework in the fast ring
POINT = (0.5, -0.8)
BOUND = 1e-8

Function = Callable[..., Any]  # of one vector, to one vector

# ---- kernels -------------------------------------------------------------------------------------


def compiled(function: str, name: str, schema: str = SCHEMA, **rules: Any) -> Any:
    return dlbridge.compile_c(SOURCE, function, f"nested::{name}{schema}", **rules)


def in_python(framework: str, name: str, **rules: Any) -> Any:
    def function(x, y, alpha):
        return alpha * x * x * y

    return dlbridge.wrap(function, f"nested::{name}{SCHEMA}", abi=f"python:{framework}", **rules)


def c_vjp(name: str, **rules: Any) -> Any:
    return compiled("square_vjp", f"{name}_vjp", VJP_SCHEMA, **rules)


def c_jvp(name: str, **rules: Any) -> Any:
    return compiled("square_jvp", f"{name}_jvp", JVP_SCHEMA, **rules)


TWICE = {"vjp": second_vjp, "jvp": second_jvp}

# How the derivatives are given. Rules in Python are differentiated by the framework, so these may
# be nested without end; the others may refuse.
KERNELS: dict[str, Callable[[], Any]] = {
    "python": lambda: compiled("square", "python", vjp=vjp, jvp=jvp),
    "python, broadcast": lambda: compiled(
        "square", "broadcast", vjp=vjp, jvp=jvp, batch="broadcast"
    ),
    "python, of NumPy": lambda: in_python("numpy", "numpy", vjp=vjp, jvp=jvp),
    "python and a kernel with rules": lambda: compiled(
        "square", "twice", vjp=c_vjp("twice", **TWICE), jvp=jvp
    ),
    "only a vjp": lambda: compiled("square", "only_vjp", vjp=vjp),
    "only a vjp, in C": lambda: compiled("square", "only_c_vjp", vjp=c_vjp("only_c")),
    "only a vjp, a kernel with one": lambda: compiled(
        "square", "only_vjps", vjp=c_vjp("only_vjps", vjp=second_vjp)
    ),
    "only a jvp": lambda: compiled("square", "only_jvp", jvp=jvp),
    "vjp in C": lambda: compiled("square", "c_vjp", vjp=c_vjp("c_vjp"), jvp=jvp),
    "jvp in C": lambda: compiled("square", "c_jvp", vjp=vjp, jvp=c_jvp("c_jvp")),
    "both in C": lambda: compiled("square", "both", vjp=c_vjp("both"), jvp=c_jvp("both")),
    "nothing": lambda: compiled("square", "nothing"),
    "jax": lambda: in_python("jax", "jax", vjp="jax", jvp="jax"),
    "torch": lambda: in_python("torch", "torch", vjp="torch"),
}
COMPLETE = (
    "python",
    "python, broadcast",
    "python, of NumPy",
    "python and a kernel with rules",
    "only a vjp",
    "only a vjp, a kernel with one",
)
_MADE: dict[str, Any] = {}


def kernel_of(name: str) -> Any:
    if name not in _MADE:
        _MADE[name] = KERNELS[name]()
    return _MADE[name]


# ---- frameworks ----------------------------------------------------------------------------------
#
# A transform takes a function of one vector to one vector, and returns such a function. Matrices
# are multiplied by weights that no mistake of order or sign leaves alone.

WEIGHTS = ((1.0, -2.0), (0.5, 3.0))


class Torch:
    """torch.func, and torch.autograd around it."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.sin, self.cos = torch.sin, torch.cos
        self.weights = torch.tensor(WEIGHTS, dtype=torch.double)
        func = torch.func
        self.inner: dict[str, Callable[[Function], Function]] = {
            "grad": lambda f: func.grad(self.sum_of(f)),
            "grad_and_value": lambda f: (
                lambda x: self.product(*func.grad_and_value(self.sum_of(f))(x))
            ),
            "jacrev": lambda f: lambda x: (func.jacrev(f)(x) * self.weights).sum(0),
            "jacfwd": lambda f: lambda x: (func.jacfwd(f)(x) * self.weights).sum(0),
            "hessian": lambda f: lambda x: (func.hessian(self.sum_of(f))(x) * self.weights).sum(0),
            "vjp": lambda f: lambda x: func.vjp(f, x)[1](x.sin())[0],
            "jvp": lambda f: lambda x: func.jvp(f, (x,), (x.cos(),))[1],
            "vmap": lambda f: lambda x: torch.vmap(f)(torch.stack([x, x.cos()])).sum(0),
            "vmap of grad": lambda f: (
                lambda x: torch.vmap(func.grad(self.sum_of(f)))(torch.stack([x, x.cos()])).sum(0)
            ),
        }
        # Inside of another transform torch 2.13 takes what linearize gives for a constant, and at
        # times reads memory that nobody has written: formulas tell nothing there.
        self.outer = {
            **self.inner,
            "linearize": lambda f: lambda x: func.linearize(f, x)[1](x.cos()),
            "backward": self.backward,
            "double backward": self.double_backward,
            "dual": self.dual,
        }

    def point(self) -> Any:
        return self.torch.tensor(POINT, dtype=self.torch.double)

    def sum_of(self, function: Function) -> Function:
        return lambda x: function(x).sum()

    def product(self, gradient: Any, value: Any) -> Any:
        return gradient * value

    def backward(self, function: Function) -> Function:
        def run(x: Any) -> Any:
            x = x.detach().clone().requires_grad_()
            function(x).sum().backward()
            return x.grad

        return run

    def double_backward(self, function: Function) -> Function:
        grad = self.torch.autograd.grad

        def run(x: Any) -> Any:
            x = x.detach().clone().requires_grad_()
            (first,) = grad(function(x).sum(), x, create_graph=True)
            return grad((first * x).sum(), x)[0]

        return run

    def dual(self, function: Function) -> Function:
        forward_ad = self.torch.autograd.forward_ad

        def run(x: Any) -> Any:
            with forward_ad.dual_level():
                out = function(forward_ad.make_dual(x, x.cos()))
                return forward_ad.unpack_dual(out).tangent

        return run


class Jax:
    """Transforms of JAX, compiled or not."""

    def __init__(self, jax: Any) -> None:
        self.jax, np_ = jax, jax.numpy
        self.sin, self.cos = np_.sin, np_.cos
        weights = np.array(WEIGHTS)
        self.inner: dict[str, Callable[[Function], Function]] = {
            "grad": lambda f: jax.grad(self.sum_of(f)),
            "value_and_grad": lambda f: (
                lambda x: self.product(*jax.value_and_grad(self.sum_of(f))(x))
            ),
            "jacrev": lambda f: lambda x: (jax.jacrev(f)(x) * weights).sum(0),
            "jacfwd": lambda f: lambda x: (jax.jacfwd(f)(x) * weights).sum(0),
            "hessian": lambda f: lambda x: (jax.hessian(self.sum_of(f))(x) * weights).sum(0),
            "vjp": lambda f: lambda x: jax.vjp(f, x)[1](np_.sin(x))[0],
            "jvp": lambda f: lambda x: jax.jvp(f, (x,), (np_.cos(x),))[1],
            "linearize": lambda f: lambda x: jax.linearize(f, x)[1](np_.cos(x)),
            "vmap": lambda f: lambda x: jax.vmap(f)(np_.stack([x, np_.cos(x)])).sum(0),
            "vmap of grad": lambda f: (
                lambda x: jax.vmap(jax.grad(self.sum_of(f)))(np_.stack([x, np_.cos(x)])).sum(0)
            ),
            "checkpoint": jax.checkpoint,
            "jit": jax.jit,
        }
        self.outer = self.inner

    def point(self) -> Any:
        return self.jax.numpy.array(POINT, dtype="float64")

    def forget(self) -> None:
        """Drop what was compiled, ten megabytes for each case, and let the system have it."""
        self.jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)

    def sum_of(self, function: Function) -> Function:
        return lambda x: function(x).sum()

    def product(self, value: Any, gradient: Any) -> Any:
        return gradient * value


class TensorFlow:
    """Tapes and accumulators of TensorFlow, in functions or not."""

    def __init__(self, tf: Any) -> None:
        self.tf = tf
        self.sin, self.cos = tf.sin, tf.cos
        self.weights = tf.constant(WEIGHTS, tf.float64)
        self.inner: dict[str, Callable[[Function], Function]] = {
            "gradient": self.gradient,
            "gradient of a product": self.gradient_of_a_product,
            "jacobian": self.jacobian,
            "accumulator": self.accumulator,
            "function": lambda f: tf.function(f, autograph=False),
            "map": lambda f: (
                lambda x: tf.reduce_sum(
                    tf.map_fn(f, tf.stack([x, tf.cos(x)]), parallel_iterations=1), 0
                )
            ),
        }
        self.outer = self.inner

    def point(self) -> Any:
        return self.tf.constant(POINT, self.tf.float64)

    def gradient(self, function: Function) -> Function:
        def run(x: Any) -> Any:
            with self.tf.GradientTape() as tape:
                tape.watch(x)
                out = self.tf.reduce_sum(function(x))
            return self.some(tape.gradient(out, x), x)

        return run

    def gradient_of_a_product(self, function: Function) -> Function:
        def run(x: Any) -> Any:
            with self.tf.GradientTape() as tape:
                tape.watch(x)
                out = function(x)
                out = out * out
            return self.some(tape.gradient(out, x, output_gradients=self.sin(x)), x)

        return run

    def jacobian(self, function: Function) -> Function:
        def run(x: Any) -> Any:
            with self.tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                out = function(x)
            found = tape.jacobian(out, x, experimental_use_pfor=False)
            return self.tf.reduce_sum(self.some(found, self.weights) * self.weights, 0)

        return run

    def accumulator(self, function: Function) -> Function:
        def run(x: Any) -> Any:
            with self.tf.autodiff.ForwardAccumulator(x, self.cos(x)) as accumulator:
                out = function(x)
            return self.some(accumulator.jvp(out), x)

        return run

    def some(self, gradient: Any, like: Any) -> Any:
        """Return zeros for None, which a constant function gives."""
        return self.tf.zeros_like(like) if gradient is None else gradient


FRAMEWORKS: dict[str, tuple[str, type]] = {
    "torch": ("torch", Torch),
    "jax": ("jax", Jax),
    "tensorflow": ("tensorflow", TensorFlow),
}
_FRAMEWORKS: dict[str, Any] = {}


@pytest.fixture
def load(framework: Any) -> Iterator[Callable[[str], Any]]:
    """Return a function that returns a framework; JAX has 64-bit types for the test."""
    switched = []

    def find(name: str) -> Any:
        module, kind = FRAMEWORKS[name]
        found = framework(module)
        if name == "jax" and not switched:
            switched.append((found.config, found.config.jax_enable_x64))
            found.config.update("jax_enable_x64", True)
        if name not in _FRAMEWORKS:
            _FRAMEWORKS[name] = kind(found)
        return _FRAMEWORKS[name]

    yield find
    for config, before in switched:
        config.update("jax_enable_x64", before)


# ---- cases ---------------------------------------------------------------------------------------

# The values of a level: `k` is its kernel, x its variable, o the variable of the level around it.
BODIES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "k(x, o)": lambda its, k, x, o: k(x, o, alpha=0.5),
    "k(o, x)": lambda its, k, x, o: k(o, x, alpha=0.5),
    "k(x, x)": lambda its, k, x, o: k(x, x, alpha=0.25),
    "k(k(x, o), x)": lambda its, k, x, o: k(k(x, o, alpha=1.0), x, alpha=0.5),
    "k(sin x, o) * x": lambda its, k, x, o: k(its.sin(x), o, alpha=2.0) * x,
    "k(x, o) * k(o, x)": lambda its, k, x, o: k(x, o, alpha=2.0) * k(o, x, alpha=0.5),
    "o * x + k(x, cos o)": lambda its, k, x, o: o * x + k(x, its.cos(o), alpha=1.0),
}


class Level(NamedTuple):
    """A transform, the kernel under it and what it computes."""

    transform: str
    kernel: str
    body: str


class Case(NamedTuple):
    """A framework, and levels from the outermost inwards."""

    framework: str
    levels: tuple[Level, ...]


def cases(seed: int, transforms: dict[str, tuple[list[str], list[str]]]) -> Iterator[Case]:
    """Yield cases without end; most have one kind of kernel, and some a kind at each level."""
    chosen = random.Random(seed)
    while True:
        name = chosen.choice(list(transforms))
        outer, inner = transforms[name]
        kind = chosen.choice(list(KERNELS))
        is_mixed = chosen.random() < 0.3
        levels = []
        for depth in range(chosen.choice([1, 2, 2, 3, 3, 3])):
            if is_mixed:
                kind = chosen.choice(list(KERNELS))
            transform = chosen.choice(inner if depth else outer)
            levels.append(Level(transform, kind, chosen.choice(list(BODIES))))
        yield Case(name, tuple(levels))


def run(case: Case, its: Any, find: Callable[[str], Function]) -> Any:
    """Return what the program of a case gives, with the functions that `find` finds by kind."""

    def function_at(depth: int, around: Any) -> Function:
        level = case.levels[depth]
        kernel = find(level.kernel)

        def function(x: Any) -> Any:
            value = BODIES[level.body](its, kernel, x, around)
            if depth + 1 < len(case.levels):
                value = value + function_at(depth + 1, x)(its.sin(x) * around)
            return value

        transforms = its.inner if depth else its.outer
        return transforms[level.transform](function)

    point = its.point()
    return np.asarray(function_at(0, its.cos(point))(point))


def attempt(case: Case, its: Any, find: Callable[[str], Function]) -> Any:
    try:
        return run(case, its, find)
    except Exception as error:
        return error


# What JAX says by itself of a function that has no jvp.
WITHOUT_JVP = (
    "can't apply forward-mode autodiff (jvp) to a custom_vjp function",
    "Differentiation rule for 'custom_lin' not implemented",
)
LACK_JVP = ("only a vjp, in C",)


def is_refusal(case: Case, error: BaseException | None) -> bool:
    """Return whether an error is ours, or has ours within: frameworks wrap what kernels raise."""
    while error is not None:
        text = str(error)
        if isinstance(error, DLBridgeError) or "nested::" in text:
            return True
        if text.startswith(WITHOUT_JVP):
            return any(level.kernel in LACK_JVP for level in case.levels)
        error = error.__cause__ or error.__context__
    return False


# TensorFlow counts a function's inputs wrongly where an accumulator is around its gradient, and
# then fails to make its own error.
BROKEN = "InternalError.__init__() missing"


def judge(case: Case, its: Any) -> str:
    """Return the verdict on a case: "equal", "refused", or what is wrong."""
    expected = attempt(case, its, lambda _: formula)
    is_broken = str(expected).startswith(BROKEN)
    if is_broken:  # the same formula, in eager code
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(its.inner, "function", lambda f: f)
            expected = attempt(case, its, lambda _: formula)
    found = attempt(case, its, kernel_of)
    if is_broken and str(found).startswith(BROKEN):
        return "impossible"
    if isinstance(expected, Exception):
        return "impossible" if isinstance(found, Exception) else f"wrong: not refused: {expected!r}"
    if isinstance(found, Exception):
        if not is_refusal(case, found):
            return f"wrong: {found!r}"
        if all(level.kernel in COMPLETE for level in case.levels):
            return f"wrong: refused: {found!r}"
        return "refused"
    if np.allclose(found, expected, rtol=BOUND, atol=BOUND):
        return "equal"
    return f"wrong: {found.tolist()} for {expected.tolist()}"


def check(chosen: list[Case], load: Callable[[str], Any]) -> Counter[str]:
    """Judge cases; return how many there are of each verdict."""
    counts: Counter[str] = Counter()
    wrong = []
    for case in chosen:
        verdict = judge(case, load(case.framework))
        counts[f"{case.framework}: {verdict.partition(':')[0]}"] += 1
        if verdict.startswith("wrong"):
            wrong.append(f"{case}: {verdict[:600]}")
    assert not wrong, f"{len(wrong)} of {len(chosen)}\n" + "\n".join(wrong[:20])
    return counts


def some_cases(seed: int, names: list[str], count: int, load: Callable[[str], Any]) -> list[Case]:
    found = {name: load(name) for name in names}
    transforms = {name: ([*its.outer], [*its.inner]) for name, its in found.items()}
    endless = cases(seed, transforms)
    return [next(endless) for _ in range(count)]


@pytest.mark.full
@pytest.mark.parametrize("name", ["formula", "python"])
def test_an_accumulator_around_the_gradient_of_a_function_is_a_defect_of_tensorflow(
    name: str, load: Callable[[str], Any]
) -> None:
    """A function that captures what is differentiated also fails there by its formula alone."""
    its = load("tensorflow")
    product = formula if name == "formula" else kernel_of(name)

    def at(variable: Any, inner: Callable[[Function], Function]) -> Any:
        function = inner(lambda x: product(product(x, variable, alpha=1.0), variable, alpha=1.0))
        return its.gradient(lambda x: function(its.sin(variable)))(variable)

    def run(inner: Callable[[Function], Function]) -> Any:
        return its.accumulator(lambda x: at(x, inner))(its.point())

    assert np.isfinite(run(lambda function: function)).all()
    with pytest.raises(TypeError, match=re.escape(BROKEN)):
        run(its.inner["function"])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.fast(lambda name: name == "torch")
def test_a_few_are_equal_or_refused(name: str, load: Callable[[str], Any]) -> None:
    check(some_cases(2, [name], QUICK, load), load)


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_many_are_equal_or_refused(
    part: int, load: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = some_cases(1000 * SEED + part, list(FRAMEWORKS), CASES // PARTS, load)
    counts = check(chosen, load)
    load("jax").forget()
    with capsys.disabled():
        print(f"\n{len(chosen)} nested derivatives: {dict(sorted(counts.items()))}")

"""A function of JAX and its arrays as a model; see `dlbridge.frameworks.models`.

A program is compiled by `jax.jit`, and its results are found by `jax.eval_shape`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp

from dlbridge.dtype import as_dtype
from dlbridge.errors import ArgumentError
from dlbridge.frameworks.models import (
    Call,
    Derived,
    Form,
    Held,
    Linearization,
    check_names,
    check_shape,
    is_moving,
    name_of,
    split_outcome,
)
from dlbridge.kernels.gradients import conjugates

Function = Callable[..., tuple[Any, ...]]

# Those that `jax.jit` shares as they are; integers may have to be narrowed.
_OF_NUMPY = frozenset(map(as_dtype, ("float16", "float32", "float64")))

_SWITCH: Callable[[bool], AbstractContextManager[Any]] = (
    jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
)


def _is_wide() -> bool:
    return bool(jax.config.jax_enable_x64)


class Source(NamedTuple):
    """Where a value that a backward pass reads comes from.

    Attributes:
        kind: "operand" or "result", at the place `value`; "own", the one of this number among what
            only the backward pass reads; or "constant", which is `value`.
        impl: of a random key, whose data is what travels; None for all else.
    """

    kind: str
    value: Any
    impl: Any = None


class Program(Derived):
    """A function of arrays of JAX.

    Attributes:
        is_wide: whether JAX had 64-bit types when it was made.
    """

    framework = "jax"

    def __init__(self, name: str, function: Function, forms: Iterable[Form]) -> None:
        super().__init__(name, forms)
        self.is_wide = _is_wide()
        self._takes_numpy = [dtype in _OF_NUMPY for _, dtype in self.forms]
        self.run = jax.jit(_in_thread_of_caller(function))
        shapes = [jax.ShapeDtypeStruct(shape, dtype.to("numpy")) for shape, dtype in self.forms]
        made = jax.eval_shape(self.run, *shapes)
        self._set_results([(tuple(each.shape), as_dtype(each.dtype)) for each in made])
        self._function = function

    def settings(self) -> AbstractContextManager[Any] | None:
        """Return what has to be entered around a call; None where JAX is as it was."""
        return None if _is_wide() is self.is_wide else _SWITCH(self.is_wide)

    def takes_numpy(self) -> Sequence[bool]:
        """Return for which operands a NumPy array serves as well; for JAX, that is a transfer."""
        config = jax.config
        is_guarded = config.jax_transfer_guard_host_to_device not in (None, "allow")
        return () if is_guarded or config.jax_disable_jit else self._takes_numpy

    def _map(self, axes: tuple[int | None, ...], size: int) -> Program:
        mapped = jax.vmap(self._function, axes, axis_size=size)
        return Program(self.name, mapped, self._batch_forms(axes, size))

    def _pull(self, needs: tuple[int, ...], operands: Sequence[Any]) -> tuple[Any, Any]:
        """Return all results, and JAX's function from cotangents to gradients."""

        def part(*some: Any) -> tuple[Any, Any]:
            given = list(operands)
            for place, each in zip(needs, some, strict=True):
                given[place] = each
            results = self._function(*given)
            return [results[place] for place in self.moving], results

        moving, pull, results = jax.vjp(part, *[operands[place] for place in needs], has_aux=True)
        results = list(results)
        for place, each in zip(self.moving, moving, strict=True):
            results[place] = each
        return results, pull

    def _differentiate(self, needs: tuple[int, ...]) -> Program:
        count = len(self.forms)

        def derivative(*given: Any) -> tuple[Any, ...]:
            _, pull = self._pull(needs, given[:count])
            return _gradients(pull, given[count:])

        return Program(self.name, derivative, [*self.forms, *self._cotangents()])

    def _push(self, places: tuple[int, ...]) -> Program:
        count = len(self.forms)

        def push(*given: Any) -> tuple[Any, ...]:
            operands = list(given[:count])

            def part(*some: Any) -> list[Any]:
                for place, each in zip(places, some, strict=True):
                    operands[place] = each
                results = self._function(*operands)
                return [results[place] for place in self.moving]

            primals = tuple(operands[place] for place in places)
            return tuple(jax.jvp(part, primals, given[count:])[1])

        return Program(self.name, push, [*self.forms, *[self.forms[place] for place in places]])

    def _linearize(self, needs: tuple[int, ...]) -> Linearization:
        traced: list[tuple[list[Source], Any]] = []

        def forward(*operands: Any) -> tuple[Any, ...]:
            results, pull = self._pull(needs, operands)
            leaves, structure = jax.tree.flatten(pull)
            sources, own = _find_sources(leaves, operands, results)
            traced[:] = [(sources, structure)]
            return (*_fresh(results, operands), *own)

        first = Program(self.name, forward, self.forms)
        sources, structure = traced[0]
        operands = tuple(dict.fromkeys(each.value for each in sources if each.kind == "operand"))
        results = tuple(dict.fromkeys(each.value for each in sources if each.kind == "result"))
        kept = [
            *(("operand", place) for place in operands),
            *(("result", place) for place in results),
            *(("own", number) for number in range(len(first.results) - len(self.results))),
        ]

        def backward(*given: Any) -> tuple[Any, ...]:
            known = dict(zip(kept, given, strict=False))
            pull = jax.tree.unflatten(structure, [_value(each, known) for each in sources])
            return _gradients(pull, given[len(kept) :])

        forms = [
            *(self.forms[place] for place in operands),
            *(self.results[place] for place in results),
            *first.results[len(self.results) :],
            *self._cotangents(),
        ]
        second = Program(self.name, backward, forms)
        return Linearization(self, needs, first, second, operands, results)


class Model:
    """A function of JAX with the trees of its arrays."""

    framework = "jax"
    follows_mode = False
    flatten = staticmethod(jax.tree_util.tree_flatten)
    unflatten = staticmethod(jax.tree_util.tree_unflatten)
    is_wide = staticmethod(_is_wide)

    def __init__(self, function: Any, params: Any, buffers: Any, is_mutable: bool) -> None:
        self.function = function
        self.name = name_of(function)
        self._trees = [_Tree(params), *([] if buffers is None else [_Tree(buffers)])]
        self.held = [
            Held(name, array, tree is self._trees[0] and is_moving(as_dtype(array.dtype)))
            for tree in self._trees
            for name, array in tree.arrays
        ]
        first = len(self._trees[0].arrays) if is_mutable else len(self.held)
        self._updated = tuple(range(first, len(self.held)))
        self._is_mutable = is_mutable
        check_names(each.name for each in self.held)

    def take(self, leaf: Any) -> tuple[Any, Hashable] | None:
        """Return an argument as an array with memory, and the kind of key that it is; or None."""
        if not _is_array(leaf):
            return None
        array = jnp.asarray(leaf)
        impl = _impl(array)
        return (array, None) if impl is None else (jax.random.key_data(array), impl)

    def call(self, structure: Any, static: Sequence[Any], forms: Sequence[Form]) -> Call:
        """Find out what a call does."""
        return self._call(structure, static, self._narrow(forms))

    def _narrow(self, forms: Sequence[Form]) -> list[Form]:
        found = []
        for place, (shape, dtype) in enumerate(forms):
            narrow = as_dtype(jax.dtypes.canonicalize_dtype(dtype.to("numpy")))
            if narrow is not dtype and is_moving(dtype):
                held = place < len(self.held)
                owner = repr(self.held[place].name) if held else "an argument"
                raise ArgumentError(
                    f"{self.name}: {owner} is {dtype}, and JAX has no 64-bit numbers; "
                    'jax.config.update("jax_enable_x64", True) switches them on, or cast it to '
                    f"{narrow}"
                )
            found.append((shape, narrow))
        return found

    def _call(self, structure: Any, static: Sequence[Any], forms: Sequence[Form]) -> Call:
        outcome: list[Any] = []

        def function(*operands: Any) -> tuple[Any, ...]:
            left = iter(operands)
            trees = [tree.rebuild(left) for tree in self._trees]
            args, kwargs = structure.unflatten(
                _wrap(next(left), each[1]) if each[0] is None else each[1] for each in static
            )
            made = self.function(*trees, *args, **kwargs)
            new: list[Any] = []
            if self._is_mutable:
                made, buffers = split_outcome(made, self.name)
                new = self._trees[1].arrays_like(buffers, self.name)
            leaves, made_structure = jax.tree.flatten(made)
            is_single = jax.tree_util.treedef_is_leaf(made_structure)
            outcome[:] = [made_structure, len(leaves), is_single]
            return _fresh([_data(each) for each in [*leaves, *new]], operands)

        program = Program(self.name, function, forms)
        made, size, is_single = outcome
        return Call(program, made, size, is_single, self._updated)


make_model = Model


class _Tree:
    """A tree of which the arrays are held, and all else stays as it is.

    Attributes:
        arrays: with their names; of a random key, its data.
    """

    def __init__(self, tree: Any) -> None:
        found, self.structure = jax.tree_util.tree_flatten_with_path(tree)
        self.arrays: list[tuple[str, Any]] = []
        self.leaves: list[tuple[bool, Any]] = []  # (True, kind of key), or (False, the leaf)
        for path, leaf in found:
            if not _is_array(leaf):
                self.leaves.append((False, leaf))
                continue
            array = jnp.asarray(leaf)
            self.leaves.append((True, _impl(array)))
            self.arrays.append((_join(path), _data(array)))

    def rebuild(self, arrays: Iterator[Any]) -> Any:
        """Return the tree with others in the places of its arrays."""
        leaves = [_wrap(next(arrays), kept) if own else kept for own, kept in self.leaves]
        return jax.tree.unflatten(self.structure, leaves)

    def arrays_like(self, tree: Any, name: str) -> list[Any]:
        """Return the arrays of another tree of the same structure, shapes and dtypes."""
        leaves, structure = jax.tree.flatten(tree)
        if structure != self.structure:
            raise ArgumentError(
                f"{name}: the buffers must be returned in the structure in which they came, "
                f"{self.structure}, got {structure}"
            )
        own = [_data(leaf) for leaf, (is_own, _) in zip(leaves, self.leaves, strict=True) if is_own]
        for (path, like), array in zip(self.arrays, own, strict=True):
            check_shape(path, array, like.shape, name)
        return own


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _join(path: Sequence[Any]) -> str:
    parts = [
        str(next(getattr(key, field) for field in ("key", "idx", "name") if hasattr(key, field)))
        for key in path
    ]
    return ".".join(parts) if path else "params"


# ---- random keys, which have no memory of their own ----------------------------------------------


def _impl(array: Any) -> Hashable:
    """Return the kind of a random key; None for any other array."""
    if not jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return None
    impl: Hashable = jax.random.key_impl(array)
    return impl


def _data(leaf: Any) -> Any:
    is_key = _is_array(leaf) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _wrap(array: Any, impl: Any) -> Any:
    return array if impl is None else jax.random.wrap_key_data(array, impl=impl)


# ---- in a trace ----------------------------------------------------------------------------------


def _fresh(results: Sequence[Any], operands: Sequence[Any]) -> tuple[Any, ...]:
    """Return results each with memory of its own, that of no operand."""
    seen = {id(each) for each in operands}
    found = []
    for each in results:
        found.append(jnp.copy(each) if id(each) in seen else each)
        seen.add(id(each))
    return tuple(found)


def _find_sources(
    leaves: Sequence[Any], operands: Sequence[Any], results: Sequence[Any]
) -> tuple[list[Source], list[Any]]:
    """Return where each value comes from that a backward pass reads, and those only it reads."""
    known: dict[int, tuple[str, int]] = {}
    for kind, several in (("result", results), ("operand", operands)):
        known |= {id(each): (kind, place) for place, each in enumerate(several)}
    sources: list[Source] = []
    own: list[Any] = []
    for leaf in leaves:
        if not isinstance(leaf, jax.core.Tracer):
            sources.append(Source("constant", leaf))
            continue
        if id(leaf) not in known:
            known[id(leaf)] = "own", len(own)
            own.append(leaf)
        sources.append(Source(*known[id(leaf)], _impl(leaf)))
    return sources, [_data(each) for each in own]


def _value(source: Source, known: dict[tuple[str, int], Any]) -> Any:
    if source.kind == "constant":
        return source.value
    return _wrap(known[source.kind, source.value], source.impl)


def _in_thread_of_caller(function: Function) -> Function:
    """Return the function, such that `jax.jit` computes it on the CPU in the thread that calls it.

    Otherwise JAX computes in a thread of its own, while the caller goes on. Here the caller always
    waits, and to wake that thread takes longer than to compute a small program. JAX calls a program
    that may call Python where it is, so this one has such a call: in a branch that is never taken,
    which XLA removes. JAX's persistent compilation cache takes no program with callbacks; where it
    is on, nothing is added.
    """

    def computed(*operands: Any) -> tuple[Any, ...]:
        results = function(*operands)
        if not results or not STAYS_IN_THREAD or jax.config.jax_compilation_cache_dir is not None:
            return results
        first = jax.lax.platform_dependent(results[0], cpu=_may_call_python, default=_same)
        return (first, *results[1:])

    return computed


# Earlier versions dispatch programs with callbacks in Python, which takes 300 microseconds.
STAYS_IN_THREAD = jax.__version_info__ >= (0, 7, 2)


def _may_call_python(x: Any) -> Any:
    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    called = jax.lax.cond(False, lambda: jax.pure_callback(_never, flag), lambda: jnp.array(False))
    return jax.lax.optimization_barrier((x, called))[0]


def _never() -> NoReturn:
    raise AssertionError


def _same(x: Any) -> Any:
    return x


def _gradients(pull: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
    """Return gradients as torch has them: of complex numbers, the conjugates of JAX's."""
    return tuple(conjugates(pull(conjugates(cotangents))))

"""Functions and modules of TensorFlow, and Keras models on it, as models.

See `dlbridge.frameworks.models`. A program is a concrete function. What it is made of are functions
of sources: tensors, and in the place of a tf.Module's tensors the variables of a private copy of
the module, to which each call assigns its operands. Gradients are taken of the sources, so that
they are right at every order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from dlbridge import registry
from dlbridge._core import native
from dlbridge.dtype import as_dtype
from dlbridge.errors import ArgumentError
from dlbridge.exchange.protocol import describe
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
from dlbridge.frameworks.models import Program as AnyProgram
from dlbridge.frameworks.tensorflow import EXPORTED, TensorFlow
from dlbridge.frameworks.tensorflow.graphs import Cut, CutError, draws_random_numbers, find_written
from dlbridge.signals import not_from_handler

Function = Callable[..., Sequence[Any]]
Rebuild = Callable[[Sequence[Any]], Any]  # makes (args, kwargs) from the arrays in them


class State(NamedTuple):
    """The variables of a private copy of a module, which one call at a time assigns and reads.

    Attributes:
        blanks: their values between two calls, so that they hold no memory of a caller.
    """

    variables: list[Any]
    blanks: list[Any]
    lock: Any


_NO_STATE = State([], [], None)
_OWN_WRITES = 2  # of each variable in each graph: its operand, and what it holds afterwards


class Program(Derived):
    """A function of tensors of certain forms, as a concrete function of TensorFlow.

    Attributes:
        concrete: the concrete function.
        draws: whether it draws random numbers, which are others in each call.
    """

    framework = "tensorflow"

    def __init__(
        self, name: str, function: Function, forms: Iterable[Form], state: State = _NO_STATE
    ) -> None:
        super().__init__(name, forms)
        self._function = function
        self._state = state

        def computed(*operands: Any) -> list[Any]:
            made = function(*_sources(state, operands))
            self._set_results([self._form(place, each) for place, each in enumerate(made)])
            found = _fresh(made)
            _release(state)
            return found

        self.concrete = _trace(computed, self.forms)
        self.draws = draws_random_numbers(self.concrete)

    def run(self, *operands: Any) -> Any:
        """Return the results for eager tensors."""
        if self._state.lock is None:
            return _call(self.concrete, operands)
        with self._state.lock:
            return _call(self.concrete, operands)

    def settings(self) -> None:
        """Return None: TensorFlow has no switches that a call depends on."""

    def _unwritten(self, traced: Any) -> dict[int, int]:
        """Return the places of the variables that keep the values of their operands, by handle."""
        written = {id(each) for each in find_written(traced, beyond=_OWN_WRITES)}
        handles = [variable.handle for variable in self._state.variables]
        return {id(x): place for place, x in enumerate(handles) if id(x) not in written}

    def _form(self, place: int, tensor: Any) -> Form:
        if not tensor.shape.is_fully_defined():
            raise ArgumentError(
                f"{self.name}: result {place} has the shape {tensor.shape}, which depends on "
                "values; return tensors of a shape that follows from those of the arguments, such "
                "as a padded one and its length"
            )
        if not _can_cross(tensor):
            raise ArgumentError(
                f"{self.name}: result {place} is a {tensor.dtype.name}, which no other framework "
                "has; return numbers"
            )
        return tuple(tensor.shape.as_list()), as_dtype(tensor.dtype)

    def _pull(
        self, needs: Sequence[int], sources: Sequence[Any], cotangents: Sequence[Any]
    ) -> tuple[Sequence[Any], list[Any]]:
        """Return all results, and the gradients of some sources."""
        wanted = [sources[place] for place in needs]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(wanted)
            results = self._function(*sources)
        found = tape.gradient(
            [results[place] for place in self.moving],
            wanted,
            output_gradients=list(cotangents),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return results, [
            tf.ensure_shape(tf.convert_to_tensor(each), self.forms[place][0])
            for place, each in zip(needs, found, strict=True)
        ]

    def _differentiate(self, needs: tuple[int, ...]) -> Program:
        self._refuse_to_draw_again()
        count = len(self.forms)

        def derivative(*given: Any) -> Sequence[Any]:
            return self._pull(needs, given[:count], given[count:])[1]

        return Program(self.name, derivative, [*self.forms, *self._cotangents()], self._state)

    def _push(self, places: tuple[int, ...]) -> Program:
        """The backward pass is linear in the cotangents: its derivative is the forward one."""
        self._refuse_to_draw_again()
        count = len(self.forms)

        def push(*given: Any) -> Sequence[Any]:
            zeros = [tf.zeros(shape, dtype.to("tensorflow")) for shape, dtype in self._cotangents()]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(zeros)
                gradients = self._pull(places, given[:count], zeros)[1]
            found: list[Any] = tape.gradient(
                gradients,
                zeros,
                output_gradients=list(given[count:]),
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return found

        forms = [*self.forms, *[self.forms[place] for place in places]]
        return Program(self.name, push, forms, self._state)

    def _refuse_to_draw_again(self) -> None:
        if self.draws:
            raise ArgumentError(
                f"{self.name}: this derivative is computed from the arguments again, and its "
                "random numbers would be others; draw them with tf.random.stateless_uniform and a "
                "seed among the arguments"
            )

    def _map(self, axes: tuple[int | None, ...], size: int) -> Program:
        for variable, axis in zip(self._state.variables, axes, strict=False):
            if axis is not None:
                raise ArgumentError(
                    f"{self.name}: vmap over the variables of a tf.Module is not supported, "
                    f"as of {variable.name!r}; map over arguments, or pass a function of "
                    "TensorFlow and params="
                )
        mapped = partial(self._map_sources, axes, size)
        return Program(self.name, mapped, self._batch_forms(axes, size), self._state)

    def _map_sources(self, axes: tuple[int | None, ...], size: int, *sources: Any) -> Sequence[Any]:
        batch = [
            _first(source, axis)
            for source, axis in zip(sources, axes, strict=True)
            if axis is not None
        ]

        def one(slices: Sequence[Any]) -> tuple[Any, ...]:
            left = iter(slices)
            given = [
                source if axis is None else next(left)
                for source, axis in zip(sources, axes, strict=True)
            ]
            return tuple(tf.convert_to_tensor(each) for each in self._function(*given))

        if self._state.variables or self.draws or not size:
            specs = tuple(
                tf.TensorSpec(shape, dtype.to("tensorflow")) for shape, dtype in self.results
            )
            made = tf.map_fn(one, batch, fn_output_signature=specs)
        else:
            made = tf.vectorized_map(one, batch)
        return [
            tf.ensure_shape(each, (size, *shape))
            for each, (shape, _) in zip(made, self.results, strict=True)
        ]

    def _linearize(self, needs: tuple[int, ...]) -> Linearization:
        count = len(self.forms)

        def joint(*given: Any) -> list[Any]:
            sources = _sources(self._state, given[:count])
            results, gradients = self._pull(needs, sources, given[count:])
            found = [*results, *gradients]
            _release(self._state)
            return found

        traced = _trace(joint, [*self.forms, *self._cotangents()])
        try:
            cut = Cut(traced, count, len(self.results), self._unwritten(traced), _can_cross)
        except CutError:
            places = tuple(range(count))
            return Linearization(self, needs, self, self.derivative(needs), places, ())
        first = _Forward(self, cut.forward)
        forms = [
            *(self.forms[place] for place in cut.operands),
            *(self.results[place] for place in cut.results),
            *first.results[len(self.results) :],
            *self._cotangents(),
        ]
        second = Program(self.name, cut.backward, forms)
        return Linearization(self, needs, first, second, cut.operands, cut.results)


class _Forward(Program):
    """A program that returns what a backward pass reads, after the results of the plain program.

    Its own derivatives are those of the plain program.
    """

    def __init__(self, of: Program, function: Function) -> None:
        super().__init__(of.name, function, of.forms)
        self._state = of._state  # the graph itself assigns to the variables
        self._of = of
        self.moving = of.moving

    def derivative(self, needs: tuple[int, ...]) -> AnyProgram:
        return self._of.derivative(needs)

    def tangents(self, places: tuple[int, ...]) -> AnyProgram:
        return self._of.tangents(places)

    def _map(self, axes: tuple[int | None, ...], size: int) -> Program:
        mapped: Any = self._of.batched(axes, size)
        return _Forward(mapped, partial(self._map_sources, axes, size))


# ---- concrete functions --------------------------------------------------------------------------


def _trace(function: Callable[..., Any], forms: Sequence[Form]) -> Any:
    specs = [tf.TensorSpec(shape, dtype.to("tensorflow")) for shape, dtype in forms]
    trace = partial(tf.function(function, autograph=False).get_concrete_function, *specs)
    if tf.executing_eagerly():
        return native.defer_signals(trace)  # an interrupted trace may leave TensorFlow in its graph
    with ThreadPoolExecutor(1) as other:  # amid the trace of another graph; a scope stops tapes
        return other.submit(trace).result()


def _call(concrete: Any, operands: Sequence[Any]) -> Any:
    """Return the results, without binding the operands, which are as traced, to a signature."""
    function = concrete.inference_fn
    with tf.init_scope():  # the caller may be tracing a graph or recording a tape
        return function.call_flat(*operands, *concrete.captured_inputs)


def _sources(state: State, operands: Sequence[Any]) -> list[Any]:
    """Return the variables, with their operands as values, and the other operands."""
    variables = state.variables
    for variable, value in zip(variables, operands, strict=False):
        variable.assign(value)
    return [*variables, *operands[len(variables) :]]


def _release(state: State) -> None:
    for variable, blank in zip(state.variables, state.blanks, strict=True):
        variable.assign(blank)


def _first(tensor: Any, axis: int) -> Any:
    """Return a tensor with an axis moved to the front."""
    others = [place for place in range(tensor.shape.rank) if place != axis]
    return tensor if axis == 0 else tf.transpose(tensor, [axis, *others])


# A result must have memory of its own, that of no other, no operand, constant or variable, since
# torch may write to it. Snapshot copies memory that is not its own. So that no optimiser folds it
# into a constant or takes two for one, it stands behind a reshape to a shape that only the call
# knows. Optimisers see what a shape of one number must be: vectors and scalars are copied.

_MANY = 1024  # elements: TensorFlow puts 128 and fewer into the graph
_SNAPSHOTS = frozenset(
    (
        *("bool", "half", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    )
)
_ZEROS: list[Any] = []


def _fresh(tensors: Sequence[Any]) -> list[Any]:
    if not _ZEROS:
        with tf.init_scope(), tf.device("/CPU:0"):
            _ZEROS.append(tf.zeros(_MANY, tf.int32))
    return [_own(each, place) for place, each in enumerate(tensors)]


def _own(tensor: Any, place: int) -> Any:
    rank = tensor.shape.rank
    if tensor.dtype.name in TensorFlow.constructed.values():
        return tensor  # which leaves TensorFlow by a copy
    if rank < 2 or place + rank > _MANY or tensor.dtype.name not in _SNAPSHOTS:
        return tf.raw_ops.DeepCopy(x=tensor)
    zeros = _ZEROS[0][place : place + rank]
    shape = zeros + tf.constant(tensor.shape.as_list(), tf.int32)
    return tf.raw_ops.Snapshot(input=tf.reshape(tensor, shape))


def _can_cross(tensor: Any) -> bool:
    """Return whether other frameworks have tensors of such a dtype and shape."""
    if not tensor.shape.is_fully_defined():
        return False
    name = tensor.dtype.name
    return name in EXPORTED or name in TensorFlow.constructed.values()


# ---- trees ---------------------------------------------------------------------------------------

_LEAF = "leaf"


def _flatten(tree: Any) -> tuple[list[Any], Hashable]:
    """Return the leaves of dicts, lists and tuples, and a structure that can be hashed."""
    leaves: list[Any] = []
    return leaves, _structure(tree, leaves, lambda _, leaf: leaf, ())


def _structure(node: Any, leaves: list[Any], take: Callable[[Any, Any], Any], path: Any) -> Any:
    if node is None:
        return None
    if isinstance(node, dict):
        names = sorted(node)  # as torch.compile finds them
        inner = [_structure(node[name], leaves, take, (*path, name)) for name in names]
        return dict, tuple(names), tuple(inner)
    if isinstance(node, (list, tuple)):
        inner = [_structure(each, leaves, take, (*path, i)) for i, each in enumerate(node)]
        kind = list if isinstance(node, list) else type(node)
        return kind, getattr(kind, "_fields", None), tuple(inner)
    leaves.append(take(path, node))
    return _LEAF


def _unflatten(structure: Any, leaves: Iterable[Any]) -> Any:
    return _rebuild(structure, iter(leaves))


def _rebuild(structure: Any, leaves: Any) -> Any:
    if structure is None:
        return None
    if structure == _LEAF:
        return next(leaves)
    kind, names, inner = structure
    made = [_rebuild(each, leaves) for each in inner]
    if kind is dict:
        return dict(zip(names, made, strict=True))
    return kind(*made) if names is not None else kind(made)


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


# ---- models --------------------------------------------------------------------------------------


class Model:
    """What all of them have in common; `_apply` is the call itself."""

    framework = "tensorflow"
    follows_mode = False
    flatten = staticmethod(_flatten)
    unflatten = staticmethod(_unflatten)
    is_wide = staticmethod(lambda: True)
    _is_mutable = False
    _of = ""

    def __init__(self, name: str, held: Sequence[Held], state: State = _NO_STATE) -> None:
        self.name = name
        self.held = held
        self._state = state
        check_names(each.name for each in held)

    def take(self, leaf: Any) -> tuple[Any, Hashable] | None:
        """Return an argument as an array with memory; None for anything else."""
        if not _is_array(leaf):
            return None
        return (np.asarray(leaf) if isinstance(leaf, np.generic) else leaf), None

    def call(self, structure: Any, static: Sequence[Any], forms: Sequence[Form]) -> Call:
        """Find out what a call does."""

        def rebuild(tensors: Sequence[Any]) -> Any:
            left = iter(tensors)
            return _unflatten(
                structure, [next(left) if kind is None else value for kind, value in static]
            )

        call = self.trace(forms, rebuild)
        if call.updated and not self._is_mutable:
            names = ", ".join(repr(self.held[place].name) for place in call.updated)
            advice = ", or call module.eval()" if self.follows_mode else ""
            raise ArgumentError(
                f"{self.name}: the call changes {names}; pass mutable=True to dlbridge.bridge"
                f"{advice}"
            )
        return call

    def trace(self, forms: Sequence[Form], rebuild: Rebuild) -> Call:
        """Trace a call, which may change buffers.

        Args:
            forms: shape and dtype of each operand: the arrays held, then those of the arguments.
            rebuild: makes (args, kwargs) from the arrays of the arguments.
        """
        self._check(forms)
        written = self._find_written(partial(self._call, forms, rebuild))
        return self._call(forms, rebuild, written)[0]

    def _call(
        self, forms: Sequence[Form], rebuild: Rebuild, written: Sequence[int]
    ) -> tuple[Call, Any]:
        """Return the call and its concrete function."""
        outcome: list[Any] = []
        count = len(self.held)

        def function(*sources: Any) -> list[Any]:
            args, kwargs = rebuild(sources[count:])
            made, new = self._apply(sources[:count], args, kwargs, written)
            results, made_structure = _flatten(made)
            outcome[:] = made_structure, len(results), made_structure == _LEAF, tuple(new)
            return [*map(self._result, results), *new.values()]

        program = Program(self.name, function, forms, self._state)
        own = [variable.handle for variable in self._state.variables]
        for handle in find_written(program.concrete):
            if not any(handle is each for each in own):
                raise ArgumentError(
                    f"{self.name}: the call writes a tf.Variable that is none of {self._of}; "
                    "return the new value, or give the variable to what is bridged"
                )
        return Call(program, *outcome), program.concrete

    def _check(self, forms: Sequence[Form]) -> None:
        """Refuse operands that the call cannot have."""

    def _find_written(self, call: Callable[[Sequence[int]], tuple[Call, Any]]) -> Sequence[int]:
        """Return the places of the variables that a call assigns to."""
        return ()

    def _apply(
        self, held: Sequence[Any], args: Any, kwargs: Any, written: Sequence[int]
    ) -> tuple[Any, dict[int, Any]]:
        """Return the result of a call, and the new values of arrays held, by their places."""
        raise NotImplementedError

    def _result(self, leaf: Any) -> Any:
        try:
            return tf.convert_to_tensor(leaf)
        except not_from_handler(TypeError, ValueError) as error:
            raise ArgumentError(
                f"{self.name}: a result must be a dense tensor, got {describe(leaf)}"
            ) from error


class FunctionModel(Model):
    """A function of TensorFlow, with the trees of its tensors."""

    _of = "params and buffers"

    def __init__(self, function: Any, params: Any, buffers: Any, is_mutable: bool) -> None:
        self._function = function
        self._is_mutable = is_mutable
        self._trees = [_Tree(params), *([] if buffers is None else [_Tree(buffers)])]
        held = [
            Held(name, value, tree is self._trees[0] and is_moving(as_dtype(value.dtype)))
            for tree in self._trees
            for name, value in tree.arrays
        ]
        order = sorted(range(len(held)), key=lambda place: not held[place].is_trained)
        self._places = [order.index(place) for place in range(len(held))]
        super().__init__(name_of(function), [held[place] for place in order])

    def _apply(
        self, held: Sequence[Any], args: Any, kwargs: Any, written: Sequence[int]
    ) -> tuple[Any, dict[int, Any]]:
        left = iter([held[place] for place in self._places])
        made = self._function(*[tree.rebuild(left) for tree in self._trees], *args, **kwargs)
        if not self._is_mutable:
            return made, {}
        made, buffers = split_outcome(made, self.name)
        places = self._places[len(self._trees[0].arrays) :]
        new = self._trees[1].arrays_like(buffers, self.name)
        return made, dict(zip(places, new, strict=True))


class _Tree:
    """A tree of which the arrays are held, and all else stays as it is."""

    def __init__(self, tree: Any) -> None:
        self.arrays: list[tuple[str, Any]] = []
        self.leaves: list[Any] = []
        self.structure = _structure(tree, self.leaves, lambda path, leaf: (path, leaf), ())
        self.arrays = [
            (".".join(map(str, path)) or "params", leaf)
            for path, leaf in self.leaves
            if _is_array(leaf)
        ]

    def rebuild(self, arrays: Any) -> Any:
        """Return the tree with others in the places of its arrays."""
        leaves = [next(arrays) if _is_array(leaf) else leaf for _, leaf in self.leaves]
        return _unflatten(self.structure, leaves)

    def arrays_like(self, tree: Any, name: str) -> list[Any]:
        """Return the arrays of another tree of the same structure, shapes and dtypes."""
        leaves, structure = _flatten(tree)
        if structure != self.structure:
            raise ArgumentError(
                f"{name}: the buffers must be returned in the structure in which they came, "
                f"{self.structure}, got {structure}"
            )
        own = [each for each, (_, leaf) in zip(leaves, self.leaves, strict=True) if _is_array(leaf)]
        for (path, like), value in zip(self.arrays, own, strict=True):
            check_shape(path, value, like.shape, name)
        return own


class KerasModel(Model):
    """A model or layer of Keras, by `stateless_call`."""

    follows_mode = True
    _of = "the model's own"

    def __init__(self, layer: Any, is_mutable: bool) -> None:
        self._layer = layer
        self._is_mutable = is_mutable
        if not layer.built:
            raise ArgumentError(
                f"bridge: the variables of {layer.name!r} have no shape yet; build it, or call it "
                "once, before bridging it"
            )
        trained, others = layer.trainable_variables, layer.non_trainable_variables
        self._parts = _parts_of(layer)
        self._trained = len(trained)
        paths = _relative([each.path for each in (*trained, *others)], layer.name)
        held = [
            Held(path, each.value, place < self._trained)
            for place, (path, each) in enumerate(zip(paths, (*trained, *others), strict=True))
        ]
        super().__init__(layer.name, held)

    def _check(self, forms: Sequence[Form]) -> None:
        parts = _parts_of(self._layer)
        if len(parts) != len(self._parts) or any(
            one is not other for one, other in zip(parts, self._parts, strict=True)
        ):
            raise ArgumentError(
                f"{self.name}: the model has other layers or variables than when dlbridge.bridge "
                "was called, or others of them are trainable; bridge it again"
            )

    def _apply(
        self, held: Sequence[Any], args: Any, kwargs: Any, written: Sequence[int]
    ) -> tuple[Any, dict[int, Any]]:
        trained, others = list(held[: self._trained]), list(held[self._trained :])
        made, new = self._layer.stateless_call(trained, others, *args, **kwargs)
        return made, {
            place: value
            for place, (value, old) in enumerate(zip(new, others, strict=True), self._trained)
            if value is not old
        }


def _parts_of(layer: Any) -> list[Any]:
    """Return the variables, trainable ones first, and the layers of a model."""
    return [
        *layer.trainable_variables,
        *layer.non_trainable_variables,
        *getattr(layer, "layers", ()),
    ]


def _relative(paths: Sequence[str], name: str) -> list[str]:
    """Return the names of variables in a state_dict: without that of the model, each of its own."""
    found: dict[str, None] = {}
    for path in paths:
        own = path.removeprefix(f"{name}/").replace("/", ".")
        several = (own, *(f"{own}_{number}" for number in range(2, len(paths) + 1)))
        found[next(each for each in several if each not in found)] = None
    return list(found)


class ModuleModel(Model):
    """A tf.Module, by a private copy whose variables each call assigns and reads."""

    _of = "the module's variables"

    def __init__(self, module: Any, is_mutable: bool) -> None:
        if not callable(module):
            raise ArgumentError(
                f"bridge: {describe(module)} has no __call__; pass a function of TensorFlow and "
                "params="
            )
        self._is_mutable = is_mutable
        try:
            self._module = copy.deepcopy(module)
        except not_from_handler(Exception) as error:  # a class may raise anything
            raise ArgumentError(
                f"bridge: {describe(module)} cannot be copied by copy.deepcopy: {error}; pass a "
                "function of TensorFlow and params="
            ) from error
        held = [Held(name, each.value(), each.trainable) for name, each in _variables_of(module)]
        variables = [each for _, each in _variables_of(self._module)]
        state = State(variables, [each.value() for each in variables], registry.lock())
        super().__init__(name_of(module), held, state)

    def _check(self, forms: Sequence[Form]) -> None:
        for held, variable, (shape, dtype) in zip(
            self.held, self._state.variables, forms, strict=False
        ):
            own = tuple(variable.shape), as_dtype(variable.dtype)
            if own != (shape, dtype):
                raise ArgumentError(
                    f"{self.name}: {held.name!r} is {dtype} of shape {list(shape)}, and the "
                    f"variable is {own[1]} of shape {list(own[0])}, which a tf.Module cannot change"
                )

    def _find_written(self, call: Callable[[Sequence[int]], tuple[Call, Any]]) -> Sequence[int]:
        written = find_written(call(())[1], beyond=_OWN_WRITES)
        places = [
            place
            for place, variable in enumerate(self._state.variables)
            if any(variable.handle is each for each in written)
        ]
        for place in places:
            if self.held[place].is_trained:
                raise ArgumentError(
                    f"{self.name}: the call writes {self.held[place].name!r}, which is trainable; "
                    "make the variable with trainable=False"
                )
        return places

    def _apply(
        self, held: Sequence[Any], args: Any, kwargs: Any, written: Sequence[int]
    ) -> tuple[Any, dict[int, Any]]:
        made = self._module(*args, **kwargs)
        return made, {place: held[place].read_value() for place in written}


def _variables_of(module: tf.Module) -> list[tuple[str, Any]]:
    """Return the variables of a module with their first paths, trainable ones first."""
    found = module._flatten(predicate=lambda x: isinstance(x, tf.Variable), with_path=True)
    named: dict[int, tuple[str, Any]] = {}
    for path, variable in found:
        named.setdefault(id(variable), (".".join(map(str, path)), variable))
    return sorted(named.values(), key=lambda each: not each[1].trainable)


def is_keras_layer(x: Any) -> bool:
    """Return whether an object is a model or layer of Keras 3."""
    return hasattr(x, "stateless_call")


def make_model(source: Any, params: Any, buffers: Any, is_mutable: bool) -> Model:
    """Return the model of a Keras model, a tf.Module or a function of TensorFlow."""
    if not isinstance(source, tf.Module) and is_keras_layer(source):
        return KerasModel(source, is_mutable)
    if isinstance(source, tf.Module):
        return ModuleModel(source, is_mutable)
    return FunctionModel(source, params, buffers, is_mutable)

"""Layers: a function of another framework as a torch.nn.Module; see `dlbridge.bridge`.

The parameters are torch's own, so that optimisers, `state_dict`, hooks and DDP find what they know.
Each call lends their memory, and that of its arguments, to the other framework, which computes and
differentiates. What its backward pass reads is kept by `save_for_backward`: torch frees it, counts
the writes to it, and refuses a backward pass for which something has been written over.

A call of plain tensors goes by a torch.autograd.Function. Under torch.compile, in exports and
transforms it is the operator `torch.ops.dlbridge_bridge.run`, with a program by its number.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from itertools import zip_longest
from operator import index
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import torch
from torch.autograd import forward_ad
from torch.nn import Parameter

from dlbridge import registry
from dlbridge._core import native
from dlbridge.dtype import as_dtype
from dlbridge.errors import ArgumentError
from dlbridge.exchange.protocol import describe
from dlbridge.frameworks.models import Model, Program, fixed
from dlbridge.frameworks.torch.internals import guard_is_open, probe
from dlbridge.frameworks.torch.operators import grad_modes, is_needed


class Layer(torch.nn.Module):  # type: ignore[misc]
    """A function of another framework, with its arrays as parameters and buffers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._signatures = _Signatures(model)
        self._key = self._signatures.key
        self._names = [held.name for held in model.held]
        self._follows_mode = model.follows_mode
        self._owners: list[tuple[int, str]] = []  # of each further part: its owner, its name there
        self._leaves: list[tuple[int, str, bool]] = []  # part, name, is a parameter
        for held in model.held:
            self._add(*held)
        self._signatures.paths = (
            tuple(self._owners),
            tuple([(place, name) for place, name, _ in self._leaves]),
        )
        self._lent = _Lent(model)
        self._signatures.lent = ref(self._lent)

    def _add(self, path: str, array: Any, is_trained: bool) -> None:
        *names, last = path.split(".")
        place, part = 0, self
        for name in names:
            inner = part._modules.get(name)
            if inner is None:
                _check_name(part, name, path)
                inner = torch.nn.Module()
                part.add_module(name, inner)
                self._owners.append((place, name))
            place, part = self._owners.index((place, name)) + 1, inner
        _check_name(part, last, path)
        tensor = native.convert(array, "torch").clone()  # an optimiser writes into it
        if is_trained:
            part.register_parameter(last, Parameter(tensor))
        else:
            part.register_buffer(last, tensor)
        self._leaves.append((place, last, is_trained))

    def extra_repr(self) -> str:
        """Return which function it is, for `print(module)`."""
        model = self._signatures.model
        return f"{model.name} of {model.framework}"

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the module's tensors and these arguments."""
        if self._follows_mode:
            kwargs.setdefault("training", self.training)
        if torch.compiler.is_compiling():
            return self._forward_in_graph(args, kwargs)
        operands = [*self._tensors(), *args]
        signature = None if kwargs else self._lent.find(len(args), tuple(operands))
        if signature is None:
            signature = self._find(args, kwargs, operands)
        if signature.updated and torch.is_grad_enabled():
            _set_apart(operands, signature.updated)
        if not _is_plain(operands):
            made = _call_operator(signature.program, operands)
        else:
            made = _call(signature.program, tuple(operands), self._lent)
        if signature.updated:
            self._update(signature.updated, made[signature.size :])
        if signature.is_single:
            return made[0]
        model = self._signatures.model
        return model.unflatten(signature.structure, made[: signature.size])

    def _find(self, args: Any, kwargs: Any, operands: list[Any]) -> Any:
        """Return what a call does; the operands become those of the call."""
        count = len(self._leaves)
        if not kwargs and _PLAIN.issuperset(map(type, args)):
            signature = self._signatures.find_plain(len(args), _forms(operands))
            self._lent.keep(len(args), tuple(operands), signature)
            return signature
        del operands[count:]
        model = self._signatures.model
        leaves, structure = model.flatten((args, kwargs))
        static = tuple([_take(model, leaf, operands) for leaf in leaves])
        return self._signatures.find(structure, static, _forms(operands))

    def _tensors(self) -> list[Any]:
        parts: list[Any] = [self]
        for place, name in self._owners:
            parts.append(parts[place]._modules[name])
        found = []
        for place, name, is_trained in self._leaves:
            part = parts[place]
            tensor = (part._parameters if is_trained else part._buffers).get(name)
            found.append(getattr(part, name) if tensor is None else tensor)  # parametrized
        return found

    def _update(self, places: Sequence[int], new: Sequence[Any]) -> None:
        with torch.no_grad():
            for place, value in zip(places, new, strict=True):
                self.get_buffer(self._names[place]).copy_(value)

    def _forward_in_graph(self, args: Any, kwargs: Any) -> Any:
        """Do what `forward` does in a way that torch.compile can trace."""
        owners, leaves = _paths(self._key)
        parts: list[Any] = [self]
        for place, name in owners:
            parts.append(getattr(parts[place], name))
        operands = [getattr(parts[place], name) for place, name in leaves]
        arguments = _describe((args, kwargs), operands)
        forms = tuple([(tuple([index(size) for size in x.shape]), x.dtype) for x in operands])
        needs = tuple([torch.is_grad_enabled() and x.requires_grad for x in operands])
        planned = _plan(self._key, arguments, forms, needs)
        number, count, outcome, updated = planned
        if updated and torch.is_grad_enabled():
            _set_apart(operands, updated)
        made = torch.ops.dlbridge_bridge.run(operands, number)
        if updated:
            self._update(updated, made[count : count + len(updated)])
        return _rebuild(outcome, made)


def _check_name(part: torch.nn.Module, name: str, path: str) -> None:
    if not name or hasattr(part, name):
        why = f"a torch.nn.Module has {name!r} already" if name else "a part of it is empty"
        raise ArgumentError(
            f"bridge: {path!r} cannot be the name of a tensor, since {why}; rename it in the tree"
        )


def _take(model: Model, leaf: Any, operands: list[Any]) -> tuple[Any, Any]:
    """Append an argument to the operands if it is an array; return what is fixed of it."""
    if isinstance(leaf, torch.Tensor):
        operands.append(leaf)
        return None, None
    array = model.take(leaf)
    if array is None:
        return fixed(leaf)
    operands.append(native.convert(array[0], "torch"))
    return None, array[1]


def _forms(operands: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([(each.shape, each.dtype) for each in operands])


def _set_apart(operands: list[Any], places: Sequence[int]) -> None:
    """Copy the buffers that will be written, so that a backward pass has those of the call."""
    for place in places:
        operands[place] = operands[place].detach().clone()


class _Signatures:
    """What the calls of a model with arguments of certain forms do, each found once.

    Copies of a module share it.

    Attributes:
        paths: of the modules: see `_paths`.
        lent: a weak reference to what the first module lends.
    """

    paths: tuple[Any, Any]
    lent: Any

    def __init__(self, model: Model) -> None:
        self.model = model
        self.key = str(next(_numbers))  # no number: Dynamo of torch 2.6 would make it a symbol
        self._found: dict[Hashable, Any] = {}
        self._plain: dict[Hashable, Any] = {}  # some of them, by their forms
        self._lock = registry.lock()
        _BY_KEY[self.key] = self

    def __deepcopy__(self, memo: Any) -> _Signatures:
        return self

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            f"bridge: the module of {self.model.name} cannot be pickled, since its function and "
            f"compiled programs are of {self.model.framework}; save module.state_dict(), and load "
            "it into a module that dlbridge.bridge makes again"
        )

    def find_plain(self, count: int, forms: tuple[Any, ...]) -> Any:
        """Return what a call does whose arguments are so many tensors, by position."""
        key = forms, self.model.is_wide()
        found = self._plain.get(key)
        if found is None:
            leaves, structure = self.model.flatten(((_TENSOR,) * count, {}))
            static = ((None, None),) * len(leaves)
            found = self._plain[key] = self.find(structure, static, forms)
        return found

    def find(self, structure: Any, static: tuple[Any, ...], forms: tuple[Any, ...]) -> Any:
        """Return what a call does."""
        key = structure, static, forms, self.model.is_wide()
        try:
            found = self._found.get(key)
        except TypeError:
            self._refuse(static)
            raise
        return self._make(key) if found is None else found

    def _make(self, key: Any) -> Any:
        structure, static, forms, _ = key
        own = [(tuple(shape), as_dtype(dtype)) for shape, dtype in forms]
        with self._lock:
            found = self._found.get(key)
            if found is None:
                found = self._found[key] = self.model.call(structure, static, own)
            return found

    def _refuse(self, static: Sequence[Any]) -> None:
        for kind, value in static:
            if kind is not None and kind.__hash__ is None:
                raise ArgumentError(
                    f"{self.model.name}: an argument must be a tensor, an array, or a value that "
                    f"can be hashed, got {describe(value)}"
                ) from None


# ---- calls of plain tensors ----------------------------------------------------------------------

_PLAIN = frozenset((torch.Tensor, Parameter))
_PROBE = probe()  # C may be called with it, unless a mode or a transform is on
guard_is_open()  # lets C say so


def _is_plain(operands: Sequence[Any]) -> bool:
    return (
        _PLAIN.issuperset(map(type, operands))
        and native.torch_call_allows(_PROBE)
        and not torch._C._are_functorch_transforms_active()
        and getattr(forward_ad, "_current_level", 0) < 0
    )


def _call(program: Program, operands: tuple[Any, ...], lent: _Lent | None = None) -> Sequence[Any]:
    """Return the results of a program for plain tensors, differentiable where one requires it."""
    needs = _needs(operands)
    if needs and program.moving:
        linear = program.linearization(needs)
        made: Sequence[Any] = _Differentiated.apply(linear, lent, *operands)
        return made
    return _run(program, operands, lent)


def _call_any(program: Program, operands: Sequence[Any]) -> Sequence[Any]:
    if _is_plain(operands):
        return _call(program, tuple(operands))
    return _call_operator(program, operands)


def _needs(operands: Sequence[Any]) -> tuple[int, ...]:
    if not torch.is_grad_enabled():
        return ()
    return tuple([place for place, each in enumerate(operands) if each.requires_grad])


def _choose(program: Program, needs: tuple[int, ...]) -> Any:
    """Return the program, or its linearization where something is to be differentiated."""
    return program.linearization(needs) if needs and program.moving else program


def _run(
    program: Program,
    tensors: tuple[Any, ...],
    lent: _Lent | None = None,
    held: tuple[int, ...] | None = None,
) -> list[Any]:
    """Return the results of a program.

    Args:
        program: the program.
        tensors: its operands.
        lent: what the module lends.
        held: the places of the first operands among those of the model; None for these.
    """
    settings = program.settings()
    if settings is None:
        made = None if lent is None else lent.run(program, tensors, held)
        return _run_now(program, tensors) if made is None else made
    with settings:
        return _run_now(program, tensors)


def _run_now(program: Program, tensors: Sequence[Any]) -> list[Any]:
    try:
        made = program.run(*_lend_all(program, tensors))
    except ValueError:  # the other framework says it in its own words
        _check_devices(program, tensors)
        raise
    # A result that is there has been computed: nothing reads the tensors any more.
    return [native.convert(each, "torch") for each in made]


def _check_devices(program: Program, tensors: Sequence[Any]) -> None:
    devices = dict.fromkeys(str(each.device) for each in tensors)
    if len(devices) > 1:
        raise ArgumentError(
            f"{program.name}: the module and the arguments must be on one device, and the tensors "
            f"of this call are on {' and '.join(devices)}; move them with .to(device)"
        )


def _lend_all(program: Program, tensors: Sequence[Any]) -> list[Any]:
    arrays: list[Any] = []
    takes_numpy = program.takes_numpy() if tensors and tensors[0].is_cpu else ()
    for tensor, may_be_numpy in zip_longest(tensors, takes_numpy):
        if may_be_numpy and arrays and _is_shared_by_numpy(tensor):
            arrays.append(native.convert(tensor, "numpy", grad="detach"))
        else:
            arrays.append(_lend(program.framework, tensor))
    return arrays


def _is_shared_by_numpy(tensor: Any) -> bool:
    """Return whether a program that takes NumPy arrays reads the memory of this tensor."""
    return bool(tensor.is_cpu and tensor.data_ptr() % 64 == 0 and tensor.is_contiguous())


def _lend(framework: str, tensor: Any) -> Any:
    return native.convert(tensor, framework, grad="detach", narrow="checked")


class _Lent:
    """What the tensors of a module are in the other framework: made once, and not in each call.

    The core does this for plain tensors of the CPU. Writes to a tensor go to the same memory. A
    tensor that is somewhere else is lent again.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loans = native.Loans(model.framework, len(model.held))
        self._forms: dict[Any, Any] = {}  # of the operands of each program that was called
        self._last: tuple[int, bool, Any, Any] | None = None  # of a call: see `find`

    def __deepcopy__(self, memo: Any) -> _Lent:
        return _Lent(self._model)

    def find(self, count: int, operands: tuple[Any, ...]) -> Any:
        """Return what a call with so many tensors as arguments does, if it is as the last one."""
        if self._last is not None:
            last_count, is_wide, signature, forms = self._last
            is_alike = last_count == count and is_wide is self._model.is_wide()
            if is_alike and forms.fit(operands):
                return signature
        return None

    def keep(self, count: int, operands: tuple[Any, ...], signature: Any) -> None:
        """Keep what a call does for `find`."""
        forms = self._find_forms(signature.program, operands, None)
        if forms is not None:
            self._last = count, self._model.is_wide(), signature, forms

    def run(
        self, program: Program, tensors: tuple[Any, ...], held: tuple[int, ...] | None
    ) -> list[Any] | None:
        """Return the results of a program, or None; nothing was called then.

        Args:
            program: the program.
            tensors: its operands.
            held: the place of each of the first ones among those of the model; None for these.
        """
        forms = self._find_forms(program, tensors, held)
        if forms is None:
            return None
        return self._loans.call(program.run, forms, tensors, program.takes_numpy())

    def _find_forms(
        self, program: Program, tensors: tuple[Any, ...], held: tuple[int, ...] | None
    ) -> Any:
        forms = self._forms.get(program)
        if forms is None:
            count = len(self._model.held)
            places = range(count) if held is None else held
            own = tuple([place if place < count else -1 for place in places])
            forms = native.Forms.of(tensors, own)
            if forms is not None:
                self._forms[program] = forms
        return forms


class _Differentiated(torch.autograd.Function):  # type: ignore[misc]
    """A call whose backward pass is the other framework's."""

    @staticmethod
    def forward(ctx: Any, linear: Any, lent: _Lent | None, *operands: Any) -> Any:
        made = _run(linear.forward, operands, lent)
        _keep(ctx, linear, operands, made)
        ctx.lent = lent
        results = made[: len(linear.program.results)]
        fixed = [x for place, x in enumerate(results) if place not in linear.program.moving]
        if fixed:
            ctx.mark_non_differentiable(*fixed)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        linear = ctx.linear
        given = [cotangents[place] for place in linear.program.moving]
        if torch.is_grad_enabled():
            found = _call_any(*_derivative(ctx, given))
        else:
            operands = (*_read_by_backward(ctx), *given)
            found = _run(linear.backward, operands, ctx.lent, linear.operands)
        return (None, None, *_spread(linear, found))


def _keep(ctx: Any, linear: Any, operands: Sequence[Any], made: Sequence[Any]) -> None:
    """Keep for a backward pass all operands, and the results that it reads."""
    count = len(linear.program.results)
    ctx.linear = linear
    ctx.save_for_backward(*operands, *[made[place] for place in linear.results], *made[count:])


def _read_by_backward(ctx: Any) -> list[Any]:
    saved, linear = ctx.saved_tensors, ctx.linear
    return [*[saved[place] for place in linear.operands], *saved[len(linear.program.forms) :]]


def _derivative(ctx: Any, cotangents: Sequence[Any]) -> tuple[Program, list[Any]]:
    """Return the program of the gradients, which can be differentiated again, and its operands."""
    linear = ctx.linear
    operands = ctx.saved_tensors[: len(linear.program.forms)]
    return linear.program.derivative(linear.needs), [*operands, *cotangents]


def _spread(linear: Any, gradients: Sequence[Any]) -> list[Any]:
    """Return a gradient, or None, for each operand."""
    found: list[Any] = [None] * len(linear.program.forms)
    for place, gradient in zip(linear.needs, gradients, strict=True):
        found[place] = gradient
    return found


# ---- the operator --------------------------------------------------------------------------------

# Compiled code that torch keeps on disk has these numbers: no two processes have the same.
_numbers = registry.SerialNumbers(secrets.randbits(40) << 20)
_BY_KEY: WeakValueDictionary[str, _Signatures] = WeakValueDictionary()


class _Numbered:
    """A weak reference to a program, or to its linearization for `needs`, with its number.

    Attributes:
        lent: returns what the module lends whose tensors are the first operands, or None.
    """

    __slots__ = ("__weakref__", "lent", "needs", "number", "owner")

    def __init__(self, owner: Program, needs: tuple[int, ...] | None) -> None:
        self.lent: Callable[[], _Lent | None] = _nothing
        self.number = next(_numbers)
        self.owner = ref(owner)
        self.needs = needs


def _nothing() -> None:
    return None


# A module keeps its programs alive, and a graph holds only their numbers. Programs of modules that
# are gone stay alive while they are among the last to be numbered.
_ENTRIES: WeakValueDictionary[int, _Numbered] = WeakValueDictionary()
_NUMBERS: WeakKeyDictionary[Program, dict[Any, _Numbered]] = WeakKeyDictionary()
_LAST: deque[Program] = deque(maxlen=1024)


def _numbered(program: Any) -> int:
    """Return the number of a program or a linearization for the operator."""
    owner, needs = program, None
    if hasattr(program, "forward"):
        owner, needs = program.program, program.needs
    entries = _NUMBERS.setdefault(owner, {})
    entry = entries.get(needs)
    if entry is None:
        entry = entries.setdefault(needs, _Numbered(owner, needs))
    if entry.number not in _ENTRIES:
        _ENTRIES[entry.number] = entry
        _LAST.append(owner)
    return entry.number


def _program(number: int) -> Any:
    """Return what a number stands for."""
    entry = _ENTRIES.get(number)
    owner = None if entry is None else entry.owner()
    if entry is None or owner is None:
        raise ArgumentError(
            "dlbridge_bridge::run: the graph comes from another process, or its module no longer "
            "exists; export or compile a module that dlbridge.bridge made in this process"
        )
    return owner if entry.needs is None else owner.linearization(entry.needs)


def _forward_of(number: int) -> Program:
    found = _program(number)
    first: Program = getattr(found, "forward", found)
    return first


_LIBRARY = torch.library.Library("dlbridge_bridge", "DEF")
_LIBRARY.define("run(Tensor[] operands, int number) -> Tensor[]")


def _run_operator(operands: Sequence[Any], number: int) -> list[Any]:
    program = _forward_of(number)
    made = _run_lent(program, operands, number)
    return _run(program, tuple(operands)) if made is None else made


def _run_lent(program: Program, operands: Sequence[Any], number: int) -> list[Any] | None:
    """Return the results where the tensors of a module come first, or None: others do."""
    entry = _ENTRIES.get(number)
    lent = None if entry is None else entry.lent()
    if lent is None or program.settings() is not None:
        return None
    return lent.run(program, tuple(operands), None)


def _describe_results(operands: Sequence[Any], number: int) -> list[Any]:
    program = _forward_of(number)
    _check_devices(program, operands)
    device = operands[0].device if operands else None
    return [
        torch.empty(shape, dtype=dtype.to("torch"), device=device)
        for shape, dtype in program.results
    ]


def _differentiate(keys: Any, operands: Sequence[Any], number: int) -> Sequence[Any]:
    """Stand at the dispatcher's autograd key, at each level of torch.func."""
    if _is_plain(operands) and not _needs(operands):
        made = _run_lent(_forward_of(number), operands, number)
        if made is not None:
            return made
    if not is_needed(operands, {}):
        return _below(keys, operands, number)
    from torch._functorch.autograd_function import enable_single_level_autograd_function

    with enable_single_level_autograd_function():
        results: Sequence[Any] = _Level.apply(_LevelCall(keys, number), *operands)
        return list(results)


def _below(keys: Any, operands: Sequence[Any], number: int) -> Sequence[Any]:
    with torch._C._AutoDispatchBelowAutograd():
        run = torch.ops.dlbridge_bridge.run.default
        made: Sequence[Any] = run.redispatch(
            keys & torch._C._after_autograd_keyset, list(operands), number
        )
        return made


class _LevelCall:
    """One call below autograd.

    Attributes:
        levels: the grad modes of the caller, as of `operators.Call`.
    """

    def __init__(self, keys: Any, number: int) -> None:
        self.keys = keys
        self.number = number
        self.levels: tuple[bool, bool] | None = None
        if torch._C._are_functorch_transforms_active():
            self.levels = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()

    def run(self, operands: Sequence[Any]) -> Sequence[Any]:
        with nullcontext() if self.levels is None else grad_modes(*self.levels):
            return _below(self.keys, operands, self.number)

    def linearization(self, needs: tuple[int, ...]) -> tuple[Any, bool]:
        """Return what the backward pass is of, and whether the call keeps what that reads."""
        found = _program(self.number)
        if hasattr(found, "forward"):
            if set(needs) <= set(found.needs):
                return found, True
            found = found.forward
        # A batch, or a call where torch.func hid what is differentiated: derive it again.
        return _Recomputed(found, needs), False


class _Recomputed(NamedTuple):
    """Stands for a linearization where a program keeps nothing for its backward pass."""

    program: Program
    needs: tuple[int, ...]
    results: tuple[int, ...] = ()


class _Level(torch.autograd.function._SingleLevelFunction):  # type: ignore[misc]
    """The derivative of the operator at one level."""

    @staticmethod
    def forward(call: _LevelCall, *operands: Any) -> Any:
        return tuple(call.run(operands))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call, *operands = inputs
        needed = ctx.needs_input_grad[1:]
        needs = tuple(
            place for place, each in enumerate(operands) if needed[place] and _moves(each)
        )
        linear, ctx.is_kept = call.linearization(needs)
        ctx.call = call
        _keep(ctx, linear, operands, output if ctx.is_kept else ())
        ctx.save_for_forward(*operands)
        moving = linear.program.moving  # not what is kept, which the backward pass alone reads
        fixed = [x for place, x in enumerate(output) if place not in moving]
        ctx.mark_non_differentiable(*fixed)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        linear = ctx.linear
        given = [cotangents[place] for place in linear.program.moving]
        if torch.is_grad_enabled() or not ctx.is_kept:
            found = _call_operator(*_derivative(ctx, given))
        else:
            number = _numbered(linear.backward)
            found = torch.ops.dlbridge_bridge.run([*_read_by_backward(ctx), *given], number)
        spread = _spread(linear, found)
        needed = ctx.needs_input_grad[1:]
        return None, *[x if need else None for x, need in zip(spread, needed, strict=True)]

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        operands, call = ctx.saved_tensors, ctx.call
        ctx.is_kept = False  # what is kept has no tangents, the operands have
        places = tuple(place for place, each in enumerate(tangents) if each is not None)
        first = _forward_of(call.number)
        program = first.tangents(places)
        with nullcontext() if call.levels is None else grad_modes(*call.levels):
            if call.levels is not None:  # tangents of this level must not be seen
                operands = [forward_ad.unpack_dual(each, level=0).primal for each in operands]
            given = [*operands, *[tangents[place] for place in places]]
            found = dict(zip(first.moving, _call_operator(program, given), strict=True))
        moving = ctx.linear.program.moving
        return tuple([found[x] if x in moving else None for x in range(len(first.results))])


def _call_operator(program: Program, operands: Sequence[Any]) -> Sequence[Any]:
    number = _numbered(_choose(program, _needs(operands)))
    made: Sequence[Any] = torch.ops.dlbridge_bridge.run(list(operands), number)
    return made[: len(program.results)]


def _moves(tensor: Any) -> bool:
    """Return whether a tensor can have a gradient."""
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _batch(info: Any, axes: Any, operands: Sequence[Any], number: int) -> tuple[list[Any], Any]:
    program = _forward_of(number).batched(tuple(axes[0]), info.batch_size)
    made = torch.ops.dlbridge_bridge.run(list(operands), _numbered(program))
    return made, [0] * len(made)


_LIBRARY.impl("run", _run_operator, "CompositeExplicitAutograd")
_LIBRARY.impl("run", _differentiate, "Autograd", with_keyset=True)
torch.library.register_fake("dlbridge_bridge::run", _describe_results, lib=_LIBRARY)
torch.library.register_vmap("dlbridge_bridge::run", _batch, lib=_LIBRARY)


# ---- under torch.compile -------------------------------------------------------------------------

# Dynamo traces what follows, but for `_paths` and `_plan`, which it calls with constants. It guards
# every object that it reads besides.


def _paths(key: str) -> tuple[Any, Any]:
    """Return of each further part its owner and its name there, and the same of each tensor."""
    return _BY_KEY[key].paths


def _describe(tree: Any, tensors: list[Any]) -> Any:
    """Return plain tuples that say what a tree of tensors is, and append the tensors."""
    if isinstance(tree, torch.Tensor):
        tensors.append(tree)
        return ("tensor",)
    if type(tree) is dict:
        names = sorted(tree)  # as JAX does
        return ("dict", tuple(names), tuple([_describe(tree[name], tensors) for name in names]))
    if type(tree) in (list, tuple):
        kind = "list" if type(tree) is list else "tuple"
        return (kind, tuple([_describe(each, tensors) for each in tree]))
    return ("value", tree)


def _rebuild(description: Any, tensors: Sequence[Any]) -> Any:
    """Return the tree that a description is of; a tensor in it has its place."""
    kind = description[0]
    if kind == "tensor":
        return tensors[description[1]]
    if kind == "dict":
        return {
            name: _rebuild(each, tensors)
            for name, each in zip(description[1], description[2], strict=True)
        }
    if kind == "value":
        return description[1]
    found = [_rebuild(each, tensors) for each in description[1]]
    return found if kind == "list" else tuple(found)


def _plan(key: str, arguments: Any, forms: Any, needs: Any) -> tuple[int, int, Any, Any]:
    """Return the number of a program, how many results it has, what they are, what it updates."""
    signatures = _BY_KEY[key]
    model = signatures.model
    leaves, structure = model.flatten(_example(arguments))
    static = tuple([(None, None) if each is _TENSOR else fixed(each) for each in leaves])
    found = signatures.find(structure, static, tuple([(torch.Size(x), y) for x, y in forms]))
    places = tuple(place for place, needed in enumerate(needs) if needed)
    chosen = _choose(found.program, places)
    outcome = model.unflatten(found.structure, [_Leaf(place) for place in range(found.size)])
    chosen_number = _numbered(chosen)
    _ENTRIES[chosen_number].lent = signatures.lent
    return chosen_number, found.size, _describe_outcome(model, outcome), found.updated


# As torch.compiler.assume_constant_result does, which would import Dynamo, and with it Triton.
_constants: tuple[Any, ...] = _paths, _plan
for _function in _constants:
    _function._dynamo_marked_constant = True

_TENSOR = object()  # stands for one


class _Leaf:
    """Stands for the tensor at a place of the results."""

    def __init__(self, place: int) -> None:
        self.place = place


def _example(description: Any) -> Any:
    kind = description[0]
    if kind == "tensor":
        return _TENSOR
    if kind == "dict":
        return dict(zip(description[1], map(_example, description[2]), strict=True))
    if kind == "value":
        return description[1]
    found = [_example(each) for each in description[1]]
    return found if kind == "list" else tuple(found)


def _describe_outcome(model: Model, tree: Any) -> Any:
    if type(tree) is _Leaf:
        return ("tensor", tree.place)
    if tree is None:
        return ("value", None)
    if type(tree) is dict:
        parts = [_describe_outcome(model, each) for each in tree.values()]
        return ("dict", tuple(tree), tuple(parts))
    if type(tree) in (list, tuple):
        parts = [_describe_outcome(model, each) for each in tree]
        return ("list" if type(tree) is list else "tuple", tuple(parts))
    raise ArgumentError(
        f"{model.name}: under torch.compile a function must return tensors in tuples, lists and "
        f"dicts, got {describe(tree)}"
    )

"""Modules: a torch.nn.Module as a function of its tensors, for another framework to call.

The function is of a copy of the module that shares its tensors, so that a later `train()`, `eval()`
or new hook changes nothing. What a call writes and whether it draws random numbers is found once
for each signature, on fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple
from weakref import ReferenceType

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from dlbridge import registry
from dlbridge._core import native
from dlbridge.dtype import DType, as_dtype
from dlbridge.errors import ArgumentError
from dlbridge.exchange import trees
from dlbridge.exchange.adapter import require_importable
from dlbridge.exchange.protocol import describe
from dlbridge.kernels.gradients import Derivable

Rebuild = Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
Form = tuple[tuple[int, ...], DType]
_Autocast = tuple[torch.dtype | None, ...]  # for each platform of a module; None: it is off

_RANDOM = registry.lock()  # one generator serves the process


class Traced(NamedTuple):
    """What a call with arguments of certain forms does.

    Attributes:
        outcome: what the module returns, with fake tensors.
        results: shape and dtype of each tensor in it, in order.
        written: the places of the operands that the call writes into.
        is_random: whether it draws random numbers.
    """

    outcome: Any
    results: list[Form]
    written: frozenset[int]
    is_random: bool

    def returned(self, tensors: Sequence[Any]) -> Any:
        """Return the result of the module, with these tensors in it."""
        if isinstance(self.outcome, torch.Tensor):
            return tensors[0]
        return trees.with_tensors(self.outcome, tensors)


class Module:
    """A module as a function of its parameters, its buffers, and the tensors among its arguments.

    Attributes:
        name: of its class.
        parameters, buffers: its tensors by their names; one that is shared has the first.
        platforms: where its tensors are, "cpu" or "cuda"; both, if it has none.
        lock: of the one copy that is called.
        is_held: within `hold`.
    """

    arrays = "torch"
    advice = ", or bridge module.eval()"

    def __init__(self, module: torch.nn.Module) -> None:
        self.name = type(module).__name__
        self.parameters = dict(module.named_parameters())
        self.buffers = dict(module.named_buffers())
        tensors = [*self.parameters.values(), *self.buffers.values()]
        self._check(module, tensors)
        self.platforms = (tensors[0].device.type,) if tensors else ("cpu", "cuda")
        self.count = len(tensors)
        self._dtypes = [each.dtype for each in tensors]
        self._tensors = tensors
        self._original = _Copy(module, tensors)  # is never called
        self._copy = _Copy(self._original.module, tensors)
        self.lock = registry.lock()
        self.is_held = False

    def _check(self, module: torch.nn.Module, tensors: Sequence[Any]) -> None:
        for path, part in module.named_modules():
            if isinstance(part, torch.jit.ScriptModule):
                where = f"{path!r} of this {self.name}" if path else f"this {self.name}"
                raise ArgumentError(
                    f"bridge: {where} is compiled by torch.jit, and its parameters cannot be "
                    "operands of a call; bridge the module that it was made of"
                )
        if any(is_lazy(each) for each in tensors):
            raise ArgumentError(
                f"bridge: parameters of this {self.name} have no shape yet; call the module once, "
                "so that its lazy layers are initialised"
            )
        devices = {str(each.device) for each in tensors}
        if len(devices) > 1 or devices & {"meta"}:
            raise ArgumentError(
                f"bridge: the tensors of a module must be on one device with memory, and those of "
                f"this {self.name} are on {', '.join(sorted(devices))}"
            )

    def modes(self) -> tuple[torch.dtype, _Autocast]:
        """Return the modes of torch that a call depends on."""
        return torch.get_default_dtype(), _autocast_now(self.platforms)

    def trace(self, forms: Sequence[Form], rebuild: Rebuild) -> Traced:
        """Find out what a call does, on fake tensors.

        Args:
            forms: shape and dtype of each operand: parameters, buffers, tensors of the arguments.
            rebuild: makes the arguments of the module of these tensors.

        Raises:
            ArgumentError: what the module does depends on values, it writes a tensor that outlives
                the call and is not a buffer, a buffer is replaced by one of another shape, or torch
                cannot import what it needs for fake tensors.
        """
        require_importable("triton", f"bridge: {self.name}: torch, for fake tensors,")
        copy = _Copy(self._original.module, self._tensors)  # it may keep fake tensors
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            operands = [
                torch.empty(shape, dtype=dtype.to("torch"), device=self.platforms[0])
                for shape, dtype in forms
            ]
            operands[: self.count] = _cast(operands[: self.count], self._dtypes)
            try:
                with _Watch() as watch:
                    outcome, replaced = self._call(copy, operands, rebuild)
            except (DynamicOutputShapeException, DataDependentOutputException) as error:
                raise ArgumentError(
                    f"{self.name}: shapes must follow from the shapes of the arguments, and here "
                    f"they, or a decision in Python, depend on values ({error.func}); call the "
                    "module outside of JAX, or change it to compute with masks"
                ) from error
            leaves = leaves_of(outcome)
        self._check_replaced(operands, replaced)
        self._check_kept(copy.module, watch.kept(leaves))
        written = [
            place
            for place, each in enumerate(operands)
            if place in replaced or each.untyped_storage()._cdata in watch.written
        ]
        results = [(tuple(map(int, each.shape)), as_dtype(each.dtype)) for each in leaves]
        return Traced(outcome, results, frozenset(written), watch.is_random)

    def _check_replaced(self, operands: Sequence[Any], replaced: dict[int, Any]) -> None:
        for place, new in replaced.items():
            shape = list(operands[place].shape)
            if not isinstance(new, torch.Tensor) or list(new.shape) != shape:
                name = [*self.parameters, *self.buffers][place]
                got = f"one of shape {list(new.shape)}" if hasattr(new, "shape") else describe(new)
                raise ArgumentError(
                    f"{self.name}: the call must leave a tensor of shape {shape} in the buffer "
                    f"{name!r}, and leaves {got}"
                )

    def _check_kept(self, module: torch.nn.Module, kept: Sequence[Any]) -> None:
        """Refuse a module that writes what neither this call nor its arguments brought."""
        if not kept:
            return
        storage = kept[0].untyped_storage()._cdata
        names = [
            f"{path}.{name}" if path else name
            for path, part in module.named_modules()
            for name, value in vars(part).items()
            for _, each in trees.tensors_of([value], keeps_unknown=True)
            if name not in ("_parameters", "_buffers", "_modules")
            and isinstance(each, torch.Tensor)
            and each.untyped_storage()._cdata == storage
        ]
        what = f"its attribute {names[0]!r}" if names else "a tensor that it refers to"
        raise ArgumentError(
            f"{self.name}: the call writes into {what}, {as_dtype(kept[0].dtype).name}"
            f"{list(kept[0].shape)}, which is neither a parameter nor a buffer, so that each call "
            "would depend on those before it; make it a buffer by register_buffer, and pass "
            "mutable=True to bridge"
        )

    def function(self, rebuild: Rebuild, traced: Traced, taken: Any, made: Any) -> Derived:
        """Return the function of one signature, which takes packed tensors, then the seed.

        It computes in the autocast of now, whenever it is called.
        """
        dtypes = [dtype.to("torch") for _, dtype in made.forms]
        casts = [
            (place, own)
            for place, ((_, dtype), own) in enumerate(zip(taken.forms, self._dtypes, strict=False))
            if dtype.to("torch") is not own
        ]
        buffers = range(len(self.parameters), self.count)
        written = sorted(traced.written)
        updated = [place for place in written if self.is_buffer(place)]
        autocast = _autocast_now(self.platforms)

        def run(*packed: Any) -> Any:
            if _autocast_now(self.platforms) == autocast:
                return run_here(packed)
            with _in_autocast(self.platforms, autocast):
                return run_here(packed)

        def run_here(packed: Sequence[Any]) -> Any:
            operands = taken.unpack(packed)
            for place, dtype in casts:
                operands[place] = operands[place].to(dtype)
            for place in buffers:  # all floating operands of a kernel are differentiated
                operands[place] = operands[place].detach()
            for place in written:
                operands[place] = operands[place].clone()
            if traced.is_random:
                with _seeded(int(packed[-1])):
                    outcome, replaced = self._call(self._copy, operands, rebuild)
            else:
                outcome, replaced = self._call(self._copy, operands, rebuild)
            found = leaves_of(outcome)
            found += [replaced.get(place, operands[place]) for place in updated]
            return made.outcome(_cast(found, dtypes), _join)

        count = len(taken.groups) + traced.is_random
        places = taken.moving_groups(), made.moving_groups()
        guard = _RANDOM if traced.is_random else self.lock
        return Derived(run, count, *places, self, guard)

    def is_buffer(self, place: int) -> bool:
        """Return whether the operand at `place` is a buffer."""
        return len(self.parameters) <= place < self.count

    def batched(
        self, function: Callable[..., Any], marks: Sequence[bool], _: int
    ) -> Callable[..., Any]:
        """Return the function mapped over axis 0 of the marked arguments."""
        mapped: Callable[..., Any] = torch.func.vmap(
            function, in_dims=tuple(0 if mark else None for mark in marks)
        )
        return mapped

    def _call(
        self, copy: _Copy, operands: Sequence[Any], rebuild: Rebuild
    ) -> tuple[Any, dict[int, Any]]:
        """Return what the module returns, and the new tensors of buffers by their places."""
        args, kwargs = rebuild(operands[self.count :])
        with self.lock:
            try:
                if self.is_held:
                    copy.restore()
                copy.put(operands)
                outcome = copy.module(*args, **kwargs)
                return outcome, copy.replaced(operands)
            finally:
                if not self.is_held:
                    copy.restore()

    def hold(self, function: Callable[[], Any]) -> Any:
        """Return what the function returns; the operands of a call in it stay until its end.

        A backward pass calls the module again where it uses `torch.utils.checkpoint`.
        """
        was_held = self.is_held
        try:
            try:
                self.is_held = True
                return function()
            finally:
                self._end_hold(was_held)
        finally:  # once more, for an interrupt of the first time
            self._end_hold(was_held)

    def _end_hold(self, was_held: bool) -> None:
        if self.is_held and not was_held:
            self._copy.restore()
            self.is_held = False


class _Copy:
    """A copy of a module, which shares its tensors, to be called with others in their places.

    Attributes:
        module: the copy.
    """

    def __init__(self, module: torch.nn.Module, tensors: Sequence[Any]) -> None:
        shared = {id(each): each for each in tensors}
        self.module = deepcopy(module, shared | _detached(module))
        for part in self.module.modules():
            if isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag):
                part.sparse = False  # of other frameworks all gradients are dense
        places = {id(each): place for place, each in enumerate(tensors)}
        self._tensors = tensors
        self._parts = tuple(self.module.modules())
        self._buffers = [
            (part._buffers, name, places[id(tensor)])
            for part in self._parts
            for name, tensor in part._buffers.items()
            if tensor is not None
        ]
        self._slots = [
            (part._parameters, name, places[id(tensor)])
            for part in self._parts
            for name, tensor in part._parameters.items()
            if tensor is not None
        ] + self._buffers
        self._owners = tuple(
            owner
            for part in self._parts
            for owner in (vars(part), part._parameters, part._buffers, part._modules)
        )
        self._contents = tuple(owner.copy() for owner in self._owners)

    def put(self, operands: Sequence[Any]) -> None:
        """Put operands in the places of the tensors."""
        for owner, name, place in self._slots:
            owner[name] = operands[place]

    def restore(self) -> None:
        """Make the module as it was: take the operands out, and undo what it wrote to itself."""
        for owner, name, place in self._slots:
            owner[name] = self._tensors[place]
        if not native.have_items(self._parts, self._owners, self._contents):
            native.defer_signals(self._restore_all)  # an LSTM keeps its weights

    def _restore_all(self) -> None:
        for owner, contents in zip(self._owners, self._contents, strict=True):
            owner.clear()
            owner.update(contents)
        for part, attributes in zip(self._parts, self._owners[::4], strict=True):
            object.__setattr__(part, "__dict__", attributes)

    def replaced(self, operands: Sequence[Any]) -> dict[int, Any]:
        """Return what is in the places of buffers that a call has replaced."""
        if not self._buffers:
            return {}
        found = [(owner.get(name), place) for owner, name, place in self._buffers]
        return {place: new for new, place in found if new is not operands[place]}


def _detached(module: torch.nn.Module) -> dict[int, Any]:
    """Return what `deepcopy` shall take for results of an earlier call, which it refuses."""
    return {
        id(each): each.detach()
        for part in module.modules()
        for each in vars(part).values()
        if isinstance(each, torch.Tensor) and not each.is_leaf
    }


_join = partial(torch.cat, dim=-1)


def _cast(tensors: Sequence[Any], dtypes: Sequence[torch.dtype]) -> list[Any]:
    pairs = zip(tensors, dtypes, strict=True)
    return [each if each.dtype is dtype else each.to(dtype) for each, dtype in pairs]


def leaves_of(outcome: Any) -> list[Any]:
    """Return the tensors in what a module returned, each once."""
    if isinstance(outcome, torch.Tensor):
        return [outcome]
    return [tensor for _, tensor in trees.tensors_of(outcome)]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with _RANDOM, torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _autocast_now(platforms: Sequence[str]) -> _Autocast:
    return tuple(
        [
            torch.get_autocast_dtype(each) if torch.is_autocast_enabled(each) else None
            for each in platforms
        ]
    )


def _in_autocast(platforms: Sequence[str], wanted: _Autocast) -> AbstractContextManager[Any]:
    """Return a block in which autocast is as `wanted` on these platforms."""
    now = _autocast_now(platforms)
    if now == wanted:
        return nullcontext()
    triples = zip(platforms, wanted, now, strict=True)
    return _switched([pair for *pair, other in triples if pair[1] != other])


@contextmanager
def _switched(pairs: Sequence[Any]) -> Iterator[None]:
    before = [
        (platform, torch.is_autocast_enabled(platform), torch.get_autocast_dtype(platform))
        for platform, _ in pairs
    ]
    try:
        try:
            with ExitStack() as stack:
                for platform, dtype in pairs:
                    block = torch.autocast(platform, dtype=dtype, enabled=dtype is not None)
                    stack.enter_context(block)
                yield
        finally:  # torch.autocast does not do so if it is interrupted
            _set_autocast(before)
    finally:  # once more, for an interrupt of the first time
        _set_autocast(before)


def _set_autocast(states: Iterable[tuple[str, bool, torch.dtype]]) -> None:
    for platform, is_enabled, dtype in states:
        torch.set_autocast_enabled(platform, is_enabled)
        torch.set_autocast_dtype(platform, dtype)


class Derived(Derivable):
    """A function of tensors that has a derivative, of any order.

    Attributes:
        function: from tensors to a tensor, a tuple of tensors, or None.
        count: how many tensors it takes.
        operands, results: the places of those that are differentiated.
        module: the one that it calls.
        guard: what a call locks first.
    """

    __name__ = "call"

    def __init__(
        self,
        function: Callable[..., Any],
        count: int,
        operands: tuple[int, ...],
        results: tuple[int, ...],
        module: Module,
        guard: Any,
    ) -> None:
        self.function = function
        self.count = count
        self.operands = operands
        self.results = results
        self.module = module
        self.guard = guard

    def __call__(self, *tensors: Any) -> Any:
        return self.function(*tensors)

    def derive(self, wanted: Sequence[int]) -> Derived:
        """Return the function from tensors and cotangents to the gradients of those wanted."""
        cotangents = range(self.count, self.count + len(self.results))
        operands = *self.operands, *cotangents
        gradients = tuple(range(len(wanted)))
        pull = partial(self._pull, tuple(wanted))
        return Derived(pull, cotangents.stop, operands, gradients, self.module, self.guard)

    def _pull(self, wanted: tuple[int, ...], *given: Any) -> tuple[Any, ...]:
        if torch.is_inference_mode_enabled() and not torch._C._are_functorch_transforms_active():
            with torch.inference_mode(False):  # autograd takes no tensors that were made within
                return self._pull(wanted, *[each.clone() for each in given])
        is_caching = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # the cache would keep operands that are on loan
        platforms = self.module.platforms
        try:
            # A backward pass is not meant for autocast; the module enters its own.
            with self.guard, self.module.lock, _in_autocast(platforms, (None,) * len(platforms)):
                found = self.module.hold(partial(self._pull_here, wanted, given))
        finally:
            torch.set_autocast_cache_enabled(is_caching)
        return tuple(found)

    def _pull_here(self, wanted: tuple[int, ...], given: Sequence[Any]) -> Sequence[Any]:
        tensors = given[: self.count]
        cotangents = tuple(given[self.count :])
        if not torch._C._are_functorch_transforms_active():
            return self._pull_by_autograd(wanted, tensors, cotangents)
        primals = [tensors[place] for place in wanted]
        _, pull = torch.func.vjp(partial(self._moving, wanted, tensors), *primals)
        found: tuple[Any, ...] = pull(cotangents)
        return found

    def _moving(self, wanted: Sequence[int], tensors: Sequence[Any], *some: Any) -> tuple[Any, ...]:
        """Return the results that are differentiated, with `some` as the operands wanted."""
        operands = list(tensors)
        for place, each in zip(wanted, some, strict=True):
            operands[place] = each
        made = self.function(*operands)
        several = made if isinstance(made, tuple) else (made,)
        return tuple(several[place] for place in self.results)

    def _pull_by_autograd(
        self, wanted: Sequence[int], tensors: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Any]:
        """Return what torch.func.vjp returns, in a tenth of the time for a small module."""
        is_nested = torch.is_grad_enabled() and any(
            each.requires_grad for each in (*tensors, *cotangents)
        )
        with torch.enable_grad():
            primals = [tensors[place] for place in wanted]
            # A tensor may be passed twice: each place needs a node of its own.
            primals = [
                each.view_as(each) if each.requires_grad else each.detach().requires_grad_()
                for each in primals
            ]
            made = self._moving(wanted, tensors, *primals)
            pairs = [pair for pair in zip(made, cotangents, strict=True) if pair[0].requires_grad]
            if not pairs:
                return list(map(torch.zeros_like, primals))
            found = torch.autograd.grad(
                [result for result, _ in pairs],
                primals,
                [cotangent for _, cotangent in pairs],
                create_graph=is_nested,
                allow_unused=True,
            )
        if is_nested and any(each is not None and each.is_sparse for each in found):
            raise ArgumentError(
                f"{self.module.name}: torch has a sparse gradient here, which cannot be "
                "differentiated again; call torch.nn.functional.embedding with sparse=False"
            )
        return [
            torch.zeros_like(primal)
            if each is None
            else each.to_dense()
            if each.is_sparse
            else each
            for each, primal in zip(found, primals, strict=True)
        ]


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    """Sees which storages are written, and whether random numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()
        self.is_random = False
        # Of tensors that are not fake: those written, and by its address each storage of a view of
        # one, which is fake.
        self._real: list[ReferenceType[Any]] = []
        self._views: dict[int, tuple[Any, ReferenceType[Any]]] = {}

    def kept(self, results: Sequence[Any]) -> list[Any]:
        """Return those real tensors that were written, which outlive the call, but for results.

        A call on fake tensors makes such by torch.from_numpy alone, and those end with it.
        """
        found = [reference() for reference in self._real]
        return [x for x in found if x is not None and all(x is not each for each in results)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        parts = func._schema.arguments
        values = {part.name: part.default_value for part in parts if part.has_default_value()}
        values |= dict(zip((part.name for part in parts), args, strict=False)) | (kwargs or {})
        is_seeded = torch.Tag.nondeterministic_seeded in func.tags
        self.is_random |= is_seeded and values.get("dropout_p", values.get("p")) != 0
        written = [p.name for p in parts if p.alias_info is not None and p.alias_info.is_write]
        if values.get("training") or values.get("train"):
            written += ["running_mean", "running_var"]  # batch norms do not declare them
        for name in written:
            value = values.get(name)
            for each in value if isinstance(value, list | tuple) else [value]:
                if isinstance(each, torch.Tensor):
                    self._write(each)
        made = func(*args, **(kwargs or {}))
        viewed = [values.get(p.name) for p in parts if p.alias_info is not None]
        for real in filter(_is_real, viewed):
            for each in made if isinstance(made, list | tuple) else [made]:
                if isinstance(each, FakeTensor):
                    storage = each.untyped_storage()
                    self._views[storage._cdata] = storage, ReferenceType(real)
        return made

    def _write(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()._cdata
        self.written.add(storage)
        if _is_real(tensor):
            self._real.append(ReferenceType(tensor))
        elif storage in self._views:
            self._real.append(self._views[storage][1])


def _is_real(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor)

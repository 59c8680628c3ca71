"""PyTorch: eager calls that C declines, and everything that goes through torch's dispatcher."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from inspect import Parameter
from typing import Any

import torch
from torch import _C

from dlbridge import cuda, registry
from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import (
    ExchangeError,
    FrameworkMissingError,
    KernelError,
    UnsupportedTypeError,
)
from dlbridge.exchange import adapter, exchange
from dlbridge.frameworks.torch import LAZY, compiling, eager
from dlbridge.frameworks.torch.autocasting import Casts
from dlbridge.frameworks.torch.operators import (
    Operator,
    describe,
    is_batched,
    is_in_vmap,
    offer,
    operator,
    own_dtype,
    refuse_number,
    written,
)
from dlbridge.frameworks.torch.refusals import make_check
from dlbridge.kernels import numbers
from dlbridge.kernels.binding import Binding, check_extent, explain, slow_call
from dlbridge.kernels.kernel import Kernel, Shortcut, all_known, is_native_to, serving
from dlbridge.kernels.kinds import read_signature
from dlbridge.kernels.kinds.python_kernel import LEGACY, Support
from dlbridge.kernels.numbers import in_row
from dlbridge.kernels.schema import (
    SEVERAL,
    Arguments,
    Described,
    Result,
    Schema,
    conditions_of,
    described,
    refusal,
    refuse_scalar,
    unfit,
)
from dlbridge.signals import not_from_handler

_OLDEST = "2.6"  # with all that operators need: register_vmap, substitute_in_graph
if not hasattr(torch.compiler, "substitute_in_graph"):
    raise FrameworkMissingError(
        f"kernels: torch {torch.__version__} is too old, kernels need {_OLDEST}; convert its "
        "tensors, as dlbridge.to_numpy(x) does"
    )


_SYMBOLS: dict[str, type] = {"int": torch.SymInt, "float": torch.SymFloat, "bool": torch.SymBool}
numbers.PLAIN_TENSORS.add(torch.Tensor)


class TorchBinding(Binding):
    """Kernels as operators of torch."""

    name = "torch"

    def __init__(self) -> None:
        for kernel in all_known():
            offer(kernel)
        _serve_loaders()
        if _DYNAMO in sys.modules:
            compiling.skip(slow_call)
        else:
            registry.after_import(_DYNAMO, partial(compiling.skip, slow_call))

    def function(self, kernel: Kernel) -> Callable[..., Any]:
        """Return the function of torch tensors; `torch.ops` has the operator from here on."""
        made = super().function(kernel)
        if kernel.schema is not None:
            operator(kernel)
            substitute(made, kernel)
        return made

    def serve(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call the kernel; torch's own functions are called as they are."""
        if any(isinstance(each, torch.fx.Proxy) for each in arguments.tensors):
            return self._record(kernel, arguments)
        if is_native_to(kernel, self.name):
            return call_own(kernel, arguments)
        return super().serve(kernel, arguments)

    def _record(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Have torch.fx.symbolic_trace record the operator, or look into a function of torch's."""
        schema = kernel.schema
        assert schema is not None
        given = {
            part.name: value
            for parts, values in (
                (schema.tensors, arguments.tensors),
                (schema.scalars, arguments.scalars),
            )
            for part, value in zip(parts, values, strict=True)
        }
        if arguments.out is not None:
            given["out"] = arguments.out
        return self.traceable(kernel)(**given)

    def call(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call the operator, which knows gradients, modes, transforms and subclasses."""
        made = operator(kernel)
        _refuse_tensors(made, arguments)
        arguments = _unwrapped(made, arguments)
        with _C.DisableTorchFunction():  # neither modes nor subclasses are asked
            _refuse_without_strides(made, arguments)
        _refuse_lazy(made, arguments)
        if kernel.shortcut is None:
            kernel.shortcut = eager.make(kernel) or _NO_SHORTCUT
        args, kwargs = made.pack(arguments.tensors, arguments.scalars, arguments.out or ())
        if arguments.out is None:
            return made.take(native.torch_op_call(made.default, *args, **kwargs))
        native.torch_op_call(made.out, *args, **kwargs)
        return tuple(arguments.out) if len(arguments.out) > 1 else arguments.out[0]

    def call_counted(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call the kernel that has the bounds; the operator, where data has no values yet."""
        if any(isinstance(each, torch.fx.Proxy) for each in arguments.tensors):
            return self._record(kernel, arguments)
        if is_native_to(kernel, self.name):
            return call_own(kernel, arguments)
        if _C._len_torch_dispatch_stack() or _C._are_functorch_transforms_active():
            return super().serve(kernel, arguments)
        return self.call_bounded(kernel, arguments)

    def call_numbers(self, kernel: Kernel, arguments: Arguments) -> Any:
        if any(isinstance(each, torch.fx.Proxy) for each in in_row(arguments.tensors)):
            return self._record(kernel, arguments)
        return super().call_numbers(kernel, arguments)

    def read_number(self, kernel: Kernel, result: Result, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if is_batched(value):
                return value.detach()
            refuse_number(kernel, result, value)
        return value.item()

    def number_maker(self, dtype: DType) -> Callable[[Any, Any], Any]:
        own = dtype.to("torch")

        def make(number: Any, like: Any) -> Any:
            device = None if like is None else like.device
            return torch.scalar_tensor(number, dtype=own, device=device)

        return make

    def number_function(self, kernel: Kernel) -> Callable[..., Any]:
        return self.function(kernel)  # dynamo has to know it

    def is_tracing(self) -> bool:
        return bool(torch.compiler.is_compiling())

    def is_symbol(self, value: Any, kind: str) -> bool:
        return isinstance(value, _SYMBOLS[kind])

    def write(self, room: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            room.copy_(value)
        else:
            room.fill_(value)

    def read_extent(self, kernel: str, name: str, value: Any, room: int) -> Any:
        if value.is_meta:
            raise KernelError(
                f"{kernel}: the kernel says {name} when it has run, and tensors on 'meta' have no "
                "values; call .bounded of the kernel, whose results have the bound"
            )
        extent = value.item()
        return check_extent(kernel, name, extent, room) if type(extent) is int else extent

    def first_rows(self, value: Any, extent: Any) -> Any:
        return value.narrow(0, 0, extent)

    def working(self, like: Any) -> AbstractContextManager[Any]:
        """Return a block on torch's current stream of the device of `like`, unless that is fake."""
        if like is None or torch.version.hip is not None or not torch.cuda.is_initialized():
            return nullcontext()
        with torch._C.DisableTorchFunction():  # neither modes nor subclasses are asked
            device = like.device
        if device.type != "cuda":
            return nullcontext()
        index = device.index
        return cuda.stream(adapter.adapter("torch").stream(index), index)

    def take(self, value: Any, written: bool) -> native.TensorBase:
        """Take a tensor for a kernel without a schema; gradients count where they are recorded."""
        is_recording = torch.is_grad_enabled()
        return super().take(value if is_recording else value.detach(), written)

    def wrote(self, value: Any) -> None:
        """Count the version, by which autograd notices."""
        if not value.is_inference():
            torch.autograd.graph.increment_version(value)

    def operator(self, kernel: Kernel) -> Operator:
        """Return the kernel's operators, registered if need be."""
        return operator(kernel)

    def traceable(self, kernel: Kernel) -> Callable[..., Any]:
        """Return a Python function that calls operators, for torch.compile."""
        return traceable(kernel)

    def published(self, kernel: Kernel) -> None:
        """Have torch.ops find the operator of a kernel that was wrapped."""
        offer(kernel)


_NO_SHORTCUT = Shortcut("torch", lambda *_: NotImplemented)


def _refuse_tensors(made: Operator, arguments: Arguments) -> None:
    """Refuse tensors for scalars: torch would read their value and lose their gradient."""
    tensor = torch.Tensor
    for parameter, value in zip(made.schema.scalars, arguments.scalars, strict=True):
        if isinstance(value, tensor):
            raise refuse_scalar(made.schema, parameter, value)


def _unwrapped(made: Operator, arguments: Arguments) -> Arguments:
    """Return the arguments with torch's read-only wrappers replaced by the tensors in them.

    A wrapper, from torch 2.14, can be exported, but no operator takes it. A kernel may read it.
    """
    wrapper: Any = getattr(torch.utils.dlpack, "ReadOnlyTensorWrapper", None)
    outs = arguments.out or ()
    if wrapper is None:
        return arguments
    if not any(isinstance(x, (wrapper, *SEVERAL)) for x in (*arguments.tensors, *outs)):
        return arguments

    def held(x: Any) -> Any:
        if isinstance(x, SEVERAL):
            return [held(each) for each in x]
        return x.as_subclass(torch.Tensor) if isinstance(x, wrapper) else x

    with _C.DisableTorchFunctionSubclass():
        for place, tensor in written(made.schema, arguments.tensors, outs):
            if isinstance(tensor, wrapper):
                quality, hint = ("writable", "read-only"), "pass the tensor that it wraps"
                raise unfit(made.schema, place, "readonly", quality, describe(held(tensor)), hint)
        return arguments._replace(tensors=held(arguments.tensors))


def _refuse_without_strides(made: Operator, arguments: Arguments) -> None:
    """Refuse tensors that are not plain numbers in strided memory: torch would not name ours."""
    schema = made.schema
    for place, tensor in enumerate((*arguments.tensors, *(arguments.out or ()))):
        if not isinstance(tensor, torch.Tensor) or (
            tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)
        ):
            continue
        kind, cure = next((kind, cure) for applies, kind, cure in _KINDS if applies(tensor))
        if place >= len(arguments.tensors):
            cure = "pass a dense tensor to write into"
        name, expected = schema.place_name(place), schema.part(place).expected()
        raise ExchangeError(
            "quantized" if tensor.is_quantized else "sparse",
            refusal(schema.qualified, name, expected, f"a {kind} tensor", cure),
        )


_KINDS: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (lambda x: x.is_quantized, "quantised", "pass x.dequantize() or x.int_repr()"),
    (lambda x: x.is_nested, "nested", "pass its parts, x.unbind(), or a padded tensor"),
    (lambda x: x.layout is torch._mkldnn, "mkldnn", "pass x.to_dense()"),
    (lambda _: True, "sparse", "pass x.to_dense(), or its values"),
)


def _refuse_lazy(made: Operator, arguments: Arguments) -> None:
    """Refuse to write where the memory holds other values: torch cannot copy them back."""
    schema = made.schema
    for place, tensor in written(schema, arguments.tensors, arguments.out or ()):
        for reason, is_lazy, resolve in LAZY:
            if is_lazy(tensor):
                quality = "resolved", f"lazy ({reason})"
                hint = f"write into x.{resolve}()"
                raise unfit(schema, place, reason, quality, describe(tensor), hint)


# ---- loaders in C++ ------------------------------------------------------------------------------
#
# They look operators up in the dispatcher, and not in torch.ops, where ours are made when they are
# asked for. So all are made before one of them runs; registering each kernel when it is wrapped
# would cost a millisecond, and a place in the pool of C functions.

_LOADERS = (  # of TorchScript, and of AOTInductor's packages
    ("torch._C", "import_ir_module"),
    ("torch._C", "import_ir_module_from_buffer"),
    ("torch._C._aoti", "AOTIModelPackageLoader"),
)


def _serve_loaders() -> None:
    for module, name in _LOADERS:
        owner = sys.modules.get(module)
        if hasattr(owner, name):  # this torch has it
            setattr(owner, name, _after_operators(getattr(owner, name)))


def _after_operators(loader: Any) -> Any:
    """Return the function or class, which makes all operators before it does its work."""
    if isinstance(loader, type):
        original: Any = vars(loader)["__init__"]

        def start(self: Any, *args: Any, **kwargs: Any) -> None:
            _make_operators()
            original(self, *args, **kwargs)

        return type(loader.__name__, (loader,), {"__init__": start, "__doc__": loader.__doc__})

    @wraps(loader)
    def load(*args: Any, **kwargs: Any) -> Any:
        _make_operators()
        return loader(*args, **kwargs)

    return load


def _make_operators() -> None:
    for kernel in all_known():
        operator(kernel)


# ---- torch.compile -------------------------------------------------------------------------------
#
# dynamo traces Python, not C. `Kernel.__call__` asks for `traceable`; the builtin functions that
# `kernel.torch` are have a substitute registered with dynamo, which takes seconds to import: so it
# is registered when dynamo is imported, not before.

_DYNAMO = "torch._dynamo"
# By address, as dynamo knows functions, and kept for good. Threads may ask for one at once: who
# gets its own entry back from `setdefault` came first.
_Entry = tuple[Callable[..., Any], Callable[..., Any]]
_SUBSTITUTES: dict[int, _Entry] = {}
_REGISTERED: dict[int, object] = {}


def traceable(kernel: Kernel) -> Callable[..., Any]:
    """Return a function that does in Python, by operators, what a call of `kernel` does.

    A kernel that is a function of torch tensors is traced itself, and so are its gradients.
    """
    if kernel.numbers is not None:
        return _traceable_with_numbers(kernel)
    if is_native_to(kernel, "torch") and not _needs_out(kernel):
        return traceable_own(kernel)
    made = operator(kernel)
    schema, default, out_overload = made.schema, made.default, made.out
    shorter, take = made.shorter, made.take
    is_optional = schema.has_optional_results
    may_lack = [(place, part.name) for place, part in enumerate(schema.tensors)
                if part.optional and part.mutated]  # fmt: skip
    check = make_check(kernel)

    def call(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        arguments = schema.arrange(args, kwargs, traced=True, symbolic=True)
        if shorter and arguments.out is None:
            lacks = tuple([name for place, name in may_lack if arguments.tensors[place] is None])
            if lacks:
                values, named = made.pack(arguments.tensors, arguments.scalars, (), lacks)
                return shorter[lacks](*values, **named)
        values, named = made.pack(arguments.tensors, arguments.scalars, arguments.out or ())
        if arguments.out is None:
            found = take(default(*values, **named))
            return _unwrap(schema, arguments, found) if is_optional else found
        out_overload(*values, **named)
        out = arguments.out
        if is_optional:
            return _unwrap(schema, arguments, out)
        return tuple(out) if len(out) > 1 else out[0]

    return call


def _traceable_with_numbers(kernel: Kernel) -> Callable[..., Any]:
    """Return a function that reads numbers as `x.item()` does: they become symbols.

    Within torch.vmap they stay tensors.
    """
    schema = kernel.schema
    assert schema is not None
    called, check = traceable(kernel.tensors), make_check(kernel)
    # No integers: in a second program dynamo would make them dynamic.
    are_numbers = [bool(result.number) for result in schema.results]
    is_alone = len(are_numbers) == 1

    def call(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        found = called(*args, **kwargs)
        if is_alone:
            return read(found)
        results = []
        for place, is_number in enumerate(are_numbers):
            value = found[place]  # a proxy has no length
            results.append(read(value) if is_number and value is not None else value)
        return tuple(results)

    def read(value: Any) -> Any:
        return value.detach() if is_in_vmap() else value.item()

    return call


def _unwrap(schema: Schema, arguments: Arguments, results: Any) -> Any:
    """Return results as calls have them: for an optional one, a list, its tensor or None.

    Also of a proxy, whose length nobody knows.
    """
    left = iter(conditions_of(schema, arguments.tensors, arguments.scalars))
    found: list[Any] = []
    for place, condition in enumerate(schema.conditions):
        value = results[place]
        if condition:
            value = value[0] if next(left) else None
        found.append(value)
    return tuple(found) if len(found) > 1 else found[0]


def substitute(function: Callable[..., Any], kernel: Kernel) -> None:
    """Have dynamo trace the Python function in place of a builtin one, now or when it is loaded."""
    prepare, key = kernel.prepare, kernel.key  # not the kernel, which this would keep alive

    def call(*args: Any, **kwargs: Any) -> Any:
        prepare("traced")
        return serving(key).traced(*args, **kwargs)

    entry = function, call
    if _SUBSTITUTES.setdefault(id(function), entry) is not entry:
        return
    if _DYNAMO in sys.modules:
        _register(*entry)
    else:
        registry.after_import(_DYNAMO, _register_all)


def _register(function: Callable[..., Any], substitute: Callable[..., Any]) -> None:
    claim = object()
    if _REGISTERED.setdefault(id(function), claim) is claim:
        torch.compiler.substitute_in_graph(function, skip_signature_check=True)(substitute)


def _register_all() -> None:
    for function, substitute in list(_SUBSTITUTES.values()):
        _register(function, substitute)


# ---- kernels that are functions of torch tensors, called with torch tensors ----------------------
#
# No operator is between: torch differentiates, traces and batches them as it does any Python
# function. Arguments and results are compared with the schema. The rules of all kernels hold: what
# is not declared to be written must not be, and results are memory of their own. What torch.compile
# traces is the function alone. `is_native_to` says when this is so.


def call_own(kernel: Kernel, arguments: Arguments) -> Any:
    """Call the function of a torch kernel with torch tensors, those of `arguments`.

    Raises:
        UnsupportedTypeError: a wrong dtype, or a wrong number of results.
        ArgumentError: a wrong shape.
        KernelError: the function wrote into an argument that is not declared to be written.
    """
    schema = kernel.schema
    assert schema is not None
    tensors = arguments.tensors
    casts = _own_casts(kernel)
    cast = casts.apply(tensors) if casts is not None and arguments.out is None else None
    if casts is not None and cast is not None:
        with casts.turned_off(tensors):
            return call_own(kernel, arguments._replace(tensors=cast))
    seen = [None if each is None else described(each) for each in tensors]
    bindings = schema.bind(seen, arguments.scalars)
    if arguments.out is not None:
        outs = [described(each) for each in arguments.out]
        schema.check_out(bindings, outs)
        _refuse_twice(kernel, arguments.out, [*seen, *outs])
    function = _function_for(kernel, tensors)
    first = next((each for each in tensors if each is not None), None)
    out, place = arguments.out, _special(function, schema, "out")
    given: dict[str, Any] = (
        {} if _special(function, schema, "stream") is None else {"stream": _stream(first)}
    )
    if out is None and place is not None and place.default is place.empty:
        out = [_empty(first, *result) for result in schema.results_of(bindings)]
    versions = [_version(each) for each in tensors]
    if out is not None and place is not None:
        given["out"] = out[0] if len(out) == 1 else tuple(out)
        _call_with(function, schema, arguments, given)
        _refuse_writes(schema, tensors, versions)
        return _unpack(out)
    results = _several(_call_with(function, schema, arguments, given), schema)
    _refuse_writes(schema, tensors, versions)
    schema.check_out(bindings, [described(each) for each in results], returned=True)
    if out is None:
        if kernel.overlap != "allow":
            _separate(results, tensors)
        return _unpack(results)
    for destination, result in zip(out, results, strict=True):
        destination.copy_(result)
    return _unpack(out)


def _refuse_twice(kernel: Kernel, out: Sequence[Any], seen: Sequence[Described | None]) -> None:
    """Refuse a tensor that is to hold two results; `seen`: the inputs, then those of `out`."""
    first = len(seen) - len(out)
    for place, each in enumerate(out):
        before = next((at for at in range(place) if out[at] is each), None)
        if before is not None and kernel.overlap != "allow":
            tensors = [one and (one.shape, one.dtype, one.source, one.device) for one in seen]
            places = first + place, "overlap", first + before
            raise explain(kernel.name, kernel.schema, tensors, (), *places)


def _needs_out(kernel: Kernel) -> bool:
    """Return whether the function writes all results, into memory that somebody must make."""
    assert kernel.schema is not None
    function = next(iter(kernel.functions.values())).callable
    out = _special(function, kernel.schema, "out")
    return out is not None and out.default is out.empty


def traceable_own(kernel: Kernel) -> Callable[..., Any]:
    """Return a function that does what a call of a torch kernel does, without its checks.

    torch.compile traces it, and the kernel's own function with it.
    """
    schema = kernel.schema
    assert schema is not None
    function = next(iter(kernel.functions.values())).callable
    takes_out = _special(function, schema, "out") is not None
    separate = kernel.overlap != "allow"
    is_optional = schema.has_optional_results
    casts = _own_casts(kernel)
    check = make_check(kernel)

    def run(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        arguments = schema.arrange(args, kwargs, traced=True, symbolic=True)
        if casts is not None and arguments.out is None:
            cast = casts.apply(arguments.tensors)
            if cast is not None:
                with casts.turned_off(cast):
                    return call(Arguments(cast, arguments.scalars, None))
        return call(arguments)

    def call(arguments: Arguments) -> Any:
        out = arguments.out
        if out is not None and takes_out:
            rooms = _unwrap(schema, arguments, out) if is_optional else _unpack(out)
            _call_with(function, schema, arguments, {"out": rooms})
            return rooms
        results = _several(_call_with(function, schema, arguments, {}), schema)
        if separate:
            row = _row(arguments.tensors)
            results = [_apart(each, row) for each in results]
        if is_optional:  # what nobody asked for, the function may have made all the same
            wanted = iter(conditions_of(schema, arguments.tensors, arguments.scalars))
            results = [each if not condition or next(wanted) else None
                       for condition, each in zip(schema.conditions, results)]  # noqa: B905  # fmt: skip
        there = [each for each in _row(results) if each is not None]
        for destination, result in zip(_row(out or ()), there):  # noqa: B905  (see bind._assign)
            destination.copy_(result)
        if out is not None and is_optional:
            return _unwrap(schema, arguments, out)
        return _unpack(results if out is None else out)

    return run


def _own_casts(kernel: Kernel) -> Casts | None:
    """Return what autocast does to the tensors of a kernel's calls; None is nothing."""
    if kernel.autocast is None:
        return None
    found: Casts | None = vars(kernel).get("_torch_casts")
    if found is None:
        assert kernel.schema is not None
        found = vars(kernel).setdefault("_torch_casts", Casts(kernel.schema, kernel.autocast))
    return found


def _row(values: Iterable[Any]) -> list[Any]:
    """Return tensors, and those of lists, in a row."""
    return [
        each
        for value in values
        for each in (value if isinstance(value, (list, tuple)) else [value])
    ]


def _apart(result: Any, given: list[Any]) -> Any:
    """Return a result, or a list of them, as tensors that are none of those given."""
    if result is None:  # an optional one
        return None
    if isinstance(result, (list, tuple)):
        return [_apart(each, given) for each in result]
    return result.clone() if any(result is each for each in given) else result


def _call_with(
    function: Callable[..., Any], schema: Schema, arguments: Arguments, given: dict[str, Any]
) -> Any:
    """Return what the function returns: tensors go by position, scalars by keyword."""
    scalars = {}
    for part, value in zip(schema.scalars, arguments.scalars, strict=True):
        if part.kind == "dtype":
            value = own_dtype(value, schema.qualified, part.name)
        scalars[part.name] = value
    return function(*arguments.tensors, **scalars, **given)


def _version(tensor: Any) -> int:
    """Return how often a tensor was written; 0 for one that does not count it."""
    return 0 if tensor is None or tensor.is_inference() else int(tensor._version)


def _refuse_writes(schema: Schema, tensors: Sequence[Any], versions: Sequence[int]) -> None:
    """Refuse what the function did to an argument that it must leave alone."""
    for place, (tensor, version) in enumerate(zip(tensors, versions, strict=True)):
        if place in schema.mutated or _version(tensor) == version:
            continue
        if any(tensors[each] is not None and _memory(tensors[each]) == _memory(tensor)
               for each in schema.mutated):  # fmt: skip
            continue  # a view of what it may write
        raise KernelError(
            f"{schema.qualified} wrote into {schema.tensors[place].name!r}, which is not declared "
            "to be written; mark it with ! in the schema, or copy it first (its values have "
            "changed)"
        )


def _separate(results: list[Any], tensors: Sequence[Any]) -> None:
    """Copy results that are memory of the arguments, or of which the function keeps something.

    It could write there in its next call, as into a buffer that it uses again.
    """
    given = {_memory(each) for each in tensors if each is not None}
    for place in range(len(results)):
        others = sys.getrefcount(results[place]) - 2  # the list and the call
        result = results[place]
        if others > 0 or _memory(result) in given or _is_held(result):
            results[place] = result.clone()


def _memory(tensor: Any) -> int:
    """Return what is equal for tensors that share memory: the address of the storage."""
    while _C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def _is_held(result: Any) -> bool:
    """Return whether another tensor has the storage of a result that autograd does not know."""
    if type(result) not in _PLAIN or result.layout is not torch.strided or result.requires_grad:
        return False
    if _C._functorch.is_functorch_wrapped_tensor(result):
        return False
    if _base_references(result) > _NEW_VIEW:
        return True
    storage = result.untyped_storage()  # which counts itself, and so does a view's base
    count: int = _C._storage_Use_Count(storage._cdata)
    return count > 2 + (result._base is not None)


def _base_references(tensor: Any) -> int:
    """Return how many references there are to what a tensor is a view of."""
    base = tensor._base
    return 0 if base is None else sys.getrefcount(base)


_NEW_VIEW = _base_references(torch.empty(2)[1:])  # of a base that nobody else has


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def _function_for(kernel: Kernel, tensors: Sequence[Any]) -> Callable[..., Any]:
    """Return the function for the device of the tensors."""
    functions = kernel.functions
    kinds = [each.device.type for each in tensors if each is not None]
    found = functions.get(kinds[0] if kinds else "cpu") or next(iter(functions.values()))
    function: Callable[..., Any] = found.callable
    return function


def _special(function: Callable[..., Any], schema: Schema, name: str) -> Parameter | None:
    """Return the function's parameter `out` or `stream`, where it has one for us to fill in."""
    signature = read_signature(function)
    own = any(part.name == name for part in schema.parameters)
    if signature is None or own or (name == "out" and not schema.results):
        return None
    found = signature.parameters.get(name)
    return found if found is not None and found.kind in _NAMED else None


_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def _stream(like: Any) -> int:
    if like is None or like.device.type != "cuda":
        return 0
    return int(torch.cuda.current_stream(like.device).cuda_stream)


def _empty(like: Any, shape: Any, dtype: DType) -> Any:
    device = like.device if like is not None else None
    return torch.empty(shape, dtype=dtype.to("torch"), device=device)


def _several(value: Any, schema: Schema) -> list[Any]:
    if not schema.results:
        return []
    results = list(value) if isinstance(value, SEVERAL) else [value]
    if len(results) != len(schema.results):
        plural = "" if len(schema.results) == 1 else "s"
        raise UnsupportedTypeError(
            f"{schema.qualified}: the schema has {len(schema.results)} result{plural}, the "
            f"function returned {len(results)}"
        )
    return results


def _unpack(results: Sequence[Any]) -> Any:
    return tuple(results) if len(results) > 1 else (results[0] if results else None)


# ---- kernels that are functions of torch tensors, called with others -----------------------------


class TorchSupport(Support):
    """Tensors of torch, which counts versions and cannot protect memory."""

    protects = False
    counts_versions = True

    def save(self, tensor: Any, address: int) -> None:
        """Move the storage into memory of its own: all views of it move along."""
        for found in _tensors_over(address, tensor):
            storage = found.untyped_storage()
            if storage.device.type == "cpu":
                storage.share_memory_()  # no other call replaces a storage's memory
                return
            # On a device each of the tensors gets its place in a copy of the storage.
            place = found.storage_offset(), found.size(), found.stride()
            found.data = torch.empty(0, dtype=found.dtype, device=found.device).set_(
                storage.clone(), *place
            )

    def contexts(self, kind: int, index: int, stream: int) -> Iterable[AbstractContextManager[Any]]:
        yield from super().contexts(kind, index, stream)
        yield torch.cuda.device(index)
        if (torch.cuda.current_stream(index).cuda_stream or LEGACY) == (stream or LEGACY):
            return
        is_default = stream in (0, LEGACY)
        own = (
            torch.cuda.default_stream if is_default else partial(torch.cuda.ExternalStream, stream)
        )
        yield torch.cuda.stream(own(index))

    def copy(self, destination: native.TensorBase, value: Any, stream: int) -> None:
        if isinstance(value, torch.Tensor):
            exchange.convert(destination, "torch").copy_(value.detach())
        else:
            super().copy(destination, value, stream)


def _tensors_over(address: int, tensor: Any) -> Iterator[Any]:
    """Yield tensors whose storage starts at `address`."""
    for found in [tensor] if tensor is not None else gc.get_objects():
        if not isinstance(found, torch.Tensor) or found.layout is not torch.strided:
            continue
        try:
            is_over_it = found.untyped_storage().data_ptr() == address
        except not_from_handler(RuntimeError):  # fake, functorch and the like: no storage
            continue
        if is_over_it:
            yield found


BINDING = TorchBinding()
SUPPORT = TorchSupport

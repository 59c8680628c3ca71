"""Kernel: a function wrapped once, called with the tensors of every framework."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self
from weakref import ref

from dlbridge import registry
from dlbridge._core import native
from dlbridge.calls import with_advice
from dlbridge.dtype import DType, converted
from dlbridge.errors import AllocationError, ArgumentError, KernelError, UnsupportedTypeError
from dlbridge.kernels import binding, debugging
from dlbridge.kernels.counted import SUFFIX, Counted, places_of
from dlbridge.kernels.gradients import Automatic
from dlbridge.kernels.kinds import NO_LAUNCH, Function, Launch, alignment, make_targets
from dlbridge.kernels.lists import Lists, read_key, write_key
from dlbridge.kernels.numbers import SUFFIX as OF_TENSORS
from dlbridge.kernels.numbers import Numbers
from dlbridge.kernels.schema import Flat, Schema, encode_cost
from dlbridge.text import escape_controls

_PUBLISHED: dict[str, Kernel] = {}
_BY_KEY: dict[str, Kernel] = {}
_VERSIONS: dict[str, int] = {}

# Bytes that a simple kernel reads and writes in about 2 µs. Two threads that call kernels gain
# nothing by releasing the GIL below 128 KiB; it takes 35 ns, and beside busy Python threads more.
HELD_BELOW = 32768


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parts of a kernel; `wrap` checks them and says what each of them means."""

    name: str
    functions: Mapping[str, Function]  # by platform
    schema: Schema | None = None
    mutates: tuple[int, ...] | None = None  # without a schema: positions; None is the last
    vjp: Any = None
    jvp: Any = None
    batch: str | Callable[..., Any] = "sequential"
    layout: str | None = None
    overlap: str = "forbid"
    align: int | None = None
    gil: str = "auto"
    cost: int | str | None = None
    stream: str = "current"
    autocast: str | None = None
    sharding: tuple[str, ...] = ()
    version: int = 1
    launch: Launch = NO_LAUNCH
    doc: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)  # what bindings keep with the kernel
    flat: Flat | None = None  # of a kernel for lists of certain lengths: see `kernels.lists`
    whole: Any = None  # the kernel with the lists, or the one that `bounded` is of
    outer: Any = None  # the kernel whose results are numbers where this one has tensors


class Shortcut(NamedTuple):
    """A binding's own way for calls that C declined, tried before the general one.

    Attributes:
        framework: whose tensors it takes.
        call: function of (kernel, args, kwargs); NotImplemented where the general way must serve.
    """

    framework: str
    call: Callable[[Kernel, tuple[Any, ...], dict[str, Any]], Any]


class _Bound:
    """The function of one framework: made when it is first asked for, then the kernel's own.

    Not `cached_property`, whose lock dynamo cannot trace.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.__doc__ = f"The function that takes and returns tensors of {name} only."

    def __get__(self, kernel: Kernel | None, owner: type) -> Any:
        if kernel is None:
            return self
        kernel.prepare(self.name)
        return getattr(kernel, f"{self.name}_function")


@with_advice
class Kernel(native.KernelBase):
    """A kernel, made by `dlbridge.wrap`; calling it takes the tensors of any one framework.

    Inputs come from one framework and so do the results: new tensors, or those passed as `out=`.
    `kernel.torch`, `kernel.jax`, `kernel.numpy` and so on are functions for one framework each, to
    be handed to its transformations and compilers.

    A kernel does not change once it is made, and its attributes are to be read only: what runs is
    settled by then. Kernels compare and hash by identity. One with a schema is known by its
    name in this process, by which it is pickled. Where the same name is wrapped again, it means the
    new kernel from then on; the old one, and programs that were compiled with it, go on as before.

    Attributes:
        schema: its Schema, or None.
        functions: platform -> the function that serves it, see `kernels.kinds.Function`.
        vjp, jvp, batch, layout, overlap, align, gil, cost, stream: as `wrap` was given them.
        autocast: its rule, by the name of the dtype where it is one; None without.
        sharding: the dimensions along which a call may be split.
        version: of the operator, in the models of ONNX that have it.
        launch: grid, block and shared of a GPU kernel, see `kernels.kinds.Launch`.
        lists: of a kernel with lists of tensors: the kernels that serve its calls; else None.
        flat, whole: of such a kernel: how its tensors are grouped, and the kernel with the lists.
        counted: of a kernel that says extents of its results: what makes its calls; else None.
        numbers: of a kernel some of whose results are numbers: what makes its calls; else None.
        key: by which compiled programs of this process find it, see `recorded`.
    """

    schema: Schema | None
    key: str = ""
    is_recorded: bool = False
    autograph_info__: ClassVar[dict[str, str]] = {}  # AutoGraph must not rewrite `__call__`
    shortcut: Shortcut | None = None  # set by a binding
    traced: Callable[..., Any]  # what torch.compile traces; there after `prepare("traced")`

    # Written by `python -m dlbridge.frameworks`: a function for each row of the table.
    numpy: Callable[..., Any]
    torch: Callable[..., Any]
    jax: Callable[..., Any]
    tensorflow: Callable[..., Any]
    tvm: Callable[..., Any]
    mlx: Callable[..., Any]
    pyarrow: Callable[..., Any]
    onnxruntime: Callable[..., Any]
    warp: Callable[..., Any]
    paddle: Callable[..., Any]
    dpnp: Callable[..., Any]
    cupy: Callable[..., Any]
    mxnet: Callable[..., Any]
    dlbridge: Callable[..., Any]
    # End of the written part.

    def __new__(cls, recipe: Recipe) -> Self:
        """Make the kernel that `recipe` describes; `wrap` is the way to one."""
        if not isinstance(recipe, Recipe):
            raise UnsupportedTypeError(
                "Kernel: make kernels with dlbridge.wrap(function, schema), "
                f"got {type(recipe).__name__}"
            )
        schema = recipe.schema
        functions = recipe.functions
        # Else no call is made in C.
        is_encoded = schema is not None and not (
            schema.has_lists or schema.counts or schema.numbers
        )
        has_targets = schema is None or not (schema.counts or schema.numbers)
        targets = make_targets(recipe.name, functions, schema, recipe.launch) if has_targets else []
        flat = recipe.flat
        return super().__new__(
            cls,
            recipe.name,
            schema.encode() if schema is not None and is_encoded else None,
            schema.encode_arguments() if schema is not None and is_encoded else None,
            targets if is_encoded or schema is None else (),
            schema=schema,
            counts=None if flat is None else flat.sizes,
            said_by=_said_by(recipe),
            keeps=tuple(kept for each in functions.values() for kept in each.keeps),
            alignment=recipe.align or alignment(functions),
            contiguous=recipe.layout == "contiguous",
            may_overlap=recipe.overlap == "allow",
            releases_gil=recipe.gil != "hold",
            mutates=recipe.mutates,
            on_default_stream=recipe.stream == "default",
            casts=recipe.autocast is not None,
            holds_below=HELD_BELOW if recipe.gil == "auto" else 0,
            cost=_encode_cost(recipe) if is_encoded else None,
        )

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.schema = recipe.schema
        self.functions = recipe.functions
        self.vjp = recipe.vjp
        self.jvp = recipe.jvp
        self.batch = recipe.batch
        self.layout = recipe.layout
        self.overlap = recipe.overlap
        self.align = recipe.align
        self.gil = recipe.gil
        self.cost = recipe.cost
        self.stream = recipe.stream
        self.autocast = recipe.autocast
        self.sharding = recipe.sharding
        self.version = recipe.version
        self.launch = recipe.launch
        self.flat = recipe.flat
        self.whole: Kernel | None = recipe.whole
        schema = recipe.schema
        # Of several, the first makes the calls, by a kernel that has the others.
        self.numbers = Numbers(self) if schema is not None and schema.numbers else None
        is_whole = schema is not None and self.numbers is None
        self.lists = Lists(self) if schema is not None and is_whole and schema.has_lists else None
        self.counted = Counted(self) if schema is not None and is_whole and schema.counts else None
        self.__name__ = recipe.name.rpartition(":")[2]
        self.__qualname__ = self.__name__
        self.__doc__ = _document(recipe)
        self.prepare = _preparation(ref(self))
        self.__signature__ = _signature(recipe.schema)

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms that it has functions for: "cpu", "cuda" and so on."""
        return tuple(self.functions)

    @property
    def bounded(self) -> Kernel:
        """The kernel that returns results as large as their bounds, and what it says; or itself.

        Of `nonzero(x: f32[n]) -> i64[k<=n]` that is `(x: f32[n]) -> (out: i64[n], k: i64[])`. Its
        shapes do not depend on data, so that `jax.jit`, `vmap` and the like can have it. The rows
        of `out` from k on have no particular values.
        """
        if self.numbers is not None:
            return self.tensors.bounded
        return self if self.counted is None else self.counted.bounded

    @property
    def tensors(self) -> Kernel:
        """The kernel that returns tensors without dimensions in place of numbers; or itself.

        Of `count(x: f32[n]) -> int` that is `count(x: f32[n]) -> i64[]`. It reads no values, so
        that no call waits for a device, `vmap` gives one for each element, and it takes `out=`.
        """
        return self if self.numbers is None else self.numbers.tensors

    @property
    def kind(self) -> str:
        """The kind of function that was wrapped: "a ctypes function", "a Python function", …."""
        return next(iter(self.functions.values())).kind

    def written(self, count: int) -> tuple[int, ...]:
        """Return which of the tensors of a call it writes, of `count` if it has no schema."""
        if self.schema is not None:
            return tuple(self.schema.mutated)
        if self.recipe.mutates is None:
            return (count - 1,) if count else ()
        return self.recipe.mutates

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel with tensors of any one framework; see `__signature__`."""
        # Calls run in C (`seal_kernel_type`); torch.compile traces this, and few call it by name.
        if self.prepare("traced"):
            return self.traced(*args, **kwargs)
        return binding.slow_call(self, None, args, kwargs)

    def __repr__(self) -> str:
        what = str(self.schema) if self.schema is not None else f"{self.name}(*tensors)"
        what = escape_controls(what) + (f", version {self.version}" if self.version > 1 else "")
        return f"<dlbridge.Kernel {what}: {self.kind} for {', '.join(self.platforms)}>"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.whole is not None and self.whole.bounded is self:
            return getattr, (self.whole, "bounded")
        if self.recipe.outer is not None and self.recipe.outer.tensors is self:
            return getattr, (self.recipe.outer, "tensors")
        if _PUBLISHED.get(self.name) is not self:
            raise KernelError(
                f"{self.name}: only kernels known by name can be pickled: this one has no schema, "
                "or another was wrapped under its name since"
            )
        return find, (self.name,)


registry.for_each(lambda row: setattr(Kernel, row.name, _Bound(row.name)))


def _preparation(reference: ref[Kernel]) -> Callable[[str], bool]:
    """Return a function that makes the attributes `torch`, `jax` and so on, or `traced`.

    Both are made when they are first asked for, maybe by code that dynamo traces. Dynamo runs
    a function marked as constant instead of tracing it, if text is its only argument and its result
    needs no guard.
    """

    def prepare(name: str) -> bool:
        kernel = reference()
        assert kernel is not None
        is_tracing = _is_tracing()
        attribute = name if name == "traced" else f"{name}_function"
        with _MAKING:  # dynamo must know the very function that is kept
            if not hasattr(kernel, attribute) and (is_tracing or name != "traced"):
                setattr(kernel, attribute, registry.load(_make_attribute, kernel, name))
        if name != "traced" and not is_tracing:  # dynamo saw that this attribute is not there
            vars(kernel)[name] = getattr(kernel, attribute)
        return is_tracing

    prepare._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return prepare


_MAKING = registry.lock()


def _make_attribute(kernel: Kernel, name: str) -> Callable[..., Any]:
    if name == "traced":
        return binding.binding("torch").traceable(kernel)
    if kernel.numbers is not None:
        return kernel.numbers.function(name)
    if kernel.lists is not None:
        binding.binding(name)  # or it says what it lacks
        return kernel.lists.function(name)
    if kernel.counted is not None:
        binding.binding(name)
        return kernel.counted.function(name)
    return binding.binding(name).function(kernel)


def _is_tracing() -> bool:
    """Return whether torch.compile is at work in this thread."""
    guards = sys.modules.get("torch._guards")
    return guards is not None and guards.TracingContext.try_get() is not None


# ---- names and keys ------------------------------------------------------------------------------
#
# A name means the kernel that was wrapped under it last. Programs of JAX, TensorFlow and PyTorch
# are compiled with a kernel's derivatives, and find its function by a key. So a key that a program
# may hold means the same kernel for good, which stays alive with it: the name for the first kernel
# that is in a program, then the name with a version. A key of another process that is not known
# here means the kernel of its name.

_NAMING = registry.lock()


def publish(kernel: Kernel) -> None:
    """Make `kernel` what its name means in this process from now on."""
    with _NAMING:
        before = _PUBLISHED.get(kernel.name)
        free = before is not None and before.key and not before.is_recorded
        key = before.key if before is not None and free else _new_key(kernel.name)
        if before is not None and free:
            before.key = ""  # programs never saw it
        _give_key(kernel, key)
        _PUBLISHED[kernel.name] = kernel
    binding.published(kernel)


def recorded(kernel: Kernel) -> str:
    """Return the key of a kernel for a program, and keep both for good."""
    if not kernel.is_recorded:
        if kernel.whole is not None and kernel.flat is not None:
            _give_key(kernel, write_key(recorded(kernel.whole), kernel.flat.lengths))
        elif kernel.whole is not None and kernel.whole.bounded is kernel:
            _give_key(kernel, recorded(kernel.whole) + SUFFIX)
        elif kernel.recipe.outer is not None and kernel.recipe.outer.tensors is kernel:
            _give_key(kernel, recorded(kernel.recipe.outer) + OF_TENSORS)
        with _NAMING:
            if not kernel.key:
                _give_key(kernel, _new_key(kernel.name))
            kernel.is_recorded = True
    return kernel.key


def _give_key(kernel: Kernel, key: str) -> None:
    # Programs call the kernels of its lists, each by a key of its own; or `bounded`, `tensors`.
    if kernel.lists is None and kernel.counted is None and kernel.numbers is None:
        kernel.publish(key)
    kernel.key = key
    _BY_KEY[key] = kernel


def _new_key(name: str) -> str:
    if name not in _BY_KEY:
        return name
    while True:
        version = _VERSIONS[name] = _VERSIONS.get(name, 1) + 1
        key = f"{name}__v{version}"
        if key not in _BY_KEY:
            return key


def serving(key: str) -> Kernel:
    """Return the kernel that programs with this key call.

    Raises:
        KernelError: no kernel of the name is known; the module that wraps it was not imported yet.
    """
    return known(key) or find(_VERSION.sub("", key))


def known(key: str) -> Kernel | None:
    """Return the kernel that programs with this key call, or None."""
    found = _BY_KEY.get(key) or _PUBLISHED.get(_VERSION.sub("", key))
    if found is None and key.endswith("]"):
        name, lengths = read_key(key)
        whole = known(name)
        if whole is not None and whole.lists is not None:
            return whole.lists.kernel(lengths)
    if found is None and key.endswith(SUFFIX):
        whole = known(key.removesuffix(SUFFIX))
        if whole is not None and whole.counted is not None:
            return whole.bounded
    if found is None and key.endswith(OF_TENSORS):
        whole = known(key.removesuffix(OF_TENSORS))
        if whole is not None and whole.numbers is not None:
            return whole.tensors
    return found


def _publish_flat(key: str) -> None:
    """Make the kernel known to the core that a program of another process calls by this key."""
    kernel = known(key)
    if kernel is not None:
        recorded(kernel)
        kernel.publish(key)


_VERSION = re.compile(r"__v\d+$", re.ASCII)


def all_known() -> tuple[Kernel, ...]:
    """Return the kernels with a schema that programs of this process may call."""
    return tuple([each for each in list(_BY_KEY.values()) if each.schema is not None])


def find(name: str) -> Kernel:
    """Return the kernel that is known as `name`, "namespace::name", in this process.

    Raises:
        KernelError: none is; the module that wraps it was not imported yet.
    """
    kernel = _PUBLISHED.get(name)
    if kernel is None:
        raise KernelError(
            f"{name}: no kernel of this name is known here; import the module that wraps it"
        )
    return kernel


def is_native_to(kernel: Kernel, framework: str) -> bool:
    """Return whether `framework` itself can run, differentiate and batch the kernel's function.

    So it is with Python functions of torch and JAX, which are then called like any other function
    of theirs, unless the kernel has a `vjp=` or `jvp=` of its own, which must count.
    """
    if framework not in ("torch", "jax") or kernel.schema is None:
        return False
    if any(each.framework != framework for each in kernel.functions.values()):
        return False
    if kernel.whole is not None and kernel.whole.bounded is kernel:
        return False  # what is between fills memory of the bound
    return all(
        rule is None
        or rule == framework
        or (isinstance(rule, Automatic) and rule.framework == framework)
        for rule in (kernel.vjp, kernel.jvp)
    )


def _said_by(recipe: Recipe) -> list[int] | None:
    """Return, for each result, which one has its extent; None where all are known."""
    if recipe.schema is None or recipe.whole is None or not recipe.whole.schema.counts:
        return None
    return places_of(recipe.schema, recipe.whole.schema)


def _encode_cost(recipe: Recipe) -> tuple[tuple[str, int], ...] | None:
    if recipe.schema is None or recipe.cost is None:
        return None
    return encode_cost(recipe.schema, recipe.cost, recipe.flat.known if recipe.flat else {})


def _signature(schema: Schema | None) -> inspect.Signature:
    if schema is not None:
        return schema.signature()
    kind = inspect.Parameter.VAR_POSITIONAL
    return inspect.Signature([inspect.Parameter("tensors", kind)])


def _document(recipe: Recipe) -> str:
    if recipe.schema is None:
        return (
            f"Kernel {recipe.name} without a schema: takes tensors of one framework by position "
            "and writes into the last."
        )
    return recipe.schema.help(recipe.doc, recipe.layout or "contiguous")


def check_name(name: object) -> str:
    """Return a kernel's name, checked: "namespace::name"."""
    if not isinstance(name, str):
        raise ArgumentError(f"wrap: name must be text, got {name!r}")
    namespace, separator, own = name.partition("::")
    if not separator or not namespace.isidentifier() or not own.isidentifier():
        raise ArgumentError(f"wrap: name must be 'namespace::name', got {name!r}")
    return name


native.set_kernel_hooks(
    explain=binding.explain,
    find=_publish_flat,
    slow_call=binding.slow_call,
    type_error=UnsupportedTypeError,
    value_error=ArgumentError,
    kernel_error=KernelError,
    memory_error=AllocationError,
    dtype=DType,
    dtypes=converted,
)
native.seal_kernel_type(Kernel)
debugging.read_environment()

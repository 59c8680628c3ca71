"""wrap and Kernel: what is accepted, what is refused and how, what a kernel is as a value."""

from __future__ import annotations

import copy
import ctypes
import inspect
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import registry
from dlbridge.errors import ArgumentError, ExchangeError, KernelError, UnsupportedTypeError
from dlbridge.kernels import kernel as kernel_module

KERNEL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
NOTHING = KERNEL(lambda context, tensors, count: 0)
SCHEMA = "test::nothing(x: f32[n]) -> f32[n]"


# ---- calls -------------------------------------------------------------------------------------


def test_inputs_go_in_and_a_new_result_comes_out(compiled: Any) -> None:
    """The first thing that the documentation promises."""
    x, y = np.arange(4, dtype="f4"), np.ones(4, "f4")
    result = compiled("axpy")(x, y, alpha=2.0)
    assert type(result) is np.ndarray
    assert result.tolist() == [1, 3, 5, 7]


def test_out_is_written_and_returned(compiled: Any) -> None:
    """Destination-passing returns the caller's own object."""
    x, out = np.arange(4, dtype="f4"), np.zeros(4, "f4")
    assert compiled("axpy")(x, x, out=out) is out
    assert out.tolist() == [0, 2, 4, 6]


def test_several_results_are_a_tuple(compiled: Any) -> None:
    """One is bare, several a tuple, none is None."""
    low, high = compiled("minmax")(np.array([3, 1, 2], "f4"))
    assert (low.shape, float(low), float(high)) == ((), 1, 3)


def test_an_argument_is_written_in_place_and_none_returned(compiled: Any) -> None:
    """A kernel without results gives None, as any procedure."""
    x = np.array([1, 2], "f4")
    assert compiled("scale")(x, 3) is None
    assert x.tolist() == [3, 6]


def test_a_failing_kernel_says_why(compiled: Any) -> None:
    """The text that C code passes to dlb_set_error arrives."""
    with pytest.raises(KernelError, match=r"test::fail: cannot do 2 tensors"):
        compiled("fail")(np.zeros(2, "f4"))


def test_arguments_of_two_frameworks_are_refused_with_both_named(
    compiled: Any, framework: Any
) -> None:
    """Nobody could say whose tensor the result should be."""
    torch = framework("torch")
    with pytest.raises(UnsupportedTypeError) as caught:
        compiled("axpy")(torch.zeros(2), np.zeros(2, "f4"))
    assert str(caught.value) == (
        "test::axpy: argument 'y': expected a tensor of torch as 'x' (torch.Tensor), got "
        "numpy.ndarray; convert one of them with dlbridge.to_torch or dlbridge.to_numpy"
    )
    with pytest.raises(UnsupportedTypeError, match=r"dlbridge.to_torch or dlbridge.as_tensor$"):
        compiled("axpy")(torch.zeros(2), dlbridge.zeros(2, "float32"))


@pytest.mark.parametrize("value", [1, 1.5, True, [1.0], (1.0, 2.0), "text", None, object()])
def test_numbers_are_no_tensors(compiled: Any, value: object) -> None:
    """A Python number has no dtype, so its meaning would be a guess."""
    x = np.zeros(2, "f4")
    with pytest.raises(UnsupportedTypeError, match=r"test::axpy: argument 'y': expected "):
        compiled("axpy")(x, value)


def test_one_out_of_another_framework_is_refused(compiled: Any) -> None:
    """The result's framework is the arguments'."""
    x = np.zeros(2, "f4")
    with pytest.raises(UnsupportedTypeError, match=r"argument 'out': expected a tensor of numpy"):
        compiled("axpy")(x, x, out=dlbridge.zeros(2, "float32"))


def test_a_bound_function_takes_its_own_framework_only(compiled: Any) -> None:
    """`kernel.numpy` says what comes out, so it must also go in."""
    x = dlbridge.zeros(2, "float32")
    with pytest.raises(UnsupportedTypeError, match=r"expected a tensor of numpy, got dlbridge"):
        compiled("axpy").numpy(x, x)


def test_any_object_that_speaks_dlpack_gives_tensors() -> None:
    """Frameworks without an adapter get dlbridge's own tensors back."""

    class Producer:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **keywords: Any) -> Any:
            return self.array.__dlpack__(**keywords)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    kernel = dlbridge.wrap(NOTHING, SCHEMA)
    assert type(kernel(Producer(dlbridge.zeros(3, "float32")))) is dlbridge.Tensor


def test_a_kernel_without_tensors_needs_a_framework_by_name() -> None:
    """There is nothing from which to tell it."""
    kernel = dlbridge.wrap(NOTHING, "test::make(n: int) -> f32[3]")
    with pytest.raises(UnsupportedTypeError, match=r"no tensor determines the framework"):
        kernel(1)
    assert kernel.numpy(1).shape == (3,)
    out = np.zeros(3, "f4")
    assert kernel(1, out=out) is out


def test_optional_tensors_may_be_left_out() -> None:
    """The kernel sees ndim -1 there."""
    seen = []

    def look(context: int, tensors: int, count: int) -> int:
        ndim = ctypes.c_int32.from_address(tensors + 48 + 16)
        seen.append(ndim.value)
        return 0

    kernel = dlbridge.wrap(KERNEL(look), "test::maybe(x: f32[n], b: f32[n]? = None) -> f32[n]")
    x = np.zeros(2, "f4")
    kernel(x)
    kernel(x, x)
    assert seen == [-1, 1]


# ---- memory ------------------------------------------------------------------------------------


def test_strided_and_misaligned_arguments_are_copied_for_the_kernel(compiled: Any) -> None:
    """The kernel sees row-major memory only, in and out."""
    x = np.arange(8, dtype="f4")[::-2]
    raw = np.zeros(4 * 4 + 1, "u1")[1:].view("f4")
    assert compiled("axpy")(x, x).tolist() == [14, 10, 6, 2]
    assert compiled("axpy")(x, x, out=raw) is raw
    assert raw.tolist() == [14, 10, 6, 2]


def test_strided_kernels_see_the_memory_itself(compiled: Any) -> None:
    """layout="strided" promises that nothing is copied."""
    addresses = []

    def look(context: int, tensors: int, count: int) -> int:
        addresses.append(ctypes.c_void_p.from_address(tensors).value)
        return 0

    kernel = dlbridge.wrap(KERNEL(look), SCHEMA, layout="strided")
    x = np.zeros(8, "f4")[::2]
    kernel(x)
    assert addresses == [x.ctypes.data]


def test_a_result_that_overlaps_an_input_is_refused_unless_allowed(compiled: Any) -> None:
    """An elementwise kernel may say that it does not care."""
    x = np.arange(3, dtype="f4")
    with pytest.raises(ExchangeError) as caught:
        compiled("axpy")(x, x, out=x)
    assert caught.value.reason == "overlap"
    assert str(caught.value).startswith(
        "test::axpy: argument 'out': expected memory of its own for f32[n], got memory shared "
        "with 'x' for f32[3] (numpy.ndarray, cpu)"
    )
    assert compiled("axpy", overlap="allow")(x, x, out=x).tolist() == [0, 2, 4]


def test_read_only_memory_is_never_written(compiled: Any) -> None:
    """As an input it is fine."""
    x = np.arange(3, dtype="f4")
    x.flags.writeable = False
    assert compiled("axpy")(x, x).tolist() == [0, 2, 4]
    with pytest.raises(ExchangeError) as caught:
        compiled("scale")(x, 2.0)
    assert caught.value.reason == "readonly"
    assert "expected writable f32[n], got read-only f32[3]" in str(caught.value)


# ---- without a schema --------------------------------------------------------------------------


def test_without_a_schema_the_last_tensor_is_written(compiled: Any) -> None:
    """As TVM's to_pytorch_func; strided memory is passed as it is."""
    x, out = np.arange(4, dtype="f4"), np.zeros(8, "f4")
    assert compiled("add", None)(x, x, out[::2]) is None
    assert out.tolist() == [0, 0, 2, 0, 4, 0, 6, 0]


def test_without_a_schema_read_only_memory_can_be_read_but_not_be_the_last(compiled: Any) -> None:
    """mutates=() says that nothing is written."""
    x, out = np.arange(4, dtype="f4"), np.zeros(4, "f4")
    x.flags.writeable = False
    compiled("add", None)(x, x, out)
    with pytest.raises(ExchangeError, match=r"argument '2': expected writable tensor"):
        compiled("add", None)(out, out.copy(), x)
    kernel = dlbridge.wrap(NOTHING, mutates=())
    assert kernel(x) is None


def test_without_a_schema_arguments_have_no_names(compiled: Any) -> None:
    """Names come from a schema."""
    with pytest.raises(UnsupportedTypeError, match=r"axpy: a kernel without a schema has no names"):
        compiled("axpy", None)(x=np.zeros(2, "f4"))


def test_without_a_schema_numbers_reach_the_context(compiled: Any) -> None:
    """They are the kernel's scalars, in order."""
    x = np.ones(2, "f4")
    compiled("scale", None)(x, 4)
    assert x.tolist() == [4, 4]


# ---- wrap ----------------------------------------------------------------------------------------


def test_a_schema_may_be_given_as_an_object() -> None:
    """Text and Schema mean the same."""
    schema = dlbridge.Schema.parse(SCHEMA)
    assert dlbridge.wrap(NOTHING, schema).schema == dlbridge.wrap(NOTHING, SCHEMA).schema


def test_name_replaces_that_of_the_schema() -> None:
    """One schema text serves several kernels."""
    kernel = dlbridge.wrap(NOTHING, SCHEMA, name="other::thing")
    assert (kernel.name, kernel.schema.qualified) == ("other::thing", "other::thing")


def test_mutates_marks_arguments_as_the_exclamation_mark_does() -> None:
    """Two ways to say it, one meaning."""
    kernel = dlbridge.wrap(NOTHING, SCHEMA.replace(" -> f32[n]", ""), mutates=("x",))
    assert str(kernel.schema) == "test::nothing(x!: f32[n])"
    assert kernel.written(1) == (0,)


def test_a_kernel_can_be_wrapped_again(compiled: Any) -> None:
    """Options that are not given stay; a new schema starts from the defaults of a schema."""
    first = compiled("axpy", overlap="allow", align=32)
    other = dlbridge.wrap(first, name="test::axpy2")
    assert (other.name, other.overlap, other.align) == ("test::axpy2", "allow", 32)
    assert str(other.schema) == str(first.schema).replace("axpy", "axpy2")
    narrow = dlbridge.wrap(first, "test::axpy3(x: f32[4], y: f32[4], *, alpha: float) -> f32[4]")
    assert narrow.overlap == "allow"
    x = np.ones(4, "f4")
    assert narrow(x, x, alpha=3).tolist() == [4] * 4
    with pytest.raises(ArgumentError, match="its abi cannot change"):
        dlbridge.wrap(first, abi="pointers")


def test_the_vjp_goes_when_the_schema_changes() -> None:
    """Its parameters name arguments of the old one."""
    first = dlbridge.wrap(NOTHING, SCHEMA, vjp=lambda grad: grad)
    assert dlbridge.wrap(first, batch="broadcast").vjp is first.vjp
    assert dlbridge.wrap(first, "test::other(x: f32[n]) -> f32[n]").vjp is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch": "each"}, "batch must be 'sequential' or 'broadcast', or a function, got 'each'"),
        ({"layout": "fortran"}, "layout must be 'contiguous' or 'strided', got 'fortran'"),
        ({"overlap": True}, "overlap must be 'forbid' or 'allow', got True"),
        ({"gil": "keep"}, "gil must be 'auto' or 'release' or 'hold', got 'keep'"),
        ({"cost": -1}, "cost must be an integer from 0 or an expression, got -1"),
        ({"cost": "n *"}, "test::nothing: cost: "),
        ({"cost": "m"}, "test::nothing: cost: 'm' is not a dimension of the schema; it has n"),
        ({"cost": 1, "gil": "hold"}, "cost= is for gil='auto', got gil='hold'"),
        ({"stream": 7}, "stream must be 'current' or 'default', got 7"),
        ({"autocast": "half!"}, "autocast must be 'float16', 'bfloat16', 'float32', "),
        ({"align": 48}, "align must be a power of two up to 4096, got 48"),
        ({"align": True}, "align must be a power of two up to 4096, got True"),
        ({"version": 0}, "version must be an integer from 1 to 1000, got 0"),
        ({"version": 1001}, "version must be an integer from 1 to 1000, got 1001"),
        ({"version": "2"}, "version must be an integer from 1 to 1000, got '2'"),
        ({"name": "axpy"}, "name must be 'namespace::name', got 'axpy'"),
        ({"abi": "stdcall"}, "abi must be one of 'dltensors', 'pointers', "),
        ({"platforms": {"npu": NOTHING}}, "platforms must be named among cpu, cuda, "),
        ({"platforms": {"cpu": KERNEL(lambda *_: 0)}}, "fn and platforms['cpu'] are two functions"),
        ({"abi": {"cuda": "dltensors"}}, "there is no function for 'cuda'"),
    ],
)
def test_a_wrong_option_says_what_fits(options: dict[str, Any], text: str) -> None:
    """Every misuse is found when wrapping, not in the first call."""
    with pytest.raises(ArgumentError) as caught:
        dlbridge.wrap(NOTHING, SCHEMA, **options)
    assert text in str(caught.value)


def test_gradients_need_a_schema() -> None:
    """Their parameters are its names."""
    with pytest.raises(ArgumentError, match="vjp= needs a schema"):
        dlbridge.wrap(NOTHING, vjp=lambda grad: grad)
    with pytest.raises(ArgumentError, match="cost= needs a schema"):
        dlbridge.wrap(dlbridge.wrap(NOTHING), cost=1)


@pytest.mark.parametrize("mutates", [("x",), (0.5,), (-1,)])
def test_positions_are_numbers_without_a_schema(mutates: Any) -> None:
    """There are no names yet."""
    with pytest.raises(ArgumentError, match="mutates"):
        dlbridge.wrap(NOTHING, mutates=mutates)


@pytest.mark.parametrize(
    ("abi", "platforms"),
    [
        ("python:torch", ("cpu", "cuda")),
        ("python:jax", ("cpu", "cuda")),
        ("python:numpy", ("cpu",)),
        ("python:dlbridge", ("cpu",)),
    ],
)
def test_functions_of_tensors_on_any_device_are_for_each_platform(
    abi: str, platforms: tuple[str, ...], framework: Any
) -> None:
    if abi != "python:dlbridge":
        framework(abi.removeprefix("python:"))
    kernel = dlbridge.wrap(lambda x: x, "wraptests::anywhere(x: f32[n]) -> f32[n]", abi=abi)
    assert kernel.platforms == platforms


def test_platforms_alone_are_enough() -> None:
    """fn is short for the CPU."""
    kernel = dlbridge.wrap(platforms={"cpu": NOTHING, "cuda": NOTHING}, schema=SCHEMA)
    assert kernel.platforms == ("cpu", "cuda")


def test_a_device_without_a_function_is_refused_by_name() -> None:
    """Before anything is allocated or called."""
    kernel = dlbridge.wrap(platforms={"cuda": NOTHING}, schema="test::gpu(x!: f32[n])")
    with pytest.raises(ExchangeError) as caught:
        kernel(np.zeros(2, "f4"))
    assert caught.value.reason == "device"
    assert "on a device that the kernel was wrapped for, got f32[2] (numpy.ndarray, cpu)" in str(
        caught.value
    )


# ---- a value -------------------------------------------------------------------------------------


def test_a_kernel_documents_itself(compiled: Any) -> None:
    """help(), inspect.signature() and repr() read the schema."""
    kernel = compiled("axpy")
    assert str(inspect.signature(kernel)) == (
        "(x: 'f32[n]', y: 'f32[n]', *, alpha: 'float' = 1.0, out: 'tensor?' = None) -> 'f32[n]'"
    )
    assert "x: float32 tensor of shape [n]" in kernel.__doc__
    assert (kernel.__name__, kernel.kind) == ("axpy", "a ctypes function")
    assert repr(kernel) == f"<dlbridge.Kernel {kernel.schema}: a ctypes function for cpu>"
    bare = compiled("axpy", None)
    assert str(inspect.signature(bare)) == "(*tensors)"
    assert repr(bare) == "<dlbridge.Kernel axpy(*tensors): a ctypes function for cpu>"


def test_kernels_are_copied_and_compared_by_identity(compiled: Any) -> None:
    """They are immutable; two wraps of one function are two kernels."""
    one, other = compiled("axpy", None), compiled("axpy", None)
    assert copy.copy(one) is one
    assert copy.deepcopy([one]) == [one]
    assert one != other
    assert len({one, other, one}) == 2


def test_kernels_are_pickled_by_name(compiled: Any) -> None:
    """In another process the name means the kernel that was wrapped there."""
    kernel = compiled("axpy")
    assert pickle.loads(pickle.dumps(kernel)) is kernel
    with pytest.raises(KernelError, match="only kernels known by name"):
        pickle.dumps(compiled("axpy", None))
    newer = compiled("axpy")
    with pytest.raises(KernelError, match="another was wrapped under its name"):
        pickle.dumps(kernel)
    assert pickle.loads(pickle.dumps(newer)) is newer


def test_an_unknown_name_says_what_to_do() -> None:
    """The usual cause is a module that was not imported in this process."""
    with pytest.raises(KernelError, match="import the module that wraps it"):
        kernel_module.find("test::never_wrapped")


def test_kernels_without_a_name_are_freed_with_all_they_keep() -> None:
    """Nothing else may hold the function."""
    fn = KERNEL(lambda context, tensors, count: 0)
    kernel = dlbridge.wrap(fn)
    kernel.numpy  # a bound function refers to its kernel, and the kernel keeps it
    kernel(np.zeros(2, "f4"))
    gone = weakref.ref(kernel)
    function_gone = weakref.ref(fn)
    del kernel, fn
    import gc

    gc.collect()
    assert gone() is None
    assert function_gone() is None


def test_the_same_bound_function_is_given_each_time(compiled: Any) -> None:
    """Compilers key their caches on it."""
    kernel = compiled("axpy")
    assert kernel.numpy is kernel.numpy


def test_without_a_function_it_is_a_decorator() -> None:
    """The decorator makes a kernel like any other."""

    @dlbridge.wrap(schema="test::decorated(x: f64[n], *, by: float) -> f64[n]", abi="python:numpy")
    def scale(x: Any, *, by: float) -> Any:
        return x * by

    assert isinstance(scale, dlbridge.Kernel)
    assert scale(np.ones(2), by=3.0).tolist() == [3, 3]
    assert scale.numpy(np.ones(2), by=2.0).tolist() == [2, 2]
    assert kernel_module.find("test::decorated") is scale

    @dlbridge.wrap(abi="python:numpy", mutates=(0,))
    def increase(x: Any, y: Any) -> None:
        x += y

    x = np.ones(2)
    increase(x, np.ones(2))
    assert x.tolist() == [2, 2]


def test_a_decorator_checks_what_wrap_checks() -> None:
    with pytest.raises(ArgumentError, match="layout must be"):
        dlbridge.wrap(abi="python:numpy", layout="odd")(lambda x: x)
    for missing in (None, 3):  # a function that was looked up and is not there
        with pytest.raises(UnsupportedTypeError):
            dlbridge.wrap(missing, abi="python:numpy")


def test_a_kernel_has_a_function_for_each_row_of_frameworks() -> None:
    """Those that editors are told of are among the rows."""
    rows = [row.name for row in registry.rows()]
    assert all(name in vars(dlbridge.Kernel) for name in rows)
    told = {name for name, kind in dlbridge.Kernel.__annotations__.items() if "Callable" in kind}
    assert told - {"traced"} == set(rows)

"""Torch's insides are used on the versions that they were proved for, and on no other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dlbridge._core import native  # noqa: E402
from dlbridge.exchange import adapter, protocol  # noqa: E402
from dlbridge.frameworks.torch import internals, proofs, proving  # noqa: E402

is_proved = proofs.proof() is not None
ASKED = pytest.mark.skipif(
    not hasattr(torch.Tensor, protocol.TABLE),
    reason="torch before 2.10 has no exchange table, by which C asks for memory",
)
PROVED = pytest.mark.skipif(not is_proved, reason="the direct path was not proved for this torch")

# Forces another version before dlbridge sees torch, and has every probe of memory fail loudly.
# What follows runs with the C++ functions that queries call, and as if they were not there.
OTHER_VERSION = """
    import torch
    torch.__version__ = "99.1.0+cpu"
    from dlbridge._core import native

    def refuse(*_):
        raise AssertionError("torch's memory was probed")

    for name in ("torch_guard_open", "torch_direct_open", "torch_memory_open", "torch_op_open"):
        setattr(native, name, refuse)
    import dlbridge
    from dlbridge.frameworks.torch import internals, proofs
"""


def run_to_the_end(run_python: Callable[..., Any], code: str) -> None:
    assert run_python(code + 'print("done")\n').check().strip() == "done"


WITHOUT_FUNCTIONS = """
    native.torch_functions_open = lambda *_: False
"""
BOTH = pytest.mark.parametrize(
    "queries",
    [
        pytest.param("", id="C++ functions"),
        pytest.param(WITHOUT_FUNCTIONS, id="Python's functions", marks=pytest.mark.full),
    ],
)


@PROVED
def test_on_a_proved_version_the_direct_path_is_active() -> None:
    assert internals.guard_is_open()
    assert internals.direct_is_open()
    is_old = proofs.release().startswith("2.6.")  # C functions define operators from 2.7 on
    assert internals.shim_lacks() == ("aoti_torch_library_init_fragment" if is_old else None)
    assert internals.path() == adapter.adapter("torch").path() == "direct"
    assert native.torch_borrow(torch.ones(2)) is not None


def test_builds_of_a_version_share_its_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    for release, proof in proofs.PROVED.items():
        for build in ("", "+cpu", "+cu130"):
            monkeypatch.setattr(torch, "__version__", release + build)
            assert proofs.proof() is proof
    for text in ("2.13.1", "2.13.0a0", "2.99.0+cpu", "2.1.2"):
        monkeypatch.setattr(torch, "__version__", text)
        assert proofs.proof() is None


@pytest.mark.preloaded("torch")
@pytest.mark.full
def test_a_proof_is_for_the_processor_it_was_found_on(run_python: Callable[..., Any]) -> None:
    code = """
        import platform
        platform.machine = lambda: "aarch64"
        import numpy, torch, dlbridge
        from dlbridge.frameworks.torch import internals, proofs
        x = torch.arange(6.0)
        assert dlbridge.from_dlpack(x).data_ptr == x.data_ptr()
        assert dlbridge.to_torch(numpy.arange(3)).tolist() == [0, 1, 2]
        assert not internals.guard_is_open()
        print(internals.path())
    """
    assert run_python(code).check().strip() == "general: aarch64 is not x86_64"


@PROVED
def test_words_that_lie_elsewhere_close_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of a proved version with another layout is noticed before anything relies on it."""
    found = proofs.proof()
    assert found is not None
    sample = torch.ones(2)
    assert internals._agrees(torch, found, sample)
    for field in ("tensor", "keys", "storage", "nbytes"):
        places = found.places._replace(**{field: getattr(found.places, field) + 8})
        assert not internals._agrees(torch, found._replace(places=places), sample)
    lacking = found._replace(symbols={"c10": ("_ZN3c1012no_such_nameEv",)})
    assert not internals._agrees(torch, lacking, sample)


def test_before_torch_is_imported_the_table_tells(run_python: Callable[..., Any]) -> None:
    code = """
        import sys
        from dlbridge.exchange import adapter
        from dlbridge import frameworks
        print(adapter.adapter("torch").path())
        assert "torch" not in sys.modules
    """
    expected = "direct" if is_proved else "general"
    assert run_python(code).check().startswith(expected)


@pytest.mark.preloaded("torch")
def test_on_another_version_exchange_takes_the_general_path(
    run_python: Callable[..., Any],
) -> None:
    code = (
        OTHER_VERSION
        + """
    import numpy
    from dlbridge.errors import ExchangeError

    x = torch.arange(6.0).reshape(2, 3)
    tensor = dlbridge.from_dlpack(x)
    assert tensor.data_ptr == x.data_ptr() and tensor.shape == (2, 3)
    assert dlbridge.to_numpy(x.T)[2].tolist() == [2, 5]
    back = dlbridge.to_torch(numpy.arange(3))
    assert type(back) is torch.Tensor and back.tolist() == [0, 1, 2]
    assert dlbridge.to_numpy(torch.tensor([1 + 2j]).conj().imag).tolist() == [-2]
    shrunk = torch.ones(8)
    shrunk.untyped_storage().resize_(4)
    for refused in (torch.ones(2, requires_grad=True), torch.ones(2, device="meta"), shrunk):
        try:
            dlbridge.from_dlpack(refused)
        except ExchangeError:
            continue
        raise AssertionError("not refused")
    assert not internals.guard_is_open()
    print(internals.path())
    """
    )
    proved = ", ".join(proofs.PROVED)
    said = run_python(code).check()
    assert said.startswith(f"general: 99.1.0 is not one of {proved}; `python -m dlbridge prove")


@BOTH
@pytest.mark.preloaded("torch")
def test_on_another_version_plain_tensors_are_exchanged_in_c(
    run_python: Callable[..., Any],
    queries: str,
) -> None:
    """Python only notes who holds the storage; what is not plain is judged in Python."""
    code = """
    import sys
    import numpy
    from dlbridge.errors import ExchangeError
    from torch._subclasses.fake_tensor import FakeTensorMode

    def entered(function):
        names = set()
        sys.setprofile(lambda frame, event, _: event == "call" and names.add(frame.f_code.co_name))
        try:
            result = function()
        finally:
            sys.setprofile(None)
        return result, names - {"<lambda>"}

    def reason_of(function):
        try:
            function()
        except ExchangeError as error:
            return error.reason

    x = torch.arange(6.0).reshape(2, 3)
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    for first in (x, parameter):  # the first one of a type is classified
        dlbridge.from_dlpack(first)
    dlbridge.to_numpy(x)  # which loads the adapter of NumPy
    plain = [x, x.T, x[1:, ::2], x[0].expand(4, 3), x[:0], torch.ones(()), torch.ones(3).bool()]
    plain += [parameter, torch.ones(2).to(torch.int8)]
    for each in plain:
        view, names = entered(lambda: dlbridge.to_numpy(each))
        assert names <= {"hold"}, names
        assert view.tolist() == each.tolist()
        assert view.ctypes.data == each.data_ptr() or not each.numel()
    wanting = torch.ones(2, requires_grad=True)
    view, names = entered(lambda: dlbridge.to_numpy(wanting, grad="detach"))
    assert names <= {"hold"} and view.tolist() == [1, 1]

    lazy = torch.tensor([1 + 2j]).conj()
    assert dlbridge.to_numpy(lazy).tolist() == [1 - 2j]
    assert dlbridge.to_numpy(lazy.imag).tolist() == [-2]
    assert dlbridge.to_numpy(torch._efficientzerotensor(2)).tolist() == [0, 0]
    assert reason_of(lambda: dlbridge.to_numpy(wanting)) == "requires_grad"
    assert reason_of(lambda: dlbridge.to_numpy(torch.ones(2, 2).to_sparse())) == "sparse"
    assert reason_of(lambda: dlbridge.to_numpy(torch.ones(2, device="meta"))) == "lazy"
    shrunk = torch.ones(8)
    shrunk.untyped_storage().resize_(4)
    assert reason_of(lambda: dlbridge.to_numpy(shrunk)) == "null_data"
    said = []
    transformed = lambda row: (said.append(reason_of(lambda: dlbridge.to_numpy(row))), row.sum())[1]
    torch.func.vmap(transformed)(x)
    torch.func.grad(transformed)(x)
    assert said == ["lazy", "lazy"], said
    with FakeTensorMode() as mode:
        assert reason_of(lambda: dlbridge.to_numpy(mode.from_tensor(torch.ones(2)))) == "lazy"

    y = torch.arange(4096.0)
    address, view = y.data_ptr(), dlbridge.to_numpy(y)
    try:
        y.resize_(1 << 20)
    except RuntimeError:
        pass
    else:
        raise AssertionError("the memory of a view was moved")
    y.data = torch.zeros(3)
    del y
    torch.zeros(4096).fill_(7)
    assert view.tolist() == list(range(4096)) and view.ctypes.data == address
    z = torch.arange(4096.0)
    view = dlbridge.to_numpy(z)
    z.share_memory_()
    torch.zeros(4096).fill_(7)
    assert view.tolist() == list(range(4096)) == dlbridge.to_numpy(z).tolist()
    """
    run_to_the_end(run_python, OTHER_VERSION + queries + code)


@BOTH
@pytest.mark.preloaded("torch")
def test_on_another_version_kernels_take_the_general_path(
    run_python: Callable[..., Any], queries: str
) -> None:
    code = """
    from dlbridge.errors import ExchangeError

    def scaled(x, *, by):
        return x * by

    def write(x):
        x += 1

    scale = dlbridge.wrap(
        scaled,
        "versions::scale(x: f32[n], *, by: float) -> f32[n]",
        abi="python:numpy",
        vjp=lambda grad, by: grad * by,
    )
    x = torch.arange(3.0)
    assert scale(x, by=2.0).tolist() == [0, 2, 4]
    assert scale.torch(x[::2], by=3.0).tolist() == [0, 6]
    out = torch.empty(3)
    version = out._version
    assert scale(x, by=2.0, out=out) is out and out.tolist() == [0, 2, 4]
    assert out._version > version
    wanting = x.clone().requires_grad_()
    scale(wanting, by=5.0).sum().backward()
    assert wanting.grad.tolist() == [5, 5, 5]
    rows = torch.func.vmap(lambda row: scale(row, by=2.0))(torch.ones(2, 3))
    assert rows.tolist() == [[2, 2, 2], [2, 2, 2]]
    assert torch.ops.versions.scale(x, by=2.0).tolist() == [0, 2, 4]
    increase = dlbridge.wrap(write, "versions::increase(x!: f32[n])", abi="python:numpy")
    increase(x)
    assert x.tolist() == [1, 2, 3]
    plain = dlbridge.wrap(write, abi="python:numpy")
    plain(x)
    assert x.tolist() == [2, 3, 4]
    try:
        increase(torch.ones(2, requires_grad=True))
    except ExchangeError as error:
        assert error.reason == "requires_grad"
    else:
        raise AssertionError("not refused")
    assert internals.shim_lacks() is not None
    """
    run_to_the_end(run_python, OTHER_VERSION + queries + code)


# Kernels in C, and a function that tells which functions of Python a call enters.
KERNELS_IN_C = """
    import sys
    from torch.utils._python_dispatch import TorchDispatchMode

    DOUBLE = r'''
    #include "dlbridge_kernel.h"

    int twice(void *context, DLTensor *tensors, int count) {
        const float *x = tensors[0].data;
        float *y = tensors[count - 1].data;
        for (int64_t i = 0; i < tensors[0].shape[0]; i++)
            y[i] = 2 * x[i * tensors[0].strides[0]];
        return 0;
    }
    '''
    twice = dlbridge.compile_c(DOUBLE, "twice", "versions::twice(x: f32[n]) -> f32[n]")
    fill = dlbridge.compile_c(DOUBLE, "twice", "versions::fill(x: f32[n], y!: f32[n])")
    bare = dlbridge.compile_c(DOUBLE, "twice")
    twice(torch.ones(2))

    def entered(function):
        names = set()
        sys.setprofile(lambda frame, event, _: event == "call" and names.add(frame.f_code.co_name))
        try:
            result = function()
        finally:
            sys.setprofile(None)
        return result, names - {"<lambda>"}
"""


@ASKED
@BOTH
@pytest.mark.preloaded("torch")
def test_on_another_version_kernels_of_plain_tensors_are_called_in_c(
    run_python: Callable[..., Any],
    queries: str,
) -> None:
    """Of Python's functions only those are entered that count versions, and who has a storage."""
    code = """
    x, y = torch.arange(3.0), torch.empty(3)
    parameter = torch.nn.Parameter(torch.ones(3))
    function = twice.torch  # which makes the operator
    for _ in range(2):  # the second call is as the first was
        made, names = entered(lambda: twice(x))
        assert not names and made.tolist() == [0, 2, 4], names
        assert type(made) is torch.Tensor and not made.requires_grad and made._version == 0
        made, names = entered(lambda: function(x[:2]))
        assert not names and made.tolist() == [0, 2], names
        with torch.no_grad():
            made, names = entered(lambda: twice(parameter))
        assert not names and made.tolist() == [2, 2, 2] and not made.requires_grad, names
        for call in (lambda: fill(x, y), lambda: bare(x, y), lambda: twice(x, out=y)):
            before = y.zero_()._version
            result, names = entered(call)
            assert names <= {"increment_version"}, names
            assert y._version > before and y.tolist() == [0, 2, 4]
            assert result is None or result is y
        large = torch.ones(1 << 16)  # the kernel runs without the GIL
        made, names = entered(lambda: twice(large))
        assert names <= {"hold"} and made.sum() == 1 << 17, names
    try:
        large.resize_(1 << 20)
    except RuntimeError:
        pass
    else:
        raise AssertionError("the memory of a kernel was moved")
    strided = torch.arange(6.0)[::2]
    assert twice(strided).tolist() == [0, 4, 8]
    assert torch.ops.versions.twice(x).tolist() == [0, 2, 4]
    for call in (lambda: torch.ops.versions.twice.out(x, y), lambda: torch.ops.versions.fill(x, y)):
        before = y.zero_()._version
        call()
        assert y._version > before and y.tolist() == [0, 2, 4]
    """
    run_to_the_end(run_python, OTHER_VERSION + queries + KERNELS_IN_C + code)


@pytest.mark.full
@ASKED
@BOTH
@pytest.mark.preloaded("torch")
@pytest.mark.timeout(180)
def test_on_another_version_what_is_not_plain_is_left_to_torch(
    run_python: Callable[..., Any],
    queries: str,
) -> None:
    """Gradients, tangents, modes, transforms, lazy values and what has no memory."""
    code = """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd import forward_ad
    from dlbridge.errors import DLBridgeError

    def reason_of(function):
        try:
            function()
        except DLBridgeError as error:
            return error.reason

    allows = native.torch_direct_allows
    x = torch.arange(3.0)
    assert allows(x) and allows(x[1:]) and allows(torch.ones(2).bool())

    schema = "versions::own(x: f32[n]) -> f32[n]"
    own = dlbridge.compile_c(DOUBLE, "twice", schema, vjp=lambda grad: 2 * grad)
    wanting = torch.ones(3, requires_grad=True)
    assert not allows(wanting)
    for call in (own, torch.ops.versions.own):
        wanting.grad = None
        call(wanting).sum().backward()
        assert wanting.grad.tolist() == [2, 2, 2]
    assert twice(wanting).requires_grad
    assert reason_of(lambda: fill(x, wanting)) == "requires_grad"
    assert reason_of(lambda: fill(wanting, torch.ones(3))) == "requires_grad"
    for call in (own, torch.ops.versions.own):
        with forward_ad.dual_level():
            assert not allows(x)
            made = call(forward_ad.make_dual(x, torch.ones(3)))
            assert forward_ad.unpack_dual(made).tangent.tolist() == [2, 2, 2]
        _, tangent = torch.func.jvp(call, (x,), (torch.ones(3),))
        assert tangent.tolist() == [2, 2, 2]
        assert torch.func.grad(lambda x: call(x).sum())(x).tolist() == [2, 2, 2]
        assert torch.func.vmap(call)(torch.ones(2, 3)).tolist() == [[2, 2, 2], [2, 2, 2]]
    level = torch._C._enter_dual_level()  # as compiled graphs do, which call operators
    dual = torch._VF._make_dual(x, torch.ones(3), level=level)
    made = torch._VF._unpack_dual(torch.ops.versions.own(dual), level=level)
    assert made[1].tolist() == [2, 2, 2]
    torch._C._exit_dual_level(level=level)

    lazy = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
    assert lazy.is_neg() and not allows(lazy)
    assert twice(lazy).tolist() == [-4, -8]
    zero = torch._efficientzerotensor(3)
    assert not allows(zero) and twice(zero).tolist() == [0, 0, 0]

    with torch.inference_mode():
        assert allows(x) and native.torch_call_allows(x)
        inside = twice(x)
        assert inside.is_inference() and inside.tolist() == [0, 2, 4] and allows(inside)
        fill(x, inside)  # which has no version
        with torch.inference_mode(False):
            plain = torch.empty(3)
        fill(x, plain)
        assert plain._version == 1 and twice(wanting).is_inference()
    assert not allows(inside) and twice(inside).tolist() == [0, 4, 8]
    assert reason_of(lambda: fill(x, inside)) == "readonly"

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Function(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    for mode in (Dispatch(), Function()):
        seen = []
        with mode:
            assert not allows(x)
            assert twice(x).tolist() == [0, 2, 4]
        assert any("twice" in each for each in seen), seen
    with torch.profiler.profile() as profile:
        twice(x)
    assert any("versions::twice" in event.key for event in profile.key_averages())
    traced = torch.jit.trace(lambda x: twice(x) + 1, (x,), check_trace=False)
    assert "versions::twice" in str(traced.graph)
    with torch.autocast("cpu"), torch.device("meta"):  # which leave kernels alone
        assert native.torch_call_allows(x) and not allows(x)
        assert twice(x).tolist() == [0, 2, 4]

    class Sub(torch.Tensor):
        pass

    sub = x.as_subclass(Sub)
    assert not allows(sub) and twice(sub).tolist() == [0, 2, 4]
    with FakeTensorMode() as fake:
        made = twice(fake.from_tensor(x))
        assert type(made).__name__ == "FakeTensor" and made.shape == (3,)
    assert twice(torch.ones(3, device="meta")).device.type == "meta"
    shrunk = torch.ones(64)
    twice(shrunk)
    shrunk.untyped_storage().resize_(4)
    for _ in range(2):
        assert reason_of(lambda: twice(shrunk)) == "null_data"
        assert reason_of(lambda: fill(torch.ones(64), shrunk)) == "null_data"
    narrow = torch.empty(4, dtype=torch.uint8).view(torch.uint4)
    takes_bytes = dlbridge.compile_c(DOUBLE, "twice", "versions::bytes(x: u8[n]) -> f32[n]")
    assert reason_of(lambda: takes_bytes(narrow)) is not None
    """
    run_to_the_end(run_python, OTHER_VERSION + queries + KERNELS_IN_C + code)


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="collects garbage between bytecodes, none of which is amid a call",
)
@BOTH
@pytest.mark.preloaded("torch")
def test_on_another_version_a_kernel_sees_no_memory_that_was_replaced(
    run_python: Callable[..., Any],
    queries: str,
) -> None:
    """A collection of garbage amid a call may give a tensor another storage: it is asked again."""
    code = """
    import gc

    x, armed = torch.ones(3), []

    def replace(phase, _):
        if phase == "start" and armed:
            x.data = armed.pop()

    class Tracked:
        pass

    gc.callbacks.append(replace)
    usual = gc.get_threshold()
    for other in (torch.full((3,), 5.0), torch.full((2,), 7.0)):
        expected = (2 * other).tolist()
        gc.collect()
        kept = []
        while gc.get_count()[0] < 1:  # the next object that is tracked brings a collection
            kept.append(Tracked())
        armed.append(other)
        gc.set_threshold(1)
        try:
            made = twice(x)  # collects when the result is made
        finally:
            gc.set_threshold(*usual)
        assert not armed, "nothing was collected"
        assert made.tolist() == expected == (2 * x).tolist(), made
    gc.callbacks.clear()
    """
    run_to_the_end(run_python, OTHER_VERSION + queries + KERNELS_IN_C + code)


@pytest.mark.full
@ASKED
@BOTH
@pytest.mark.preloaded("torch")
def test_on_another_version_a_kernel_sees_no_memory_that_python_code_replaced(
    run_python: Callable[..., Any],
    queries: str,
) -> None:
    """Python code amid a call, a finalizer for example, may give a tensor another storage."""
    amid = """
    armed, usual = [], torch.empty

    def empty(*args, **keywords):  # by which the core makes the result
        if armed:
            x.data = armed.pop()
        return usual(*args, **keywords)

    torch.empty = empty
    """
    code = """
    x = torch.ones(3)
    for other in (torch.full((3,), 5.0), torch.full((2,), 7.0)):
        expected = (2 * other).tolist()
        armed.append(other)
        made = twice(x)
        assert not armed, "nothing was replaced"
        assert made.tolist() == expected == (2 * x).tolist(), made
    """
    run_to_the_end(run_python, OTHER_VERSION + queries + amid + KERNELS_IN_C + code)


@ASKED
@pytest.mark.preloaded("torch")
@pytest.mark.filterwarnings("ignore")
def test_on_another_version_tensors_without_values_get_no_kernel(
    run_python: Callable[..., Any],
) -> None:
    """What C++ functions say of a tensor is what its keys say, of every kind of torch.Tensor."""
    code = """
    import warnings

    warnings.simplefilter("ignore")
    allows = native.torch_direct_allows
    x = torch.ones(4)
    plain = torch._C._dispatch_keys(x).raw_repr()
    square = x.reshape(2, 2)
    kinds = [x, x[1:], x[:0], square.T, x.bool(), torch.ones(2).share_memory_()]
    kinds += [torch._lazy_clone(x), *internals._without_values(torch, x)]
    kinds += [square.to_sparse_csr(), torch.nested.nested_tensor([x, x])]
    kinds += [torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), torch.empty(2, device="meta")]
    complex_ = torch.ones(3, dtype=torch.complex64)
    kinds += [complex_, complex_.conj(), complex_.conj().imag, torch._efficientzerotensor(2)]
    with torch.inference_mode():
        kinds.append(torch.ones(2))
    told = [allows(each) for each in kinds]
    assert told == [torch._C._dispatch_keys(each).raw_repr() == plain for each in kinds], told
    assert True in told and False in told
    native.torch_functions_close()
    assert told == [allows(each) for each in kinds]
    """
    run_to_the_end(run_python, OTHER_VERSION + KERNELS_IN_C + code)


# ---- proofs of this machine ----------------------------------------------------------------------

UNKNOWN = """
    import torch
    from dlbridge.frameworks.torch import proofs

    proofs.PROVED.clear()
"""


@pytest.mark.full
@PROVED
@pytest.mark.preloaded("torch")
@pytest.mark.timeout(400)
def test_an_unknown_version_is_proved_by_a_command(
    run_python: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where words lie is found, tried and kept; from then on the direct path is open."""
    monkeypatch.setenv("DLBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    look = (
        UNKNOWN + "    from dlbridge.frameworks.torch import internals\n    print(internals.path())"
    )
    before = run_python(look).check()
    assert before.startswith("general")
    assert "python -m dlbridge prove torch" in before
    assert not (tmp_path / "cache").exists(), "to look must not make a folder"
    prove = (
        f"{UNKNOWN}\n    from dlbridge import cli\n    assert cli.main(['prove', 'torch']) == 0\n"
    )
    said = run_python(prove).check()
    assert f"torch {proofs.release()} is proved" in said
    assert run_python(look).check().strip() == "direct"
    (kept,) = (tmp_path / "cache").glob("torch-*.proof")
    kept.write_bytes(kept.read_bytes().replace(b"168", b"160").replace(b"176", b"160"))
    assert run_python(look).check().startswith("general"), "a file that was changed is none"


@PROVED
def test_the_places_that_a_proof_finds_are_those_of_the_table() -> None:
    assert proving.find_places(torch) == proofs.PROVED[proofs.release()].places


@PROVED
@pytest.mark.parametrize("holds", proving.PROMISES, ids=lambda holds: holds.__name__)
def test_every_promise_of_a_proof_holds_here(holds: Callable[[Any], bool]) -> None:
    assert holds(torch), holds.__doc__


def test_a_proof_is_known_by_the_build_ids_of_torchs_libraries(tmp_path: Path) -> None:
    build = proofs.build_id()
    assert build is not None
    assert len(build.split()) == len(proofs.SYMBOLS)
    shown = subprocess.run(
        ["readelf", "-n", Path(torch.__file__).parent / "lib/libc10.so"],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    assert f"Build ID: {build.split()[1]}" in shown or not shown
    other = tmp_path / "other"
    for contents in (b"", b"\x7fELF", b"\x7fELF\2\1" + bytes(58), b"no library" * 20):
        other.write_bytes(contents)
        assert proofs._read_build_id(other) is None


@pytest.mark.full
@PROVED
@pytest.mark.subprocess
def test_a_version_that_is_otherwise_is_not_proved(
    run_python: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the child, or a promise that does not hold, is an answer, and nothing is kept."""
    monkeypatch.setenv("DLBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    children = {
        "aborting": ("import os; os.abort()", "status -6"),
        "ending": ("raise SystemExit('x')", "x"),
    }
    for name, (body, why) in children.items():
        (tmp_path / f"{name}.py").write_text(body)
        said = run_python(
            f"""
            import sys
            from dlbridge.errors import DLBridgeError
            from dlbridge.frameworks.torch import proving
            proving.__name__ = {name!r}
            sys.path.insert(0, {str(tmp_path)!r})
            try:
                proving.prove()
            except DLBridgeError as error:
                print(error)
            """,
            PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
        ).check()
        assert said.strip().endswith(f"is not proved: {why}")
        assert not list((tmp_path / "cache").glob("torch-*"))

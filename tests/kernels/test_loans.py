"""native.Forms and native.Loans: how bridged modules lend tensors of torch, in the core."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ArgumentError

torch = pytest.importorskip("torch")
internals = pytest.importorskip("dlbridge.frameworks.torch.internals")

pytestmark = pytest.mark.skipif(
    not (internals.guard_is_open() or internals.queries_are_open()),
    reason="the core does not read the tensors of this torch",
)


def tensors(*shapes):
    return tuple(torch.arange(float(np.prod(shape))).reshape(shape) for shape in shapes)


def recorded():
    """Return a function that returns its first argument times 2, and the list of its calls."""
    calls = []

    def function(*arrays):
        calls.append(arrays)
        return [arrays[0] * 2]

    return function, calls


# ---- forms ---------------------------------------------------------------------------------------


def test_forms_are_dtypes_and_shapes():
    given = tensors((2, 3), (), (0, 4))
    forms = native.Forms.of(given, ())
    assert forms.fit(given)
    assert forms.fit(tensors((2, 3), (), (0, 4)))
    assert forms.fit((torch.nn.Parameter(given[0]), *given[1:]))
    assert forms.fit((given[0].t().contiguous().t(), *given[1:]))  # strides are no part of it


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: (x,),
        lambda x, y: (x, y, y),
        lambda x, y: (y, x),
        lambda x, y: (x.t(), y),
        lambda x, y: (x.double(), y),
        lambda x, y: (x.view(torch.int32), y),
        lambda x, y: (x[None], y),
        lambda x, y: (x, 1.0),
        lambda x, y: (x, y.numpy()),
        lambda x, y: (x.to("meta"), y),
        lambda x, y: (torch.zeros(2, 3, dtype=torch.complex64).conj(), y),
        lambda x, y: (x.to_sparse(), y),
    ],
)
def test_other_tensors_are_of_other_forms(change):
    x, y = tensors((2, 3), (4,))
    assert not native.Forms.of((x, y), ()).fit(change(x, y))


def test_tensors_that_the_core_cannot_read_have_no_forms():
    class Special(torch.Tensor):
        pass

    (x,) = tensors((2, 3))
    for other in (x.as_subclass(Special), x.to("meta"), x.to_sparse(), x.numpy(), None):
        assert native.Forms.of((x, other), ()) is None


def test_forms_refuse_other_arguments():
    (x,) = tensors((2, 3))
    with pytest.raises(TypeError):
        native.Forms.of([x], ())
    with pytest.raises(TypeError):
        native.Forms.of((x,), ("a",))
    with pytest.raises(TypeError, match="fit: expected a tuple of tensors"):
        native.Forms.of((x,), ()).fit([x])


# ---- loans ---------------------------------------------------------------------------------------


def test_the_tensors_of_a_module_are_lent_once_and_others_in_each_call():
    loans, (own, x) = native.Loans("numpy", 1), tensors((2, 3), (4,))
    forms, (function, calls) = native.Forms.of((own, x), (0,)), recorded()
    for _ in range(2):
        (made,) = loans.call(function, forms, (own, x), ())
        torch.testing.assert_close(made, own * 2)
    (first, other), (again, another) = calls
    assert first is again
    assert other is not another
    assert first.ctypes.data == own.data_ptr()
    assert other.ctypes.data == another.ctypes.data == x.data_ptr()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.clone(),
        lambda x: x.t(),
        lambda x: x[:1].expand(3, 3),
        lambda x: x.repeat(2, 1)[1:4],
    ],
)
def test_a_tensor_that_is_elsewhere_is_lent_again(change):
    loans, own = native.Loans("numpy", 1), torch.nn.Parameter(tensors((3, 3))[0])
    forms, (function, calls) = native.Forms.of((own,), (0,)), recorded()
    loans.call(function, forms, (own,), ())
    own.data = change(own.data)
    (made,) = loans.call(function, forms, (own,), ())
    torch.testing.assert_close(made, own.detach() * 2)
    assert calls[0][0] is not calls[1][0]


def test_a_tensor_of_another_form_in_the_same_memory_is_lent_again():
    loans, function, calls = native.Loans("numpy", 1), *recorded()
    (own,) = tensors((2, 6))
    for each in (own, own.view(3, 4), own.view(12), own):
        (made,) = loans.call(function, native.Forms.of((each,), (0,)), (each,), ())
        torch.testing.assert_close(made, each * 2)
    assert [arrays[0].shape for arrays in calls] == [(2, 6), (3, 4), (12,), (2, 6)]


def test_a_loan_keeps_the_memory_until_its_tensor_is_found_elsewhere():
    memory = np.ones((3, 3), np.float32)
    loans, own = native.Loans("numpy", 1), torch.from_numpy(memory)
    forms, is_there = native.Forms.of((own,), (0,)), weakref.ref(memory)
    loans.call(lambda x: [x + 1], forms, (own,), ())
    del memory
    own.data = torch.zeros(3, 3)
    assert is_there() is not None
    loans.call(lambda x: [x + 1], forms, (own,), ())
    assert is_there() is None


def test_arguments_of_a_python_kernel_are_lent_in_each_call():
    """They are on loan themselves, and the kernel refuses what is kept of them."""
    loans, memory = native.Loans("numpy", 1), np.arange(3, dtype=np.float32)

    def double(x):
        (made,) = loans.call(lambda x: [x * 2], native.Forms.of((x,), (0,)), (x,), ())
        return made

    kernel = dlbridge.wrap(double, "loans::double(x: f32[n]) -> f32[n]", abi="python:torch")
    for _ in range(2):
        np.testing.assert_array_equal(kernel(memory), memory * 2)


def test_integers_are_lent_in_each_call():
    """A framework may have narrowed them."""
    loans, own = native.Loans("numpy", 1), torch.arange(3)
    forms, (function, calls) = native.Forms.of((own,), (0,)), recorded()
    for _ in range(2):
        loans.call(function, forms, (own,), ())
    assert calls[0][0] is not calls[1][0]


def test_tensors_of_other_forms_are_declined_before_anything_is_called():
    loans, (own, x) = native.Loans("numpy", 1), tensors((2, 3), (4,))
    forms, (function, calls) = native.Forms.of((own, x), (0,)), recorded()
    assert loans.call(function, forms, (own, x.double()), ()) is None
    assert loans.call(function, forms, (own,), ()) is None
    assert not calls


@pytest.mark.parametrize("count", [0, 1, 32, 33, 100])
def test_any_number_of_tensors_is_lent(count):
    given = tensors(*((2, 3),) * count)
    loans = native.Loans("numpy", count)
    forms = native.Forms.of(given, tuple(range(count)))
    made = loans.call(lambda *arrays: [x + 1 for x in arrays], forms, given, ())
    torch.testing.assert_close(made, [x + 1 for x in given])


def test_numpy_arrays_go_where_they_serve_and_are_aligned():
    pytest.importorskip("jax")
    whole = torch.zeros(64)
    start = -whole.data_ptr() % 64 // 4
    aligned, other = whole[start : start + 16], whole[start + 1 : start + 17]
    given = aligned, aligned, other, aligned
    kinds = []
    native.Loans("jax", 0).call(
        lambda *arrays: kinds.extend(map(type, arrays)) or [],
        native.Forms.of(given, ()),
        given,
        [True, True, True, False],
    )
    # The first says on which device to compute.
    assert [kind is np.ndarray for kind in kinds] == [False, True, False, False]


def test_errors_of_the_function_and_of_lending_are_raised():
    (x,) = tensors((2,))
    loans, forms = native.Loans("numpy", 0), native.Forms.of((x,), ())
    with pytest.raises(ZeroDivisionError):
        loans.call(lambda x: 1 / 0, forms, (x,), ())
    with pytest.raises(TypeError, match="results must be a sequence"):
        loans.call(lambda x: 1, forms, (x,), ())
    with pytest.raises(ArgumentError, match="nothing"):
        native.Loans("nothing", 0).call(lambda x: [x], forms, (x,), ())


def test_calls_refuse_other_arguments():
    (x,) = tensors((2,))
    loans, forms = native.Loans("numpy", 1), native.Forms.of((x,), ())
    for arguments in [
        (len, forms, (x,)),
        (len, None, (x,), ()),
        (len, forms, [x], ()),
        (len, forms, (x,), None),
        (len, native.Forms.of((x,), (1,)), (x,), ()),  # there is but one loan
    ]:
        with pytest.raises(TypeError, match="call: expected"):
            loans.call(*arguments)
    with pytest.raises(ValueError, match="count must be at least 0"):
        native.Loans("numpy", -1)

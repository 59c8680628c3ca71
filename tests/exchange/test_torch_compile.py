"""Exchanges inside of functions that torch.compile traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dlbridge


@pytest.fixture
def torch(framework: Any) -> Iterator[Any]:
    """Provide torch, its compiler empty before and after."""
    module = framework("torch")
    import torch._dynamo as dynamo

    dynamo.reset()
    yield module
    dynamo.reset()


IN_THE_GRAPH: dict[str, Callable[[Any], Any]] = {
    "to_numpy": lambda x: dlbridge.to_numpy(x) * 2,
    "convert to numpy": lambda x: dlbridge.convert(x, "numpy") * 2,
    "to_torch of an array": lambda x: dlbridge.to_torch(x.numpy() * 2, readonly="share"),
    "convert to torch": lambda x: dlbridge.convert(x.numpy() * 2, "torch", readonly="share"),
    "to_torch of an array that was computed": lambda x: dlbridge.to_torch(dlbridge.to_numpy(x) * 2),
    "to_torch of a view": lambda x: dlbridge.to_torch((x.numpy() * 2).reshape(3, 1)[:, 0]),
    "to_torch of a new array": lambda x: dlbridge.to_torch(np.arange(3.0) * 2) + x * 0,
    "convert of a tensor's array": lambda x: dlbridge.convert(x.numpy(), "torch") * 2,
    "to_torch of a tensor": lambda x: dlbridge.to_torch(x) * 2,
}


def needs_a_graph_with_exchanges(torch: Any) -> None:
    if torch.__version__ < (2, 13):
        pytest.skip(f"before 2.13 exchanges break graphs; this is torch {torch.__version__}")


@pytest.mark.parametrize("case", IN_THE_GRAPH)
def test_exchanges_of_numpy_and_torch_are_part_of_one_graph(torch: Any, case: str) -> None:
    needs_a_graph_with_exchanges(torch)
    x = torch.arange(3.0)
    compiled = torch.compile(IN_THE_GRAPH[case], backend="eager", fullgraph=True)
    np.testing.assert_array_equal(compiled(x), [0, 2, 4])


OUTSIDE = np.arange(3.0)


BETWEEN_GRAPHS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "to_jax": (lambda x: dlbridge.to_numpy(dlbridge.to_jax(x)), "to_jax"),
    "policy": (lambda x: dlbridge.to_numpy(x, copy=True), "to_numpy"),
    "array": (lambda x: dlbridge.to_torch(OUTSIDE), "to_torch"),
    "view of an array": (lambda x: dlbridge.to_torch(OUTSIDE[:]), "to_torch"),
    "convert": (lambda x: dlbridge.convert(x, "dlbridge"), "convert"),
    "convert with a policy": (lambda x: dlbridge.convert(x, "numpy", copy=True), "convert"),
    "from_dlpack": (lambda x: dlbridge.from_dlpack(x), "from_dlpack"),
    "as_tensor": (lambda x: dlbridge.as_tensor(x), "as_tensor"),
    "asarray": (lambda x: dlbridge.asarray(x), "asarray"),
    "convert_tree": (lambda x: dlbridge.convert_tree([x], "numpy")[0], "convert_tree"),
}


@pytest.mark.parametrize("case", BETWEEN_GRAPHS)
def test_other_exchanges_are_made_between_two_graphs(
    framework: Any, torch: Any, case: str, recwarn: pytest.WarningsRecorder
) -> None:
    framework("jax")
    function, name = BETWEEN_GRAPHS[case]
    x = torch.arange(3.0)
    np.testing.assert_array_equal(torch.compile(function, backend="eager")(x), [0, 1, 2])
    assert not [str(each.message) for each in recwarn if "Dynamo" in str(each.message)]
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        torch.compile(function, backend="eager", fullgraph=True)(x)
    text = str(caught.value)
    if torch.__version__ < (2, 13) and name.startswith("to_"):
        assert "Converter" in text  # its dynamo looks up no substitute of a method in C
        return
    if torch.__version__ < (2, 8):  # which takes no reason
        assert f"Skip calling function `<function {name} at" in text
        return
    assert f"reason: {name}: torch.compile has no memory to exchange" in text
    assert "dlbridge.wrap" in text
    assert "report an issue" not in text


def test_a_graph_that_ends_at_an_array_says_how_it_goes_on(torch: Any) -> None:
    needs_a_graph_with_exchanges(torch)

    def doubled(array: Any, **policies: Any) -> Any:
        return dlbridge.to_torch(array * 1, **policies) * 2

    def doubled_as_it_is(array: Any, **policies: Any) -> Any:
        return dlbridge.to_torch(array, **policies) * 2

    array = np.ones(3)
    for function in (doubled, doubled_as_it_is):
        with pytest.raises(RuntimeError) as caught:
            torch.compile(function, backend="eager", fullgraph=True)(array)
        assert 'pass readonly="share" with a NumPy array from outside' in str(caught.value)
        whole = torch.compile(function, backend="eager", fullgraph=True)(array, readonly="share")
        assert whole.tolist() == [2, 2, 2]


PROTECTED: dict[str, Callable[[Any], Any]] = {
    "broadcast_to": lambda x: np.broadcast_to(x.numpy(), (2, 3)),
    "a view of broadcast_to": lambda x: np.broadcast_to(x.numpy(), (2, 3))[1],
    "diagonal": lambda x: np.diagonal(np.outer(x.numpy(), x.numpy())),
}


@pytest.mark.parametrize("case", PROTECTED)
def test_an_array_that_numpy_protects_ends_the_graph(torch: Any, case: str) -> None:
    needs_a_graph_with_exchanges(torch)
    with pytest.raises(RuntimeError, match=r"to_torch: torch\.compile has no memory"):
        torch.compile(
            lambda x: dlbridge.to_torch(PROTECTED[case](x)), backend="eager", fullgraph=True
        )(torch.ones(3))


def test_a_tensor_that_requires_a_gradient_is_refused_between_two_graphs(torch: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(dlbridge.ExchangeError, match=r"^to_numpy: .*requires a gradient"):
        torch.compile(lambda x: dlbridge.to_numpy(x), backend="eager")(x)


def test_an_array_that_is_written_in_the_graph_is_the_callers(torch: Any) -> None:
    needs_a_graph_with_exchanges(torch)
    given = np.zeros(3)
    compiled = torch.compile(
        lambda x: dlbridge.to_torch(x, readonly="share").add_(1), backend="eager", fullgraph=True
    )
    compiled(given)
    np.testing.assert_array_equal(given, [1, 1, 1])


@pytest.mark.full
@pytest.mark.preloaded("torch")
def test_dlbridge_may_be_imported_after_dynamo(torch: Any, run_python: Any) -> None:
    """As in a program that imports a library of models first."""
    needs_a_graph_with_exchanges(torch)
    run_python(
        """
        import numpy as np, torch, torch._dynamo, torch.utils.data
        import dlbridge

        double = torch.compile(
            lambda x: dlbridge.to_numpy(x) * 2, backend="eager", fullgraph=True
        )
        assert double(torch.ones(3)).tolist() == [2, 2, 2]
        """
    ).check()


@pytest.mark.parametrize("call", [dlbridge.to_numpy, dlbridge.to_jax, dlbridge.from_dlpack])
def test_a_trace_that_keeps_values_as_constants_warns(
    torch: Any, framework: Any, call: Any
) -> None:
    """As `x.numpy()` does there."""
    if call is dlbridge.to_jax:
        framework("jax")
    with pytest.warns(torch.jit.TracerWarning, match=f"{call.__name__}: torch.jit.trace cannot"):
        torch.jit.trace(lambda x: (call(x), x + 1)[1], torch.ones(3))

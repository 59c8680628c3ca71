"""Modules of torch in JAX: values, gradients and buffers are those of the module in torch."""

from __future__ import annotations

import math
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import ClassVar

import numpy as np
import pytest

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ArgumentError, ExchangeError, KernelError, UnsupportedTypeError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
functions = pytest.importorskip("dlbridge.frameworks.jax.functions")
jax_checks = pytest.importorskip("dlbridge.testing.jax_checks")
nn = torch.nn

X = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)


def perceptron(*further):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *further, nn.Tanh(), nn.Linear(8, 3))


def close(one, other, tolerance=1e-5):
    np.testing.assert_allclose(
        np.asarray(one), other.detach().numpy(), rtol=tolerance, atol=tolerance
    )


def loss_of(function, params):
    return lambda own, x: (function({**params, "params": own}, x) ** 2).sum()


def check_gradients(module, gradients, x=X):
    module.zero_grad()
    (module(torch.from_numpy(x)) ** 2).sum().backward()
    assert gradients.keys() == dict(module.named_parameters()).keys()
    for name, parameter in module.named_parameters():
        close(gradients[name], parameter.grad, 1e-4)


@pytest.mark.parametrize("prepare", [lambda f: f, jax.jit])
def test_values_and_gradients_are_those_of_the_module(prepare):
    module = perceptron()
    function, params = dlbridge.bridge(module, to="jax")
    close(prepare(function)(params, X), module(torch.from_numpy(X)))
    gradients = prepare(jax.grad(loss_of(function, params)))(params["params"], X)
    check_gradients(module, gradients)


def test_parameters_and_buffers_share_the_memory_of_the_module():
    module = perceptron(nn.BatchNorm1d(8))
    _, params = dlbridge.bridge(module, to="jax")
    for part, tensors in (
        ("params", dict(module.named_parameters())),
        ("buffers", {"1.running_mean": module[1].running_mean}),
    ):
        for name, tensor in tensors.items():
            assert params[part][name].unsafe_buffer_pointer() == tensor.data_ptr()


SEEN = []


class Address(nn.Module):
    """Writes down where its tensors are, other than fake ones."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x):
        if type(x) is torch.Tensor:
            SEEN[:] = [self.weight.data_ptr(), x.data_ptr()]
        return x * self.weight


def test_autograph_leaves_a_bridged_function_alone():
    """Rewriting what it calls would take seconds."""
    tf = pytest.importorskip("tensorflow")
    rewritten = []

    class Frames(nn.Module):
        def forward(self, x):
            files = [frame.filename for frame in traceback.extract_stack()]
            rewritten.append([each for each in files if "__autograph_generated_file" in each])
            return x

    function, params = dlbridge.bridge(Frames(), to="jax")

    @tf.function
    def graph():
        function(params, X)

    graph()
    assert rewritten
    assert {len(each) for each in rewritten} == {1}  # that of `graph` itself


def test_arguments_are_in_the_memory_of_jax_during_a_call():
    function, params = dlbridge.bridge(Address(), to="jax")
    x = jnp.ones(64)
    arrays = [params["params"]["weight"], x]
    jax.block_until_ready(jax.jit(function)(params, x))
    expected = [each.unsafe_buffer_pointer() for each in arrays]
    assert expected == SEEN


def test_each_of_many_tensors_is_in_the_memory_of_jax():
    module = nn.Sequential(*[Address() for _ in range(40)])
    seen = []

    def note(part, arguments, _):
        if type(arguments[0]) is torch.Tensor:  # no fake one
            seen.append(part.weight.data_ptr())

    for part in module:
        part.register_forward_hook(note)
    function, params = dlbridge.bridge(module, to="jax")
    jax.block_until_ready(jax.jit(function)(params, jnp.ones(64)))
    assert seen == [each.unsafe_buffer_pointer() for each in params["params"].values()]


def third_derivative(grad, function):
    for _ in range(3):
        function = slope_of(grad, function)
    return function


def slope_of(grad, function):
    return grad(lambda x: (function(x) ** 2).sum())


@pytest.mark.parametrize("alone", [None, 3])
def test_a_module_of_many_tensors_has_derivatives_of_any_order(alone, monkeypatch):
    """Also one of so many that the smaller ones travel together."""
    if alone is not None:
        monkeypatch.setattr(functions, "_ALONE", alone)
    torch.manual_seed(0)
    module = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(9)])
    with torch.no_grad():
        for each in module.parameters():
            each.mul_(2.5)  # so that derivatives do not vanish
    function, params = dlbridge.bridge(module, to="jax", batch="batched")
    found = jax.vmap(jax.hessian(lambda x: (function(params, x) ** 2).sum()))(X)
    x = torch.from_numpy(X.copy())
    expected = torch.func.vmap(torch.func.hessian(lambda x: (module(x) ** 2).sum()))(x)
    assert expected.abs().max() > 0.05
    close(found, expected, 1e-4)
    gradients = jax.grad(loss_of(function, params))(params["params"], X)
    check_gradients(module, gradients)
    if alone is None:
        expected = third_derivative(torch.func.grad, module)(x)
        assert expected.abs().max() > 0.05
        close(third_derivative(jax.grad, lambda x: function(params, x))(X), expected, 1e-4)


@pytest.mark.full
def test_a_module_of_many_tensors_has_the_same_values_and_gradients():
    module = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)) for _ in range(20)])
    function, params = dlbridge.bridge(module, to="jax", mutable=True)

    def loss(own):
        outcome, buffers = function({**params, "params": own}, X)
        return (outcome**2).sum(), buffers

    before = {name: np.array(each) for name, each in params["buffers"].items()}
    gradients, buffers = jax.jit(jax.grad(loss, has_aux=True))(params["params"])
    for name, each in params["buffers"].items():
        np.testing.assert_array_equal(each, before[name])
    check_gradients(module, gradients)  # calls it, which changes its buffers likewise
    for name, tensor in module.named_buffers():
        close(buffers[name], tensor)


@pytest.mark.parametrize("batch", ["sequential", "batched"])
def test_vmap_gives_the_values_and_gradients_of_each_example(batch):
    module = perceptron()
    function, params = dlbridge.bridge(module, to="jax", batch=batch)
    several = np.stack([X, 2 * X, X - 1])
    found = jax.vmap(function, (None, 0))(params, several)
    gradient = jax.grad(loss_of(function, params))
    gradients = jax.vmap(gradient, (None, 0))(params["params"], several)
    for number, x in enumerate(several):
        close(found[number], module(torch.from_numpy(x)))
        check_gradients(module, {name: each[number] for name, each in gradients.items()}, x)


def test_second_derivatives_are_those_of_torch():
    module = perceptron()
    function, params = dlbridge.bridge(module, to="jax")
    slope = jax.grad(lambda x: function(params, x).sum())
    found = jax.grad(lambda x: (slope(x) ** 2).sum())(X)
    x = torch.from_numpy(X.copy()).requires_grad_()
    (first,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), x)
    close(found, second, 1e-4)


def test_buffers_go_through_a_scan_and_the_module_keeps_its_own():
    module = perceptron(nn.BatchNorm1d(8)).train()
    function, params = dlbridge.bridge(module, to="jax", mutable=True)

    def step(buffers, x):
        outcome, buffers = function({**params, "buffers": buffers}, x)
        return buffers, outcome

    several = np.stack([X, 2 * X, X - 1])
    buffers, found = jax.jit(lambda: jax.lax.scan(step, params["buffers"], several))()
    assert int(module[1].num_batches_tracked) == 0
    for number, x in enumerate(several):
        close(found[number], module(torch.from_numpy(x)))
    for name, tensor in module.named_buffers():
        close(buffers[name], tensor)


def test_the_mode_is_that_of_the_call_of_bridge():
    module = perceptron(nn.BatchNorm1d(8)).eval()
    function, params = dlbridge.bridge(module, to="jax")
    expected = module(torch.from_numpy(X))
    module.train()
    close(function(params, X), expected)


def test_a_call_that_changes_a_buffer_needs_mutable():
    function, params = dlbridge.bridge(perceptron(nn.BatchNorm1d(8)), to="jax")
    with pytest.raises(ArgumentError, match=r"changes the buffer '1\.\w+'.*mutable=True"):
        function(params, X)


def test_buffers_have_zero_gradients():
    module = perceptron(nn.BatchNorm1d(8)).eval()
    function, params = dlbridge.bridge(module, to="jax")
    floating = {
        name: array
        for name, array in params["buffers"].items()
        if jnp.issubdtype(array.dtype, jnp.floating)
    }

    def loss(buffers):
        return function({**params, "buffers": {**params["buffers"], **buffers}}, X).sum()

    gradients = jax.grad(loss)(floating)
    assert {name: array.shape for name, array in gradients.items()} == {
        "1.running_mean": (8,),
        "1.running_var": (8,),
    }
    assert not any(map(np.any, gradients.values()))
    shifted = {**floating, "1.running_mean": floating["1.running_mean"] + 1}
    assert loss(shifted) != loss(floating)


GLOBAL = torch.zeros(6)
WRITES = {
    "attribute": ("its attribute 'plain', float32[6]", lambda own, x: own.plain.add_(1)),
    "view": ("its attribute 'plain', float32[6]", lambda own, x: own.plain[:2].fill_(1)),
    "element": ("its attribute 'plain'", lambda own, x: own.plain.__setitem__(0, x.sum())),
    "detached": ("its attribute 'plain'", lambda own, x: own.plain.detach().add_(1)),
    "out": ("its attribute 'plain'", lambda own, x: torch.add(x[0], 1, out=own.plain)),
    "list": ("its attribute 'listed'", lambda own, x: own.listed[1].copy_(x[0])),
    "part": ("its attribute 'part.seen'", lambda own, x: own.part.seen.copy_(x[0])),
    "global": ("a tensor that it refers to", lambda own, x: GLOBAL.add_(x[0])),
}
KEEPS = {
    "replaced": lambda own, x: setattr(own, "plain", own.plain + 1),
    "of its own": lambda own, x: torch.empty(6).copy_(own.plain).add_(1),
    "of NumPy": lambda own, x: torch.from_numpy(np.zeros(6, "f4"))[:2].add_(1),
    "a constant": lambda own, x: torch.tensor([1.0, 2.0])[:1].add_(1),
    "read": lambda own, x: (own.plain.view(6) + own.listed[0].reshape(2, 3).ravel()).add_(1),
}


class Writer(nn.Module):
    """Does something to a tensor beside its parameters and buffers."""

    def __init__(self, act):
        super().__init__()
        self.part = nn.Linear(6, 6)
        self.part.seen = torch.zeros(6)
        self.plain, self.listed = torch.zeros(6), [torch.zeros(6), torch.zeros(6)]
        self.act = act

    def forward(self, x):
        self.act(self, x)
        return self.part(x) + self.plain + self.part.seen


@pytest.mark.parametrize("write", WRITES)
def test_a_module_that_writes_what_is_no_buffer_is_refused(write):
    """Before it is called: nothing was written. A buffer is what it needs."""
    named, act = WRITES[write]
    module = Writer(act)
    function, params = dlbridge.bridge(module, to="jax")
    for call in (function, jax.jit(function), jax.grad(lambda *args: function(*args).sum(), 1)):
        with pytest.raises(ArgumentError, match="which is neither a parameter nor a") as caught:
            call(params, X)
        assert f"Writer: the call writes into {named}" in str(caught.value)
    assert not any(map(torch.any, (GLOBAL, module.plain, module.part.seen, *module.listed)))


@pytest.mark.parametrize("keep", KEEPS)
def test_a_module_may_write_what_ends_with_the_call(keep):
    module = Writer(KEEPS[keep])
    function, params = dlbridge.bridge(module, to="jax")
    expected = Writer(lambda own, x: None)
    expected.load_state_dict(module.state_dict())
    expected.plain += keep == "replaced"
    for call in (function, function, jax.jit(function)):
        close(call(params, X), expected(torch.from_numpy(X)))
    assert not module.plain.any()


def test_dropout_follows_the_key_in_values_and_gradients():
    module = perceptron(nn.Dropout(0.5)).train()
    function, params = dlbridge.bridge(module, to="jax")
    key = jax.random.key(3)
    seed = int(jax.random.bits(key, dtype="uint32"))
    state = torch.get_rng_state()
    found = jax.jit(function)(params, X, rng=key)
    gradients = jax.grad(lambda own: (function({**params, "params": own}, X, rng=key) ** 2).sum())(
        params["params"]
    )
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(seed)
    close(found, module(torch.from_numpy(X)))
    torch.manual_seed(seed)
    check_gradients(module, gradients)
    assert not np.allclose(found, function(params, X, rng=jax.random.key(4)))
    with pytest.raises(ArgumentError, match="draws random numbers; pass rng="):
        function(params, X)
    mean, _ = dlbridge.bridge(module.eval(), to="jax")
    close(mean(params, X), module(torch.from_numpy(X)))


class Tied(nn.Module):
    """A language model whose embedding and output share their weight."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Embedding(10, 4)
        self.outer = nn.Linear(4, 10, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, tokens, *, scale=1.0):
        logits = self.outer(self.inner(tokens)) * scale
        return {"logits": logits, "best": logits.argmax(-1)}


def test_a_shared_parameter_is_one_and_a_dict_of_results_is_a_dict():
    module = Tied()
    function, params = dlbridge.bridge(module, to="jax")
    assert list(params["params"]) == ["inner.weight"]
    tokens = np.array([1, 2, 2], np.int32)

    def loss(own):
        found = function({**params, "params": own}, tokens, scale=2.0)
        return (found["logits"] ** 2).sum(), found["best"]

    gradients, best = jax.grad(loss, has_aux=True)(params["params"])
    expected = module(torch.from_numpy(tokens), scale=2.0)
    (expected["logits"] ** 2).sum().backward()
    close(gradients["inner.weight"], module.inner.weight.grad, 1e-4)
    assert np.array_equal(best, expected["best"].numpy())


def test_a_module_that_works_in_place_changes_no_array_of_jax():
    function, params = dlbridge.bridge(nn.ReLU(inplace=True), to="jax")
    x = jnp.asarray([-1.0, 2.0])
    assert np.array_equal(jax.jit(function)(params, x), [0, 2])
    assert np.array_equal(x, [-1, 2])
    assert np.array_equal(jax.grad(lambda x: function(params, x).sum())(x), [0, 1])


def test_a_recurrent_module_returns_its_nested_results():
    module = nn.LSTM(6, 4)
    function, params = dlbridge.bridge(module, to="jax")
    found, (hidden, cell) = jax.jit(function)(params, X)
    expected, (h, c) = module(torch.from_numpy(X))
    close(found, expected)
    close(hidden, h)
    close(cell, c)


class Positive(nn.Module):
    def forward(self, x):
        return x[x > 0]


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize("kind", [Positive, Branch])
def test_a_module_that_looks_at_values_is_refused_by_name(kind):
    function, params = dlbridge.bridge(kind(), to="jax")
    with pytest.raises(ArgumentError, match=rf"^{kind.__name__}: .* depend on values \(aten\."):
        function(params, X)


@pytest.mark.parametrize(
    ("module", "platforms"), [(nn.Tanh(), {"cpu", "cuda"}), (nn.Linear(6, 6), {"cpu"})]
)
def test_a_module_runs_where_its_tensors_are_and_one_without_any_on_every_device(
    module, platforms, monkeypatch
):
    kernels = []

    def draft(*args, **options):
        kernels.append(made_by(*args, **options))
        return kernels[-1]

    functions = pytest.importorskip("dlbridge.frameworks.jax.functions")
    made_by = functions.draft
    monkeypatch.setattr(functions, "draft", draft)
    function, params = dlbridge.bridge(module, to="jax")
    found = jax.jit(jax.grad(lambda x: (function(params, x) ** 2).sum()))(X)
    x = torch.from_numpy(X).requires_grad_()
    (module(x) ** 2).sum().backward()
    close(found, x.grad)
    assert len(kernels) == 2  # and that of the derivative
    for kernel in kernels:
        assert set(kernel.functions) == platforms


def test_a_transformer_and_a_normalised_convolution_have_the_values_of_torch():
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    images = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.MaxPool2d(2))
    for module, shape in ((encoder, (2, 3, 8)), (images, (2, 3, 8, 8))):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        function, params = dlbridge.bridge(module, to="jax", mutable=True)
        found, buffers = jax.jit(function)(params, x)
        close(found, module(torch.from_numpy(x)))
        for name, tensor in module.named_buffers():
            close(buffers[name], tensor)


def test_unsupported_modules_are_refused_with_advice():
    module = perceptron()
    function, params = dlbridge.bridge(module, to="jax")
    with pytest.raises(UnsupportedTypeError, match=r"must be a torch\.nn\.Module, .*wrap"):
        dlbridge.bridge(np.sin, to="jax")
    with pytest.raises(ArgumentError, match="goes to 'jax', got to='numpy'"):
        dlbridge.bridge(module, to="numpy")
    with pytest.raises(
        ArgumentError, match=r"a function of JAX to 'torch', .* got to='tensorflow'"
    ):
        dlbridge.bridge(np.sin, to="tensorflow")
    with pytest.raises(ArgumentError, match="batch must be 'sequential' or 'batched'"):
        dlbridge.bridge(module, to="jax", batch="broadcast")
    with pytest.raises(ArgumentError, match="no shape yet; call the module once"):
        dlbridge.bridge(nn.LazyLinear(3), to="jax")
    scripted = torch.jit.script(nn.Linear(2, 2))
    for compiled, where in (
        (scripted, "this RecursiveScriptModule"),
        (nn.Sequential(scripted), "'0'"),
    ):
        with pytest.raises(ArgumentError, match=rf"bridge: {where} .*is compiled by torch\.jit"):
            dlbridge.bridge(compiled, to="jax")
    with pytest.raises(ArgumentError, match="there is no dict 'params'"):
        function(params["params"], X)
    for forgotten in (X, jnp.asarray(X), torch.from_numpy(X), None):
        with pytest.raises(ArgumentError, match="there is no dict 'params'"):
            function(forgotten)
    fewer = {name: each for name, each in params["params"].items() if name != "0.bias"}
    with pytest.raises(ArgumentError, match=r"'params' lacks '0\.bias'"):
        function({**params, "params": fewer}, X)
    other = params["params"] | {"0.bias": jnp.zeros(3)}
    with pytest.raises(ArgumentError, match=r"must be an array of shape \[8\], got \[3\]"):
        function({**params, "params": other}, X)
    with pytest.raises(ExchangeError, match="float64"):
        dlbridge.bridge(nn.Linear(2, 2).double(), to="jax")


def test_forward_derivatives_are_those_of_torch():
    """By the transpose of the module's backward pass."""
    module = perceptron()
    function, params = dlbridge.bridge(module, to="jax")
    x = torch.tensor(np.asarray(X))
    moving = torch.full_like(x, 0.5)
    wanted, tangent = torch.func.jvp(module, (x,), (moving,))
    got = jax.jvp(lambda x: function(params, x), (X,), (jnp.full_like(X, 0.5),))
    np.testing.assert_allclose(got[0], wanted.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], tangent.detach(), rtol=1e-5, atol=1e-6)


class Cube(torch.autograd.Function):
    """With `ctx` in `forward`, as torch.func does not take it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


def test_a_module_may_use_an_autograd_function_that_torch_func_refuses():
    class Cubes(nn.Module):
        def forward(self, x, y):
            return Cube.apply(x) * y, torch.ones_like(x)

    function, params = dlbridge.bridge(Cubes(), to="jax")

    def loss(x):
        first, second = function(params, x, x)  # one array at two places
        return (first * second).sum()

    x = jnp.asarray(X)
    close(jax.grad(loss)(x), torch.from_numpy(4 * X**3), 1e-4)
    close(jax.grad(lambda x: jax.grad(loss)(x).sum())(x), torch.from_numpy(12 * X**2), 1e-4)


class Scaled(torch.autograd.Function):
    """x * weight; it notes which gradients are asked for."""

    asked: ClassVar[list[tuple[bool, ...]]] = []

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, cotangent):
        Scaled.asked.append(ctx.needs_input_grad)
        x, weight = ctx.saved_tensors
        return cotangent * weight, (cotangent * x).sum(0)


@pytest.mark.parametrize("prepare", [lambda f: f, jax.jit])
def test_only_gradients_that_are_asked_for_are_computed(prepare):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.arange(6.0))

        def forward(self, x):
            return Scaled.apply(x, self.weight) ** 2

    function, params = dlbridge.bridge(Scale(), to="jax")
    weight, x = params["params"]["weight"], jnp.asarray(X)

    def loss(x, weight):
        return function({"params": {"weight": weight}, "buffers": {}}, x).sum()

    expected = 2 * X * np.arange(6.0) ** 2, (2 * X**2 * np.arange(6.0)).sum(0)
    for places, needs in (((0,), (True, False)), ((1,), (False, True)), ((0, 1), (True, True))):
        Scaled.asked.clear()
        found = prepare(jax.grad(loss, places))(x, weight)
        jax.block_until_ready(found)
        assert Scaled.asked == [needs]
        for place, each in zip(places, found, strict=True):
            np.testing.assert_allclose(each, expected[place], rtol=1e-5)
    # of a second derivative too: by one argument, then by the other
    mixed = prepare(jax.grad(lambda weight: jax.grad(loss)(x, weight).sum()))(weight)
    np.testing.assert_allclose(mixed, 4 * X.sum(0) * np.arange(6.0), rtol=1e-4, atol=1e-5)
    pushed = prepare(lambda x: jax.jvp(lambda x: loss(x, weight), (x,), (x,)))(x)[1]
    np.testing.assert_allclose(pushed, (expected[0] * X).sum(), rtol=1e-5)


def test_a_module_with_checkpoints_has_derivatives_in_inference_mode():
    """`torch.utils.checkpoint` needs hooks of saved tensors, which torch.func refuses."""

    class Checkpointed(nn.Linear):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False).tanh()

    function, params = dlbridge.bridge(Checkpointed(6, 3), to="jax")
    slope = jax.grad(lambda x: (function(params, x) ** 2).sum())
    twice = jax.grad(lambda x: (slope(x) ** 2).sum())
    x = jnp.asarray(X)
    expected = slope(x), twice(x)
    with torch.inference_mode():
        for found, other in zip((slope(x), twice(x)), expected, strict=True):
            np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-6)
    # The backward pass computes again with the parameters of the call, not with those of `module`.
    plain, _ = dlbridge.bridge(nn.Sequential(nn.Linear(6, 3), nn.Tanh()), to="jax")
    weight, bias = (2 * params["params"][name] for name in ("weight", "bias"))
    other = {"params": {"0.weight": weight, "0.bias": bias}, "buffers": {}}
    params = {"params": {"weight": weight, "bias": bias}, "buffers": {}}
    wanted_slope = jax.grad(lambda x: (plain(other, x) ** 2).sum())
    np.testing.assert_allclose(slope(x), wanted_slope(x), rtol=1e-5, atol=1e-6)
    wanted_twice = jax.grad(lambda x: (wanted_slope(x) ** 2).sum())
    np.testing.assert_allclose(twice(x), wanted_twice(x), rtol=1e-5, atol=1e-6)


def test_a_module_may_keep_results_of_an_earlier_call():
    """As torch.nn.utils.weight_norm does."""

    class Keeping(nn.Linear):
        def forward(self, x):
            self.kept = super().forward(x)
            return self.kept.tanh()

    for module in (Keeping(6, 3), nn.utils.weight_norm(nn.Linear(6, 3))):
        expected = module(torch.from_numpy(X))
        function, params = dlbridge.bridge(module, to="jax")
        close(function(params, X), expected)
        check_gradients(module, jax.grad(loss_of(function, params))(params["params"], X))


class Mean(nn.Module):
    """It replaces its buffer, where others write into theirs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x, other=None):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0) if other is None else other(self.mean)
        return x - self.mean if other is None else x


def test_a_buffer_that_a_module_replaces_is_returned():
    module = Mean()
    function, params = dlbridge.bridge(module, to="jax", mutable=True)
    buffers = params["buffers"]
    for call in (function, function, jax.jit(function)):
        found, buffers = call({**params, "buffers": buffers}, X)
        close(found, module(torch.from_numpy(X)))
        close(buffers["mean"], module.mean)
    assert np.array_equal(function(params, X, lambda mean: mean)[1]["mean"], np.zeros(6))
    with pytest.raises(ArgumentError, match=r"shape \[6\] in the buffer 'mean', and .* \[3\]"):
        function(params, X, lambda mean: mean[:3])
    with pytest.raises(ArgumentError, match=r"the buffer 'mean', and leaves None"):
        function(params, X, lambda mean: None)
    pure, params = dlbridge.bridge(Mean(), to="jax")
    with pytest.raises(ArgumentError, match="changes the buffer 'mean'"):
        pure(params, X)


class Caching(nn.Module):
    """It has a tensor that is not a buffer, and keeps others at several kinds of places."""

    def __init__(self):
        super().__init__()
        self.register_buffer("angles", None)
        self.by_length = {}
        self.steps = None
        self.mask = torch.tensor([1.0, 0, 1, 1, 0, 1])

    def forward(self, x):
        if self.angles is None:
            self.angles = torch.arange(6.0)
            self.register_buffer("more", torch.ones(1), persistent=False)
            self.part = nn.Identity()
        if len(x) not in self.by_length:
            self.by_length[len(x)] = torch.arange(float(len(x)))[:, None]
        if self.steps is None:
            self.steps = torch.ones(6)
        return self.part(x * self.angles) * self.mask + self.by_length[len(x)] * self.steps


def test_a_module_may_keep_tensors_that_are_not_registered():
    module = Caching()
    function, params = dlbridge.bridge(module, to="jax")
    slope = jax.grad(lambda x: function(params, x).sum())
    for x in (X, X, X[:2]):
        close(function(params, x), Caching()(torch.from_numpy(x)))
        close(slope(x), (torch.arange(6.0) * module.mask).expand(len(x), 6))
    assert module.angles is None


class Restless(nn.Linear):
    """It writes, replaces and deletes attributes of its own, and may fail then."""

    errors: ClassVar[list[BaseException]] = []

    def __init__(self):
        super().__init__(6, 3)
        self.part = nn.Identity()
        self.count, self.scale = 0, 2.0

    def forward(self, x):
        assert (self.count, [*vars(self)][-1], self._buffers) == (0, "scale", {})
        found = super().forward(self.part(x)) * self.scale
        self.count += 1
        del self.scale, self.part
        self._buffers = {"more": torch.ones(1)}
        object.__setattr__(self, "__dict__", {**vars(self), "new": x})
        if self.errors:
            raise self.errors.pop()
        return found


@pytest.mark.parametrize("prepare", [lambda f: f, jax.jit])
def test_a_module_is_in_each_call_as_it_was_bridged_whatever_it_writes_to_itself(prepare):
    module = Restless()
    expected = module.scale * nn.functional.linear(torch.ones(6), module.weight, module.bias)
    function, params = dlbridge.bridge(module, to="jax")
    function, x = prepare(function), jnp.ones(6)
    close(function(params, x), expected)
    for error in (LookupError("first"), KeyboardInterrupt("second")):
        Restless.errors = [error]
        with pytest.raises((type(error), RuntimeError, ValueError), match=str(error)):
            jax.block_until_ready(function(params, x))
        close(function(params, x), expected)
    assert module.scale == 2.0


def test_an_eager_call_gives_what_a_compiled_one_gives_and_raises_what_the_module_raises():
    module = perceptron()
    function, params = dlbridge.bridge(module, to="jax")
    x = jnp.asarray(X)
    for each in (x, x[:0], x.astype("bfloat16").astype("float32")):
        made, compiled = function(params, each), jax.jit(function)(params, each)
        np.testing.assert_array_equal(made, compiled)
        assert (made.dtype, made.sharding) == (compiled.dtype, compiled.sharding)
        assert made.committed == compiled.committed
        assert made.weak_type == compiled.weak_type
    for error in (LookupError("first"), KeyboardInterrupt("second")):
        failing, params = dlbridge.bridge(Restless(), to="jax")
        failing(params, jnp.ones(6))
        Restless.errors = [error]
        with pytest.raises(type(error)) as caught:
            failing(params, jnp.ones(6))
        assert caught.value is error


def test_eager_calls_of_several_forms_take_turns():
    """One that is like the last call but for shapes, dtypes or modes is a call of its own."""

    class Sum(nn.Linear):
        def forward(self, x, y=None, *, scale=1):
            return super().forward(x.to(self.weight.dtype) if y is None else x + y) * scale

    module = Sum(6, 3)
    function, params = dlbridge.bridge(module, to="jax")
    double = jax.tree.map(lambda each: 2 * each, params)
    x = torch.from_numpy(X)
    for _ in range(3):
        for rows in (5, 1, 0):
            close(function(params, jnp.asarray(X[:rows])), module(x[:rows]))
        close(function(params, jnp.asarray(X[0])), module(x[0]))
        close(function(double, jnp.asarray(X)), 2 * module(x))
        close(function(params, jnp.asarray(X), jnp.asarray(X[0])), module(x, x[0]))
        close(function(params, jnp.asarray(X), y=jnp.asarray(X)), module(x, y=x))
        close(function(params, jnp.asarray(X), scale=3), module(x, scale=3))
        close(function(params, jnp.arange(6)), module(torch.arange(6)))
        with torch.autocast("cpu", torch.bfloat16):
            made = function(params, jnp.asarray(X))
        assert made.dtype == "bfloat16"
        assert function(params, jnp.asarray(X)).dtype == "float32"


def test_a_result_that_is_an_argument_or_a_parameter_has_memory_of_its_own():
    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16))
            self.kept = torch.ones(16)

        def forward(self, x):
            return x, x.view(2, 8)[1], self.weight, self.kept

    function, params = dlbridge.bridge(Same(), to="jax")
    x = jnp.arange(16.0)
    made = function(params, x)
    arrays = (x, params["params"]["weight"], *made, *function(params, x))
    assert len({each.unsafe_buffer_pointer() for each in arrays}) == len(arrays)
    for each in made:
        each.delete()
    again = function(params, x)
    expected = (np.arange(16.0), np.arange(8.0, 16), np.ones(16), np.ones(16))
    for one, other in zip(again, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("prepare", [lambda f: f, jax.jit])
def test_arguments_that_a_module_returns_are_given_back_at_once(prepare, monkeypatch):
    """A search for cycles, if something still held them, takes longer than most modules."""

    class Both(nn.Linear):
        def forward(self, x):
            return super().forward(x), x, self.weight[0]

    def collect():
        raise AssertionError("something holds an argument")

    function, params = dlbridge.bridge(Both(6, 3), to="jax")
    params = jax.device_put(params, jax.devices()[0])
    function = prepare(function)
    close(function(params, X)[1], torch.from_numpy(X))
    monkeypatch.setattr("dlbridge.kernels.kinds.python_kernel.gc.collect", collect)
    close(function(params, X)[1], torch.from_numpy(X))


def test_arrays_may_be_donated_after_a_call_and_are_refused_then():
    function, params = dlbridge.bridge(perceptron(), to="jax")
    own = jax.tree.map(jnp.copy, params["params"])
    function({"params": own, "buffers": {}}, jnp.asarray(X))
    places = {name: each.unsafe_buffer_pointer() for name, each in own.items()}
    step = jax.jit(lambda tree: jax.tree.map(lambda each: each + 1, tree), donate_argnums=0)
    new = step(own)
    assert {name: each.unsafe_buffer_pointer() for name, each in new.items()} == places
    for tree in (own, {**new, "0.bias": own["0.bias"]}):
        with pytest.raises(ExchangeError, match="was deleted or donated"):
            function({"params": tree, "buffers": {}}, jnp.asarray(X))
    made = function({"params": new, "buffers": {}}, jnp.asarray(X))
    expected = np.array(made) + 1
    np.testing.assert_array_equal(step(made), expected)
    assert made.is_deleted()


def test_a_module_that_keeps_an_argument_is_refused_in_an_eager_call_too():
    kept = []

    class Keeping(nn.Linear):
        def forward(self, x):
            if type(x) is torch.Tensor:
                kept.append(x[1:])
            return super().forward(x)

    function, params = dlbridge.bridge(Keeping(6, 3), to="jax")
    with pytest.raises(KernelError, match="kept"):
        function(params, jnp.asarray(X))
    np.testing.assert_array_equal(kept[0], X[1:])


def test_an_eager_call_minds_the_settings_of_jax():
    function, params = dlbridge.bridge(Restless(), to="jax")
    x = jnp.full(6, jnp.nan)
    assert np.isnan(function(params, x)).all()
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        function(params, x)
    with jax.transfer_guard("disallow"), jax.disable_jit():
        assert np.isnan(function(params, x)).all()
    text = str(jax.make_jaxpr(lambda: function(params, x))())
    assert "ffi_call" in text  # it is part of the trace around it, whose values it has
    with jax.ensure_compile_time_eval():
        assert np.isnan(function(params, x)).all()


def test_an_eager_call_may_call_jax_and_another_bridged_module():
    inner, weights = dlbridge.bridge(nn.Linear(3, 3), to="jax")

    class Outer(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            if type(y) is torch.Tensor:
                assert not native.inside_xla()
                y = dlbridge.to_torch(inner(weights, dlbridge.to_jax(y.clone())))
            return y

    function, params = dlbridge.bridge(Outer(6, 3), to="jax")
    x = jnp.asarray(X)
    expected = inner(weights, x @ params["params"]["weight"].T + params["params"]["bias"])
    np.testing.assert_allclose(function(params, x), expected, rtol=1e-5, atol=1e-5)


def test_a_module_may_have_a_bridged_function_of_jax_as_a_part():
    """Its tensors are those of the call, which that part must not keep."""
    scale = dlbridge.bridge(
        lambda params, x: jnp.sin(x) * params["w"], "torch", params={"w": jnp.full(3, 2.0)}
    )
    function, params = dlbridge.bridge(nn.Sequential(scale, nn.Tanh()), to="jax")
    params = jax.device_put(params, jax.devices()[0])  # an eager call is direct
    for factor in (1, 2):
        here = jax.tree.map(lambda each, factor=factor: each * factor, params)
        x = jnp.arange(3.0) * factor
        expected = jnp.tanh(jnp.sin(x) * 2 * factor)
        for call in (function, function, jax.jit(function)):
            np.testing.assert_allclose(call(here, x), expected, rtol=1e-5)


def test_eager_calls_of_many_threads_have_their_own_arguments():
    function, params = dlbridge.bridge(perceptron(), to="jax")
    inputs = [jnp.asarray(X + number) for number in range(8)]
    expected = [np.asarray(jax.jit(function)(params, x)) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            for made, other in zip(
                pool.map(partial(function, params), inputs), expected, strict=True
            ):
                np.testing.assert_allclose(made, other, rtol=1e-6)


class Attention(nn.Module):
    def forward(self, x):
        dropout = 0.1 if self.training else 0.0
        x = x[None]
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=dropout)


def test_attention_draws_random_numbers_for_its_dropout_alone():
    x = X[None]
    for module in (Attention().eval(), nn.TransformerEncoderLayer(6, 2, 4, dropout=0.0)):
        function, params = dlbridge.bridge(module, to="jax")
        expected = module(torch.from_numpy(x))
        close(function(params, x), expected)
        close(jax.jit(function)(params, x), expected)
    function, params = dlbridge.bridge(Attention(), to="jax")
    with pytest.raises(ArgumentError, match="draws random numbers; pass rng="):
        function(params, x)
    first, other = (function(params, x, rng=jax.random.key(seed)) for seed in (1, 2))
    assert not np.array_equal(first, other)


MODES = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_torch_around_a_gradient_of_jax_take_nothing_from_it(mode):
    """Within torch.inference_mode() they are not zeros, and no cache of autocast keeps a loan."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    function, params = dlbridge.bridge(module, to="jax")
    x = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)

    def loss(params, x):
        return (function(params, x) ** 2).sum()

    gradient = jax.grad(loss, argnums=(0, 1))
    expected = jax.tree.leaves(gradient(params, x))
    with MODES[mode]():
        first = jax.tree.leaves(gradient(params, x))
        compiled = jax.tree.leaves(jax.jit(gradient)(params, x))
    for found in (first, compiled):
        for each, other in zip(found, expected, strict=True):
            assert np.allclose(each, other, rtol=0.05, atol=0.02)
            assert np.any(each != 0)


class Wide(nn.Module):
    """Its results are as wide as JAX allows, and as torch.set_default_dtype says."""

    def forward(self, x):
        return x.argmax(-1), x.double().exp(), torch.ones(2) * x.sum()


def test_dtypes_of_results_do_not_depend_on_those_of_earlier_calls():
    """Whether JAX has 64 bits, torch.autocast and the default dtype may change in between."""
    function, params = dlbridge.bridge(Wide(), to="jax")
    x = jnp.asarray(X, "float16")

    def dtypes():
        return [str(each.dtype) for each in function(params, x)]

    narrow, wide = ["int32", "float32", "float32"], ["int64", "float64", "float32"]
    assert dtypes() == narrow
    with jax_checks.working():
        assert dtypes() == wide
        expected = np.exp(np.asarray(x, "float64"))
        np.testing.assert_allclose(function(params, x)[1], expected, rtol=1e-12)
    assert dtypes() == narrow
    torch.set_default_dtype(torch.float64)
    try:
        assert dtypes() == narrow
        with jax_checks.working():
            assert dtypes() == ["int64", "float64", "float64"]
    finally:
        torch.set_default_dtype(torch.float32)
    assert dtypes() == narrow


@pytest.mark.parametrize("first", ["outside", "inside"])
def test_autocast_is_that_of_the_call_or_of_the_trace(first):
    function, params = dlbridge.bridge(nn.Linear(4, 2), to="jax")
    inside = partial(torch.autocast, "cpu", torch.bfloat16)
    blocks = [("float32", nullcontext), ("bfloat16", inside)]
    compiled = {}
    for dtype, block in blocks if first == "outside" else reversed(blocks):
        x = jnp.full((3, 4), 1.001)
        with block():
            assert function(params, x).dtype == dtype
            compiled[dtype] = jax.jit(partial(function, params)).lower(x).compile()
            eager = function(params, x)
            _, pull = jax.vjp(partial(function, params), x)
        assert np.array_equal(compiled[dtype](x), eager)
        with inside():  # which a program traced outside does not see
            assert np.array_equal(compiled[dtype](x), eager)
            slope = pull(jnp.ones_like(eager))
        assert np.array_equal(slope, pull(jnp.ones_like(eager)))
    assert function(params, jnp.ones((3, 4))).dtype == "float32"


def test_numbers_that_are_equal_but_not_the_same_have_a_signature_each():
    class Signs(nn.Module):
        def forward(self, x, number):
            return x + math.copysign(1.0, number), str(type(number)), number

    function, params = dlbridge.bridge(Signs(), to="jax")
    for number, sign in ((0.0, 1), (-0.0, -1), (1, 1), (1.0, 1), (True, 1)):
        found, kind, same = function(params, jnp.zeros(2), number)
        assert found.tolist() == [sign, sign]
        assert kind == str(type(number))
        assert repr(same) == repr(number)


def test_all_nans_have_one_signature():
    traced = []

    class Filling(nn.Module):
        def forward(self, x, number):
            traced.append(type(x))
            return x.nan_to_num(number)

    function, params = dlbridge.bridge(Filling(), to="jax")
    for _ in range(3):
        assert np.isnan(function(params, jnp.full(2, jnp.nan), float("nan"))).all()
    assert len(traced) == 4  # on fake tensors, and in each call


def test_results_that_depend_on_no_argument_have_no_gradient():
    class Constant(nn.Module):
        def forward(self, x):
            return torch.ones(3)

    function, params = dlbridge.bridge(Constant(), to="jax")
    assert np.array_equal(jax.grad(lambda x: function(params, x).sum())(X), np.zeros_like(X))


class Looking(nn.Module):
    """Looks rows up, and asks torch for a sparse gradient."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(21.0).reshape(7, 3))

    def forward(self, x):
        return nn.functional.embedding(x, self.weight, sparse=True)


@pytest.mark.parametrize("prepare", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    "make", [Looking, partial(nn.Embedding, 7, 3, sparse=True)], ids=["function", "module"]
)
def test_sparse_gradients_of_torch_are_dense_in_jax(make, prepare):
    function, params = dlbridge.bridge(make(), to="jax")
    places = np.array([2, 5, 5], np.int32)
    loss = loss_of(function, params)
    gradients = prepare(jax.grad(loss))(params["params"], places)
    counts = np.array([0, 0, 1, 0, 0, 2, 0])[:, None]
    np.testing.assert_allclose(gradients["weight"], 2 * counts * params["params"]["weight"])


def test_second_derivatives_of_a_sparse_embedding_are_dense_and_of_its_function_refused():
    places = np.array([2, 5, 5], np.int32)
    function, params = dlbridge.bridge(nn.Embedding(7, 3, sparse=True), to="jax")
    hessian = jax.hessian(loss_of(function, params))(params["params"], places)["weight"]["weight"]
    diagonal = np.einsum("abab->ab", hessian)
    np.testing.assert_allclose(diagonal, np.array([[0, 0, 2, 0, 0, 4, 0]] * 3).T)
    function, params = dlbridge.bridge(Looking(), to="jax")
    # A program of JAX, which is called where results are on no certain device, raises its own type.
    with pytest.raises(
        (ArgumentError, RuntimeError), match="Looking: torch has a sparse gradient here"
    ):
        jax.grad(lambda w: jax.grad(loss_of(function, params))(w, places)["weight"].sum())(
            params["params"]
        )

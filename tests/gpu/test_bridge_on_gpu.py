"""Models, derivatives and batches that cross between frameworks on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge
from dlbridge import convert, to_numpy

pytestmark = pytest.mark.gpu

X = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)


def close(found, expected, tolerance=1e-4):
    host = [to_numpy(each, device="cpu", grad="detach") for each in (found, expected)]
    np.testing.assert_allclose(*host, rtol=tolerance, atol=tolerance)


# ---- modules ----


@pytest.mark.parametrize("prepare", ["eager", "jit"])
def test_a_module_of_torch_runs_in_jax_where_it_is(prepare, load):
    """Or is refused by name: never on another device in silence."""
    torch, jax = load("torch").root, load("jax")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    ).cuda()
    function, params = dlbridge.bridge(module, to="jax")
    for name, parameter in module.named_parameters():
        assert params["params"][name].unsafe_buffer_pointer() == parameter.data_ptr()
    prepared = jax.root.jit(function) if prepare == "jit" else function
    x = jax.put(X)
    found = prepared(params, x)
    assert found.devices() == x.devices()
    expected = module(torch.from_numpy(X).cuda())
    close(found, expected)

    def loss(own):
        return (prepared({**params, "params": own}, x) ** 2).sum()

    gradients = jax.root.grad(loss)(params["params"])
    (expected**2).sum().backward()
    for name, parameter in module.named_parameters():
        close(gradients[name], parameter.grad)


def test_a_function_of_jax_is_a_module_of_torch_on_the_gpu(load):
    torch, jax = load("torch").root, load("jax")
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((6, 3)).astype(np.float32), "b": np.ones(3, np.float32)}
    params = {name: jax.put(each) for name, each in weights.items()}
    module = dlbridge.bridge(
        lambda p, x: jax.root.numpy.tanh(x @ p["w"] + p["b"]), to="torch", params=params
    ).cuda()
    x = torch.from_numpy(X).cuda().requires_grad_()
    found = module(x)
    assert found.device == x.device
    own = {name: each.detach().clone().requires_grad_() for name, each in module.named_parameters()}
    expected = torch.tanh(x @ own["w"] + own["b"])
    close(found, expected)
    (found**2).sum().backward()
    (expected**2).sum().backward()
    for name, parameter in module.named_parameters():
        close(parameter.grad, own[name].grad)
    program = torch.compile(lambda x: module(x) + 1, fullgraph=True, backend="eager")
    close(program(x), expected + 1)


def test_a_module_on_the_host_takes_no_part_of_the_gpu(load):
    torch = load("torch").root
    load("jax")
    module = torch.nn.Linear(6, 3)
    function, params = dlbridge.bridge(module, to="jax")
    close(function(params, X), module(torch.from_numpy(X)))


# ---- derivatives ----


def test_forward_derivatives_follow_from_the_vjp(load):
    torch, jax = load("torch").root, load("jax")

    def cube(x):
        return x * x * x

    def vjp(x, grad):
        return 3 * x * x * grad

    kernel = dlbridge.wrap(cube, "gpu::cube(x: f32[n]) -> f32[n]", abi="python:torch", vjp=vjp)
    x = np.linspace(-1, 2, 50, dtype=np.float32)
    t = np.linspace(1, 3, 50, dtype=np.float32)
    expected = 3 * x * x * t
    ours = torch.from_numpy(x).cuda(), torch.from_numpy(t).cuda()
    _, tangent = torch.func.jvp(lambda x: kernel(x), ours[:1], ours[1:])
    assert tangent.device.type == "cuda"
    close(tangent, expected, 1e-5)
    theirs = jax.put(x), jax.put(t)
    gradient = jax.root.grad(lambda x: kernel(x).sum())(theirs[0])
    close(gradient, 3 * x * x, 1e-5)
    _, tangent = jax.root.jit(lambda x, t: jax.root.jvp(kernel, (x,), (t,)))(*theirs)
    close(tangent, expected, 1e-5)


def test_debug_mode_leaves_kernels_on_a_gpu_alone(load):
    torch = load("torch").root
    kernel = dlbridge.wrap(
        lambda x: x * 2, "gpu::debugged(x: f32[n]) -> f32[n]", abi="python:torch"
    )
    x = torch.from_numpy(X[0]).cuda()
    with dlbridge.debug_kernels():
        close(kernel(x), X[0] * 2)
        close(torch.ops.gpu.debugged(x), X[0] * 2)


# ---- batches ----


@pytest.mark.parametrize("target", ["torch", "cupy", "jax"])
def test_a_stream_of_batches_goes_to_the_gpu_and_between_its_frameworks(target, load):
    framework = load(target)

    def make():
        for number in range(6):
            yield {"x": np.full((100, 10), number, np.float32), "n": number}

    with dlbridge.stream(make(), target, device="cuda:0") as batches:
        for number, batch in enumerate(batches):
            assert str(dlbridge.from_dlpack(batch["x"]).device) == "cuda:0"
            assert set(framework.get(batch["x"]).ravel().tolist()) == {number}
            assert batch["n"] == number


@pytest.mark.parametrize("source", ["torch", "cupy"])
def test_a_stream_orders_each_batch_with_its_consumer(source, load, machine):
    """The loader's buffer is filled again behind a slow kernel on the loader's stream."""
    ours, jax = load(source), load("jax")
    convert(ours.put(X), "jax")

    def make():
        for number in range(4):
            x = ours.put(np.zeros(1 << 16, np.float32))
            stream = ours.stream()
            with ours.on(stream):
                machine.launch(ours.handle(stream), slow=True)
                yield ours.add(x, number)
            ours.settle()

    for fresh in (True, False):
        with dlbridge.stream(make(), "jax", fresh=fresh) as batches:
            for number, batch in enumerate(batches):
                assert set(jax.get(batch).tolist()) == {number}


def test_trees_go_to_the_gpu_and_keep_what_is_tied(load):
    torch = load("torch").root
    load("jax")
    module = torch.nn.Linear(6, 3).cuda()
    state = {**module.state_dict(), "tied": module.weight}
    tree = dlbridge.convert_tree(state, "jax", grad="detach")
    assert tree["weight"].unsafe_buffer_pointer() == module.weight.data_ptr()
    assert tree["tied"].unsafe_buffer_pointer() == module.weight.data_ptr()
    assert {str(each.platform) for x in tree.values() for each in x.devices()} == {"gpu"}
    back = dlbridge.convert_tree(tree, "torch")
    close(back["bias"], module.bias)
    host = dlbridge.convert_tree(state, "numpy", device="cpu", grad="detach")
    close(host["weight"], module.weight)

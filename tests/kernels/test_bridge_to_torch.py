"""Functions of JAX as modules of torch: values and derivatives are those of the same in torch."""

from __future__ import annotations

import copy
import gc
import io
from collections import deque
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import pytest
from kernels.bridge_samples import (
    SEVERAL,
    TRANSFORMS,
    TREE,
    X,
    gradients,
    normal,
    second_derivatives,
    trained,
    twin,
)

import dlbridge
from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
models = pytest.importorskip("dlbridge.frameworks.jax.models")
jax_checks = pytest.importorskip("dlbridge.testing.jax_checks")
fwd = torch.autograd.forward_ad


def perceptron(params, x):
    hidden = jnp.tanh(x @ params["lower"]["w"] + params["lower"]["b"])
    return hidden @ params["upper"][0]


def bridged(function=perceptron, params=TREE, **further):
    return dlbridge.bridge(
        function, to="torch", params=jax.tree.map(jnp.asarray, params), **further
    )


def close(found, expected, tolerance=1e-4):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def pair():
    """Return a module and the same function of torch, over the same parameters."""
    module = bridged()
    own = dict(module.named_parameters())
    return module, lambda x: twin(x, own)


# ---- values and derivatives ----------------------------------------------------------------------


def test_values_and_gradients_are_those_of_the_same_function():
    module, expected = pair()
    close(module(X), expected(X))
    close(gradients(module, module), gradients(expected, module))


def test_an_optimiser_trains_the_parameters():
    module, _ = pair()
    close(*trained(module))


@pytest.mark.parametrize("write", [torch.Tensor.zero_, lambda x: x.add_(1)])
def test_a_parameter_written_before_the_backward_pass_is_refused_as_in_torch(write):
    module, expected = pair()
    for function in (module, expected):
        outcome = function(X).sum()
        with torch.no_grad():
            write(module.get_parameter("upper.0"))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outcome.backward()


def test_a_result_that_the_backward_pass_reads_is_refused_once_it_was_written():
    module = bridged(lambda _, x: jnp.exp(x), ())
    outcome = module(X.clone().requires_grad_())
    with torch.no_grad():
        outcome.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outcome.sum().backward()


def test_a_step_between_two_passes_changes_no_gradient_of_the_first():
    """What JAX kept of the first pass is its own memory, not that of the parameters."""
    module, expected = pair()
    wanted = gradients(expected, module)
    found = gradients(module, module)
    for each in module.parameters():
        each.data.zero_()
    close(found, wanted)


def test_second_derivatives_are_those_of_torch():
    module, expected = pair()
    close(second_derivatives(module, module), second_derivatives(expected, module), 2e-3)


def test_the_derivatives_pass_gradcheck_with_64_bits():
    with jax_checks.working():
        module = bridged().double()
        x = X.double().requires_grad_()
        assert torch.autograd.gradcheck(module, (x,))
        assert torch.autograd.gradgradcheck(module, (x,))


@pytest.mark.fast(lambda transform: transform in ("grad", "vmap", "hessian"))
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_torch_func_see_through_the_call(transform):
    module, expected = pair()
    close(TRANSFORMS[transform](module), TRANSFORMS[transform](expected), 2e-3)


def test_gradients_of_each_example_by_functional_call():
    module, _ = pair()
    own = {name: each.detach() for name, each in module.named_parameters()}

    def derive(function):
        return torch.vmap(torch.func.grad(lambda p, x: function(p, x).sum()), (None, 0))(
            own, SEVERAL
        )

    ours = derive(lambda p, x: torch.func.functional_call(module, p, (x,)))
    close(ours, derive(lambda p, x: twin(x, p)))


def test_complex_gradients_follow_the_convention_of_torch():
    z = torch.complex(X, X.flip(0)).requires_grad_()
    w = np.array([1 + 2j, 3, 1j, 0], np.complex64)
    module = bridged(lambda params, z: z * z * params, w)

    def derive(function):
        return torch.autograd.grad((function(z) * (2 - 1j)).imag.sum(), [z, module.params])

    close(derive(module), derive(lambda z: z * z * module.params))


def test_what_needs_no_gradient_gets_none():
    module, _ = pair()
    module.lower.requires_grad_(False)
    module(X).sum().backward()
    assert module.lower.w.grad is None
    assert module.upper.get_parameter("0").grad is not None
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert module(X).grad_fn is None


def test_activations_are_computed_again_under_checkpoint():
    from torch.utils.checkpoint import checkpoint

    module, expected = pair()
    found = gradients(lambda x: checkpoint(module, x, use_reentrant=False), module)
    close(found, gradients(expected, module))


# ---- memory --------------------------------------------------------------------------------------


def test_parameters_are_copies_that_torch_owns():
    array = jnp.asarray(normal(64))
    module = dlbridge.bridge(lambda params, x: x * params, to="torch", params=array)
    before = np.array(array)
    with torch.no_grad():
        module.params.zero_()
    assert np.array_equal(array, before)


def test_a_parameter_that_moved_is_read_where_it_is():
    module = bridged(lambda own, x: x @ own, normal(4, 4))
    before = module.params.detach().clone()
    close(module(X).detach(), X @ before)
    with torch.no_grad():
        module.params.mul_(2)
    close(module(X).detach(), X @ before * 2)
    for data in (before.clone(), before.clone().t(), before.repeat(2, 1)[1:5]):
        module.params.data = data
        close(module(X).detach(), X @ data)
        (found,) = torch.autograd.grad(module(X).sum(), module.params)
        close(found, X.sum(0)[:, None].expand(4, 4))


def test_a_parameter_that_became_a_view_of_itself_is_read_by_its_strides():
    module = bridged(lambda own, x: x @ own, normal(4, 4))
    before = module.params.detach().clone()
    close(module(X).detach(), X @ before)
    module.params.data = module.params.data.t()
    close(module(X).detach(), X @ before.t())
    close(gradients(module, module), gradients(lambda x: x @ module.params, module))


def test_calls_with_arguments_of_several_forms_take_turns():
    module, expected = pair()
    for x in (X, X[:1], X, X.t().contiguous().t(), X.clone().requires_grad_(), X[:0]):
        close(module(x), expected(x))
        with torch.no_grad():
            close(module(x), expected(x))


def test_receipts_are_written_of_arguments_and_results():
    module, _ = pair()
    module(X)
    with dlbridge.receipts() as log:
        module(X)
    assert {each.target for each in log} >= {"torch"}


def test_saved_tensors_that_a_hook_puts_elsewhere_are_those_of_the_backward_pass():
    module, expected = pair()
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        found = gradients(module, module)
    close(found, gradients(expected, module))


def test_no_two_results_share_memory_nor_one_with_an_argument():
    constant = jnp.ones(3)
    inner = jax.jit(lambda x: (x, x))
    module = bridged(lambda own, x: (x, x, own, constant, constant, *inner(x)), normal(3))
    x = torch.zeros(3)
    tensors = [x, module.params, *module(x)]
    assert len({each.data_ptr() for each in tensors}) == len(tensors) == 9


def test_what_the_backward_pass_reads_is_freed_after_it():
    module, _ = pair()
    outcome = module(X).sum()
    outcome.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        outcome.backward()


def test_strided_tensors_and_expanded_gradients():
    module, expected = pair()
    x = torch.from_numpy(normal(4, 6)).t()[::2]
    close(
        gradients(lambda x: module(x).sum() * torch.ones(()), module, x),
        gradients(lambda x: expected(x).sum(), module, x),
    )


# ---- the module ----------------------------------------------------------------------------------


class Layer(NamedTuple):
    weight: Any
    bias: Any


def test_names_are_the_paths_of_the_trees():
    params = {"layers": [Layer(normal(2), normal(2))], "1.scale": normal(1), "count": np.arange(3)}
    module = bridged(lambda own, x: x, params)
    assert [name for name, _ in module.named_parameters()] == [
        "1.scale", "layers.0.weight", "layers.0.bias",
    ]  # fmt: skip
    assert [name for name, _ in module.named_buffers()] == ["count"]
    assert "perceptron of jax" in str(bridged())


def test_a_state_dict_is_saved_and_loaded():
    module, _ = pair()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = bridged(params=jax.tree.map(np.zeros_like, TREE))
    assert not torch.equal(other(X), module(X))
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(X), module(X))
    other.load_state_dict(module.state_dict(), assign=True)
    assert torch.equal(other(X), module(X))


def test_a_deep_copy_has_parameters_of_its_own():
    module, _ = pair()
    other = copy.deepcopy(module)
    assert torch.equal(other(X), module(X))
    with torch.no_grad():
        other.lower.w.zero_()
    assert not torch.equal(other(X), module(X))


def test_a_module_is_not_pickled():
    module, _ = pair()
    with pytest.raises(ArgumentError, match=r"cannot be pickled.*save module\.state_dict\(\)"):
        torch.save(module, io.BytesIO())


def test_a_part_that_is_replaced_or_parametrized_is_the_one_that_is_used():
    module, _ = pair()
    own = dict(module.state_dict())
    torch.nn.utils.parametrize.register_parametrization(module.lower, "w", torch.nn.Tanh())
    close(module(X), twin(X, own | {"lower.w": own["lower.w"].tanh()}))
    part = torch.nn.Module()
    part.w, part.b = torch.nn.Parameter(own["lower.w"] + 1), torch.nn.Parameter(own["lower.b"])
    module.lower = part
    close(module(X), twin(X, own | {"lower.w": own["lower.w"] + 1}))


def test_casts_of_the_module_hold_in_jax():
    module, _ = pair()
    module.bfloat16()
    outcome = module(X.bfloat16())
    outcome.sum().backward()
    assert outcome.dtype == module.lower.w.grad.dtype == torch.bfloat16


# ---- arguments -----------------------------------------------------------------------------------


def test_arguments_and_results_are_trees_and_the_rest_is_compiled_in():
    def function(own, batch, *, scale, flag=True):
        return {"z": batch["x"] * scale, "a": (batch["y"][0] + own, None if flag else own)}

    module = bridged(function, normal(2))
    batch = {"y": [torch.zeros(2)], "x": np.ones(2, np.float32)}
    found = module(batch, scale=3.0)
    close(found, {"z": torch.full((2,), 3.0), "a": (module.params.detach(), None)})
    assert len(module(batch, scale=3.0, flag=False)["a"]) == 2


def test_numbers_that_are_equal_but_not_the_same_have_a_signature_each():
    module = bridged(lambda own, x, number: jnp.copysign(own["e"] + x, number), {"e": normal(2)})
    for number, sign in ((0.0, 1), (-0.0, -1), (0, 1), (True, 1), (-1.0, -1), (-1, -1)):
        assert module(torch.ones(2), number).sign().tolist() == [sign, sign]


def embedding():
    return bridged(lambda own, tokens: own["e"][tokens], {"e": normal(10, 4)})


def test_integers_of_64_bits_go_as_32_if_they_fit():
    module = embedding()
    tokens = torch.tensor([1, 2, 2])
    module(tokens).sum().backward()
    assert module.e.grad.sum(1).tolist() == [0, 4, 8, 0, 0, 0, 0, 0, 0, 0]
    with pytest.raises(ExchangeError, match="1099511627776 does not fit int32"):
        module(torch.tensor([2**40]))


def test_64_bit_numbers_need_the_switch_of_jax():
    module, expected = pair()
    with pytest.raises(ArgumentError, match=r"perceptron: an argument is float64.*enable_x64"):
        module(X.double())
    with pytest.raises(ArgumentError, match=r"perceptron: 'lower\.b' is float64.*enable_x64"):
        module.double()(X)
    with jax_checks.working():
        outcome = module(X.double())
    close(outcome, expected(X.double()))
    (outcome**2).sum().backward()  # where the switch is off again
    found = [each.grad for each in module.parameters()]
    close(found, gradients(expected, module, X.double())[1:])


def dropout(own, x, key):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * own, 0)


def test_a_random_key_is_one_of_jax_or_its_data():
    module = bridged(dropout, np.float32(2))
    key, x = jax.random.key(3), torch.ones(64, requires_grad=True)
    outcome = module(x, key)
    outcome.sum().backward()
    close(outcome.detach(), x.grad)
    data = torch.from_numpy(np.array(jax.random.key_data(key)))
    assert torch.equal(module(x, data), outcome)
    assert not torch.equal(module(x, jax.random.key(4)), outcome)


def test_a_key_among_the_parameters_is_a_buffer_and_one_that_is_kept_goes_through_torch():
    @jax.checkpoint
    def draw(key, x):
        return jnp.sin(x) * jax.random.normal(key, x.shape)

    module = bridged(lambda own, x: draw(own["key"], x), {"key": jax.random.key(1)})
    assert list(module.state_dict()) == ["key"]
    x = X.clone().requires_grad_()
    module(x).sum().backward()
    noise = torch.from_numpy(np.array(jax.random.normal(jax.random.key(1), X.shape)))
    close(x.grad, X.cos() * noise)


# ---- buffers -------------------------------------------------------------------------------------


def norm(params, buffers, x):
    mean = x.mean(0)
    new = {"mean": 0.9 * buffers["mean"] + 0.1 * mean, "steps": buffers["steps"] + 1}
    return (x - mean + buffers["mean"]) * params["scale"], new


BUFFERS = {"mean": np.zeros(4, np.float32), "steps": np.int32(0)}


@pytest.mark.parametrize("compiled", [False, True])
def test_buffers_are_written_by_a_call_and_no_backward_pass_minds(compiled):
    module = bridged(norm, {"scale": normal(4)}, buffers=BUFFERS, mutable=True)
    function = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
    x = X.clone().requires_grad_()
    (function(x) * function(x)).sum().backward()
    with torch.no_grad():
        function(x)
    assert int(module.steps) == 3
    close(module.mean, X.mean(0) * (1 - 0.9**3))
    assert len(module.state_dict()) == 3

    y = X.clone().requires_grad_()
    mean = y.mean(0)
    rest = (0.1 * mean).detach()
    scale = module.scale.detach()
    ((y - mean) * scale * (y - mean + rest) * scale).sum().backward()
    close(x.grad, y.grad)


def test_a_function_that_returns_other_buffers_is_refused():
    wrong = {
        "must return \\(result, buffers\\), got": lambda own, buffers, x: x,
        "in the structure in which they came": lambda own, buffers, x: (x, {}),
        r"'mean' must be returned in the shape \[4\], got \[3, 4\]": (
            lambda own, buffers, x: (x, {**buffers, "mean": x})
        ),
    }
    for text, function in wrong.items():
        with pytest.raises(ArgumentError, match=text):
            bridged(function, (), buffers=BUFFERS, mutable=True)(X)


# ---- torch.compile -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_a_compiled_program_has_the_call_in_one_graph(backend):
    module, expected = pair()
    compiled = torch.compile(lambda x: module(x * 2).relu(), fullgraph=True, backend=backend)
    close(gradients(compiled, module), gradients(lambda x: expected(x * 2).relu(), module))
    with torch.no_grad():
        close(compiled(X), expected(X * 2).relu())


def test_the_graph_has_one_operator_and_a_program_for_each_shape():
    module, expected = pair()
    graphs = []

    def backend(graph, _):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    compiled = torch.compile(module, fullgraph=True, backend=backend)
    for count in (1, 2, 3):
        close(compiled(SEVERAL[0][:count]), expected(SEVERAL[0][:count]))
    assert len(graphs) == 3
    assert all(graph.count(torch.ops.dlbridge_bridge.run) == 1 for graph in graphs)


def test_each_of_several_modules_is_compiled():
    torch.compiler.reset()  # torch counts all that were compiled in this process
    compiled = torch.compile(lambda module, x: module(x), fullgraph=True, backend="eager")
    for scale in (1.0, 2.0, 3.0):
        module = bridged(lambda own, x: own * jnp.tanh(x), jnp.full(4, scale))
        close(compiled(module, X), scale * X.tanh())
        close(torch.compile(module, fullgraph=True, backend="eager")(X), scale * X.tanh())


@pytest.mark.full
def test_trees_and_keys_cross_in_a_compiled_program():
    module = bridged(
        lambda own, d, *, s: {"z": d["b"] * s, "a": (d["a"][0] + own, None)}, normal(2)
    )
    batch = {"b": torch.ones(2), "a": [torch.zeros(2)]}
    compiled = torch.compile(lambda d: module(d, s=3.0), fullgraph=True, backend="aot_eager")
    close(compiled(batch), module(batch, s=3.0))
    module = bridged(dropout, np.float32(2))
    key = torch.tensor([0, 3], dtype=torch.uint32)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    close(compiled(X, key), module(X, jax.random.key(3)))


@pytest.mark.full
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_transforms_inside_of_a_compiled_program(transform):
    module, expected = pair()
    function = TRANSFORMS[transform]
    close(torch.compile(lambda: function(module), backend="aot_eager")(), function(expected), 2e-3)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_runs_in_its_process(strict):
    module, expected = pair()
    close(torch.export.export(module, (X,), strict=strict).module()(X), expected(X))


def test_an_exported_program_outlives_the_module():
    module, expected = pair()
    wanted = expected(X)
    exported = torch.export.export(module, (X,)).module()
    del module, expected
    gc.collect()
    close(exported(X), wanted)


def test_programs_are_freed_with_their_module(monkeypatch):
    layers = pytest.importorskip("dlbridge.frameworks.torch.layers")
    monkeypatch.setattr(layers, "_LAST", deque(maxlen=1))
    module = bridged()
    torch.vmap(torch.func.grad(lambda x, module=module: module(x).sum()))(SEVERAL)
    programs = [ref(call.program) for call in module._signatures._found.values()]
    assert programs
    del module
    torch.vmap(bridged())(SEVERAL)  # whose program is the last
    gc.collect()
    assert [each() for each in programs] == [None] * len(programs)


def test_the_operator_of_another_process_is_refused_by_name():
    with pytest.raises(ArgumentError, match="the graph comes from another process"):
        torch.ops.dlbridge_bridge.run([X], -1)


# ---- both directions, and libraries of JAX -------------------------------------------------------


def test_a_module_that_goes_to_jax_and_back_has_the_names_and_values_of_the_first():
    first = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    function, params = dlbridge.bridge(first, to="jax")
    module = dlbridge.bridge(
        lambda own, x: function({"params": own, "buffers": {}}, x),
        to="torch",
        params=params["params"],
    )
    own = dict(module.named_parameters())
    assert own.keys() == dict(first.named_parameters()).keys()
    for each in (module, first):
        (each(X) ** 2).sum().backward()
    close(module(X), first(X))
    for name, each in first.named_parameters():
        close(own[name].grad, each.grad)


def test_an_equinox_module_is_its_own_tree_of_parameters():
    equinox = pytest.importorskip("equinox")
    model = equinox.nn.MLP(4, 2, 8, 1, key=jax.random.key(0))
    module = dlbridge.bridge(lambda model, x: jax.vmap(model)(x), to="torch", params=model)
    assert list(module.state_dict()) == [
        "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
    ]  # fmt: skip
    other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    names = zip(other.state_dict(), module.state_dict().values(), strict=True)
    other.load_state_dict(dict(names))
    close(gradients(module, module), gradients(other, other))


def test_a_flax_module_trains_its_parameters_and_returns_its_statistics():
    linen = pytest.importorskip("flax.linen")
    model = linen.BatchNorm(use_running_average=False, momentum=0.9)
    variables = model.init(jax.random.key(0), X.numpy())

    def apply(params, buffers, x):
        return model.apply({"params": params, **buffers}, x, mutable=["batch_stats"])

    buffers = {"batch_stats": variables["batch_stats"]}
    module = dlbridge.bridge(
        apply, to="torch", params=variables["params"], buffers=buffers, mutable=True
    )
    module(X).sum().backward()
    assert [name for name, _ in module.named_parameters()] == ["bias", "scale"]
    close(module.batch_stats.mean, X.mean(0) * 0.1)


def test_a_haiku_module_is_called_with_a_key_or_none():
    haiku = pytest.importorskip("haiku")
    function = haiku.transform(lambda x: haiku.nets.MLP([8, 2])(x))
    params = function.init(jax.random.key(0), X.numpy())
    module = dlbridge.bridge(function.apply, to="torch", params=params)
    assert "mlp/~/linear_0.w" in module.state_dict()
    expected = torch.from_numpy(np.array(function.apply(params, None, X.numpy())))
    close(module(None, X).detach(), expected)


def test_an_nnx_module_is_split_into_its_graph_and_state():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Sequential(nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.tanh)
    graph, state = nnx.split(model)
    module = dlbridge.bridge(lambda state, x: nnx.merge(graph, state)(x), to="torch", params=state)
    assert len(list(module.parameters())) == 2
    close(module(X).detach(), torch.from_numpy(np.array(model(X.numpy()))))
    module(X).sum().backward()
    assert all(each.grad is not None for each in module.parameters())


@pytest.mark.parametrize("style", ["haiku", "nnx"])
def test_trees_as_other_libraries_make_them(style):
    """Haiku has a flat dict of modules by their paths; nnx nested dicts with integers."""
    w, b = normal(4, 2), normal(2)

    def haiku(own, x):
        own = own["mlp/~/linear_0"]
        return x @ own["w"] + own["b"]

    def nnx(own, x):
        own = own["layers"][0]
        return x @ own["kernel"]["value"] + own["bias"]["value"]

    function, params, names = {
        "haiku": (
            haiku,
            {"mlp/~/linear_0": {"w": w, "b": b}},
            ["mlp/~/linear_0.b", "mlp/~/linear_0.w"],
        ),
        "nnx": (
            nnx,
            {"layers": {0: {"kernel": {"value": w}, "bias": {"value": b}}}},
            ["layers.0.bias.value", "layers.0.kernel.value"],
        ),
    }[style]
    module = bridged(function, params)
    assert list(module.state_dict()) == names
    close(module(X).detach(), X @ torch.from_numpy(w) + torch.from_numpy(b))


@pytest.mark.parametrize("guard", ["disallow", "disallow_explicit"])
def test_a_call_is_no_transfer_of_jax(guard):
    module, expected = pair()
    expected = expected(X)
    module(X)  # compiles it, with its constants
    with jax.transfer_guard(guard):
        close(module(X), expected)


def test_a_call_without_jit_has_arrays_of_jax():
    types = []

    def add(params, x):
        types.append(type(x).__module__.partition(".")[0])
        return params + x.at[0].set(1)

    module = bridged(add, np.zeros(3, np.float32))
    with jax.disable_jit():
        close(module(torch.zeros(3)).detach(), torch.tensor([1.0, 0.0, 0.0]))
    assert "numpy" not in types


@pytest.fixture
def no_compilation_cache():
    directory = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", directory)


@pytest.mark.usefixtures("no_compilation_cache")
def test_nothing_is_left_of_what_has_jax_compute_in_the_thread_of_the_caller():
    program = models.Program("double", lambda x: (2 * x,), [((3,), dlbridge.float32)])
    lowered = program.run.lower(jnp.ones(3))
    assert ("callback" in lowered.as_text()) == models.STAYS_IN_THREAD
    text = lowered.compile().as_text()
    assert "custom-call" not in text
    assert "conditional" not in text


CACHED = """
import dlbridge, jax, torch
module = dlbridge.bridge(lambda params, x: params @ x, to="torch", params=jax.numpy.ones((4, 4)))
print(module(torch.ones(4)).tolist())
"""


@pytest.mark.subprocess
def test_programs_go_into_the_compilation_cache_of_jax(run_python, tmp_path):
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    assert run_python(CACHED, **settings).check().strip() == "[4.0, 4.0, 4.0, 4.0]"
    assert any(path.name.startswith("jit_computed") for path in tmp_path.iterdir())


# ---- refusals ------------------------------------------------------------------------------------

TWO_DEVICES = """
import jax, torch, dlbridge
def add(params, x, y): return x + y
module = dlbridge.bridge(add, to="torch", params=())
from dlbridge.frameworks.torch import layers
def lend(framework, tensor):  # what is on meta here stands for a second device
    return jax.device_put(jax.numpy.zeros(2), jax.devices()[tensor.device.type == "meta"])
layers._lend = lend
x, y = torch.zeros(2), torch.zeros(2, device="meta")
module(x, x)
try:
    module(x, y)
except dlbridge.errors.ArgumentError as error:
    print(error)
"""
MIXED = (
    "add: the module and the arguments must be on one device, and the tensors of this call are on "
    "cpu and {}; move them with .to(device)"
)


@pytest.mark.full
@pytest.mark.subprocess
def test_tensors_on_two_devices_are_refused_by_name(run_python):
    flags = "--xla_force_host_platform_device_count=2"
    assert run_python(TWO_DEVICES, XLA_FLAGS=flags).check().strip() == MIXED.format("meta")


def test_a_graph_of_tensors_on_two_devices_is_refused_by_name():
    """Where torch.compile and torch.export ask for the shapes of results."""

    def add(params, x, y):
        return x + y

    layers = pytest.importorskip("dlbridge.frameworks.torch.layers")
    module = bridged(add, ())
    module(X, X)
    (call,) = module._signatures._found.values()
    number, x = layers._numbered(call.program), torch.empty(3, 4, device="meta")
    (made,) = torch.ops.dlbridge_bridge.run([x, x], number)
    assert (made.device.type, made.shape) == ("meta", x.shape)
    with pytest.raises(ArgumentError) as refused:
        torch.ops.dlbridge_bridge.run([X, x], number)
    assert str(refused.value) == MIXED.format("meta")


def test_unsupported_functions_are_refused_with_advice():
    with pytest.raises(UnsupportedTypeError, match=r"must be a function of.*, got int.*wrap"):
        dlbridge.bridge(3, to="torch", params=())
    with pytest.raises(ArgumentError, match=r"needs params=.*; \(\) for a function"):
        dlbridge.bridge(perceptron, to="torch")
    with pytest.raises(ArgumentError, match="mutable=True needs buffers="):
        dlbridge.bridge(perceptron, to="torch", params=(), mutable=True)
    with pytest.raises(ArgumentError, match='bridge: narrow is for to="jax"'):
        dlbridge.bridge(perceptron, to="torch", params=(), narrow="checked")
    with pytest.raises(ArgumentError, match="bridge: params is for a function; a torch"):
        dlbridge.bridge(torch.nn.Linear(2, 2), to="jax", params=())
    for name in ("training", "a.type", ""):
        with pytest.raises(ArgumentError, match=f"bridge: '{name}' cannot be the name of a tensor"):
            bridged(perceptron, {name: normal(2)})
    with pytest.raises(ArgumentError, match=r"two arrays .* would be called 'a\.b'"):
        bridged(perceptron, {"a": {"b": normal(2)}, "a.b": normal(2)})
    with pytest.raises(ArgumentError, match=r"perceptron: an argument must be .*got set"):
        bridged()(X, {1, 2})

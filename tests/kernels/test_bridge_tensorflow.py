"""TensorFlow in torch: functions, modules and Keras models, against the same in one framework."""

from __future__ import annotations

import copy
import io
import threading
from functools import partial
from typing import Any

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
from kernels.bridge_tensorflow_samples import Perceptron, Tied, perceptron
from kernels.bridge_tensorflow_samples import no_garbage as no_garbage

import dlbridge
from dlbridge.errors import ArgumentError

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")


def bridged(function=perceptron, params=TREE, **further):
    params = tf.nest.map_structure(tf.constant, params)
    return dlbridge.bridge(function, to="torch", params=params, **further)


def close(found, expected, tolerance=1e-4):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


SOURCES = {
    "function": bridged,
    "module": lambda: dlbridge.bridge(Perceptron(), to="torch"),
}


each_source = pytest.mark.parametrize("source", SOURCES)


def pair(source):
    """Return a module and the same function of torch, over the same parameters."""
    module = SOURCES[source]()
    own = dict(module.named_parameters())
    return module, lambda x: twin(x, own)


# ---- functions and modules -----------------------------------------------------------------------


@each_source
def test_values_and_gradients_are_those_of_the_same_function(source):
    module, expected = pair(source)
    assert {name for name, _ in module.named_parameters()} == {"lower.w", "lower.b", "upper.0"}
    close(module(X), expected(X))
    close(gradients(module, module), gradients(expected, module))


@each_source
def test_an_optimiser_trains_the_parameters(source):
    module, _ = pair(source)
    close(*trained(module))


@each_source
def test_second_derivatives_are_those_of_torch(source):
    module, expected = pair(source)
    close(second_derivatives(module, module), second_derivatives(expected, module), 2e-3)


@each_source
@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(name, marks=() if name in ("grad", "vmap") else pytest.mark.full)
        for name in TRANSFORMS
    ],
)
def test_transforms_of_torch_func_see_through_the_call(source, transform):
    module, expected = pair(source)
    close(TRANSFORMS[transform](module), TRANSFORMS[transform](expected), 2e-3)


@pytest.mark.full
@each_source
def test_tangents_reach_a_backward_pass_without_a_graph(source):
    module, expected = pair(source)
    forward_ad = torch.autograd.forward_ad

    def derive(function):
        with forward_ad.dual_level():
            x = forward_ad.make_dual(X.clone().requires_grad_(), X)
            (found,) = torch.autograd.grad((function(x) ** 2).sum(), x)
            return tuple(forward_ad.unpack_dual(found))

    close(derive(module), derive(expected), 2e-3)


@each_source
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_a_compiled_program_has_the_call_in_one_graph(source, backend):
    module, expected = pair(source)
    compiled = torch.compile(lambda x: module(x * 2).relu(), fullgraph=True, backend=backend)
    close(gradients(compiled, module), gradients(lambda x: expected(x * 2).relu(), module))
    with torch.no_grad():
        close(compiled(X), expected(X * 2).relu())


@each_source
def test_half_of_the_layers_in_each_framework_train_as_one_model_in_one(source):
    module, _ = pair(source)
    rest, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    other.load_state_dict(rest.state_dict())
    copies = {
        name: each.detach().clone().requires_grad_() for name, each in module.named_parameters()
    }
    mixed = torch.optim.SGD([*module.parameters(), *rest.parameters()], lr=0.05)
    whole = torch.optim.SGD([*copies.values(), *other.parameters()], lr=0.05)
    for _ in range(5):
        for optimiser, outcome in (
            (mixed, rest(module(X).relu())),
            (whole, other(twin(X, copies).relu())),
        ):
            optimiser.zero_grad()
            (outcome - 1).square().sum().backward()
            optimiser.step()
    close({name: each.detach() for name, each in copies.items()}, dict(module.state_dict()))
    close(other.state_dict(), rest.state_dict())


@pytest.mark.full
@each_source
def test_a_parameter_written_before_the_backward_pass_is_refused_as_in_torch(source):
    module, expected = pair(source)
    for function in (module, expected):
        outcome = function(X).sum()
        with torch.no_grad():
            module.get_parameter("upper.0").add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outcome.backward()


def test_a_result_that_the_backward_pass_reads_is_refused_once_it_was_written():
    module = bridged(lambda _, x: tf.exp(x), [normal(1)])
    outcome = module(X.clone().requires_grad_())
    with torch.no_grad():
        outcome.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outcome.sum().backward()


def test_no_two_results_share_memory_nor_one_with_an_argument_or_a_constant():
    def function(own, x):
        plain = [x, x, own, tf.reshape(x, [6, 1]), x * 1.0]
        return [*plain, tf.ones_like(x), tf.zeros_like(x), tf.ones([2, 3]), tf.ones(3), tf.ones(())]

    module = bridged(function, normal(2, 3))
    x = torch.arange(6.0).reshape(2, 3)
    first, second = module(x), module(x)
    tensors = [x, module.params, *first, *second]
    assert len({each.data_ptr() for each in tensors}) == len(tensors) == 22
    with torch.no_grad():
        for each in (*first, *second):
            each.add_(1)
        ones = torch.ones(2, 3)
        close(module(x)[4:], [x, ones, ones - 1, ones, ones[0], ones[0, 0]])


@pytest.mark.full
@each_source
def test_threads_call_one_module_with_their_own_parameters(source):
    module, _ = pair(source)
    failures: list[Any] = []

    def work(number):
        mine = copy.deepcopy(module)
        with torch.no_grad():
            mine.lower.w.mul_(number)
        own = dict(mine.named_parameters())
        for _ in range(20):
            found, wanted = gradients(mine, mine), gradients(lambda x: twin(x, own), mine)
            if not all(map(partial(torch.allclose, rtol=1e-3, atol=1e-3), found, wanted)):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures


@each_source
def test_calls_inside_a_tape_match_torch(source):
    module, expected = pair(source)
    with tf.GradientTape():
        close(gradients(module, module), gradients(expected, module))
        with torch.no_grad():
            close(module(X), expected(X))


@each_source
def test_a_state_dict_and_a_deep_copy(source):
    module, _ = pair(source)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.lower.w.zero_()
    assert not torch.equal(other(X), module(X))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(X), module(X))


def test_a_module_is_not_pickled():
    with pytest.raises(ArgumentError, match=r"cannot be pickled.*are of tensorflow"):
        torch.save(bridged(), io.BytesIO())


@pytest.mark.full
def test_64_bit_numbers_need_no_switch():
    module = bridged().double()
    x = X.double().requires_grad_()
    assert torch.autograd.gradcheck(module, (x,))
    assert torch.autograd.gradgradcheck(module, (x,))
    large = torch.tensor([2**40])
    assert torch.equal(bridged(lambda own, x: x + 1, [normal(1)])(large), large + 1)


def test_complex_gradients_follow_the_convention_of_torch():
    z = torch.complex(X, X.flip(0)).requires_grad_()
    module = bridged(lambda own, z: z * z * own, np.array([1 + 2j, 3, 1j, 0], np.complex64))

    def derive(function):
        return torch.autograd.grad((function(z) * (2 - 1j)).imag.sum(), [z, module.params])

    close(derive(module), derive(lambda z: z * z * module.params))


def test_an_embedding_and_trees_of_arguments_and_results():
    def function(own, batch, *, scale, flag=True):
        rows = tf.gather(own["e"], batch["tokens"])
        return {"z": rows * scale, "a": (batch["x"][0] + 1.0, None if flag else rows)}

    module = bridged(function, {"e": normal(10, 4)})
    batch = {"tokens": torch.tensor([1, 2, 2]), "x": [np.ones(2, np.float32)]}
    found = module(batch, scale=3.0)
    assert found["a"][1] is None
    close(found["a"][0], torch.full((2,), 2.0))
    found["z"].sum().backward()
    assert module.e.grad.sum(1).tolist() == [0, 12, 24, 0, 0, 0, 0, 0, 0, 0]


def test_loops_and_branches_are_those_of_tensorflow():
    @tf.function
    def power(own, x, count):
        y = x
        for _ in tf.range(count):
            y = y * own if tf.reduce_sum(y) > 0 else y * x
        return tf.ensure_shape(y, x.shape)

    module = bridged(power, normal(4) + 3)

    def like(x, count):
        y = x
        for _ in range(count):
            y = y * module.params if y.sum() > 0 else y * x
        return y

    for count in (0, 1, 3):
        number = torch.tensor(count)

        def derive(function, count, number=number):
            x = X.clone().requires_grad_()
            return torch.autograd.grad(function(x, count).sum(), [x, module.params])

        if count:
            close(derive(module, number), derive(like, count), 1e-3)
        close(module(X, number), like(X, count), 1e-3)


# ---- buffers, and random numbers -----------------------------------------------------------------


class Counter(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(normal(4))
        self.mean = tf.Variable(np.zeros(4, np.float32), trainable=False)
        self.steps = tf.Variable(0, trainable=False)
        self.frozen = tf.Variable(1.0, trainable=False)

    def __call__(self, x):
        self.steps.assign_add(1)
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, 0))
        return (x - self.mean) * self.w * self.frozen


@pytest.mark.parametrize("compiled", [False, True])
def test_variables_that_a_module_assigns_are_buffers_that_a_call_writes(compiled):
    original = Counter()
    module = dlbridge.bridge(original, to="torch", mutable=True)
    assert [name for name, _ in module.named_buffers()] == ["frozen", "mean", "steps"]
    function = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
    x = X.clone().requires_grad_()
    (function(x) * function(x)).sum().backward()
    with torch.no_grad():
        function(x)
    assert (int(module.steps), int(original.steps)) == (3, 0)
    close(module.mean, X.mean(0) * (1 - 0.9**3))

    y, mean, w = X.clone().requires_grad_(), 0.1 * X.mean(0), module.w.detach()
    ((y - mean) * w * (y - 1.9 * mean) * w).sum().backward()  # an assigned value has no gradient
    close(x.grad, y.grad)


def test_a_shared_variable_is_one_parameter():
    original = Tied()
    module = dlbridge.bridge(original, to="torch")
    assert [name for name, _ in module.named_parameters()] == ["layers.0"]
    module(X).sum().backward()
    w = torch.tensor(original.encoder.w.numpy(), requires_grad=True)
    (torch.tanh(X @ w) @ w).sum().backward()
    (found,) = module.parameters()
    close(found.grad, w.grad)


def test_a_function_returns_its_buffers():
    def norm(params, buffers, x):
        new = {"mean": 0.9 * buffers["mean"] + 0.1 * tf.reduce_mean(x, 0)}
        return x * params["scale"], new

    params, buffers = {"scale": tf.ones(4)}, {"mean": tf.zeros(4)}
    module = dlbridge.bridge(norm, to="torch", params=params, buffers=buffers, mutable=True)
    module(X)
    close(module.mean, 0.1 * X.mean(0))


def test_random_numbers_are_those_of_the_forward_pass():
    module = bridged(lambda own, x: tf.nn.dropout(x * own, 0.5), np.float32(2))
    x = torch.ones(64, requires_grad=True)
    outcome = module(x)
    (found,) = torch.autograd.grad(outcome.sum(), x)
    close(outcome.detach(), found)
    assert 0 < int((found > 0).sum()) < 64
    with pytest.raises(ArgumentError, match=r"would be others; draw them with tf\.random\.state"):
        torch.autograd.grad(module(x).sum(), x, create_graph=True)


# ---- Keras ---------------------------------------------------------------------------------------


def classifier():
    return keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(8, activation="relu", name="hidden"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(2, name="out"),
        ]
    )


def test_a_keras_model_trains_as_in_keras():
    model = classifier()
    module = dlbridge.bridge(model, to="torch", mutable=True)
    assert list(module.state_dict())[:2] == ["hidden.kernel", "hidden.bias"]
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        module(X).square().sum().backward()
        optimiser.step()

        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X.numpy(), training=True) ** 2)
        found = tape.gradient(loss, model.trainable_variables)
        for variable, each in zip(model.trainable_variables, found, strict=True):
            variable.assign_sub(0.1 * each)
    for name, each in module.state_dict().items():
        (like,) = [v for v in model.variables if v.path.endswith(name.replace(".", "/"))]
        close(each, torch.from_numpy(like.numpy()), 1e-3)
    module.eval()
    close(module(X).detach(), torch.from_numpy(model(X.numpy()).numpy()), 1e-3)


def test_training_of_a_keras_model_is_that_of_the_torch_module():
    module = dlbridge.bridge(classifier(), to="torch")
    with pytest.raises(
        ArgumentError, match=r"changes 'norm\.moving_mean', .*mutable=True.*or call module\.eval"
    ):
        module(X)
    plain = module.eval()(X)
    assert torch.equal(module.train()(X, training=False), plain)


def test_dropout_of_keras_draws_by_a_seed_that_is_a_buffer():
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dropout(0.5, seed=0)])
    module = dlbridge.bridge(model, to="torch", mutable=True)
    (seed,) = [each.clone() for each in module.buffers()]
    x = torch.ones(1, 64, requires_grad=True)
    first = module(x)
    (found,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    close(first, found)
    assert not torch.equal(module(x), first)
    with torch.no_grad():
        next(module.buffers()).copy_(seed)
    assert torch.equal(module(x), first)


@pytest.mark.full
def test_a_recurrent_model_has_the_gradients_of_tensorflow():
    model = keras.Sequential([keras.layers.Input((5, 4)), keras.layers.LSTM(6)])
    module = dlbridge.bridge(model, to="torch")
    x = SEVERAL[:, :, :].permute(1, 0, 2).contiguous().requires_grad_()
    found = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    y = tf.constant(x.detach().numpy())
    with tf.GradientTape() as tape:
        tape.watch(y)
        loss = tf.reduce_sum(model(y) ** 2)
    expected = tape.gradient(loss, [y, *model.trainable_variables])
    for one, other in zip(found, expected, strict=True):
        close(one, torch.from_numpy(other.numpy()))


def test_several_inputs_and_outputs_of_keras():
    one, other = keras.Input((4,), name="one"), keras.Input((4,), name="other")
    model = keras.Model(
        {"one": one, "other": other}, {"sum": one + other, "both": [one * other, one]}
    )
    found = dlbridge.bridge(model, to="torch")({"one": X, "other": X + 1})
    close(found, {"both": [X * (X + 1), X], "sum": X + X + 1})


# ---- refusals ------------------------------------------------------------------------------------


def test_unsupported_models_are_refused_with_advice():
    model = classifier()
    with pytest.raises(ArgumentError, match=r"model to 'jax' or 'torch', got to='numpy'"):
        dlbridge.bridge(model, to="numpy")
    with pytest.raises(ArgumentError, match=r"params is for a function; .* has its own variables"):
        dlbridge.bridge(model, to="torch", params={})
    with pytest.raises(ArgumentError, match=r"have no shape yet; build it"):
        dlbridge.bridge(keras.layers.Dense(2), to="torch")
    with pytest.raises(ArgumentError, match=r"has no __call__"):
        dlbridge.bridge(tf.Module(), to="torch")
    with pytest.raises(ArgumentError, match=r"result 0 has the shape \(None, 4\), which depends"):
        bridged(lambda own, x: tf.boolean_mask(x, x[:, 0] > 0), [normal(1)])(X)
    with pytest.raises(ArgumentError, match="result 0 is a string"):
        bridged(lambda own, x: tf.as_string(x), [normal(1)])(X)
    with pytest.raises(ArgumentError, match="a result must be a dense tensor, got"):
        bridged(lambda own, x: tf.RaggedTensor.from_row_lengths(x, [1, 2]), [normal(1)])(X)
    variable = tf.Variable(0.0)
    with pytest.raises(ArgumentError, match=r"writes a tf\.Variable that is none of params"):
        bridged(lambda own, x: x + variable.assign_add(1.0), [normal(1)])(X)
    module = SOURCES["module"]()
    with pytest.raises(ArgumentError, match=r"'upper\.0' is float64 of shape \[8, 2\], and"):
        module.double()(X.double())
    own = {name: torch.stack([each] * 2) for name, each in module.float().named_parameters()}
    mapped = torch.vmap(lambda p: torch.func.functional_call(module, p, (X,)))
    with pytest.raises(ArgumentError, match=r"vmap over the variables of a tf\.Module"):
        mapped(own)
    with pytest.raises(ArgumentError, match=r"the call changes 'mean', 'steps'; pass mutable=True"):
        dlbridge.bridge(Counter(), to="torch")(X)


IMPORTS = """
import {first}, {second}
import numpy as np, tensorflow as tf, torch, dlbridge
layer = dlbridge.bridge(lambda own, x: x * own, to="torch", params=tf.constant([2.0, 3.0]))
x = torch.ones(2, requires_grad=True)
layer(x).sum().backward()
print(x.grad.tolist(), layer.params.grad.tolist())
"""


@pytest.mark.full
@pytest.mark.subprocess
@pytest.mark.parametrize("order", [("torch", "tensorflow"), ("tensorflow", "torch")])
def test_either_framework_may_be_imported_first(run_python, order):
    code = IMPORTS.format(first=order[0], second=order[1])
    assert run_python(code).check().strip().endswith("[2.0, 3.0] [1.0, 1.0]")

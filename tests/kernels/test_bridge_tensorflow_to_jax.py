"""TensorFlow in JAX: functions, modules and Keras models, against TensorFlow alone."""

from __future__ import annotations

import functools
import os
import signal
import threading

import numpy as np
import pytest
from kernels.bridge_arrays import TREE, normal
from kernels.bridge_tensorflow_samples import Perceptron, Tied, perceptron
from kernels.bridge_tensorflow_samples import no_garbage as no_garbage

import dlbridge
from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

X = normal(3, 4)
SEVERAL = normal(5, 3, 4)


def model():
    lower = keras.layers.Dense(8, activation="tanh", name="lower")
    upper = keras.layers.Dense(2, name="upper", use_bias=False)
    found = keras.Sequential([keras.layers.Input((4,)), lower, upper])
    for variable, value in zip(
        found.trainable_variables, [*TREE["lower"].values(), *TREE["upper"]], strict=True
    ):
        variable.assign(value)
    return found


def bridged(function=perceptron, params=TREE, **further):
    params = tf.nest.map_structure(tf.constant, params)
    return dlbridge.bridge(function, to="jax", params=params, **further)


NAMES = ("lower.w", "lower.b", "upper.0")
SOURCES = {
    "function": (bridged, NAMES),
    "tf.function": (lambda **further: bridged(tf.function(perceptron), **further), NAMES),
    "module": (lambda **further: dlbridge.bridge(Perceptron(), to="jax", **further), NAMES),
    "keras": (
        lambda **further: dlbridge.bridge(model(), to="jax", **further),
        ("lower.kernel", "lower.bias", "upper.kernel"),
    ),
}
each_source = pytest.mark.parametrize("source", SOURCES)


def pair(source, **further):
    """Return the function for JAX, its tree, and the same function written in JAX."""
    make, (w, b, upper) = SOURCES[source]
    function, params = make(**further)

    def twin(params, x):
        own = params["params"]
        return jnp.tanh(x @ own[w] + own[b]) @ own[upper]

    assert params["params"].keys() == {w, b, upper}
    assert params["buffers"] == {}
    return function, params, twin


def close(found, expected, tolerance=1e-4):
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance),
        found,
        expected,
    )


def loss_of(function, x):
    return lambda own: (function({"params": own, "buffers": {}}, x) ** 2).sum()


# ---- transformations -----------------------------------------------------------------------------


@each_source
@pytest.mark.parametrize("prepare", [lambda f: f, jax.jit])
def test_values_and_gradients_are_those_of_the_same_function(source, prepare):
    function, params, twin = pair(source)
    close(prepare(function)(params, X), twin(params, X))
    found = prepare(jax.grad(lambda own, x: loss_of(function, x)(own)))(params["params"], X)
    close(found, jax.grad(loss_of(twin, X))(params["params"]))


TRANSFORMS = {
    "vmap": lambda f, p: jax.vmap(f, (None, 0))(p, SEVERAL),
    "vmap along axis 1": lambda f, p: jax.vmap(f, (None, 1))(p, SEVERAL),
    "vmap of vmap": lambda f, p: jax.vmap(jax.vmap(f, (None, 0)), (None, 0))(p, SEVERAL[None]),
    "jit of grad of vmap": lambda f, p: jax.jit(
        jax.grad(lambda own: loss_of(jax.vmap(f, (None, 0)), SEVERAL)(own))
    )(p["params"]),
    "vmap of grad": lambda f, p: jax.vmap(lambda x: jax.grad(loss_of(f, x))(p["params"]))(SEVERAL),
    "jvp": lambda f, p: jax.jvp(lambda x: f(p, x), (X,), (X + 1,)),
    "hessian": lambda f, p: jax.hessian(lambda x: (f(p, x) ** 2).sum())(X),
    "grad of grad": lambda f, p: jax.grad(
        lambda own: (jax.grad(lambda x: (f({**p, "params": own}, x) ** 2).sum())(X) ** 2).sum()
    )(p["params"]),
    "scan": lambda f, p: jax.lax.scan(lambda y, x: (y + f(p, x), y), jnp.zeros((3, 2)), SEVERAL),
}


@each_source
@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(name, marks=() if "grad of vmap" in name else pytest.mark.full)
        for name in TRANSFORMS
    ],
)
def test_transformations_of_jax_see_through_the_call(source, transform):
    function, params, twin = pair(source)
    close(TRANSFORMS[transform](function, params), TRANSFORMS[transform](twin, params), 2e-3)


@pytest.mark.parametrize("source", ["function", "module", "keras"])
@pytest.mark.parametrize(
    "transform",
    [
        "vmap",
        *[pytest.param(name, marks=pytest.mark.full) for name in TRANSFORMS if "vmap " in name],
    ],
)
def test_a_batch_is_one_call(source, transform):
    function, params, twin = pair(source, batch="batched")
    close(TRANSFORMS[transform](function, params), TRANSFORMS[transform](twin, params), 2e-3)


def test_a_function_whose_tensors_travel_together_has_the_same_gradients(monkeypatch):
    functions = pytest.importorskip("dlbridge.frameworks.jax.functions")
    monkeypatch.setattr(functions, "_ALONE", 7)
    draw = np.random.default_rng(5).standard_normal  # not those that other tests leave
    drawn = draw((20, 4, 4)).astype("f") / 4, draw((20, 4)).astype("f")
    tree = [{"w": w, "b": b} for w, b in zip(*drawn, strict=True)]

    def deep(params, x):
        for layer in params:
            x = x + tf.tanh(x @ layer["w"] + layer["b"])  # its gradients do not vanish
        return x

    def twin(params, x):
        own = params["params"]
        for number in range(20):
            x = x + jnp.tanh(x @ own[f"{number}.w"] + own[f"{number}.b"])
        return x

    for batch in ("sequential", "batched"):
        function, params = bridged(deep, tree, batch=batch)
        close(
            jax.jit(jax.grad(loss_of(function, X)))(params["params"]),
            jax.grad(loss_of(twin, X))(params["params"]),
        )
        close(
            TRANSFORMS["vmap of grad"](function, params), TRANSFORMS["vmap of grad"](twin, params)
        )


def test_a_model_split_between_keras_and_jax_trains_like_the_whole():
    lower = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(8, name="dense"),
            keras.layers.BatchNormalization(name="norm"),
        ]
    )
    upper = keras.layers.Dense(2, activation="tanh", name="upper")
    whole = keras.Sequential([lower, upper])
    whole.build((None, 4))
    x, y = normal(16, 4), normal(16, 2)
    encode, params = dlbridge.bridge(lower, to="jax", mutable=True)
    params = jax.tree.map(jnp.copy, params)
    head = jax.tree.map(jnp.asarray, [each.numpy() for each in upper.trainable_variables])

    def loss(weights, buffers):
        hidden, buffers = encode({"params": weights["lower"], "buffers": buffers}, x, training=True)
        outcome = jnp.tanh(hidden @ weights["upper"][0] + weights["upper"][1])
        return ((outcome - y) ** 2).mean(), buffers

    def step(state, _):
        weights, buffers = state
        (value, buffers), found = jax.value_and_grad(loss, has_aux=True)(weights, buffers)
        return (jax.tree.map(lambda w, g: w - 0.1 * g, weights, found), buffers), value

    start = {"lower": params["params"], "upper": head}, params["buffers"]
    (weights, buffers), losses = jax.jit(lambda: jax.lax.scan(step, start, length=5))()

    for value in np.asarray(losses):
        with tf.GradientTape() as tape:
            expected = tf.reduce_mean((whole(x, training=True) - y) ** 2)
        close(value, expected.numpy())
        found = tape.gradient(expected, whole.trainable_variables)
        for variable, each in zip(whole.trainable_variables, found, strict=True):
            variable.assign_sub(0.1 * each)
    close(weights["upper"], [each.numpy() for each in upper.trainable_variables], 1e-3)
    kept = {**weights["lower"], **buffers}
    assert len(kept) == len(lower.variables) == 6
    for variable in lower.variables:
        close(kept[".".join(variable.path.split("/")[-2:])], variable.numpy(), 1e-3)


# ---- memory --------------------------------------------------------------------------------------


def address(tensor):
    return dlbridge.from_dlpack(tensor).data_ptr


@pytest.mark.parametrize("source", ["module", "keras"])
def test_parameters_share_memory_with_the_variables_until_assigned(source):
    source = Perceptron() if source == "module" else model()
    _, params = dlbridge.bridge(source, to="jax")
    addresses = {address(tf.convert_to_tensor(each)) for each in source.trainable_variables}
    assert {each.unsafe_buffer_pointer() for each in params["params"].values()} == addresses
    before = jax.tree.map(np.array, params["params"])
    for variable in source.trainable_variables:
        variable.assign_add(tf.ones(variable.shape))
    close(params["params"], before, 0)  # TensorFlow gave the variables other memory


def test_results_share_no_memory_with_arguments_or_constants():
    def function(own, x):
        return [x, own, tf.reshape(x, [6, 1]), tf.ones([2, 3])]

    function, params = bridged(function, normal(2, 3))
    x = jnp.arange(6.0).reshape(2, 3)
    found = [x, params["params"]["params"], *function(params, x), *jax.jit(function)(params, x)]
    assert len({each.unsafe_buffer_pointer() for each in found}) == len(found) == 10
    close(found[2:6], [x, found[1], x.reshape(6, 1), jnp.ones((2, 3))])


# ---- arguments, results, dtypes ------------------------------------------------------------------


def test_trees_of_arguments_and_results_keep_their_structure():
    def function(own, batch, *, scale, flag=True):
        rows = tf.gather(own["e"], batch["tokens"])
        return {"z": rows * scale, "a": (batch["x"][0] + 1.0, None if flag else rows)}

    function, params = bridged(function, {"e": normal(10, 4)})
    batch = {"x": [jnp.ones(2)], "tokens": jnp.array([1, 2, 2])}

    def loss(own):
        found = function({**params, "params": own}, batch, scale=3.0)
        return found["z"].sum(), found["a"]

    gradient, (first, second) = jax.jit(jax.grad(loss, has_aux=True))(params["params"])
    assert second is None
    close(first, np.full(2, 2.0))
    assert gradient["e"].sum(1).tolist() == [0, 12, 24, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("rows", [0, 1])
def test_empty_batches_have_results_and_gradients(rows):
    function, params, twin = pair("keras")
    x = X[:rows]
    close(jax.jit(function)(params, x), twin(params, x))
    close(
        jax.grad(loss_of(function, x))(params["params"]),
        jax.grad(loss_of(twin, x))(params["params"]),
    )


def test_results_of_64_bits_are_narrow_unless_jax_has_them():
    def function(own, x):
        return tf.cast(x, tf.float64) * 2, tf.range(3, dtype=tf.int64)

    function, params = bridged(tf.function(function), ())
    wide, count = jax.jit(function)(params, X)
    assert (wide.dtype, count.dtype) == (jnp.float32, jnp.int32)
    close(jax.grad(lambda x: (function(params, x)[0] ** 2).sum())(X), 8 * X)


def test_narrow_checked_takes_a_float64_model_to_float32():
    def function(own, x):
        return tf.cast(x, tf.float64) * own[0]

    params = [tf.constant([1.5, 2, 3, 4], tf.float64)]
    with pytest.raises(ExchangeError, match="float64"):
        dlbridge.bridge(function, to="jax", params=params)
    function, params = dlbridge.bridge(function, to="jax", params=params, narrow="checked")
    assert params["params"]["0"].dtype == jnp.float32
    close(function(params, X), X * [1.5, 2, 3, 4])
    found = jax.jit(jax.grad(loss_of(function, X)))(params["params"])
    close(found["0"], (2 * X**2 * [1.5, 2, 3, 4]).sum(0))


WIDE = """
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
{imports}
import dlbridge
from jax.test_util import check_grads
import tensorflow as tf

function, params = dlbridge.bridge(
    lambda own, x: tf.sin(x) * own, to="jax", params=tf.constant([2.0, 3.0], tf.float64)
)
x = jnp.array([0.3, 0.5])
check_grads(lambda own, x: function({{**params, "params": own}}, x), (params["params"], x), 2)
print(function(params, x).dtype)
"""


@pytest.mark.subprocess
@pytest.mark.parametrize("imports", ["", pytest.param("import tensorflow", marks=pytest.mark.full)])
def test_64_bits_and_either_framework_first(run_python, imports):
    assert run_python(WIDE.format(imports=imports)).check().strip().endswith("float64")


# ---- buffers and random numbers ------------------------------------------------------------------


class Counter(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(normal(4))
        self.mean = tf.Variable(np.zeros(4, np.float32), trainable=False)
        self.steps = tf.Variable(np.int64(0), trainable=False)

    def __call__(self, x):
        self.steps.assign_add(1)
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, 0))
        return (x - self.mean) * self.w


def test_a_shared_variable_is_one_parameter():
    function, params = dlbridge.bridge(Tied(), to="jax")
    (w,) = params["params"].values()
    assert list(params["params"]) == ["layers.0"]
    gradient = jax.grad(lambda params: function(params, X).sum())(params)["params"]["layers.0"]
    close(gradient, jax.grad(lambda w: (jnp.tanh(X @ w) @ w).sum())(w))


def test_buffers_go_through_a_scan_and_the_module_keeps_its_own():
    module = Counter()
    function, params = dlbridge.bridge(module, to="jax", mutable=True)
    assert params["buffers"].keys() == {"mean", "steps"}

    def step(buffers, x):
        outcome, buffers = function({**params, "buffers": buffers}, x)
        return buffers, outcome

    buffers, found = jax.jit(lambda: jax.lax.scan(step, params["buffers"], SEVERAL))()
    assert int(module.steps) == 0
    for number, x in enumerate(SEVERAL):
        close(found[number], module(x).numpy())
    close(buffers, {"mean": module.mean.numpy(), "steps": 5})


def test_functions_return_updated_buffers():
    def norm(params, buffers, x):
        mean = 0.9 * buffers["mean"] + 0.1 * tf.reduce_mean(x, 0)
        return x * params["scale"], {"mean": mean}

    params, buffers = {"steps": tf.constant(3), "scale": tf.ones(4)}, {"mean": tf.zeros(4)}
    function, own = dlbridge.bridge(norm, to="jax", params=params, buffers=buffers, mutable=True)
    assert (own["params"].keys(), own["buffers"].keys()) == ({"scale"}, {"steps", "mean"})
    _, new = function(own, X)
    close(new, {"steps": 3, "mean": 0.1 * X.mean(0)})


def test_dropout_of_keras_draws_by_a_seed_that_is_a_buffer():
    layer = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dropout(0.5, seed=0)])
    function, params = dlbridge.bridge(layer, to="jax", mutable=True)
    x = jnp.ones((1, 64))

    @jax.jit
    def draw(params, x):
        return jax.value_and_grad(
            lambda x: (lambda y, new: (y.sum(), (y, new)))(*function(params, x, training=True)),
            has_aux=True,
        )(x)

    (_, (first, buffers)), gradient = draw(params, x)
    close(first, gradient)
    assert 0 < int((first > 0).sum()) < 64
    (_, (second, _)), _ = draw({**params, "buffers": buffers}, x)
    assert not np.array_equal(first, second)
    close(draw(params, x)[0][1][0], first)


# ---- where it is called --------------------------------------------------------------------------


def test_threads_share_one_function_from_the_first_call_on():
    failures = []
    for source in ("function", "module"):
        function, params, twin = pair(source)
        start = threading.Barrier(8)

        def work(number, function=function, params=params, twin=twin, start=start):
            own = {name: each * number for name, each in params["params"].items()}
            start.wait()
            for _ in range(5):
                found = jax.jit(jax.grad(loss_of(function, X)))(own)
                expected = jax.grad(loss_of(twin, X))(own)
                if not all(
                    np.allclose(found[name], expected[name], 1e-3, 1e-2) for name in expected
                ):
                    failures.append(number)

        threads = [threading.Thread(target=work, args=(number / 8,)) for number in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert not failures


def test_calls_inside_a_tape_or_a_tf_function_match_jax():
    function, params, twin = pair("module")
    expected = twin(params, X)
    with tf.GradientTape():
        close(function(params, X), expected)
    seen = []

    @tf.function
    def graph():
        seen.append(np.asarray(function(params, X[:2])))
        return tf.constant(1)

    graph()
    close(seen[0], expected[:2])


# ---- refusals ------------------------------------------------------------------------------------


def test_unsupported_models_are_refused_with_advice():
    with pytest.raises(ArgumentError, match=r"params is for a function; .* has its own variables"):
        dlbridge.bridge(model(), to="jax", params={})
    with pytest.raises(ArgumentError, match="a function needs params="):
        dlbridge.bridge(tf.function(lambda own: own), to="jax")
    with pytest.raises(UnsupportedTypeError, match=r"of TensorFlow with tensors in params="):
        dlbridge.bridge(lambda own, x: x, to="jax", params=jnp.ones(2))
    with pytest.raises(ArgumentError, match=r"model to 'jax' or 'torch', got to='numpy'"):
        dlbridge.bridge(model(), to="numpy")
    function, params = dlbridge.bridge(Counter(), to="jax")
    with pytest.raises(ArgumentError, match=r"changes the buffer 'mean'.*mutable=True"):
        function(params, X)
    with pytest.raises(ArgumentError, match=r"'params' lacks 'w'"):
        function({**params, "params": {}}, X)
    with pytest.raises(ArgumentError, match=r"must be an array of shape \[4\], got \[3\]"):
        function({**params, "params": {"w": jnp.zeros(3)}}, X)
    function, params = bridged(lambda own, x: tf.boolean_mask(x, x[:, 0] > 0), [normal(1)])
    with pytest.raises(ArgumentError, match=r"result 0 has the shape \(None, 4\), which depends"):
        jax.jit(function)(params, X)
    function, params = bridged(lambda own, x: tf.nn.dropout(x, 0.5), [normal(1)])
    with pytest.raises(ArgumentError, match=r"draws random numbers.*stateless_uniform"):
        function(params, X)
    function, params = bridged(lambda own, x: tf.as_string(x), [normal(1)])
    with pytest.raises(ArgumentError, match="result 0 is a string"):
        function(params, X)
    function, params, _ = pair("module", batch="batched")
    own = jax.tree.map(lambda each: jnp.stack([each] * 2), params)
    with pytest.raises(ArgumentError, match=r"vmap over the variables of a tf\.Module"):
        jax.vmap(function, (0, None))(own, X)


def add_a_layer(model):
    model.add(keras.layers.Dense(3))


def add_an_activation(model):
    model.add(keras.layers.ReLU())


def take_a_layer(model):
    model.pop()


def freeze_a_layer(model):
    model.layers[0].trainable = False


def replace_a_layer(model):
    model.pop()
    model.add(keras.layers.Dense(2, name="upper", use_bias=False))


@pytest.mark.parametrize("to", ["jax", "torch"])
@pytest.mark.parametrize(
    "change", [add_a_layer, add_an_activation, take_a_layer, freeze_a_layer, replace_a_layer]
)
def test_a_keras_model_that_was_changed_has_to_be_bridged_again(change, to):
    changed = model()
    if to == "jax":
        function, params = dlbridge.bridge(changed, to="jax")
        call = functools.partial(function, params)
        x = X
    else:
        torch = pytest.importorskip("torch")
        call, x = dlbridge.bridge(changed, to="torch"), torch.from_numpy(X)
    before = np.asarray(call(x).detach() if to == "torch" else call(x))
    change(changed)
    again = call(x)  # which is traced already
    np.testing.assert_array_equal(again.detach() if to == "torch" else again, before)
    with pytest.raises(ArgumentError, match=r"other layers or variables .*; bridge it again"):
        call(x[:2])


def test_tensorflow_errors_reach_the_caller():
    def checked(own, x):
        tf.debugging.assert_positive(x, message="not positive: the test")
        return x * own[0]

    function, params = bridged(checked, [normal(1)])
    close(function(params, jnp.ones(4)), np.asarray(params["params"]["0"]) * np.ones(4))
    for call in (function, jax.jit(function)):
        with pytest.raises(Exception, match="not positive: the test"):
            jax.block_until_ready(call(params, -jnp.ones(4)))


def test_signals_during_a_trace_are_handled_after_it():
    """An exception of its handler amid TensorFlow's functions could leave them in a graph."""
    handled, before = [], signal.getsignal(signal.SIGUSR1)
    seen = []

    @tf.function
    def function(params, x):
        os.kill(os.getpid(), signal.SIGUSR1)
        seen.append(list(handled))
        return params * x

    def handle(*_):
        handled.append(1)
        raise KeyboardInterrupt

    signal.signal(signal.SIGUSR1, handle)
    try:
        call, params = dlbridge.bridge(function, to="jax", params=tf.constant([2.0, 3.0]))
        with pytest.raises(KeyboardInterrupt):
            call(params, jnp.ones(2))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [[]]
    assert tf.executing_eagerly()
    assert call(params, jnp.ones(2)).tolist() == [2.0, 3.0]

"""JAX and TensorFlow with several devices of one CPU, as code for many devices is tested."""

from __future__ import annotations

from typing import Any

import pytest

JAX = """
    import jax, jax.numpy as jnp, numpy as np, torch
    import dlbridge
    from jax.sharding import NamedSharding, PartitionSpec

    x = dlbridge.arange(32, dtype="float32")  # aligned, so that it is shared
    cpus = jax.devices()
    first, third = cpus[0], cpus[2]
    sources = {
        "Tensor": x, "numpy": x.numpy(), "torch": dlbridge.to_torch(x),
        "jax": dlbridge.to_jax(x), "memoryview": memoryview(x), "float64": np.arange(32.0),
        "flipped": x.numpy()[::-1], "empty": np.zeros((0, 3), "f4"),
    }
    named = {
        "object": third, "name": "cpu:2", "pair": (1, 2), "Device": dlbridge.Device("cpu:2"),
    }

    def check(result, device, committed, like, shares=False):
        assert result.devices() == {device}, (result.devices(), device)
        assert result.committed == committed
        np.testing.assert_array_equal(np.asarray(result), np.asarray(like).astype(result.dtype))
        assert not shares or result.unsafe_buffer_pointer() == x.data_ptr

    for name, source in sources.items():
        more = {"narrow": "checked"} if name == "float64" else {}
        values = dlbridge.to_numpy(source)
        shared = name in ("Tensor", "numpy", "torch", "jax", "memoryview")
        for device in named.values():
            for copy in (None, True):
                check(dlbridge.to_jax(source, device=device, copy=copy, **more), third, True,
                      values, shared and copy is None)
            check(dlbridge.convert_tree([source], "jax", device=device, **more)[0], third, True,
                  values, shared)
            with dlbridge.receipts() as log:
                check(dlbridge.convert(source, "jax", device=device, **more), third, True, values)
            assert log[0].shared == (shared or name == "empty"), name
        for device in ("cpu:0", first):
            check(dlbridge.to_jax(source, device=device, **more), first, True, values, shared)
        if name == "jax":
            continue  # returned as it is
        for device in (None, "cpu", dlbridge.Device("cpu"), torch.device("cpu")):
            for copy in (None, True):
                check(dlbridge.to_jax(source, device=device, copy=copy, **more), first, False,
                      values, shared and copy is None)
                with jax.default_device(third):
                    check(dlbridge.to_jax(source, device=device, copy=copy, **more), third, False,
                          values, shared and copy is None)
        with jax.default_device(third):
            check(dlbridge.convert_tree({"a": source}, "jax", **more)["a"], third, False, values)
            batches = dlbridge.stream([source], "jax", **more)
        check(next(batches), third, False, values)
        with dlbridge.stream([source], "jax", device=third, **more) as batches:
            check(next(batches), third, True, values)
        with jax.default_device(third):
            check(dlbridge.to_jax(source, device=first, **more), first, True, values)
        with jax.default_device("cpu"):
            check(dlbridge.to_jax(source, **more), first, False, values)

    # A copy of an array stays where the array is, as jnp.array has it.
    there = jax.device_put(jnp.arange(32.0), third)
    for policies in ({"copy": True}, {"dtype": "float16"}, {"copy": True, "device": "cpu"}):
        on = first if "device" in policies else third
        committed = "device" not in policies
        check(dlbridge.to_jax(there, **policies), on, committed, there)
        check(dlbridge.convert_tree({"a": there}, "jax", **policies)["a"], on, committed, there)
        with dlbridge.receipts() as log:
            check(dlbridge.to_jax(there, **policies), on, committed, there)
        assert log[0].copied_by is not None
    gone = jax.device_put(jnp.arange(32.0), third)
    gone.delete()
    try:
        dlbridge.to_jax(gone, copy=True)
    except dlbridge.ExchangeError as error:
        assert error.reason == "lazy", error
    else:
        raise AssertionError("a deleted array was copied")
    turned = jax.device_put(jnp.arange(32.0).reshape(4, 8).T, third)
    check(dlbridge.to_jax(turned, layout="contiguous", copy=True), third, True, turned)
    check(dlbridge.to_jax(there, device=cpus[1], copy=True), cpus[1], True, there)
    check(dlbridge.to_jax(jnp.arange(32.0), copy=True), first, False, there)
    with jax.default_device(cpus[1]):
        check(dlbridge.to_jax(there, copy=True), third, True, there)

    import dlbridge.graph as graph

    fed = graph.placeholder(graph.float32, [32])
    with graph.device("/device:CPU:2"):
        doubled, state = fed * 2.0, graph.Variable(x.numpy())
    with graph.Session(framework="jax") as session:
        session.run(state.initializer)
        for fetch in (doubled, state):
            assert session.run(fetch, {fed: x}, to="jax").devices() == {third}

    mesh = jax.make_mesh((4,), ("i",))
    weights = jax.device_put(jnp.ones(32), NamedSharding(mesh, PartitionSpec("i")))
    step = jax.jit(lambda w, b: w + b)
    wanted = np.asarray(step(weights, jnp.asarray(x.numpy())))
    for policies in ({}, {"copy": True}, {"layout": "contiguous"}, {"device": "cpu"}):
        got = step(weights, dlbridge.to_jax(x.numpy(), **policies))
        np.testing.assert_array_equal(np.asarray(got), wanted)
    schema = "placed::add_one(x: float32[n]) -> float32[n]"
    add_one = dlbridge.wrap(lambda x: x + 1, schema, abi="python:numpy")
    got = step(weights, add_one(jnp.asarray(x.numpy())))
    np.testing.assert_array_equal(np.asarray(got), wanted + 1)

    def explain(y, device):
        return dlbridge.explain(y, "jax", device=device)

    for device in ("cpu:4", (1, 9)):
        for call in (dlbridge.to_jax, explain):
            try:
                call(x, device=device)
            except dlbridge.ExchangeError as error:
                name = call.__name__
                assert error.reason == "device" and f"{name}: JAX has no device" in str(error)
            else:
                raise AssertionError(device)
    del sources, source
    print("done")
"""

TENSORFLOW = """
    import numpy as np
    import tensorflow as tf
    import dlbridge

    cpus = [tf.config.LogicalDeviceConfiguration()] * 3
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    x = dlbridge.arange(32, dtype="float32")
    sources = {"Tensor": x, "numpy": x.numpy(), "tensorflow": dlbridge.to_tensorflow(x)}

    def check(result, device, shares=True):
        assert result.device.endswith(f"/device:CPU:{device}"), result.device
        np.testing.assert_array_equal(result.numpy(), x.numpy())
        assert (dlbridge.from_dlpack(result).data_ptr == x.data_ptr) == shares

    for name, source in sources.items():
        for device in ("/device:CPU:1", "cpu:1", (1, 1), dlbridge.Device("cpu:1")):
            check(dlbridge.to_tensorflow(source, device=device), 1)
            check(dlbridge.to_tensorflow(source, device=device, copy=True), 1, shares=False)
            check(dlbridge.convert_tree([source], "tensorflow", device=device)[0], 1)
            with dlbridge.receipts() as log:
                check(dlbridge.convert(source, "tensorflow", device=device), 1)
            assert log[0].shared
        if name == "tensorflow":
            continue  # returned as it is
        check(dlbridge.to_tensorflow(source), 0)
        with tf.device("/CPU:2"):
            check(dlbridge.to_tensorflow(source), 2)
            check(dlbridge.to_tensorflow(source, device="cpu"), 2)
            check(dlbridge.to_tensorflow(source, copy=True), 2, shares=False)
            check(dlbridge.to_tensorflow(source, device="cpu:1"), 1)
            check(dlbridge.to_tensorflow(source, device="cpu:0"), 0)
            batches = dlbridge.stream([source], "tensorflow")
        check(next(batches), 2, shares=False)
    with tf.device("/CPU:1"):
        there = tf.identity(x.numpy())
    for policies in ({"copy": True}, {"dtype": "float16"}):
        assert dlbridge.to_tensorflow(there, **policies).device.endswith("/device:CPU:1")
        with tf.device("/CPU:2"):
            assert dlbridge.to_tensorflow(there, **policies).device.endswith("/device:CPU:2")
    for device in ("cpu:3", (1, 9)):
        for call in (dlbridge.to_tensorflow,
                     lambda y, device: dlbridge.explain(y, "tensorflow", device=device)):
            try:
                call(x, device=device)
            except dlbridge.ExchangeError as error:
                assert error.reason == "device" and "TensorFlow has no device" in str(error)
            else:
                raise AssertionError(device)
    print("done")
"""


@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
def test_results_are_on_the_cpu_device_of_jax_that_is_named_or_the_default(
    framework: Any, run_python: Any
) -> None:
    framework("jax"), framework("torch")
    several = "--xla_force_host_platform_device_count=4"
    assert run_python(JAX, XLA_FLAGS=several).check().splitlines()[-1] == "done"


@pytest.mark.full
@pytest.mark.preloaded("tensorflow")
@pytest.mark.subprocess
def test_results_are_on_the_cpu_device_of_tensorflow_that_is_named_or_in_scope(
    framework: Any, run_python: Any
) -> None:
    framework("tensorflow")
    assert run_python(TENSORFLOW).check().splitlines()[-1] == "done"

"""What JAX does to an operator: compile it, export it, make it a batch, differentiate it."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy

from dlbridge._core import native
from dlbridge.kernels.sharding import splits
from dlbridge.signals import not_from_handler
from dlbridge.testing import samples
from dlbridge.testing.checking import Inapplicable, Subject, in_each_choice


def working() -> AbstractContextManager[Any]:
    """Return a block in which this thread has 64-bit types."""
    is_public = hasattr(jax, "enable_x64")
    switch = jax.enable_x64 if is_public else jax.experimental.enable_x64
    block: AbstractContextManager[Any] = switch(True)
    return block


def check_jit(subject: Subject) -> None:
    """jax.jit: the compiled program calls the kernel."""
    function = jax.jit(subject.sample.function(subject.static_call))
    got = subject.rows(subject.outputs(function, subject.sample.given("jax")))
    subject.sample.compare(got, "compiled, ")


def check_export(subject: Subject) -> None:
    """jax.export, and a call of the program that was written and read again."""
    if not subject.recipe.schema.tensors:
        raise Inapplicable("it takes no tensor")
    import jax.export

    try:
        importlib.import_module("flatbuffers")
    except not_from_handler(ImportError):
        why = "JAX writes exported programs with flatbuffers, which is not installed"
        raise Inapplicable(why) from None
    check = jax.export.DisabledSafetyCheck.custom_call("dlbridge")
    function = jax.jit(subject.sample.function(subject.static_call))
    tensors = subject.sample.given("jax")
    program = jax.export.export(function, disabled_checks=[check])(*tensors)
    read = jax.export.deserialize(bytearray(program.serialize()))
    subject.sample.compare(subject.rows(subject.outputs(read.call, tensors)), "exported, ")


def check_shards(subject: Subject) -> None:
    """jax.jit with arguments that are sharded along each dimension of `sharding=`.

    Dimensions are skipped unless several devices can share their extent evenly.
    """
    recipe, sample, devices = subject.recipe, subject.sample, jax.devices()
    tensors = sample.given("jax")
    function = jax.jit(sample.function(subject.call))
    for axes, _ in splits(recipe.schema, recipe.kernel.sharding, [each.ndim for each in tensors]):
        split = [x.shape[axis] for x, axis in zip(tensors, axes, strict=True) if axis is not None]
        extent = split[0] if split else 0
        count = next((n for n in range(2, len(devices) + 1) if extent and extent % n == 0), 0)
        if not count:
            continue
        mesh = jax.sharding.Mesh(numpy.array(devices[:count]), ("devices",))
        placed = []
        for tensor, axis in zip(tensors, axes, strict=True):
            spec: list[str | None] = [None] * tensor.ndim
            if axis is not None:
                spec[axis] = "devices"
            where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
            placed.append(jax.device_put(tensor, where))
        got = [numpy.asarray(each) for each in subject.outputs(function, placed)]
        sample.compare(got, f"sharded over {count} devices, ")


def check_vmap(subject: Subject) -> None:
    """jax.vmap over every tensor argument."""
    subject.require_batch()
    arrays, expected = subject.batch()
    tensors = [native.convert(each, "jax") for each in arrays]
    subject.compare_batch(
        jax.vmap(subject.sample.function(subject.static_call))(*tensors), expected
    )


@in_each_choice
def check_jvp(subject: Subject) -> None:
    """jax.jvp, inside jax.jit, against differences of the reference."""
    subject.require_jvp()
    sample = subject.sample
    moving, primals = samples.of_moving(sample, sample.function(subject.call), sample.given("jax"))
    pairs = zip(samples.directions(sample), primals, strict=True)
    tangents = tuple([jax.numpy.asarray(each, primal.dtype) for each, primal in pairs])
    differentiate = jax.jit(lambda primals, tangents: jax.jvp(moving, primals, tangents)[1])
    samples.compare_tangents(sample, differentiate(primals, tangents))


@in_each_choice
def check_gradient(subject: Subject) -> None:
    """jax.grad, inside jax.jit if shapes allow it, against differences of the reference."""
    subject.require_gradient()
    function = subject.sample.function(subject.call)
    cotangents = samples.weights(subject.sample.expected)

    def loss(*tensors: Any) -> Any:
        results = samples.several(function(*tensors))
        return sum(
            (result * jax.numpy.asarray(weight, result.dtype)).sum().real
            for result, weight in zip(results, cotangents, strict=True)
            if weight is not None
        )

    places = tuple(subject.sample.moving())
    differentiate = jax.grad(loss, argnums=places)
    if not subject.recipe.schema.counts:
        differentiate = jax.jit(differentiate)
    gradients = differentiate(*subject.sample.given("jax"))
    samples.compare_gradients(subject.sample, list(map(jax.numpy.conj, gradients)))

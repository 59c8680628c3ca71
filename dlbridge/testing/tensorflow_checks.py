"""What TensorFlow does to an operator: trace it, make it a batch, differentiate it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from dlbridge._core import native
from dlbridge.testing import samples
from dlbridge.testing.checking import Subject, in_each_choice


def working() -> AbstractContextManager[Any]:
    """Return a block for each check."""
    return nullcontext()


def check_function(subject: Subject) -> None:
    """tf.function: the graph calls the kernel."""
    function = tf.function(subject.sample.function(subject.call), autograph=False)
    tensors = subject.sample.given("tensorflow")
    subject.sample.compare(subject.outputs(function, tensors), "in tf.function, ")


def check_vmap(subject: Subject) -> None:
    """tf.vectorized_map over every tensor argument."""
    subject.require_batch()
    arrays, expected = subject.batch()
    tensors = [native.convert(each, "tensorflow") for each in arrays]
    function = subject.sample.function(subject.static_call)
    got = tf.vectorized_map(lambda elements: function(*elements), tensors)
    subject.compare_batch(got, expected)


@in_each_choice
def check_jvp(subject: Subject) -> None:
    """A tf.autodiff.ForwardAccumulator, against differences of the reference."""
    subject.require_jvp()
    tensors = subject.sample.given("tensorflow")
    primals = [tensors[place] for place in subject.sample.moving()]
    tangents = [
        tf.cast(each, primal.dtype)
        for each, primal in zip(samples.directions(subject.sample), primals, strict=True)
    ]
    with tf.autodiff.ForwardAccumulator(primals, tangents) as accumulator:
        results = subject.sample.function(subject.call)(*tensors)
    moved = [accumulator.jvp(each) for each in samples.floating(subject.sample, results)]
    samples.compare_tangents(subject.sample, moved)


@in_each_choice
def check_gradient(subject: Subject) -> None:
    """A tape, against differences of the reference."""
    subject.require_gradient()
    tensors = subject.sample.given("tensorflow")
    wanted = [tensors[place] for place in subject.sample.moving()]
    cotangents = samples.weights(subject.sample.expected)
    with tf.GradientTape() as tape:
        tape.watch(wanted)
        results = samples.several(subject.sample.function(subject.call)(*tensors))
        loss = tf.add_n(
            [
                tf.math.real(tf.reduce_sum(result * tf.cast(weight, result.dtype)))
                for result, weight in zip(results, cotangents, strict=True)
                if weight is not None
            ]
        )
    samples.compare_gradients(subject.sample, tape.gradient(loss, wanted))

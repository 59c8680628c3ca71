"""What PyTorch does to an operator: its own checks, the compilers, batches and derivatives."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.exchange.adapter import require_importable
from dlbridge.frameworks.torch.autocasting import Casts
from dlbridge.kernels.autocast import CAST
from dlbridge.kernels.kernel import recorded
from dlbridge.testing import samples
from dlbridge.testing.checking import Inapplicable, Subject, in_each_choice


def working() -> AbstractContextManager[Any]:
    """Return a block for each check."""
    return nullcontext()


def check_opcheck(subject: Subject) -> None:
    """torch.library.opcheck: schema, autograd, fake kernel, dispatch by AOTAutograd."""
    sample = subject.sample
    # By its key: the name may be that of a kernel whose results are numbers, or of a later one.
    namespace, name = recorded(subject.recipe.kernel).split("::")
    operator = getattr(getattr(torch.ops, namespace), name).default
    called: list[Any] = []
    sample.function(lambda *args, **kwargs: called.extend((args, kwargs)))(
        *_leaves(subject, subject.recipe.kernel.vjp is not None)
    )
    args = tuple(map(_own_dtype, called[0]))
    kwargs = {name: _own_dtype(value) for name, value in called[1].items()}
    found = torch.library.opcheck(operator, args, kwargs, raise_exception=False)
    wrong = [f"{name}: {end}" for name, end in found.items() if end != "SUCCESS"]
    if wrong:
        raise AssertionError("; ".join(wrong))


def _own_dtype(value: Any) -> Any:
    return value.to("torch") if isinstance(value, DType) else value


def check_compile(subject: Subject) -> None:
    """torch.compile(fullgraph=True), by the compiler of graphs alone: no C++ compiler is needed."""
    require_importable("triton", "check_kernel: torch.compile")
    torch.compiler.reset()
    function = torch.compile(
        subject.sample.function(subject.call), fullgraph=True, backend="aot_eager"
    )
    with _unbacked(subject):
        got = subject.outputs(function, subject.sample.given("torch"))
    subject.sample.compare(got, "compiled, ")


def _unbacked(subject: Subject) -> AbstractContextManager[Any]:
    """Return a block in which compiled functions may have sizes that depend on data."""
    if not subject.recipe.schema.counts:
        return nullcontext()
    import torch._dynamo

    block: AbstractContextManager[Any] = torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True
    )
    return block


def check_export(subject: Subject) -> None:
    """torch.export, and a call of the exported program."""
    if not subject.recipe.schema.tensors:
        raise Inapplicable("it takes no tensor")
    require_importable("triton", "check_kernel: torch.export")
    function = subject.sample.function(subject.call)

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *tensors: Any) -> Any:
            return function(*tensors)

    program = torch.export.export(Module(), tuple(subject.sample.given("torch"))).module()
    subject.sample.compare(subject.outputs(program, subject.sample.given("torch")), "exported, ")


def check_vmap(subject: Subject) -> None:
    """torch.vmap over every tensor argument."""
    subject.require_batch()
    arrays, expected = subject.batch()
    tensors = [native.convert(each, "torch") for each in arrays]
    subject.compare_batch(
        torch.vmap(subject.sample.function(subject.static_call))(*tensors), expected
    )


@in_each_choice
def check_gradient(subject: Subject) -> None:
    """Autograd, against differences of the reference."""
    subject.require_gradient()
    tensors = _leaves(subject)
    results = samples.several(subject.sample.function(subject.call)(*tensors))
    loss = sum(
        (result * torch.as_tensor(weight, dtype=result.dtype)).sum().real
        for result, weight in zip(results, samples.weights(subject.sample.expected), strict=True)
        if weight is not None
    )
    wanted = [tensors[place] for place in subject.sample.moving()]
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    samples.compare_gradients(subject.sample, gradients)


@in_each_choice
def check_jvp(subject: Subject) -> None:
    """torch.func.jvp, against differences of the reference."""
    subject.require_jvp()
    sample = subject.sample
    function = sample.function(subject.call)
    moving, primals = samples.of_moving(sample, function, sample.given("torch"))
    pairs = zip(samples.directions(sample), primals, strict=True)
    tangents = tuple([torch.as_tensor(each, dtype=primal.dtype) for each, primal in pairs])
    samples.compare_tangents(sample, torch.func.jvp(moving, primals, tangents)[1])


def check_gradcheck(subject: Subject) -> None:
    """torch.autograd.gradcheck: the vjp against the kernel itself, in float64."""
    subject.require_gradient()
    moving = [subject.sample.tensors[place] for place in subject.sample.moving()]
    if any(each.dtype.name not in ("float64", "complex128") for each in moving):
        raise Inapplicable("the kernel takes no float64 or complex128")
    torch.autograd.gradcheck(subject.sample.function(subject.call), _leaves(subject))


def check_autocast(subject: Subject) -> None:
    """torch.autocast: values and gradients equal those of a call with cast arguments."""
    kernel, schema = subject.recipe.kernel, subject.recipe.schema
    if kernel.autocast is None:
        raise Inapplicable("the kernel has no autocast=")
    if schema.mutated:
        raise Inapplicable("it writes its arguments")
    for sample in (subject.sample, *subject.others):
        if any(each.dtype.name in CAST for each in sample.tensors):
            subject = subject._replace(sample=sample)
            break
    else:
        raise Inapplicable("no argument has a dtype that is cast")
    tensors = _leaves(subject, kernel.vjp is not None)
    function = subject.sample.function(subject.call)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = Casts(schema, kernel.autocast).apply(tensors) or tensors
        got = samples.several(function(*tensors))
    right = samples.several(function(*cast))
    torch.testing.assert_close(got, right, rtol=0, atol=0, equal_nan=True)
    wanted = [each for each in tensors if each.requires_grad]
    if wanted and any(each.requires_grad for each in got):
        found, expected = (
            torch.autograd.grad(
                [each.sum() for each in results if each.requires_grad], wanted, allow_unused=True
            )
            for results in (got, right)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def _leaves(subject: Subject, has_gradient: bool = True) -> list[Any]:
    """Return arguments, of which those are to be differentiated that can be."""
    tensors = subject.sample.given("torch")
    if has_gradient and not subject.recipe.schema.mutated:
        for place in subject.sample.moving():
            tensors[place].requires_grad_()
    return tensors

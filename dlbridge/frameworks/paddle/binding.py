"""Kernels in Paddle: the direct route, and the kernel's vjp as a layer of its autograd."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import paddle

from dlbridge.errors import ExchangeError, UnsupportedTypeError
from dlbridge.kernels import gradients
from dlbridge.kernels.binding import Direct, Sliced
from dlbridge.kernels.gradients import Vjp
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.numbers import changed
from dlbridge.kernels.schema import Arguments, described, type_name
from dlbridge.signals import not_from_handler


class Paddle(Sliced, Direct):
    """Paddle's tensors, of which those that require a gradient get one through `kernel.vjp`."""

    def __init__(self) -> None:
        super().__init__("paddle")
        _keep_from_rewriting()

    def call(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call the kernel; tensors that require a gradient go through a PyLayer."""
        _refuse_symbolic(kernel, arguments)
        if not any(map(_requires_gradient, (*arguments.tensors, *(arguments.out or ())))):
            return super().call(kernel, arguments)
        if not paddle.is_grad_enabled():
            return super().call(kernel, arguments._replace(tensors=_detached(arguments.tensors)))
        vjp = gradients.make_vjp(kernel)
        if vjp is None or arguments.out is not None:
            cure = "leave out= away" if vjp is not None else gradients.remedy(kernel)
            raise ExchangeError(
                "requires_grad",
                f"{kernel.name}: a tensor requires a gradient (stop_gradient=False), which would "
                f"be lost; {cure}, pass x.detach(), or call it under paddle.no_grad()",
            )
        return _Layer.apply(_Forward(self, kernel, arguments, vjp), *_present(arguments.tensors))

    def call_numbers(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call the kernel; where all its results are constants, without a look at gradients."""
        assert kernel.numbers is not None
        if kernel.numbers.gives_constants(arguments):
            arguments = changed(_detach, arguments)
        return super().call_numbers(kernel, arguments)

    def run(self, kernel: Kernel, arguments: Arguments) -> Any:
        """Call the kernel without a look at gradients."""
        return super().call(kernel, arguments)

    def wrote(self, value: Any) -> None:
        """Tell autograd that a saved value is no longer what it was."""
        value._bump_inplace_version()


def _keep_from_rewriting() -> None:
    """Tell to_static, both ways of it, that our own code runs as it is."""
    package: Any = sys.modules["dlbridge"]
    paddle.jit.ignore_module([package])
    try:
        from paddle.jit.sot.opcode_translator import skip_files

        skip_files.skip_file_names.add(package.__file__.removesuffix("__init__.py"))
        skip_files.setup_skip_files()
    except not_from_handler(ImportError, AttributeError):
        pass  # a module that releases may move


def _refuse_symbolic(kernel: Kernel, arguments: Arguments) -> None:
    for value in (*arguments.tensors, *(arguments.out or ())):
        if value is not None and not isinstance(value, paddle.Tensor):
            raise UnsupportedTypeError(
                f"{kernel.name}: {type_name(value)} is a value of a graph: static programs and "
                "to_static(full_graph=True) cannot call kernels; call the kernel outside of them"
            )


def _requires_gradient(value: Any) -> bool:
    return isinstance(value, paddle.Tensor) and not value.stop_gradient


def _present(tensors: Sequence[Any]) -> list[Any]:
    return [each for each in tensors if each is not None]


def _detached(tensors: Sequence[Any]) -> list[Any]:
    return [each if each is None else each.detach() for each in tensors]


def _detach(tensor: Any) -> Any:
    return tensor.detach() if isinstance(tensor, paddle.Tensor) else tensor


# ---- gradients ---------------------------------------------------------------------------------


class _Forward:
    """One call that is differentiated."""

    __slots__ = ("arguments", "binding", "expected", "kernel", "vjp")

    def __init__(self, binding: Paddle, kernel: Kernel, arguments: Arguments, vjp: Vjp) -> None:
        self.binding = binding
        self.kernel = kernel
        self.arguments = arguments._replace(tensors=_detached(arguments.tensors))
        self.expected = [None if x is None else described(x) for x in self.arguments.tensors]
        self.vjp = vjp

    def run(self) -> Any:
        """Return the results; of the arguments, those stay that the rule asks for."""
        made = self.binding.run(self.kernel, self.arguments)
        tensors = _only(self.arguments.tensors, self.vjp.saved.primals)
        self.arguments = self.arguments._replace(tensors=tensors)
        return made

    def gradients(self, saved: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Return one gradient for each tensor that was given, None where there is none.

        Args:
            saved: the results that the rule asks for.
            cotangents: one for each result.
        """
        results: list[Any] = [None] * len(cotangents)
        for place, each in zip(self.vjp.saved.results, saved, strict=True):
            results[place] = each
        tensors, scalars = self.arguments.tensors, self.arguments.scalars
        found = self.vjp(tensors, scalars, results, cotangents, self.expected)
        return [one for one, like in zip(found, self.expected, strict=True) if like is not None]


def _only(values: Sequence[Any], places: Sequence[int]) -> list[Any]:
    return [each if place in places else None for place, each in enumerate(values)]


class _Layer(paddle.autograd.PyLayer):  # type: ignore[misc]
    """The kernel's place in Paddle's graph."""

    @staticmethod
    def forward(context: Any, forward: _Forward, *tensors: Any) -> Any:
        made = forward.run()
        results = made if isinstance(made, tuple) else (made,)
        context.forward = forward
        context.differentiable = [not tensor.stop_gradient for tensor in tensors]
        context.save_for_backward(*[results[place] for place in forward.vjp.saved.results])
        return made

    @staticmethod
    def backward(context: Any, *cotangents: Any) -> Any:
        found = context.forward.gradients(context.saved_tensor() or (), cotangents)
        kept = [
            one if wanted else None
            for one, wanted in zip(found, context.differentiable, strict=True)
        ]
        return tuple(kept) if len(kept) > 1 else kept[0]


BINDING = Paddle()

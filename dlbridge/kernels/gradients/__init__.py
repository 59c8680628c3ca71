"""Derivatives of kernels: `vjp=` and `jvp=`, given as rules or derived by a framework."""

from __future__ import annotations

from dlbridge.kernels.gradients.automatic import Automatic
from dlbridge.kernels.gradients.derivative import (
    Jvp,
    Vjp,
    check,
    make_jvp,
    make_vjp,
    no_gradient,
    remedy,
)

__all__ = ["Automatic", "Jvp", "Vjp", "check", "make_jvp", "make_vjp", "no_gradient", "remedy"]

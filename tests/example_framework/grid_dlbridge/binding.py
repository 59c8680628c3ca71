"""Calls of kernels with grids: their memory is plain, so the direct route serves them."""

from __future__ import annotations

from dlbridge.kernels.binding import Direct

BINDING = Direct("grid")

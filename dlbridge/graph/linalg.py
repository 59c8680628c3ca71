"""`tf.linalg`: matrices, under the names without the prefix `matrix_`."""

from dlbridge.graph.ops.arithmetic import global_norm
from dlbridge.graph.ops.generate import eye
from dlbridge.graph.ops.linear import (
    cholesky,
    cross,
    einsum,
    matmul,
    matrix_transpose,
    matvec,
    norm,
    tensordot,
    trace,
)
from dlbridge.graph.ops.linear import matrix_band_part as band_part
from dlbridge.graph.ops.linear import matrix_determinant as det
from dlbridge.graph.ops.linear import matrix_diag as diag
from dlbridge.graph.ops.linear import matrix_diag_part as diag_part
from dlbridge.graph.ops.linear import matrix_inverse as inv
from dlbridge.graph.ops.linear import matrix_set_diag as set_diag
from dlbridge.graph.ops.linear import matrix_solve as solve
from dlbridge.graph.ops.linear import matrix_transpose as transpose
from dlbridge.graph.ops.normalization import l2_normalize

__all__ = [
    "band_part",
    "cholesky",
    "cross",
    "det",
    "diag",
    "diag_part",
    "einsum",
    "eye",
    "global_norm",
    "inv",
    "l2_normalize",
    "matmul",
    "matrix_transpose",
    "matvec",
    "norm",
    "set_diag",
    "solve",
    "tensordot",
    "trace",
    "transpose",
]

"""`tf.linalg`: matrices, under the names without the prefix `matrix_`."""

from dlbridge.graph.ops.generate.functions import eye
from dlbridge.graph.ops.linear.functions import einsum, matmul, matvec, norm, tensordot
from dlbridge.graph.ops.linear.matrices import cholesky, cross, matrix_transpose, trace
from dlbridge.graph.ops.linear.matrices import matrix_band_part as band_part
from dlbridge.graph.ops.linear.matrices import matrix_determinant as det
from dlbridge.graph.ops.linear.matrices import matrix_diag as diag
from dlbridge.graph.ops.linear.matrices import matrix_diag_part as diag_part
from dlbridge.graph.ops.linear.matrices import matrix_inverse as inv
from dlbridge.graph.ops.linear.matrices import matrix_set_diag as set_diag
from dlbridge.graph.ops.linear.matrices import matrix_solve as solve
from dlbridge.graph.ops.linear.matrices import matrix_transpose as transpose

__all__ = [
    "band_part",
    "cholesky",
    "cross",
    "det",
    "diag",
    "diag_part",
    "einsum",
    "eye",
    "inv",
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

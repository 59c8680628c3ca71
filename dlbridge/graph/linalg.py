"""`tf.linalg`: matrices, under the names without the prefix `matrix_`."""

from dlbridge.graph.functions.array import matrix_transpose as matrix_transpose
from dlbridge.graph.functions.math_generate import eye as eye
from dlbridge.graph.functions.math_linear import cholesky as cholesky
from dlbridge.graph.functions.math_linear import cross as cross
from dlbridge.graph.functions.math_linear import einsum as einsum
from dlbridge.graph.functions.math_linear import matmul as matmul
from dlbridge.graph.functions.math_linear import matvec as matvec
from dlbridge.graph.functions.math_linear import norm as norm
from dlbridge.graph.functions.math_linear import tensordot as tensordot
from dlbridge.graph.functions.math_linear import trace as trace

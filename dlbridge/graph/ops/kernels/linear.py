"""Linear algebra: products, diagonals, decompositions."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops import linear as equations
from dlbridge.graph.ops.kernels import (
    Array,
    Function,
    caster,
    element,
    in_wider,
    number,
    require_rank,
    require_shape,
)
from dlbridge.signals import not_from_handler


@kernel("MatMul")
def matmul(node: Node, context: Context) -> Function:
    return matrix_product(node, context.xp.matmul)


def matrix_product(node: Node, multiply: Function) -> Function:
    """The product of two matrices, either transposed first."""
    flip_a, flip_b = node.attrs["transpose_a"], node.attrs["transpose_b"]

    def function(a: Array, b: Array) -> Array:
        if a.ndim != 2 or b.ndim != 2:
            require_rank(a, 2, node, "a")
            require_rank(b, 2, node, "b")
        a, b = a.T if flip_a else a, b.T if flip_b else b
        if a.shape[1] != b.shape[0]:
            raise InvalidArgumentError(
                f"Matrix size-incompatible: In[0]: {list(a.shape)}, In[1]: {list(b.shape)}", node
            )
        return multiply(a, b)

    return function


@kernel("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(node: Node, context: Context) -> Function:
    return batch_product(node, context, context.xp.matmul)


def batch_product(node: Node, context: Context, multiply: Function) -> Function:
    """Products of the last two dimensions; an operand's adjoint is its conjugate transpose."""
    xp, kind = context.xp, node.output_types[0]
    widen: Function = caster(context, kind) if node.type == "BatchMatMulV3" else _same

    def adjoint(x: Array) -> Array:
        flipped = xp.swapaxes(x, -1, -2)
        return xp.conj(flipped) if kind.is_complex else flipped

    first, second = (adjoint if node.attrs[name] else _same for name in ("adj_x", "adj_y"))

    def function(x: Array, y: Array) -> Array:
        for each in (x, y):
            if each.ndim < 2:
                raise InvalidArgumentError(
                    f"In[0] and In[1] must have ndims >= 2: {each.ndim}", node
                )
        if node.type == "BatchMatMul" and x.shape[:-2] != y.shape[:-2]:  # later ones broadcast
            raise InvalidArgumentError(
                "In[0] and In[1] must have the same batch dimensions: "
                f"{list(x.shape)} vs. {list(y.shape)}",
                node,
            )
        x, y = first(x), second(y)
        if x.shape[-1] != y.shape[-2]:
            raise InvalidArgumentError(
                f"Matrix size-incompatible: In[0]: {list(x.shape)}, In[1]: {list(y.shape)}", node
            )
        return multiply(widen(x), widen(y))

    return function


def _same(x: Array) -> Array:
    return x


@kernel("Einsum")
def einsum(node: Node, context: Context) -> Function:
    return contraction(node, context, context.xp.einsum)


def contraction(node: Node, context: Context, function: Function) -> Function:
    """The sum that an equation describes."""
    try:
        equation = equations.parse_equation(node.attrs["equation"].decode(), node.attrs["N"])
    except not_from_handler(ValueError) as error:
        raise InvalidArgumentError(str(error), node) from None
    terms = equation.operands
    if "." not in equation.result:  # an ellipsis stands for nothing then
        terms = tuple([term.replace(".", "") for term in terms])
    apply = partial(function, equations.write_equation(equation._replace(operands=terms)))

    def checked(*arrays: Array) -> Array:
        try:
            equations.contract_dims(equation, [tuple(array.shape) for array in arrays])
        except not_from_handler(ValueError) as error:
            raise InvalidArgumentError(str(error), node) from None
        return apply(*arrays)

    return in_wider(context, element(node), checked)


# ---- diagonals ---------------------------------------------------------------------------------


@kernel("MatrixDiag")
def diagonal_matrix(node: Node, context: Context) -> Function:
    """Vectors as the diagonals of matrices of zeros."""
    xp, zero = context.xp, number(context, 0, element(node))

    def function(x: Array) -> Array:
        mask = context.asarray(np.eye(x.shape[-1], dtype=bool))
        return xp.where(mask, x[..., None, :], zero)

    return function


@kernel("MatrixDiagPart")
def diagonal_part(node: Node, context: Context) -> Function:
    """The diagonals of matrices."""
    return context.xp.linalg.diagonal  # type: ignore[no-any-return]


@kernel("MatrixSetDiag")
def set_diagonal(node: Node, context: Context) -> Function:
    """Matrices with other diagonals."""
    xp = context.xp

    def function(x: Array, diagonal: Array) -> Array:
        rows, columns = x.shape[-2:]
        require_shape(diagonal, (*x.shape[:-2], min(rows, columns)), node, "diagonal")
        mask = context.asarray(np.eye(rows, columns, dtype=bool))
        # The diagonal stands in every row, at the column it belongs to; wider elements are masked.
        side = min(columns, rows)
        if not side:
            return x
        row = diagonal[..., None, :]
        if side < columns:
            blank = xp.zeros_like(x[..., :1, side:])
            row = xp.concat([row, blank], axis=-1)
        return xp.where(mask, row, x)

    return function


@kernel("MatrixBandPart", host=(1, 2))
def band(node: Node, context: Context) -> Function:
    """Zero outside of a band around the diagonal; a negative width keeps the whole side."""
    xp, zero = context.xp, number(context, 0, element(node))

    def function(x: Array, lower: Any, upper: Any) -> Array:
        rows, columns = x.shape[-2:]
        for width, extent, name in ((lower, rows, "num_lower"), (upper, columns, "num_upper")):
            if int(width) > extent:
                raise InvalidArgumentError(
                    f"{name} must be negative or less or equal to number of "
                    f"{'rows' if name == 'num_lower' else 'columns'} ({extent}) got: {int(width)}",
                    node,
                )
        below = np.arange(rows)[:, None] - np.arange(columns)
        mask = np.ones((rows, columns), bool)
        if lower >= 0:
            mask &= below <= lower
        if upper >= 0:
            mask &= -below <= upper
        return xp.where(context.asarray(mask), x, zero)

    return function


# ---- decompositions ----------------------------------------------------------------------------


@kernel("MatrixInverse", "MatrixSolve")
def inverse(node: Node, context: Context) -> Function:
    """The inverse, or the solution of linear equations; singular matrices have none."""
    xp, kind = context.xp, element(node)
    linalg = xp.linalg
    function: Function = linalg.inv if node.type == "MatrixInverse" else linalg.solve

    def adjoint(x: Array) -> Array:
        flipped = xp.swapaxes(x, -1, -2)
        return xp.conj(flipped) if kind.is_complex else flipped

    def solve(x: Array, *sides: Array) -> Array:
        for each in sides:
            if x.ndim < 2 or x.shape[-1] != x.shape[-2] or x.shape[:-1] != each.shape[:-1]:
                raise InvalidArgumentError(
                    "the matrices must be square, and the right-hand sides have as many rows and "
                    f"the same outer dimensions: {list(x.shape)} and {list(each.shape)}",
                    node,
                )
            if 0 in each.shape:  # also of a singular matrix
                return xp.zeros_like(each)
        try:
            return function(adjoint(x) if node.attrs["adjoint"] else x, *sides)
        except not_from_handler(ArithmeticError, RuntimeError, np.linalg.LinAlgError):
            # each framework's own class
            raise InvalidArgumentError("Input is not invertible.", node) from None

    return in_wider(context, kind, solve)


@kernel("MatrixDeterminant")
def determinant(node: Node, context: Context) -> Function:
    """The determinants of square matrices."""
    return in_wider(context, element(node), context.xp.linalg.det)


@kernel("Cross")
def cross(node: Node, context: Context) -> Function:
    """The vector product in the last dimension, whose extent is 3."""
    xp = context.xp

    def function(a: Array, b: Array) -> Array:
        if a.shape != b.shape or not a.ndim or a.shape[-1] != 3:
            raise InvalidArgumentError(
                f"Both inputs must be of same shape, the last dimension 3: {list(a.shape)} vs. "
                f"{list(b.shape)}",
                node,
            )
        parts = []
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            left = xp.multiply(a[..., j], b[..., k])
            parts.append(xp.subtract(left, xp.multiply(a[..., k], b[..., j])))
        return xp.stack(parts, axis=-1)

    return function

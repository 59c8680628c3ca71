"""Equations of einsum: the shapes of results, and what is no equation."""

from __future__ import annotations

from typing import Any

import pytest

from dlbridge.graph.ops import linear


@pytest.mark.parametrize(
    ("text", "shapes", "result"),
    [
        ("ij,jk->ik", [(2, 3), (3, None)], (2, None)),
        ("ij,jk", [(2, 3), (3, 4)], (2, 4)),
        ("b a -> a b", [(2, 3)], (3, 2)),
        ("...ij,...jk->...ik", [(5, 1, 2, 3), (7, 3, 4)], (5, 7, 2, 4)),
        ("...i->...", [None], None),
        ("i...->i", [None], (None,)),
        ("i...->i", [(2,)], (2,)),
        ("...->", [()], ()),
        ("ij->j", [None], (None,)),
    ],
)
def test_einsum_shapes(text: str, shapes: Any, result: Any) -> None:
    assert linear.contract_dims(linear.parse_equation(text, len(shapes)), shapes) == result


@pytest.mark.parametrize(
    ("text", "count"),
    [("ij,jk->ik", 1), ("i1->i", 1), ("ij->ii", 1), ("ij->k", 1), ("i....j->i", 1), ("", 2)],
)
def test_wrong_equations_are_refused(text: str, count: int) -> None:
    with pytest.raises(ValueError, match="einsum"):
        linear.parse_equation(text, count)


@pytest.mark.parametrize("shape", [(3,), (1, 2), (None, 2)])
def test_dimensions_that_the_result_lacks_are_refused(shape: Any) -> None:
    with pytest.raises(ValueError, match="must be at most rank 0 but is rank"):
        linear.contract_dims(linear.parse_equation("...->", 1), [shape])

"""Layouts by name, and the picture of a tensor's memory, against a walk over all elements."""

from __future__ import annotations

from itertools import product
from xml.etree import ElementTree

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import dlbridge
from dlbridge.tensor.picture import draw, read_layout, read_slots

AXES = st.lists(st.tuples(st.integers(0, 4), st.integers(-20, 20)), max_size=4)


def offsets(shape: list[int], strides: list[int]) -> dict[tuple[int, ...], int]:
    """Return the offset of each element from the first."""
    return {
        index: sum(i * step for i, step in zip(index, strides, strict=True))
        for index in product(*map(range, shape))
    }


@given(AXES)
def test_the_layout_says_how_far_elements_reach(axes: list[tuple[int, int]]) -> None:
    shape, strides = [extent for extent, _ in axes], [step for _, step in axes]
    layout, places = read_layout(shape, strides), offsets(shape, strides)
    if not places:
        assert layout.kind == "empty"
        return
    assert (layout.low, layout.high) == (min(places.values()), max(places.values()))
    if layout.kind != "overlapping":
        assert len({*places.values()}) == len(places)
    if layout.kind in ("row-major", "column-major", "permuted"):
        assert layout.high - layout.low + 1 == len(places)


@given(AXES, st.integers(1, 40))
def test_each_slot_names_an_element_that_lies_there(axes: list[tuple[int, int]], n: int) -> None:
    shape, strides = [extent for extent, _ in axes], [step for _, step in axes]
    places, low = offsets(shape, strides), read_layout(shape, strides).low
    slots = read_slots(shape, strides, n)
    assert {*slots} == {place - low for place in places.values() if place - low < n}
    assert all(places[index] - low == slot for slot, index in slots.items())


@given(AXES)
def test_the_picture_is_well_formed(axes: list[tuple[int, int]]) -> None:
    shape, strides = [extent for extent, _ in axes], [step for _, step in axes]
    svg = ElementTree.fromstring(draw(shape, strides, "a <title> & more"))
    assert svg[0].text == "a <title> & more"


def test_layouts_have_the_usual_names() -> None:
    """Axes of extent 1 say nothing about the order."""
    cases = {
        ((2, 3), (3, 1)): "row-major",
        ((2, 1, 3), (3, 99, 1)): "row-major",
        ((2, 3), (1, 2)): "column-major",
        ((2, 3, 4), (4, 8, 1)): "permuted",
        ((4, 3), (6, 2)): "strided",
        ((4,), (0,)): "overlapping",
        ((4, 0), (0, 1)): "empty",
        ((), ()): "row-major",
    }
    assert {each: read_layout(*each).kind for each in cases} == cases


def test_notebooks_show_a_tensor_with_its_memory() -> None:
    """Values, fields and the picture; what comes from outside is escaped."""
    html = dlbridge.from_dlpack(np.arange(6.0).reshape(2, 3)[:, ::2])._repr_html_()
    assert "<pre>Tensor([[0., 2.]," in html
    assert "(3, 2) elements, strided" in html
    assert "a Python object" in html
    assert html.count("<rect") == 6
    for empty in (dlbridge.empty((0, 3), "int4"), dlbridge.full((), 1, "bfloat16")):
        ElementTree.fromstring(f"<div>{empty._repr_html_()}</div>")


def test_a_huge_tensor_has_a_small_picture() -> None:
    """Only the lowest slots are drawn, and found without a walk over all elements."""
    text = draw((2**20, 2**20), (2**20, 1), "huge")
    assert text.count("<rect") == 96
    assert "and 1,099,511,627,680 more slots" in text

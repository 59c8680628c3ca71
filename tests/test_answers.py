"""Recorded answers of TensorFlow come back as they were, and only for their own questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answers import Answers

X = np.arange(6, dtype=np.float32).reshape(2, 3)
VALUES: list[Any] = [
    None,
    True,
    2**70,
    0.1,
    float("-inf"),
    "text",
    b"\xff\x00",
    ["a", ("b", [None])],
    {"name": "Type", "other": (1, 2)},
    [ValueError, TypeError],
    np.array([b"a", b"\xff"], object).reshape(2, 1),
    np.array(b"a", object),
]


def never() -> Any:
    pytest.fail("TensorFlow was asked")


def record(path: Path, value: Any, *inputs: Any) -> None:
    answers = Answers(path, record=True)
    assert next(answers("question", lambda: value, *inputs)) is not None or value is None
    answers.save()


def test_recording_a_part_keeps_the_rest(tmp_path: Path) -> None:
    """`make record` for a few tests asks only their questions."""
    path = tmp_path / "file"
    record(path, 1, "one")
    for keep in (True, False):
        part = Answers(path, record=True, keep=keep)
        next(part("question", lambda: 2, "two"))
        part.save()
        if keep:
            assert list(Answers(path)("question", never, "one")) == [1]
        assert list(Answers(path)("question", never, "two")) == [2]
    with pytest.raises(LookupError, match="is not recorded"):
        next(Answers(path)("question", never, "one"))


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_an_answer_comes_back_as_it_was(tmp_path: Path, value: Any) -> None:
    record(tmp_path / "file", value)
    (found,) = Answers(tmp_path / "file")("question", never)
    np.testing.assert_equal(found, value)
    assert type(found) is type(value)


@pytest.mark.parametrize("dtype", ["float64", "int8", "complex64", "bool", "bfloat16", "int4"])
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 2)], ids=str)
def test_arrays_keep_dtype_shape_and_bits(tmp_path: Path, dtype: str, shape: Any) -> None:
    if dtype in ("bfloat16", "int4"):
        dtype = getattr(pytest.importorskip("ml_dtypes"), dtype)
    value = np.ones(shape, dtype)
    for each in (value, value[()]):
        record(tmp_path / "file", [each])
        ((found,),) = Answers(tmp_path / "file")("question", never)
        assert (found.dtype, found.shape) == (each.dtype, each.shape)
        assert found.tobytes() == each.tobytes()
        assert isinstance(found, np.ndarray) == isinstance(each, np.ndarray)


def test_the_same_answers_are_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "other"):
        record(tmp_path / name, X)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_an_unrecorded_question_is_an_error_that_names_the_command(tmp_path: Path) -> None:
    record(tmp_path / "file", 3, X)
    answers = Answers(tmp_path / "file")
    assert list(answers("question", never, X.copy())) == [3]
    for question, inputs in (("another", [X]), ("question", [X + 1]), ("question", [])):
        with pytest.raises(LookupError, match="make record"):
            list(answers(question, never, *inputs))


def test_the_long_ring_asks_tensorflow_besides(tmp_path: Path) -> None:
    record(tmp_path / "file", "then")
    answers = Answers(tmp_path / "file", live=True)
    assert list(answers("question", lambda: "now")) == ["then", "now"]
    assert list(answers("question", never)) == ["then", "now"]
    assert list(answers("question", never, live=False)) == ["then"]

"""The texts of refusals: each ends with its reason, which the documentation explains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import REASONS, ExchangeError

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "errors.md").read_text()


def refusal(call: Any, *args: Any, **keywords: Any) -> ExchangeError:
    with pytest.raises(ExchangeError) as caught:
        call(*args, **keywords)
    return caught.value


def test_a_text_ends_with_its_reason_from_c_and_from_python() -> None:
    """Who sees the text only, in a log, searches for the code."""
    swapped = np.ones(2, ">f4")
    errors = [
        refusal(dlbridge.from_dlpack, swapped, copy=False),
        refusal(dlbridge.to_numpy, dlbridge.ones(2, "float32"), dtype="int8"),
        refusal(dlbridge.from_dlpack, np.ones(2).astype(object)),
        refusal(dlbridge.convert_tree, {"a": [swapped]}, "dlbridge", copy=False),
    ]
    for error in errors:
        assert str(error).endswith(f" [{error.reason}]")
        assert str(error).count(f"[{error.reason}]") == 1


def test_a_text_of_another_refusal_has_the_reason_once() -> None:
    inner = ExchangeError("dtype", "a value does not fit")
    assert str(ExchangeError("dtype", f"to_torch: {inner}")) == (
        "to_torch: a value does not fit [dtype]"
    )


def test_the_page_has_an_anchor_and_a_part_about_each_reason() -> None:
    assert set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == set(REASONS)
    for reason in REASONS:
        assert f"(reason-{reason})=\n### {reason}\n\n" in PAGE

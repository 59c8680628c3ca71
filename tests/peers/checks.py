"""Shared by the files of the single libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dlbridge
from dlbridge import ExchangeError


def refused(reason: str, call: Callable[..., Any], *args: Any, **keywords: Any) -> str:
    """Check that a call is refused for a reason; return the text."""
    with pytest.raises(ExchangeError) as caught:
        call(*args, **keywords)
    assert caught.value.reason == reason, str(caught.value)
    return str(caught.value)


def receipt_of(x: Any, to: str, **policies: Any) -> dlbridge.Receipt:
    """Convert under a log, check that `explain` foresaw it, and return the receipt."""
    with dlbridge.receipts() as log:
        dlbridge.convert(x, to, **policies)
    (receipt,) = log
    foreseen = dlbridge.explain(x, to, **policies)
    for name in ("shared", "copied_by", "why", "source", "target"):
        assert getattr(foreseen, name) == getattr(receipt, name), name
    if to != "dlbridge":  # which is entered by no function
        # The receipt's own import may be what a second one is an alias of.
        ends = {foreseen.route.split(" -> ")[-1], "alias of an earlier import"}
        assert receipt.route.split(" -> ")[-1] in ends
    return receipt

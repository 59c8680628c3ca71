"""The marker `fact`, and cheap garbage collections while many large libraries are loaded."""

from __future__ import annotations

import gc
import sys

import pytest

_seen = [0]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of this folder."""
    config.addinivalue_line(
        "markers", "fact(number): holds a line of docs/peers.md on how another library behaves"
    )


@pytest.fixture(autouse=True)
def loaded_libraries_are_frozen() -> None:
    """Take what a newly imported library made out of later collections.

    A collection over all libraries takes half a second, and the leak check makes one whenever a
    library calls a deleter a little late.
    """
    if len(sys.modules) > _seen[0] + 100:
        _seen[0] = len(sys.modules)
        gc.collect()
        gc.freeze()

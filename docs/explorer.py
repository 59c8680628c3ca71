"""The page that shows a tensor's memory: each choice drawn beforehand, by the code of `Tensor`."""

from __future__ import annotations

import json
from html import escape
from itertools import product
from typing import Any

import numpy as np

import dlbridge
from dlbridge.tensor import picture

ROWS, COLUMNS = 4, 6
TARGETS = ("numpy", "torch", "jax", "tensorflow", "tvm", "pyarrow")
# The choices: the width of the rows in memory, then what is done to the array one by one.
CHOICES: dict[str, dict[str, Any]] = {
    "memory": {"compact": COLUMNS, "each row padded to 8": 8},
    "rows": {
        "x[:]": lambda x: x,
        "x[::2]": lambda x: x[::2],
        "x[::-1]": lambda x: x[::-1],
        "x[1:]": lambda x: x[1:],
    },
    "columns": {
        "x[:, :]": lambda x: x,
        "x[:, ::2]": lambda x: x[:, ::2],
        "x[:, ::-1]": lambda x: x[:, ::-1],
        "x[:, 1:]": lambda x: x[:, 1:],
    },
    "axes": {"x": lambda x: x, "x.T": lambda x: x.T},
    "writes": {"allowed": lambda x: x, "read-only": lambda x: _read_only(x)},
}


def _read_only(x: np.ndarray) -> np.ndarray:
    view = x[...]
    view.flags.writeable = False
    return view


def _answer(x: np.ndarray, target: str) -> str:
    """Return what an exchange would do: "shared", "copied: strides", "refused: readonly"."""
    try:
        receipt = dlbridge.explain(x, target)
    except dlbridge.DLBridgeError as error:
        return f"refused: {error.reason}"
    return "shared" if receipt.shared else f"copied: {receipt.why}"


def _alignment(address: int) -> int:
    return min(address & -address, 64)


def _state(choice: tuple[str, ...], base: np.ndarray) -> dict[str, Any]:
    """Return what the page shows for one choice."""
    x = base[:, :COLUMNS]
    for steps, value in list(zip(CHOICES.values(), choice, strict=True))[1:]:
        x = steps[value](x)
    tensor = dlbridge.from_dlpack(x)
    layout = picture.read_layout(tensor.shape, tensor.strides)
    offset = tensor.data_ptr - base.ctypes.data
    fields = {
        "shape": tensor.shape,
        "strides": f"{tensor.strides} elements",
        "layout": layout.kind + (", reversed" if layout.is_reversed else ""),
        "offset": f"{offset} bytes from the start of the allocation",
        "alignment": f"{_alignment(tensor.data_ptr)} bytes",
        "read-only": "yes" if tensor.readonly else "no",
        "bytes": f"{tensor.nbytes} in elements, {4 * (layout.high - layout.low + 1)} in all",
    }
    drawn = picture.draw(tensor.shape, tensor.strides, f"memory of shape {tensor.shape}")
    return {
        "fields": {name: str(value) for name, value in fields.items()},
        "targets": {target: _answer(x, target) for target in TARGETS},
        "picture": drawn,
    }


def _table(rows: dict[str, str], kind: str) -> str:
    cells = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items()
    )
    return f'<table class="table {kind}"><tbody>{cells}</tbody></table>'


def page() -> str:
    """Return the HTML of the page's interactive part."""
    bases = {
        name: dlbridge.zeros((ROWS, width), "float32").numpy()
        for name, width in CHOICES["memory"].items()
    }
    pictures: list[str] = []
    states = {}
    for choice in product(*CHOICES.values()):
        state = _state(choice, bases[choice[0]])
        drawn = state.pop("picture")
        if drawn not in pictures:
            pictures.append(drawn)
        tables = _table(state["fields"], "fields") + _table(state["targets"], "targets")
        states["|".join(choice)] = [pictures.index(drawn), tables]
    selects = "".join(
        f"<label>{label} <select>"
        + "".join(f"<option>{escape(value)}</option>" for value in values)
        + "</select></label>"
        for label, values in CHOICES.items()
    )
    first = next(iter(states.values()))
    data = json.dumps({"pictures": pictures, "states": states}).replace("</", "<\\/")
    return (
        f'<div class="explorer"><form>{selects}</form>'
        f'<div class="memory">{pictures[first[0]]}</div>'
        f'<div class="tables">{first[1]}</div>'
        f'<script type="application/json">{data}</script></div>'
        "<script>(function () {"
        "const root = document.currentScript.previousElementSibling;"
        'const data = JSON.parse(root.querySelector("script").textContent);'
        'const selects = [...root.querySelectorAll("select")];'
        'root.querySelector("form").addEventListener("change", () => {'
        'const state = data.states[selects.map((one) => one.value).join("|")];'
        'root.querySelector(".memory").innerHTML = data.pictures[state[0]];'
        'root.querySelector(".tables").innerHTML = state[1];'
        "});})();</script>"
    )

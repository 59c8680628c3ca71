"""convert_tree: every tensor of a nested container, and nothing else."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
from dlpack_peers import ModernProducer

import dlbridge
from dlbridge import ExchangeError, Tensor, convert_tree


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Plain:
    data: Any
    name: str = "a"


@dataclass(frozen=True, slots=True)
class Frozen:
    data: Any
    later: Any = field(init=False, default=None)


def leaf() -> np.ndarray[Any, Any]:
    return np.arange(3.0)


def test_one_tensor() -> None:
    x = leaf()
    assert convert_tree(x, "dlbridge").data_ptr == x.ctypes.data


def test_containers_are_rebuilt_and_left_alone() -> None:
    tree = {"a": [leaf(), (leaf(), 1, "text", None)], "b": {"c": leaf()}}
    made = convert_tree(tree, "dlbridge")
    assert isinstance(made["a"][0], Tensor)
    assert isinstance(made["a"][1], tuple)
    assert made["a"][1][1:] == (1, "text", None)
    assert isinstance(made["b"]["c"], Tensor)
    assert isinstance(tree["a"][0], np.ndarray)
    assert list(made) == ["a", "b"]


def test_kinds_of_dict() -> None:
    ordered = convert_tree(OrderedDict(b=leaf(), a=leaf()), "dlbridge")
    assert type(ordered) is OrderedDict
    assert list(ordered) == ["b", "a"]
    default = convert_tree(defaultdict(list, x=leaf()), "dlbridge")
    assert default["missing"] == []
    assert isinstance(default["x"], Tensor)


def test_named_tuples_and_dataclasses() -> None:
    point = convert_tree(Point(leaf(), 2), "dlbridge")
    assert type(point) is Point
    assert isinstance(point.x, Tensor)
    plain = convert_tree(Plain(leaf()), "dlbridge")
    assert isinstance(plain.data, Tensor)
    assert plain.name == "a"
    frozen = convert_tree(Frozen([leaf()]), "dlbridge")
    assert isinstance(frozen.data[0], Tensor)
    assert frozen.later is None
    assert convert_tree(Plain, "dlbridge") is Plain


def test_subclasses_of_list_keep_their_type() -> None:
    class Own(list):
        pass

    made = convert_tree(Own([leaf()]), "dlbridge")
    assert type(made) is Own
    assert isinstance(made[0], Tensor)


def test_what_is_no_tensor_is_kept_as_it_is() -> None:
    for x in (3, 2.5, "text", b"bytes", None, {1, 2}, object, len):
        assert convert_tree(x, "dlbridge") is x
    assert convert_tree([], "dlbridge") == []
    assert convert_tree({}, "dlbridge") == {}


def test_any_producer_is_a_tensor() -> None:
    class Interface:
        __array_interface__ = leaf().__array_interface__

    kept = leaf()
    Interface.__array_interface__ = kept.__array_interface__
    made = convert_tree(
        [ModernProducer(leaf()), Interface(), dlbridge.zeros((2,), "float32")], "numpy"
    )
    assert [type(x) for x in made] == [np.ndarray] * 3


def test_policies_reach_every_leaf() -> None:
    x = leaf()
    made = convert_tree([x, {"a": x}], "numpy", copy=True)
    assert made[0].ctypes.data != x.ctypes.data
    assert made[1]["a"].ctypes.data != x.ctypes.data


def test_a_failure_says_where() -> None:
    tree = {"weights": [leaf(), Plain(np.array(["text"]))]}
    with pytest.raises(ExchangeError) as caught:
        convert_tree(tree, "dlbridge")
    assert caught.value.reason == "dtype"
    assert caught.value.__notes__ == ["at ['weights'][1].data of the tree"]


def test_a_failure_at_the_root_needs_no_path() -> None:
    with pytest.raises(ExchangeError) as caught:
        convert_tree(np.array(["text"]), "dlbridge")
    assert not hasattr(caught.value, "__notes__")


def test_registered_nodes_are_walked() -> None:
    optree = pytest.importorskip("optree")

    class Pair:
        def __init__(self, a: Any, b: Any) -> None:
            self.a, self.b = a, b

    optree.register_pytree_node(
        Pair,
        lambda pair: ((pair.a, pair.b), None),
        lambda _, children: Pair(*children),
        namespace=optree.registry.__GLOBAL_NAMESPACE,
    )
    made = convert_tree({"p": Pair(leaf(), [leaf(), 1])}, "dlbridge")
    assert isinstance(made["p"].a, Tensor)
    assert isinstance(made["p"].b[0], Tensor)
    with pytest.raises(ExchangeError) as caught:
        convert_tree(Pair(leaf(), np.array(["text"])), "dlbridge")
    assert "<1>" in caught.value.__notes__[0]

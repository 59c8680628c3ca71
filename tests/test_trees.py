"""convert_tree: every tensor of a nested container, and nothing else."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from dlpack_peers import ModernProducer

import dlbridge
from dlbridge import ArgumentError, ExchangeError, Tensor, convert_tree


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


def masked() -> Any:
    return np.ma.masked_equal(leaf(), 1)


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
    tree = {"weights": [leaf(), Plain(masked())]}
    with pytest.raises(ExchangeError) as caught:
        convert_tree(tree, "dlbridge")
    assert caught.value.reason == "masked"
    assert caught.value.__notes__ == ["at ['weights'][1].data of the tree"]


def test_a_failure_at_the_root_needs_no_path() -> None:
    with pytest.raises(ExchangeError) as caught:
        convert_tree(masked(), "dlbridge")
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
        convert_tree(Pair(leaf(), masked()), "dlbridge")
    assert "<1>" in caught.value.__notes__[0]


# ---- classes with ideas of their own -----------------------------------------------------------


class Own(dict):
    """A dict whose constructor takes something else."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def test_a_dict_comes_back_as_its_own_class() -> None:
    """`dict.copy` makes plain dicts of subclasses, which would lose class and attributes."""
    tree = Own("a")
    tree["x"] = leaf()
    made = convert_tree(tree, "dlbridge")
    assert (type(made), made.name) == (Own, "a")
    assert isinstance(made["x"], Tensor)
    assert isinstance(tree["x"], np.ndarray)


def test_a_dataclass_that_is_a_dict_is_converted_in_both_ways() -> None:
    """Model outputs are such: the same tensor is an attribute and an item."""

    @dataclass
    class Output(dict):
        logits: Any

    tree = Output(leaf())
    tree["logits"] = tree.logits
    tree["more"] = leaf()
    made = convert_tree(tree, "dlbridge")
    assert type(made) is Output
    assert made["logits"] is made.logits
    assert isinstance(made.logits, Tensor)
    assert isinstance(made["more"], Tensor)
    assert isinstance(tree["logits"], np.ndarray)


def test_what_numpy_holds_without_numbers_is_a_leaf() -> None:
    """Text, dates and objects beside the tensors of a tree are no failed tensors."""
    text = np.array(["a", "b"])
    leaves = [np.str_("a"), np.datetime64("2020-01-01"), np.timedelta64(1), np.bytes_(b"a")]
    leaves += [text, text.astype("S"), np.array([None, 1]), np.zeros(2, "i4,f4"), np.void(b"ab")]
    leaves += [np.array(["2020"], "M8[Y]")]
    made = convert_tree([*leaves, leaf()], "dlbridge")
    assert all(a is b for a, b in zip(made, leaves, strict=False))
    assert isinstance(made[-1], Tensor)
    ml_dtypes = pytest.importorskip("ml_dtypes")  # whose kind is that of raw bytes, too
    assert convert_tree(np.zeros(2, ml_dtypes.bfloat16), "dlbridge").dtype == "bfloat16"


def test_a_structseq_without_tensors_stays_as_it_is() -> None:
    """Nobody can make another `sys.flags`, and a `struct_time` has more fields than items."""
    for x in (sys.flags, time.gmtime(0)):
        assert convert_tree([x], "dlbridge")[0] is x


def test_a_structseq_of_tensors_is_rebuilt() -> None:
    torch = pytest.importorskip("torch")
    made = convert_tree(torch.ones(2, 3).max(0), "numpy")
    assert type(made) is torch.return_types.max
    assert [type(x) for x in made] == [np.ndarray] * 2


def test_sequences_with_a_constructor_of_their_own_are_rebuilt() -> None:
    """Not by a call: what their constructors do with a list of items is unknown."""

    class Named(list):
        def __init__(self, name: str, *items: Any) -> None:
            super().__init__(items)
            self.name = name

    class Pair(tuple):
        def __new__(cls, a: Any, b: Any) -> Any:
            return super().__new__(cls, (a, b))

    pair = Pair(leaf(), 1)
    pair.name = "p"  # type: ignore[attr-defined]
    made = convert_tree([Named("n", leaf()), pair], "dlbridge")
    assert (type(made[0]), made[0].name) == (Named, "n")
    assert (type(made[1]), made[1].name, made[1][1]) == (Pair, "p", 1)
    assert isinstance(made[0][0], Tensor)
    assert isinstance(made[1][0], Tensor)


def test_a_container_that_refuses_is_named() -> None:
    class Closed(dict):
        def __copy__(self) -> Any:
            raise RuntimeError("no copies")

    with pytest.raises(ArgumentError, match=r"Closed at \['a'\] cannot be rebuilt: no copies"):
        convert_tree({"a": Closed(x=leaf())}, "dlbridge")


def test_a_tree_that_contains_itself_is_refused() -> None:
    """Before the recursion limit is, which may crash the process."""
    tree: list[Any] = [leaf()]
    tree.append({"x": (tree,)})
    with pytest.raises(ArgumentError, match=r"contains itself at \[1\]\['x'\]\[0\]"):
        convert_tree(tree, "dlbridge")
    plain = Plain(leaf())
    plain.data = plain
    with pytest.raises(ArgumentError, match="contains itself"):
        convert_tree(plain, "dlbridge")


def test_a_node_that_occurs_twice_is_no_cycle() -> None:
    twice = [leaf()]
    made = convert_tree([twice, twice], "dlbridge")
    assert [type(x[0]) for x in made] == [Tensor] * 2


def test_deques_are_containers_and_wrappers_of_dicts_are_leaves() -> None:
    made = convert_tree(deque([leaf(), 1], maxlen=5), "dlbridge")
    assert (type(made), made.maxlen, made[1]) == (deque, 5, 1)
    assert isinstance(made[0], Tensor)
    for x in (UserDict(x=leaf()), MappingProxyType({"x": leaf()})):
        assert convert_tree(x, "dlbridge") is x


def test_a_tensor_is_known_by_the_object_as_in_from_dlpack() -> None:
    """A class whose property says that this object has no memory makes it no tensor."""

    class Sometimes:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise AttributeError

    class Later:
        pass

    x, y = Sometimes(), Later()
    y.__array_interface__ = (kept := leaf()).__array_interface__  # type: ignore[attr-defined]
    made = convert_tree([x, y], "dlbridge")
    assert made[0] is x
    assert made[1].data_ptr == kept.ctypes.data

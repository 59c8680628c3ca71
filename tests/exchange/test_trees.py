"""convert_tree: every tensor of a nested container, and nothing else."""

from __future__ import annotations

import array
import contextlib
import datetime
import decimal
import enum
import functools
import gc
import pathlib
import subprocess
import sys
import time
import weakref
from collections import OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from dlpack_peers import ModernProducer
from hypothesis import given
from hypothesis import strategies as st

import dlbridge
from dlbridge import ArgumentError, ExchangeError, Tensor, UnsupportedTypeError, convert_tree
from dlbridge.exchange import trees


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


@pytest.mark.parametrize("walk", [trees.tensors_of, lambda tree: convert_tree(tree, "dlbridge")])
@pytest.mark.parametrize("rest", [None, object()])  # the latter is refused
def test_a_walk_leaves_no_cycle_that_would_hold_the_tensors(walk: Any, rest: Any) -> None:
    tensors = [leaf(), leaf()]
    are_there = [weakref.ref(each) for each in tensors]
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(UnsupportedTypeError) if rest else contextlib.nullcontext():
            walk((tensors[0], Plain(tensors[1]), rest))
        del tensors
        assert [each() for each in are_there] == [None, None]
    finally:
        gc.enable()


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


def test_other_leaves_are_kept_as_they_are() -> None:
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
    assert str(caught.value).startswith("convert_tree: at ['weights'][1].data: ")
    assert not hasattr(caught.value, "__notes__")


def test_a_failure_at_the_root_needs_no_path() -> None:
    with pytest.raises(ExchangeError) as caught:
        convert_tree(masked(), "dlbridge")
    assert str(caught.value).startswith("convert_tree: ")
    assert " at " not in str(caught.value)
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
    assert str(caught.value).startswith("convert_tree: at <1>: ")


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


def test_arrays_without_numbers_are_leaves() -> None:
    """Text, dates and objects beside the tensors of a tree are no failed tensors."""
    text = np.array(["a", "b"])
    leaves = [np.str_("a"), np.datetime64("2020-01-01"), np.timedelta64(1), np.bytes_(b"a")]
    leaves += [text, text.astype("S"), np.array([None, 1]), np.void(b"ab")]
    leaves += [np.array(["2020"], "M8[Y]")]
    made = convert_tree([*leaves, leaf()], "dlbridge")
    assert all(a is b for a, b in zip(made, leaves, strict=False))
    assert isinstance(made[-1], Tensor)
    for record in (np.zeros(2, "i4,f4"), np.zeros(2, "i4,f4")[0]):
        with pytest.raises(UnsupportedTypeError, match=r"at \['r'\] has fields.*x\.dtype\.names"):
            convert_tree({"r": record}, "dlbridge")
        assert convert_tree([record], "dlbridge", unknown="keep")[0] is record
    ml_dtypes = pytest.importorskip("ml_dtypes")  # whose kind is also that of raw bytes
    assert convert_tree(np.zeros(2, ml_dtypes.bfloat16), "dlbridge").dtype == "bfloat16"


def test_text_of_tensorflow_is_a_leaf_as_that_of_numpy_is(framework: Any) -> None:
    """No other framework has it; a tensor of text alone is refused."""
    tf = framework("tensorflow")
    leaves = [
        tf.constant(["a", "b"]),
        tf.constant("a"),
        tf.Variable("a"),
        tf.constant([[]], "string"),
    ]
    made = convert_tree([*leaves, tf.ones(2)], "numpy")
    assert all(a is b for a, b in zip(made, leaves, strict=False))
    assert made[-1].tolist() == [1.0, 1.0]
    assert convert_tree(leaves[0], "numpy") is leaves[0]
    assert convert_tree({"x": leaves[0]}, "tensorflow")["x"] is leaves[0]
    with pytest.raises(ExchangeError, match=r"TensorFlow cannot export string.*\[dtype\]"):
        dlbridge.to_numpy(leaves[0])
    with pytest.raises(ExchangeError, match=r"convert_tree: at \['x'\]: .*not dense"):
        convert_tree({"x": tf.sparse.from_dense([1.0])}, "numpy")


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


def test_deques_and_wrappers_of_dicts_are_containers() -> None:
    made = convert_tree(deque([leaf(), 1], maxlen=5), "dlbridge")
    assert (type(made), made.maxlen, made[1]) == (deque, 5, 1)
    assert isinstance(made[0], Tensor)
    for x in (UserDict(x=leaf()), MappingProxyType({"x": leaf()})):
        wrapped = convert_tree(x, "dlbridge")
        assert type(wrapped) is type(x)
        assert isinstance(wrapped["x"], Tensor)
        assert isinstance(x["x"], np.ndarray)


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
    made = convert_tree([x, y], "dlbridge", unknown="keep")
    assert made[0] is x
    assert made[1].data_ptr == kept.ctypes.data


# ---- nothing passes unseen ---------------------------------------------------------------------


class Opaque:
    """A class that nobody knows, with a tensor inside."""

    def __init__(self) -> None:
        self.x = leaf()


def test_an_unknown_leaf_is_refused_with_its_path() -> None:
    tree = {"a": [1, Opaque()]}
    with pytest.raises(UnsupportedTypeError, match=r"Opaque at \['a'\]\[1\] is neither a tensor"):
        convert_tree(tree, "dlbridge")
    with pytest.raises(UnsupportedTypeError, match="Opaque is neither"):
        convert_tree(Opaque(), "dlbridge")
    for x in (functools.partial(len, leaf()), {Opaque()}, iter([leaf()]), Opaque().__init__):
        with pytest.raises(UnsupportedTypeError, match='pass unknown="keep"'):
            convert_tree([x], "dlbridge")
    made = convert_tree({**tree, "b": leaf()}, "dlbridge", unknown="keep")
    assert made["a"][1] is tree["a"][1]
    assert isinstance(made["b"], Tensor)


def test_plain_data_is_kept() -> None:
    class Color(enum.Enum):
        RED = 1

    kept: list[Any] = [True, 2**80, 1j, decimal.Decimal(1), bytearray(b"a"), ..., NotImplemented]
    kept += [Color.RED, datetime.datetime(2020, 1, 1), datetime.timedelta(1), pathlib.Path("a")]
    kept += [frozenset({1, "a"}), range(3), slice(2), np.add, np.dtype("f4"), np.float32, len]
    kept += [dlbridge.float32, dlbridge.Device("cpu"), dlbridge.TensorShape([1, 2]), Opaque]
    made = convert_tree([*kept, leaf()], "dlbridge")
    assert all(a is b for a, b in zip(made, kept, strict=False))


def test_descriptions_of_frameworks_are_plain_data() -> None:
    torch = pytest.importorskip("torch")
    for x in (torch.float32, torch.device("cpu"), torch.strided, torch.contiguous_format):
        assert convert_tree([x], "dlbridge")[0] is x


def test_the_target_and_the_policies_are_checked_without_any_tensor() -> None:
    for tree in ({"lr": 1e-3}, [], 3):
        with pytest.raises(ArgumentError, match="unknown framework 'jaxx'"):
            convert_tree(tree, "jaxx")
        with pytest.raises(ArgumentError, match="copy must be one of"):
            convert_tree(tree, "numpy", copy="yes")
        with pytest.raises(ArgumentError, match="layot"):
            convert_tree(tree, "numpy", layot="any")
        with pytest.raises(ArgumentError, match="unknown must be one of 'refuse', 'keep'"):
            convert_tree(tree, "numpy", unknown="drop")


def test_views_of_a_dict_become_lists() -> None:
    tree = {"x": leaf(), "n": 1}
    values = convert_tree(tree.values(), "dlbridge")
    assert (type(values), type(values[0]), values[1]) == (list, Tensor, 1)
    items = convert_tree(tree.items(), "dlbridge")
    assert items[0][0] == "x"
    assert isinstance(items[0][1], Tensor)


def test_an_npz_file_becomes_a_dict(tmp_path: pathlib.Path) -> None:
    np.savez(tmp_path / "a.npz", x=leaf(), y=leaf())
    with np.load(tmp_path / "a.npz") as file:
        made = convert_tree({"file": file}, "dlbridge")
    assert type(made["file"]) is dict
    assert made["file"]["y"].tolist() == [0, 1, 2]


def test_arrays_of_the_standard_library_and_capsules_are_tensors() -> None:
    numbers = array.array("d", [1, 2])
    capsule = dlbridge.to_dlpack(leaf())
    made = convert_tree([numbers, memoryview(numbers), capsule], "dlbridge")
    assert [type(x) for x in made] == [Tensor] * 3
    assert made[1].tolist() == [1, 2]


def test_attrs_classes_are_rebuilt() -> None:
    """With or without slots; attrs is known by the attribute that its classes have."""

    class Field(NamedTuple):
        name: str

    class Slotted:
        __slots__ = ("data", "later")
        __attrs_attrs__ = (Field("data"), Field("later"))

    class Open:
        __attrs_attrs__ = (Field("data"),)

    for kind in (Slotted, Open):
        tree: Any = kind()
        tree.data = [leaf()]
        made = convert_tree(tree, "dlbridge")
        assert type(made) is kind
        assert isinstance(made.data[0], Tensor)
        assert isinstance(tree.data[0], np.ndarray)
        tree.data = masked()
        with pytest.raises(ExchangeError) as caught:
            convert_tree([tree], "dlbridge")
        assert str(caught.value).startswith("convert_tree: at [0].data: ")


class Node:
    """Two children and a name; the tests below register subclasses of it."""

    def __init__(self, a: Any, b: Any, name: str = "n") -> None:
        self.a, self.b, self.name = a, b, name


def _check(made: Any, kind: type) -> None:
    assert type(made) is kind
    assert made.name == "own"
    assert isinstance(made.a, Tensor)
    assert isinstance(made.b["x"], Tensor)
    assert made.b["n"] is None


def test_classes_registered_with_jax() -> None:
    jax = pytest.importorskip("jax")

    class Keyed(Node):
        pass

    jax.tree_util.register_pytree_with_keys(
        Keyed,
        lambda x: ([(jax.tree_util.GetAttrKey(n), getattr(x, n)) for n in ("a", "b")], x.name),
        lambda name, children: Keyed(*children, name),
    )
    _check(convert_tree([Keyed(leaf(), {"x": leaf(), "n": None}, "own")], "dlbridge")[0], Keyed)
    with pytest.raises(UnsupportedTypeError, match=r"Opaque at \[0\]\.b\['x'\] "):
        convert_tree([Keyed(leaf(), {"x": Opaque()})], "dlbridge")
    loop = Keyed(leaf(), None)
    loop.b = loop
    with pytest.raises(ArgumentError, match=r"contains itself at \.b"):
        convert_tree(loop, "dlbridge")


def test_dataclasses_registered_with_jax_keep_what_is_static() -> None:
    jax = pytest.importorskip("jax")

    @dataclass(frozen=True)
    class State:
        params: Any
        apply: Any

    jax.tree_util.register_dataclass(State, ["params"], ["apply"])
    static = Opaque()
    made = convert_tree(State({"w": leaf()}, static), "dlbridge")
    assert type(made) is State
    assert isinstance(made.params["w"], Tensor)
    assert made.apply is static


def test_classes_registered_with_torch() -> None:
    pytree = pytest.importorskip("torch").utils._pytree

    class Registered(Node):
        pass

    pytree.register_pytree_node(
        Registered,
        lambda x: ([x.a, x.b], x.name),
        lambda children, name: Registered(*children, name),
    )
    tree = {"r": Registered(leaf(), {"x": leaf(), "n": None}, "own")}
    _check(convert_tree(tree, "dlbridge")["r"], Registered)


def test_classes_registered_with_optree_in_a_namespace() -> None:
    optree = pytest.importorskip("optree")

    class Spaced(Node):
        pass

    class Twice(Node):
        pass

    for kind, spaces in ((Spaced, ["a"]), (Twice, ["a", "b"])):
        for space in spaces:
            optree.register_pytree_node(
                kind,
                lambda x: ((x.a, x.b), x.name),
                lambda name, children, kind=kind: kind(*children, name),
                namespace=f"dlbridge-tests-{space}",
            )
    made = convert_tree([Spaced(leaf(), {"x": leaf(), "n": None}, "own")], "dlbridge")
    _check(made[0], Spaced)
    with pytest.raises(ArgumentError, match="in the namespaces 'dlbridge-tests-a', 'dlbridge-te"):
        convert_tree(Twice(leaf(), leaf()), "dlbridge")


def test_torch_modules_become_their_state() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    made = convert_tree({"model": module}, "numpy")["model"]
    assert list(made) == list(module.state_dict())
    assert all(type(x) is np.ndarray for x in made.values())
    assert made["0.weight"].ctypes.data == module[0].weight.data_ptr()
    parameters = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.ones(2))})
    assert type(convert_tree(parameters, "numpy")["w"]) is np.ndarray


def test_no_library_is_imported_for_its_registry() -> None:
    code = (
        "import sys, dlbridge\n"
        "dlbridge.convert_tree({'a': [1, None]}, 'dlbridge')\n"
        "assert not {'jax', 'torch', 'optree'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- registered classes that are tensors as well, ties, attributes, functions, keys --------------


class Quantised:
    """Weights with a scale, which also lend their numbers by `__dlpack__`."""

    def __init__(self, numbers: Any, scale: Any) -> None:
        self.numbers, self.scale = numbers, scale

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.numbers.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.numbers.__dlpack_device__()


def test_a_registered_class_is_a_container_before_it_is_a_tensor() -> None:
    jax = pytest.importorskip("jax")
    kept = convert_tree([Quantised(leaf(), leaf())], "dlbridge")[0]
    assert isinstance(kept, Tensor)  # not registered yet

    class Weights(Quantised):
        pass

    class Lent(Tensor):
        """Its class has a C exchange table, which C takes at a glance."""

    lent = dlbridge.from_dlpack(leaf())._view((3,), (1,), 0, None)
    for kind in (Weights, Lent):
        jax.tree_util.register_pytree_node(
            kind, lambda x: ((x.numbers, x.scale), None), lambda _, made: Weights(*made)
        )
    made = convert_tree({"w": Weights(leaf(), leaf())}, "dlbridge")["w"]
    assert type(made) is Weights
    assert isinstance(made.numbers, Tensor)
    assert isinstance(made.scale, Tensor)
    assert isinstance(lent, Tensor)


def test_registered_subclasses_of_containers_are_rebuilt_by_their_registration() -> None:
    jax = pytest.importorskip("jax")

    class Named(NamedTuple):
        x: Any

    class Params(dict):
        pass

    calls = []
    for kind, flatten in ((Named, lambda n: ((n.x,), "n")), (Params, lambda d: ((d["x"],), "p"))):
        jax.tree_util.register_pytree_node(
            kind, flatten, lambda aux, made: (calls.append(aux), tuple(made))[1]
        )
    made = convert_tree([Named(leaf()), Params(x=leaf())], "dlbridge")
    assert [type(each) for each in made] == [tuple, tuple]
    assert all(isinstance(each[0], Tensor) for each in made)
    assert calls == ["n", "p"]


def test_tied_weights_stay_tied() -> None:
    x, shared = leaf(), [leaf()]
    tree = {"a": x, "b": [x, {"c": x}], "d": Plain(x), "e": shared, "f": OrderedDict(g=shared)}
    for copy in (None, True):
        made = convert_tree(tree, "dlbridge", copy=copy)
        assert made["a"] is made["b"][0] is made["b"][1]["c"] is made["d"].data
        assert made["e"] is made["f"]["g"]
        assert made["e"] is not shared
    capsule = dlbridge.to_dlpack(leaf())
    twice = convert_tree([capsule, capsule], "dlbridge")
    assert twice[0] is twice[1]


def test_many_nodes_are_told_apart() -> None:
    """The walk remembers nodes by their addresses; more of them than it first has room for."""
    tree = [np.full(2, i) for i in range(1000)]
    made = convert_tree([tree, tree[::-1]], "dlbridge")
    assert [each[0].item() for each in made[0]] == list(range(1000))
    assert all(a is b for a, b in zip(made[0], made[1][::-1], strict=True))


def test_tied_parameters_of_a_torch_module_stay_tied() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    module["b"].weight = module["a"].weight
    made = convert_tree(module, "numpy", copy=True)
    assert made["a.weight"] is made["b.weight"]
    assert made["a.bias"] is not made["b.bias"]


class AttributeDict(dict):
    """The usual idiom: its items are its attributes."""

    def __init__(self, *args: Any, **items: Any) -> None:
        super().__init__(*args, **items)
        self.__dict__ = self


def test_a_dict_that_is_its_own_attributes_stays_one() -> None:
    tree = AttributeDict(w=leaf(), inner=AttributeDict(b=leaf()))
    made = convert_tree(tree, "dlbridge")
    assert type(made) is AttributeDict
    assert made.__dict__ is made
    assert isinstance(made.w, Tensor)
    assert made.inner.b is made["inner"]["b"]
    made.new = 1
    assert "new" in made
    assert "new" not in tree


class Rich(dict):
    pass


class RichList(list):
    pass


class RichWrapper(UserDict):
    pass


class RichPair(tuple):
    pass


@dataclass
class Rotary:
    base: float

    def __post_init__(self) -> None:
        self.frequencies = leaf() / self.base

    @functools.cached_property
    def table(self) -> Any:
        return self.frequencies * 2


@pytest.mark.parametrize("kind", [Rich, RichList, RichWrapper, RichPair, Rotary])
def test_tensors_in_further_attributes_are_converted(kind: Any) -> None:
    tree = kind(2.0) if kind is Rotary else kind()
    if kind is Rotary:
        assert tree.table.size == 3
    tree.mask, tree.nested = leaf(), {"x": [leaf()]}
    tree.opaque, tree.itself = Opaque(), tree
    if kind is RichPair:
        del tree.itself  # a tuple is made last, so that nothing in it can refer to it
    made = convert_tree([tree], "dlbridge")[0]
    assert type(made) is kind
    assert isinstance(made.mask, Tensor)
    assert isinstance(made.nested["x"][0], Tensor)
    assert made.opaque is tree.opaque
    assert isinstance(tree.mask, np.ndarray)
    if kind is not RichPair:
        assert made.itself is made
    if kind is Rotary:
        assert isinstance(made.frequencies, Tensor)
        assert isinstance(made.__dict__["table"], Tensor)
        assert made.table is made.__dict__["table"]


@pytest.mark.parametrize("kind", [set, frozenset, int, str, bytes])
def test_a_tensor_in_an_attribute_of_plain_data_is_refused(kind: type) -> None:
    marked: Any = type("Marked", (kind,), {})()
    marked.mask = {"nested": [leaf()]}
    with pytest.raises(UnsupportedTypeError, match=r"Marked at \[0\] has a tensor in an attribute"):
        convert_tree([marked], "dlbridge")
    assert convert_tree([marked], "dlbridge", unknown="keep")[0] is marked
    marked.mask = {"nested": [1]}
    assert convert_tree([marked], "dlbridge")[0] is marked


def test_an_attribute_may_refer_to_the_container_around() -> None:
    tree = Rich(child=Rich(x=leaf()))
    tree["child"].parent = tree
    made = convert_tree(tree, "dlbridge")
    assert made["child"].parent is made
    assert isinstance(made["child"]["x"], Tensor)


def test_slots_of_a_class_are_attributes() -> None:
    class Base:
        __slots__ = ("__hidden", "mask")

        def hide(self, x: Any) -> None:
            self.__hidden = x

        def seek(self) -> Any:
            return self.__hidden

    @dataclass
    class Slotted(Base):
        data: Any

    tree = Slotted(1)
    tree.mask = leaf()
    tree.hide(leaf())
    made = convert_tree(tree, "dlbridge")
    assert isinstance(made.mask, Tensor)
    assert isinstance(made.seek(), Tensor)


def test_a_failure_in_an_attribute_says_where() -> None:
    tree = Rich()
    tree.mask = masked()
    with pytest.raises(ExchangeError) as caught:
        convert_tree({"a": tree}, "dlbridge")
    assert str(caught.value).startswith("convert_tree: at ['a'].mask: ")


def test_slices_and_arrays_of_objects_are_containers() -> None:
    window = slice(np.array(1), None, 2)
    ragged = np.empty((2, 2), object)
    ragged[0, 1], ragged[1, 0] = leaf(), "text"
    made = convert_tree([window, ragged], "dlbridge")
    assert isinstance(made[0].start, Tensor)
    assert (made[0].stop, made[0].step) == (None, 2)
    assert isinstance(made[1][0, 1], Tensor)
    assert made[1][1, 0] == "text"
    assert isinstance(ragged[0, 1], np.ndarray)
    ragged[0, 1] = dlbridge.arange(3)
    made = [convert_tree(ragged, "numpy"), *convert_tree([ragged], "numpy")]  # of the target itself
    made += [convert_tree({"a": ragged}, "numpy")["a"], *convert_tree((ragged,), "numpy")]
    assert all(isinstance(each[0, 1], np.ndarray) for each in made)
    ragged[1, 1] = Opaque()
    with pytest.raises(UnsupportedTypeError, match=r"Opaque at \[1, 1\] is neither"):
        convert_tree(ragged, "dlbridge")


def test_tensors_as_keys_are_refused() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.ones(2)
    for key in (parameter, ("a", parameter), frozenset({parameter})):
        for kind in (dict, OrderedDict):
            with pytest.raises(UnsupportedTypeError, match=r"key of the \w+.* at \['s'\] is or ho"):
                convert_tree({"s": kind({"n": 1, key: leaf()})}, "numpy")
    made = convert_tree({("a", 1): leaf(), enum.Enum("E", "A").A: 1}, "dlbridge")
    assert isinstance(made["a", 1], Tensor)


def test_functions_of_any_kind_are_plain_data() -> None:
    @functools.lru_cache
    def cached(x: Any) -> Any:
        return x

    kernel = dlbridge.wrap(
        lambda x: x, "dlbridge_tests::same(x: f32[n]) -> f32[n]", abi="python:numpy"
    )
    kept: list[Any] = [len, str.join, [].append, "a".join, object.__init__]
    if hasattr(np.vectorize(len), "__name__"):  # from NumPy 2 on
        kept.append(np.vectorize(len))
    kept += [cached, functools.partial(max, 1), functools.partial(sorted, key=len), kernel]
    kept += [functools.partial(functools.partial(cached, [1]), x={"a": (1, 2)}), Plain(1).__eq__]
    made = convert_tree([*kept, leaf()], "dlbridge")
    assert all(a is b for a, b in zip(made, kept, strict=False))


def test_compiled_functions_and_shardings_are_plain_data() -> None:
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    kept = [jax.nn.relu, jax.jit(len), jax.numpy.add, jax.checkpoint(len), torch.relu]
    kept += [torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.nn.functional.gelu]
    kept += [jax.numpy.ones(1).sharding, jax.devices()[0], jax.ShapeDtypeStruct((1,), "float32")]
    kept += [jax.sharding.PartitionSpec("a"), jax.sharding.Mesh(jax.devices()[:1], "a")]
    made = convert_tree([*kept, leaf()], "dlbridge")
    assert all(a is b for a, b in zip(made, kept, strict=False))


def test_what_a_function_refers_to_by_keys_without_an_order_is_plain_data() -> None:
    """As torch's operators have it; a registry of pytrees would sort the keys."""
    pytest.importorskip("jax")
    bound = functools.partial(max, {1j: 1, 2j: [2]})
    assert convert_tree([bound, leaf()], "dlbridge")[0] is bound
    with pytest.raises(UnsupportedTypeError, match="binds a tensor"):
        convert_tree([functools.partial(max, {1j: 1, 2j: leaf()})], "dlbridge")


def test_a_set_of_tensors_is_refused() -> None:
    torch = pytest.importorskip("torch")
    for kind in (set, frozenset):
        with pytest.raises(UnsupportedTypeError, match=r"at \['s'\] holds tensors, .* put a list"):
            convert_tree({"s": kind([torch.ones(1)])}, "numpy")


def test_a_function_that_binds_a_tensor_is_refused() -> None:
    class Layer:
        def __init__(self) -> None:
            self.weights = {"w": [leaf()]}

        def apply(self) -> None:
            pass

    bound = [functools.partial(len, (leaf(),)), Layer().apply, functools.partial(Layer().apply)]
    bound += [leaf().sum, leaf().__add__, functools.partial(leaf().sum, 0)]
    for function in bound:
        with pytest.raises(
            UnsupportedTypeError, match=r"at \[0\] is a function that binds a tensor"
        ):
            convert_tree([function], "dlbridge")
        assert convert_tree([function], "dlbridge", unknown="keep")[0] is function


def test_random_keys_of_jax() -> None:
    jax = pytest.importorskip("jax")
    for key in (jax.random.key(7), jax.random.split(jax.random.key(7, impl="rbg"), 3)):
        tree = {"params": jax.numpy.ones(2), "dropout": key}
        data = jax.random.key_data(key)
        made = convert_tree(tree, "numpy")
        assert made["dropout"].tolist() == data.tolist()
        kept = convert_tree(tree, "numpy", unknown="keep")
        assert kept["dropout"] is key
        assert type(kept["params"]) is np.ndarray
        again = convert_tree(tree, "jax", copy=True)["dropout"]
        assert again.dtype == key.dtype
        assert jax.random.key_data(again).tolist() == data.tolist()
    with pytest.raises(ExchangeError, match="tracer"):
        jax.jit(lambda key: convert_tree([key], "numpy"))(key)


def test_modules_of_equinox_go_there_and_back() -> None:
    eqx, jax = pytest.importorskip("equinox"), pytest.importorskip("jax")
    pytest.importorskip("torch")
    model = eqx.nn.MLP(2, 3, 4, 1, activation=jax.nn.relu, key=jax.random.key(0))
    state = {"model": model, "dropout": jax.random.key(1)}
    there = convert_tree(state, "torch")
    assert type(there["model"]) is type(model)
    assert type(there["model"].layers[0].weight).__module__ == "torch"
    back = convert_tree(there["model"], "jax")
    assert jax.tree.structure(back) == jax.tree.structure(model)
    x = jax.numpy.ones(2)
    assert back(x).tolist() == model(x).tolist()


def test_variables_of_flax_stay_variables() -> None:
    nnx, jax = pytest.importorskip("flax.nnx"), pytest.importorskip("jax")
    pytest.importorskip("torch")
    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    definition, state = nnx.split(model)
    back = convert_tree(convert_tree(state, "torch"), "jax")
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert len(jax.tree.leaves(nnx.filter_state(back, nnx.Param))) == 2
    x = jax.numpy.ones((1, 4))
    assert nnx.merge(definition, back)(x).tolist() == model(x).tolist()
    assert type(convert_tree(model, "jax").kernel) is nnx.Param


# ---- the walk in C: exactly that of the rules ----------------------------------------------------

PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3)
)
LEAVES = st.one_of(
    PLAIN,
    st.builds(lambda n: np.arange(float(n)), st.integers(0, 3)),
    st.sampled_from([b"ab", bytearray(b"ab"), memoryview(b"ab"), np.float32(1), object()]),
    st.builds(lambda: np.array(["2020-01-01"], "datetime64[D]")),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers()), inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Plain, inner),
        st.lists(inner, max_size=2).map(deque),
        st.dictionaries(st.text(max_size=2), inner, max_size=2).map(OrderedDict),
    ),
    max_leaves=8,
)


def outcome(convert: Any, tree: Any) -> Any:
    """Return what a walk gives, in a form that compares, or its error with its notes."""
    try:
        return sketch(convert(tree))
    except Exception as error:
        return type(error), str(error), getattr(error, "__notes__", None)


def sketch(x: Any) -> Any:
    if isinstance(x, Tensor):
        is_shared = x.ndim and x.size  # a NumPy scalar has no memory of its own to share
        return "tensor", x.tolist(), x.data_ptr if is_shared else 0
    if isinstance(x, dict):
        return type(x), [(key, sketch(value)) for key, value in x.items()]
    if isinstance(x, (list, tuple, deque)):
        return type(x), [sketch(each) for each in x]
    return sketch(x.data) if isinstance(x, Plain) else (type(x), id(x))


@given(TREES, st.sampled_from(["refuse", "keep"]))
def test_the_walk_in_c_is_that_of_the_rules(tree: Any, unknown: str) -> None:
    def in_python(tree: Any) -> Any:
        walk = trees._Walk(lambda leaf: dlbridge.convert(leaf, "numpy"), unknown == "keep")
        walk.calls = ("to_numpy",)
        return walk.node(tree, "")

    def described(convert: Any) -> Any:
        return outcome(lambda x: dlbridge.convert_tree(convert(x), "dlbridge"), tree)

    def in_c(tree: Any) -> Any:
        return convert_tree(tree, "numpy", unknown=unknown)

    assert described(in_c) == described(in_python)


def test_a_dict_that_changes_during_the_walk_is_an_error() -> None:
    """As of Python's own loops; the walk reads no freed memory."""

    class Meddling(Plain):
        def __getattribute__(self, name: str) -> Any:
            if name == "data":
                tree["more"] = 1
            return super().__getattribute__(name)

    tree: dict[str, Any] = {"a": Meddling(leaf()), "b": leaf()}
    with pytest.raises(RuntimeError, match="changed"):
        convert_tree(tree, "dlbridge")


def test_a_list_that_shrinks_during_the_walk_ends_early() -> None:
    class Meddling(Plain):
        def __getattribute__(self, name: str) -> Any:
            if name == "data":
                tree.clear()
            return super().__getattribute__(name)

    tree: list[Any] = [Meddling(leaf()), leaf(), leaf()]
    assert len(convert_tree(tree, "dlbridge")) == 1


def test_a_deep_tree_is_a_recursion_error() -> None:
    tree: Any = leaf()
    for _ in range(200_000):
        tree = [tree]
    with pytest.raises(RecursionError):
        convert_tree(tree, "dlbridge")
    while isinstance(tree, list):  # taken apart here: the deallocation would be deep as well
        tree = tree.pop()


def test_a_namedtuple_that_is_a_tensor_is_converted_as_one() -> None:
    class Lending(NamedTuple):
        memory: Any

        def __dlpack__(self, **keywords: Any) -> Any:
            return self.memory.__dlpack__(**keywords)

        def __dlpack_device__(self) -> Any:
            return self.memory.__dlpack_device__()

    made = convert_tree([Lending(dlbridge.from_dlpack(leaf()))], "dlbridge")
    assert isinstance(made[0], Tensor)

"""dlbridge.inspect: what capsules, tables and producers say, and that looking changes nothing."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any
from xml.etree import ElementTree

import dlpack_peers as peers
import numpy as np
import pytest

import dlbridge
from dlbridge import cli

X = np.arange(24, dtype="f4").reshape(4, 6)


def inspect(x: object) -> Any:
    return dlbridge.inspect(x)


@pytest.mark.parametrize("versioned", [True, False])
def test_every_field_of_a_capsule_is_told(versioned: bool) -> None:
    """The picture that a consumer would get, before anything is consumed."""
    producer = peers.Producer(peers.describe(X[::-1, 1::2], byte_offset=0, flags=peers.READ_ONLY))
    capsule = producer.capsule(versioned)
    report = inspect(capsule).capsule
    assert report.name == peers.capsule_name(capsule)
    assert report.kind == ("versioned" if versioned else "legacy")
    assert report.version == ((1, 3) if versioned else None)
    assert report.flags == (("READ_ONLY",) if versioned else ())
    assert (report.device, report.dtype) == ((1, 0), (2, 32, 1))
    assert (report.shape, report.strides) == ((4, 3), (-6, 2))
    assert (report.data, report.byte_offset) == (X[::-1, 1::2].ctypes.data, 0)
    assert (report.layout, report.nbytes, report.reach) == ("strided", 48, (-72, 20))
    assert (report.has_deleter, report.has_destructor) == (True, True)
    assert report.problems == ()


def test_a_capsule_that_was_looked_at_can_still_be_consumed() -> None:
    """Inspection is for the middle of a pipeline."""
    producer = peers.Producer(X)
    capsule = producer.capsule()
    assert inspect(capsule) == inspect(capsule)
    assert producer.deleted == 0
    tensor = dlbridge.from_dlpack(capsule)
    assert tensor.data_ptr == X.ctypes.data
    del tensor
    assert producer.deleted == 1


def test_a_consumed_capsule_is_not_read() -> None:
    """Its struct belongs to the consumer, who may have freed it."""
    producer = peers.Producer(X)
    capsule = producer.capsule()
    dlbridge.from_dlpack(capsule)
    report = inspect(capsule).capsule
    assert (report.kind, report.shape) == ("versioned", None)
    assert report.problems == ("it was consumed",)


def test_capsules_asked_of_a_producer_are_released() -> None:
    """An object is asked for capsules, which nobody consumes: their destructors run."""
    producer = peers.ModernProducer(X)
    found = inspect(producer)
    assert found.keywords == ("stream", "max_version", "dl_device", "copy")
    assert found.capsule.kind == "versioned"
    assert found.legacy.kind == "legacy"
    assert found.all_problems() == []
    assert producer.deleted == 6


@pytest.mark.parametrize(
    ("kind", "keywords"),
    [(peers.StreamOnlyProducer, ("stream",)), (peers.BareProducer, ())],
)
def test_the_keywords_that_dlpack_takes_are_found_by_asking(kind: Any, keywords: Any) -> None:
    """Compiled producers have no signature that could be read."""
    found = inspect(kind(X))
    assert found.keywords == keywords
    assert found.capsule.startswith("TypeError")
    assert found.legacy.kind == "legacy"


def test_a_producer_that_ignores_the_version_is_reported() -> None:
    """JAX and TensorFlow answer so."""
    problem = "it answers max_version=(1, 3) with a legacy capsule"
    assert inspect(peers.LegacyProducer(X)).problems == (problem,)


def test_the_answer_of_a_producer_is_part_of_the_report() -> None:
    """A refusal is an answer."""
    assert "Error: " in inspect(peers.RaisingProducer(X)).capsule
    assert inspect(peers.NoneProducer(X)).capsule == "returned NoneType, which is not a capsule"


def test_device_and_capsule_must_agree() -> None:
    """A consumer decides by `__dlpack_device__` before it asks for the capsule."""
    producer = peers.ModernProducer(X, device=(2, 1))
    (problem,) = inspect(producer).problems
    assert problem == "__dlpack_device__ says cuda:1 (2, 1), the capsule cpu (1, 0)"


MALFORMED = {
    "ndim is -1": {"ndim": -1},
    "ndim is 300": {"ndim": 300},
    "shape is NULL although ndim is 1": {"shape": None, "strides": None, "ndim": 1},
    "shape (-2,) has a negative extent": {"shape": (-2,)},
    "strides are NULL, which DLPack 1.2 forbids": {"strides": None},
    "data is NULL although the tensor has elements": {"data": 0},
    "device type 99 is none of the standard's": {"device": (99, 0)},
    "dtype (77, 8, 1)": {"dtype": (77, 8, 1)},
    "flags 0x80 have bits that the standard does not define": {"flags": 128},
    "the deleter is NULL": {"has_deleter": False},
    "major version 2: only the deleter may be used": {"version": (2, 0)},
    "is more than 2**63 bytes": {"shape": (2**62, 4), "strides": (4, 1)},
    "reach further than 2**63 bytes": {"shape": (3,), "strides": (2**62,)},
}


@pytest.mark.parametrize("problem", MALFORMED)
def test_violations_of_the_standard_are_named(problem: str) -> None:
    """One field at a time is made wrong; nothing behind it is read."""
    what = peers.Description(data=X.ctypes.data, keeps=X).but(**MALFORMED[problem])
    producer = peers.Producer(what)  # which keeps what nobody releases
    report = inspect(producer.capsule())
    assert [problem in text for text in report.capsule.problems].count(True) == 1
    assert problem in str(report)


def test_strides_may_be_null_before_dlpack_1_2() -> None:
    """Then NULL is compact row-major."""
    what = peers.describe(X, strides=None, version=(1, 1))
    report = inspect(peers.Producer(what).capsule()).capsule
    assert (report.strides, report.layout, report.problems) == (None, "row-major", ())


def test_a_capsule_of_something_else_is_named_and_not_read() -> None:
    """Its pointer could lead anywhere."""
    capsule = peers.make_capsule(16, b"arrow_array")
    (problem,) = inspect(capsule).capsule.problems
    assert problem == "a capsule named 'arrow_array' is none of DLPack's"


def test_a_capsule_without_a_destructor_may_leak() -> None:
    """That is the producer's part of the contract: nobody else releases an unused capsule."""
    loan = peers.lend(peers.describe(X), versioned=True)
    report = inspect(peers.make_capsule(loan.address, peers.VERSIONED)).capsule
    assert report.problems == ("no destructor: it leaks if nobody consumes it",)
    peers.call_deleter(loan.address, peers.Versioned)


def test_elements_below_a_byte_are_counted_in_bits() -> None:
    """Seven of four bits take four bytes; padded ones, seven."""
    what = peers.Description(shape=(7,), dtype=(0, 4, 1), data=X.ctypes.data, keeps=X)
    assert inspect(peers.Producer(what).capsule()).capsule.nbytes == 4
    assert inspect(peers.Producer(what.but(flags=4)).capsule()).capsule.nbytes == 7


def test_the_exchange_table_of_a_type_is_told() -> None:
    """For a tensor, for its type and for the capsule itself."""
    tensor = dlbridge.ones((2,), "float32")
    table = inspect(tensor).table
    assert table.version == (1, 3)
    assert all(table.functions.values())
    assert inspect(dlbridge.Tensor).table == table
    assert inspect(dlbridge.Tensor.__dlpack_c_exchange_api__).table == table


def test_a_table_of_another_major_version_is_not_read_on() -> None:
    """Its functions may be others."""
    table = peers.ExchangeTable(major=2, minor=0)
    capsule = peers.make_capsule(ctypes.addressof(table), b"dlpack_exchange_api")
    report = inspect(capsule).table
    assert report.functions == {}
    assert report.problems == ("major version 2: the functions are not known",)
    table.major = 1
    assert "managed_tensor_allocator is NULL" in inspect(capsule).table.problems


def test_objects_without_dlpack_are_refused() -> None:
    """With what to do, where that is known."""
    with pytest.raises(
        dlbridge.UnsupportedTypeError, match="inspect: list has no DLPack interface"
    ):
        inspect([1.0])


@pytest.mark.parametrize(
    "name", ["numpy", "torch", "jax", "tensorflow", "tvm_ffi", "mlx", "pyarrow"]
)
def test_tensors_of_every_framework_can_be_inspected(name: str, framework: Any) -> None:
    """What they answer is theirs; that the fields are those of the tensor is ours."""
    framework(name)
    x = dlbridge.convert(X.copy(), name.removesuffix("_ffi"))
    try:
        found = inspect(x)
    except dlbridge.UnsupportedTypeError:
        assert not hasattr(x, "__dlpack__")
        return
    reports = [each for each in (found.capsule, found.legacy) if not isinstance(each, str)]
    assert reports
    for report in reports:
        assert report.shape in ((4, 6), (24,))
        assert report.dtype == (2, 32, 1)


def test_the_report_is_text_json_and_html() -> None:
    """For terminals, for programs, and for notebooks with a picture of the memory."""
    found = inspect(X[:, ::2])
    assert "strided" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["legacy"]["shape"] == [4, 3]
    html = found._repr_html_()
    assert html.startswith("<table>")
    svg = ElementTree.fromstring(found.picture())
    boxes = svg.findall("{http://www.w3.org/2000/svg}rect")
    labels = svg.findall("{http://www.w3.org/2000/svg}text")
    assert len(boxes) == 23  # from the first to the last element, gaps included
    assert [each.text for each in labels[:4]] == ["0,0", "0,1", "0,2", "1,0"]


def test_inspection_is_imported_when_it_is_used(run_python: Any) -> None:
    """`import dlbridge` stays small."""
    run_python("""
    import sys, dlbridge
    assert "dlbridge.check" not in sys.modules
    dlbridge.inspect(dlbridge.ones((1,), "float32"))
    assert "dlbridge.check" in sys.modules
    """).check()


class TestCommand:
    """`dlbridge inspect MODULE:EXPRESSION`."""

    def test_an_expression_is_evaluated_in_the_module(self, capsys: Any) -> None:
        """As a user types it."""
        assert cli.main(["inspect", "numpy:zeros((4, 6))[:, ::2]"]) == 0
        assert "(6, 2) elements" in capsys.readouterr().out

    def test_a_function_is_called(self, capsys: Any, tmp_path: Any, monkeypatch: Any) -> None:
        """MODULE:FACTORY, from the current folder; JSON is for programs."""
        (tmp_path / "made_here.py").write_text("import numpy\ndef make(): return numpy.ones(3)\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        assert cli.main(["inspect", "--json", "made_here:make"]) == 0
        assert json.loads(capsys.readouterr().out)["legacy"]["shape"] == [3]

    def test_the_exit_status_tells_problems_from_failures(self, capsys: Any) -> None:
        """1: something breaks the standard; 2: there is nothing to inspect."""
        assert cli.main(["inspect", "dlpack_peers:LegacyProducer(np.ones(3))"]) == 1
        assert cli.main(["inspect", "numpy"]) == 2
        assert cli.main(["inspect", "numpy:nothing"]) == 2
        assert cli.main(["inspect", "sys:exit(1)"]) == 2
        assert cli.main(["inspect", "builtins:exit"]) == 2
        assert "is needed, such as 'numpy:zeros(3)', got 'numpy'" in capsys.readouterr().err

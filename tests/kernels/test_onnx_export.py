"""torch.onnx.export of models with kernels, run by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dlbridge
from dlbridge.errors import ArgumentError

torch = pytest.importorskip("torch")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SOURCE = """
#include "dlbridge_kernel.h"

/* x[axes[i]] * weights[i] */
int pick(void *context, DLTensor *t, int n) {
    int64_t count;
    const int64_t *axes = dlb_get_ints(context, 0, &count);
    const double *weights = dlb_get_floats(context, 1, NULL);
    for (int64_t i = 0; i < t[1].shape[0]; i++)
        ((double *)t[1].data)[i] = i < count ? ((double *)t[0].data)[axes[i]] * weights[i] : -1;
    return 0;
}

/* (low + x * factor, x or other, with `word`) of vectors; `low` and `other` may be missing */
int mix(void *context, DLTensor *t, int n) {
    double factor = dlb_get_float(context, 0);
    int64_t shift = dlb_get_int(context, 1);
    for (int64_t i = 0; i < t[0].shape[0]; i++) {
        double x = ((double *)t[0].data)[i];
        double low = dlb_is_missing(&t[1]) ? 0 : ((double *)t[1].data)[i];
        double other = dlb_is_missing(&t[2]) ? x : ((double *)t[2].data)[i];
        ((double *)t[3].data)[i] = low + x * factor;
        ((double *)t[4].data)[i] = other + (double)shift;
    }
    return 0;
}
"""
SCHEMA = (
    "onnx_export::mix(x: f64[n], low: f64[n]? = None, other: f64[n]? = None, *, "
    "factor: float = 0.1, shift: int = 0) -> (first: f64[n], second: f64[n])"
)


@pytest.fixture(scope="module")
def mix() -> Any:
    return dlbridge.compile_c(SOURCE, "mix", SCHEMA)


def export(model: Any, arguments: tuple[Any, ...], path: Path, mix: Any, **keywords: Any) -> Any:
    """Return a session of the exported model."""
    table = dlbridge.onnx_translations(mix)
    torch.onnx.export(
        model.eval(), arguments, path, dynamo=True, custom_translation_table=table, verbose=False,
        **keywords,
    )  # fmt: skip
    options = ort.SessionOptions()
    dlbridge.register_onnxruntime(options, mix)
    return ort.InferenceSession(path, options)


def test_the_table_is_of_the_operators_that_models_call(mix: Any) -> None:
    assert list(dlbridge.onnx_translations([mix])) == [torch.ops.onnx_export.mix.default]


@pytest.mark.full
def test_an_exported_model_computes_what_the_model_does(tmp_path: Path, mix: Any) -> None:
    """With scalars that are float32 and that are not, defaults, and arguments left out."""

    class Model(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            a, b = mix(x + 1, factor=0.3, shift=2)
            c, d = mix(a, y, b)
            e, f = mix(d, None, c * 2, factor=0.5)
            return torch.stack([a, b, c, d, e, f])

    x, y = torch.arange(4.0).double(), torch.tensor([5.0, -1.0, 0.25, 1e9]).double()
    length = torch.export.Dim("length", min=2)
    session = export(
        Model(), (x, y), tmp_path / "m.onnx", mix, dynamic_shapes=({0: length}, {0: length})
    )
    for inputs in ((x, y), (y.repeat(3), x.repeat(3))):
        feeds = {
            each.name: value.numpy()
            for each, value in zip(session.get_inputs(), inputs, strict=True)
        }
        assert session.run(None, feeds)[0].tolist() == Model()(*inputs).tolist()


@pytest.mark.full
def test_lists_of_numbers_are_exported(tmp_path: Path) -> None:
    """Lists that attributes hold, that are text because of one number, and empty ones."""
    pick = dlbridge.compile_c(
        SOURCE, "pick", "onnx_export::pick(x: f64[n], axes: int[], weights: float[]) -> f64[3]"
    )

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            y = pick(x, [x.shape[0] - 1, 1, 0], [0.5, 2, -1.0])
            return torch.stack([y, pick(y, [2, 0], [0.1, 1e300]), pick(x, [], [])])

    x = torch.tensor([5.0, -1.0, 0.25, 1e9]).double()
    session = export(Model(), (x,), tmp_path / "m.onnx", pick)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert found.tolist() == Model()(x).tolist()

    length = torch.export.Dim("length", min=2)
    with pytest.raises(Exception, match="onnx_export::pick: argument 'axes' is computed") as caught:
        export(Model(), (x,), tmp_path / "d.onnx", pick, dynamic_shapes=({0: length},))
    assert caught.value is not None


@pytest.mark.full
def test_a_model_names_a_version_that_has_all_of_its_operators(tmp_path: Path) -> None:
    """Whichever comes first; a model that was made before one of them is not opened."""
    schema = "onnx_export_versions::{}(x: f64[n]) -> (f64[n], f64[n])"

    @dlbridge.wrap(schema=schema.format("first"), abi="python:numpy")
    def first(x: Any) -> Any:
        return x + 1, x * 2

    second = dlbridge.wrap(first, name="onnx_export_versions::second", version=3)
    newer = dlbridge.wrap(second, version=4)
    assert (first.version, second.version, newer.version) == (1, 3, 4)

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return second(first(x)[0])[1]

    x = torch.tensor([5.0, -1.0]).double()
    session = export(Model(), (x,), tmp_path / "m.onnx", [first, second])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert found.tolist() == [12.0, 0.0]
    options = ort.SessionOptions()
    dlbridge.register_onnxruntime(options, [first, newer])
    with pytest.raises(Exception, match=r"onnx_export_versions:second.* is not a registered"):
        ort.InferenceSession(tmp_path / "m.onnx", options)


def test_kernels_that_a_model_cannot_have_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"onnx_translations: .* has no schema"):
        dlbridge.onnx_translations([dlbridge.compile_c(SOURCE, "mix")])
    writing = dlbridge.compile_c(SOURCE, "mix", "onnx_export::writing(x!: f64[n]) -> f64[n]")
    with pytest.raises(ArgumentError, match="onnx_export::writing writes x"):
        dlbridge.onnx_translations(writing)
    typed = dlbridge.compile_c(SOURCE, "mix", "onnx_export::typed(x: f64[n], to: dtype) -> to[n]")
    with pytest.raises(ArgumentError, match="onnx_export::typed: argument 'to' is a dtype"):
        dlbridge.onnx_translations(typed)
    with pytest.raises(ArgumentError, match="must be kernels, got str"):
        dlbridge.onnx_translations(["mix"])

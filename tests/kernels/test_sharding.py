"""sharding=: the dimensions along which a call may be split; torch's DTensors in two processes."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError


def wrap(schema, **options):
    return dlbridge.wrap(lambda *tensors, **_: tensors[0], schema, abi="python:numpy", **options)


def test_dimensions_and_packs_can_be_named():
    mm = "sharded::mm(x: f32[*batch, m, k], y: f32[k, n]) -> f32[*batch, m, n]"
    assert wrap(mm).sharding == ()
    for given in ("*batch, m, n", "batch,m,n", ["batch", "m", "n"], ("*batch", "m", "n", "m")):
        assert wrap(mm, sharding=given).sharding == ("batch", "m", "n")
    again = dlbridge.wrap(wrap(mm, sharding="m"), sharding="n")
    assert (again.sharding, dlbridge.wrap(again, layout="strided").sharding) == (("n",), ("n",))


@pytest.mark.parametrize(
    ("schema", "names", "why"),
    [
        ("f(x: f32[n]) -> f32[n]", "m", "'m', which is not a dimension of the schema; it has n"),
        ("f(x: f32[n, k]) -> f32[n]", "k", "'k', which is not a dimension of the result 'out'"),
        ("f(x: f32[n, n]) -> f32[n]", "n", "'n', which occurs twice in 'x'"),
        ("f(x: f32[n, m]) -> f32[n, 2*m]", "m", "'m', which is used in an expression"),
        ("f(x: f32[n], *, n: int) -> f32[n]", "n", "'n', which is a scalar argument"),
        ("f(x: f32[n], y!: f32[n]) -> f32[n]", "n", "not for those that write into"),
        ("f(xs: f32[n][2]) -> f32[n]", "n", "have lists of tensors"),
    ],
)
def test_dimensions_that_cannot_be_split_are_refused(schema, names, why):
    with pytest.raises(ArgumentError, match=why):
        wrap(f"sharded::{schema}", sharding=names)


def test_sharding_must_name_dimensions_of_a_schema():
    with pytest.raises(ArgumentError, match="must be names of dimensions, as in 'm, n' or"):
        wrap("sharded::f(x: f32[n]) -> f32[n]", sharding=1)
    with pytest.raises(ArgumentError, match="sharding= needs a schema"):
        dlbridge.wrap(lambda x: x, abi="python:numpy", sharding="n")


def test_calls_of_plain_tensors_are_as_before():
    add = dlbridge.wrap(
        np.add, "sharded::add(x: f32[n], y: f32[n]) -> f32[n]", abi="python:numpy", sharding="n"
    )
    assert add(np.ones(3, "f"), np.ones(3, "f")).tolist() == [2, 2, 2]


TWO = """
import os, sys, tempfile
file = tempfile.mktemp()
child = os.fork()
rank = 0 if child else 1
{early}
import numpy as np, torch, torch.distributed as distributed, dlbridge
{late}

seen = []

def wrap(function, schema, **options):
    def call(*tensors, **scalars):
        seen.append(tuple(each.shape for each in tensors))
        return function(*tensors, **scalars)
    return dlbridge.wrap(call, schema, abi="python:numpy", **options)

mul = wrap(
    lambda x, w, by: x * w * by,
    "sharded::mul(x: f32[b, n], w: f32[n], *, by: float = 1.0) -> f32[b, n]",
    vjp=lambda grad, x, w, by: (grad * w * by, (grad * x * by).sum(0)),
    sharding="b, n",
)
moments = wrap(
    lambda x: (x.sum(-1), (x * x).sum(-1)),
    "sharded::moments(x: f32[..., n]) -> (f32[...], f32[...])",
    sharding="...",
)
total = wrap(np.cumsum, "sharded::total(x: f32[n]) -> f32[n]")

from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

distributed.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))

def spread(x, *placements):
    return distribute_tensor(x, mesh, placements)

def check(made, placement, expected, *shapes):
    assert made.placements == (placement,), made.placements
    assert torch.allclose(made.full_tensor(), expected), made.full_tensor()
    assert seen[-1] == shapes, seen
    assert len(seen) == 1
    seen.clear()

x, w = torch.arange(15.0).reshape(5, 3), torch.tensor([1.0, 2.0, 3.0])
rows, columns = (3, 2)[rank], (2, 1)[rank]
check(mul(spread(x, Shard(0)), spread(w, Replicate())), Shard(0), x * w, (rows, 3), (3,))
made = mul(spread(x, Shard(1)), spread(w, Shard(0)), by=2.0)
check(made, Shard(1), 2 * x * w, (5, columns), (columns,))
check(total(spread(x[:, 1].contiguous(), Shard(0))), Replicate(), x[:, 1].cumsum(0), (5,))

compiled = torch.compile(lambda x, w: mul(x, w) + 1, fullgraph=True, backend="aot_eager")
check(compiled(spread(x, Shard(0)), spread(w, Replicate())), Shard(0), x * w + 1, (rows, 3), (3,))

batch = torch.arange(24.0).reshape(2, 3, 4)
for axis, shape in ((0, (1, 3, 4)), (1, (2, (2, 1)[rank], 4))):
    first, second = moments(spread(batch, Shard(axis)))
    assert second.placements == (Shard(axis),)
    check(first, Shard(axis), batch.sum(-1), shape)
first, _ = moments(spread(batch, Shard(2)))
check(first, Replicate(), batch.sum(-1), (2, 3, 4))

own, other = spread(x, Shard(0)).requires_grad_(), spread(w, Replicate()).requires_grad_()
(mul(own, other, by=2.0) ** 2).sum().backward()
x.requires_grad_(), w.requires_grad_()
((2 * x * w) ** 2).sum().backward()
assert own.grad.placements == (Shard(0),)
assert torch.allclose(own.grad.full_tensor(), x.grad)
assert torch.allclose(other.grad.full_tensor(), w.grad)

dtyped = wrap(lambda x, to: x.astype(to), "sharded::cast(x: f32[n], *, to: dtype) -> to[n]")
try:
    dtyped(spread(w.detach(), Replicate()), to="f64")
except NotImplementedError as error:
    assert "sharding strategy" in str(error)
else:
    raise AssertionError("no refusal")

distributed.barrier()
distributed.destroy_process_group()
if rank:
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
print("both")
"""


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("early", "late"),
    [
        ("", ""),
        pytest.param("", "import torch.distributed.tensor", marks=pytest.mark.full),
        pytest.param("import torch.distributed.tensor", "", marks=pytest.mark.full),
    ],
)
def test_two_processes_call_kernels_on_shards_of_dtensors(run_python, framework, early, late):
    torch = framework("torch")
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed package")
    found = run_python(TWO.format(early=early, late=late)).check()
    assert found.strip().endswith("both")

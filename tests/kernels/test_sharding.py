"""sharding=: the dimensions along which a call may be split; torch's DTensors in two processes,
JAX's arrays on four devices."""

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


FOUR = """
import re
import jax, jax.numpy as jnp, numpy as np, dlbridge
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from dlbridge.testing import check_kernel

seen = set()

def wrap(function, schema, **options):
    def call(*tensors, **scalars):
        seen.add(tuple(each.shape for each in tensors if each is not None))
        return function(*tensors, **scalars)
    return dlbridge.wrap(call, schema, abi="python:numpy", **options)

def put(x, mesh, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))

def gathers(function, *args):
    text = jax.jit(function).lower(*args).compile().as_text()
    return len(re.findall(r" (?:all-gather|all-to-all|collective-permute)\\(", text))

def check(function, args, expected, shapes, spec=None, moves=0):
    seen.clear()
    made = function(*args)
    np.testing.assert_allclose(made, expected, rtol=1e-4)
    assert seen == {shapes}, seen
    assert gathers(function, *args) == moves
    if spec is not None:
        expected = NamedSharding(made.sharding.mesh, P(*spec))
        assert made.sharding.is_equivalent_to(expected, made.ndim)

line = Mesh(np.array(jax.devices()), ("a",))
grid = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
random = np.random.default_rng(0)
x = jnp.asarray(random.normal(size=(4, 8, 6)).astype("float32"))
y = jnp.asarray(random.normal(size=(6, 4)).astype("float32"))
"""

MATMUL = (
    FOUR
    + """
mm = wrap(
    np.matmul,
    "sharded::mm(x: f32[*batch, m, k], y: f32[k, n]) -> f32[*batch, m, n]",
    vjp=lambda grad, x, y: (grad @ y.T, jnp.einsum("...mk,...mn->kn", x, grad)),
    batch="broadcast",
    sharding="*batch, m, n",
)
by = jax.jit(mm.jax)
for call in (mm, mm.jax, by):
    made = call(put(x, line, "a"), y)
    np.testing.assert_allclose(made, x @ y, rtol=1e-4)
    assert made.sharding.spec == P("a")
check(by, (put(x, grid, "a", "b"), y), x @ y, ((2, 4, 6), (6, 4)), ("a", "b"))
both = put(x, grid, None, "a"), put(y, grid, None, "b")
check(by, both, x @ y, ((4, 4, 6), (6, 2)), (None, "a", "b"))
check(by, (put(x, grid, ("a", "b")), y), x @ y, ((1, 8, 6), (6, 4)), (("a", "b"),))
check(by, (x, put(y, line, None, "a")), x @ y, ((4, 8, 6), (6, 1)), (None, None, "a"))
# One axis of the mesh serves one dimension; k is not named.
both = put(x, line, "a"), put(y, line, None, "a")
check(by, both, x @ y, ((1, 8, 6), (6, 4)), ("a",), 1)
both = put(x, grid, None, None, "a"), put(y, grid, "a")
check(by, both, x @ y, ((4, 8, 6), (6, 4)), (), 2)

# As the result is to be sharded, where the arguments are not.
rows = jax.jit(mm.jax, out_shardings=NamedSharding(line, P(None, "a")))
check(rows, (put(x, line), put(y, line)), x @ y, ((4, 2, 6), (6, 4)), (None, "a"))

# An extent that the devices do not share evenly is gathered.
def uneven(x):
    x = jax.lax.with_sharding_constraint(x, NamedSharding(line, P("a")))
    return mm.jax(x, y)

made = jax.jit(uneven)(x[:3])
np.testing.assert_allclose(made, x[:3] @ y, rtol=1e-4)
assert mm.jax(put(x[:0], line, "a"), y).shape == (0, 8, 4)

# In loops, batches and derivatives.
outer = y[:, :1].T * y[:, :1]
twice = lambda x: jax.lax.fori_loop(0, 2, lambda _, x: mm.jax(x, outer), x)
columns = put(x, line, None, "a")
check(jax.jit(twice), (columns,), x @ outer @ outer, ((4, 2, 6), (6, 6)), (None, "a"))
batch = jnp.stack([x] * 4)
slices = jax.jit(jax.vmap(mm.jax, (0, None)))
check(slices, (put(batch, line, "a"), y), batch @ y, ((1, 4, 8, 6), (6, 4)), ("a",))
def loss(f):
    return jax.grad(lambda x, y: (f(x, y) ** 2).sum(), (0, 1))
seen.clear()
given = columns, y
for own, expected in zip(jax.jit(loss(mm.jax))(*given), loss(jnp.matmul)(x, y), strict=True):
    np.testing.assert_allclose(own, expected, rtol=1e-3, atol=1e-4)
assert seen == {((4, 2, 6), (6, 4))}, seen
assert gathers(loss(mm.jax), *given) == 0
print("done")
"""
)

OTHERS = (
    FOUR
    + """
axpy = wrap(
    lambda x, y, by: x * by if y is None else x * by + y,
    "sharded::axpy(x: f32[..., n], y: f32[n]? = None, *, by: float = 1.0) -> f32[..., n]",
    sharding="..., n",
)
spread, z = put(x, grid, "a", None, "b"), jnp.arange(6.0)
check(jax.jit(lambda x: axpy.jax(x, by=2.0)), (spread,), 2 * x, ((2, 8, 3),))
traced = jax.jit(lambda x, y, by: axpy.jax(x, y, by=by))
check(traced, (spread, z, 3.0), 3 * x + z, ((2, 8, 3), (3,)))
for by in range(12):  # from the ninth on, the number is an operand
    seen.clear()
    np.testing.assert_allclose(axpy.jax(spread, by=float(by)), by * x)
    assert seen == {((2, 8, 3),)}
check(jax.jit(jax.vmap(axpy.jax)), (put(x, line, None, "a"),), x, ((2, 6),), None)

both = wrap(
    lambda x: (x.sum(-1), (x * x).sum(-1)),
    "sharded::both(x: f32[..., n]) -> (f32[...], f32[...])",
    sharding="...",
)
for place, expected in enumerate((x.sum(-1), (x * x).sum(-1))):
    one = jax.jit(lambda x: both.jax(x)[place])
    check(one, (put(x, grid, "a", "b"),), expected, ((2, 4, 6),), ("a", "b"))

total = wrap(np.cumsum, "sharded::total(x: f32[n]) -> f32[n]")
check(jax.jit(total.jax), (put(z[:4], line, "a"),), jnp.cumsum(z[:4]), ((4,),), (), 1)

# Within shard_map the kernel has the shards, whether or not JAX checks what differs between them.
try:
    from jax import shard_map
    checks = [{"check_vma": True}, {"check_vma": False}]
except ImportError:
    from jax.experimental.shard_map import shard_map
    checks = [{"check_rep": False}]
for each in checks:
    how = {"mesh": line, "out_specs": P("a"), **each}
    rows = shard_map(lambda x, y: axpy.jax(x, y, by=2.0), in_specs=(P("a"), P()), **how)
    check(jax.jit(rows), (x, z), 2 * x + z, ((1, 8, 6), (6,)), ("a",))
    slices = shard_map(jax.vmap(axpy.jax), in_specs=P("a"), **how)
    check(jax.jit(slices), (x,), x, ((8, 6),), ("a",))

# Where shardings are part of types, the result has such a type.
if hasattr(jax.sharding, "AxisType") and hasattr(jax, "set_mesh"):
    explicit = jax.make_mesh((4,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(explicit):
        typed, whole = put(x, explicit, "a"), put(z, explicit)
        seen.clear()
        made = jax.jit(axpy.jax)(typed, whole)
        assert jax.typeof(made).sharding.spec == P("a", None, None)
        np.testing.assert_allclose(made, x + z)
        assert seen == {((1, 8, 6), (6,))}
        made = axpy.jax(put(x[..., :4], explicit), put(z[:4], explicit, "a"))
        assert jax.typeof(made).sharding.spec == P(None, None, "a")
        np.testing.assert_allclose(made, x[..., :4] + z[:4])

# Tangents by the transpose of a vjp that is a kernel with a rule of its own.
inner = wrap(
    lambda x, w, grad: (2 * x * w * grad, x * x * grad),
    "sharded::scaled_vjp(x: f32[n], w: f32[n], grad: f32[n]) -> (dx: f32[n], dw: f32[n])",
    vjp=lambda x, w, grad, grad_dx, grad_dw: (
        2 * grad * (w * grad_dx + x * grad_dw),
        2 * x * grad * grad_dx,
        x * (2 * w * grad_dx + x * grad_dw),
    ),
    sharding="n",
)
scaled = wrap(
    lambda x, w: x * x * w,
    "sharded::scaled(x: f32[n], w: f32[n]) -> f32[n]",
    vjp=inner,
    sharding="n",
)
long = put(jnp.arange(8.0), line, "a")
slope = jax.jit(lambda x: jax.jvp(scaled.jax, (x, x), (x, x))[1])
seen.clear()
np.testing.assert_allclose(slope(long), 3 * long**3)
assert gathers(slope, long) == 0

report = check_kernel(both, lambda x: (x.sum(-1), (x * x).sum(-1)), frameworks=["jax"])
assert ("sharding", "passed") in [(row.check, row.status) for row in report.rows]
print("done")
"""
)

# Derivatives where shardings are part of types: each gradient and tangent has that of its primal.
TYPED = (
    FOUR
    + """
if not hasattr(jax.sharding, "AxisType") or not hasattr(jax, "set_mesh"):
    print("done")
    raise SystemExit

explicit = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
signature = "(x: f32[m, n], y: f32[m, n]) -> f32[m, n]"
product = lambda x, y: x * y
gradient = wrap(
    lambda x, y, grad: (y * grad, x * grad),
    "typed::gradient(x: f32[m, n], y: f32[m, n], grad: f32[m, n]) -> (f32[m, n], f32[m, n])",
    sharding="m, n",
)
rules = {
    "vjp": {"vjp": lambda x, y, grad: (y * grad, x * grad)},
    "jvp": {"jvp": lambda x, y, tangent_x, tangent_y: y * tangent_x + x * tangent_y},
    "kernel": {"vjp": gradient},
}
rules["both"] = rules["vjp"] | rules["jvp"]


def loss(f, x, y):
    return (f(x, y) ** 2).sum() + (x * x).sum()


def slope(f):
    return jax.grad(lambda *xy: loss(f, *xy), argnums=(0, 1))


def curvature(f):
    return jax.grad(lambda *xy: sum((each**2).sum() for each in slope(f)(*xy)), argnums=(0, 1))


def tangents(f):
    return lambda *xy: jax.jvp(f, xy, xy)


def batch(f):
    return lambda x, y: jax.vmap(slope(f))(jnp.stack([x, 2 * x]), jnp.stack([y, y]))


def twin(x, y):
    return jax.sharding.reshard(x, P("a", "b")) * jax.sharding.reshard(y, P("a", "b"))


x = put(jnp.arange(8.0).reshape(2, 4), explicit, "a", "b")
y = put(jnp.arange(8.0).reshape(2, 4) + 1, explicit, "a")
with jax.set_mesh(explicit):
    for name, given in rules.items():
        kernel = wrap(product, f"typed::{name}{signature}", sharding="m, n", **given)
        transforms = [slope, batch] + ([tangents, curvature] if name != "kernel" else [])
        for transform in transforms:
            for compiled in (lambda f: f, jax.jit):
                found = compiled(transform(kernel.jax))(x, y)
                expected = compiled(transform(twin))(x, y)
                for one, other in zip(found, expected, strict=True):
                    assert jax.typeof(one) == jax.typeof(other), (name, transform, compiled)
                    np.testing.assert_allclose(one, other, rtol=1e-5)
print("done")
"""
)


@pytest.mark.subprocess
@pytest.mark.preloaded("jax")
@pytest.mark.usefixtures("jax")
@pytest.mark.parametrize("program", [MATMUL, TYPED, pytest.param(OTHERS, marks=pytest.mark.full)])
def test_jax_calls_kernels_on_shards(run_python, program):
    """No device gets more than its shard along the dimensions named, and nothing is gathered."""
    flags = "--xla_force_host_platform_device_count=4"
    assert "done" in run_python(program, XLA_FLAGS=flags, timeout=300).check()


def test_tangents_on_one_device(framework):
    """A vjp that is a kernel with a rule is called while JAX lowers a program."""
    jax = framework("jax")
    inner = wrap(
        "sharded::own_vjp(x: f32[n], w: f32[n], grad: f32[n]) -> (dx: f32[n], dw: f32[n])",
        vjp=lambda x, w, grad, grad_dx, grad_dw: (
            2 * grad * (w * grad_dx + x * grad_dw),
            2 * x * grad * grad_dx,
            x * (2 * w * grad_dx + x * grad_dw),
        ),
        sharding="n",
    )
    own = wrap("sharded::own(x: f32[n], w: f32[n]) -> f32[n]", vjp=inner, sharding="n")
    x = jax.numpy.arange(3.0)
    assert jax.jit(lambda x: jax.jvp(own.jax, (x, x), (x, x))[1])(x).tolist() == [0, 3, 24]

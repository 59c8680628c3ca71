"""A small model and what is done with it, for the tests of `dlbridge.bridge(…, to="torch")`."""

from __future__ import annotations

import pytest
from kernels.bridge_arrays import TREE as TREE
from kernels.bridge_arrays import normal as normal

torch = pytest.importorskip("torch")

X = torch.from_numpy(normal(3, 4))
SEVERAL = torch.from_numpy(normal(5, 3, 4))


def twin(x, own):
    """The same in torch, with the same parameters by their names."""
    return torch.tanh(x @ own["lower.w"] + own["lower.b"]) @ own["upper.0"]


def gradients(function, module, x=X):
    """Return those of the argument and of the parameters."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    (function(x) ** 2).sum().backward()
    return [x.grad, *[each.grad.clone() for each in module.parameters()]]


def trained(module):
    """Return the state of a module after some steps, and that of `twin` after the same steps."""
    other = {
        name: each.detach().clone().requires_grad_() for name, each in module.named_parameters()
    }
    ours = torch.optim.Adam(module.parameters(), lr=0.1)
    theirs = torch.optim.Adam(other.values(), lr=0.1)
    for _ in range(5):
        for optimiser, outcome in ((ours, module(X)), (theirs, twin(X, other))):
            optimiser.zero_grad()
            (outcome**2).sum().backward()
            optimiser.step()
    return dict(module.state_dict()), {name: each.detach() for name, each in other.items()}


def second_derivatives(function, module):
    """Return those of the argument and of the parameters."""
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad((function(x) ** 2).sum(), x, create_graph=True)
    return torch.autograd.grad((first**2).sum(), [x, *module.parameters()])


TRANSFORMS = {
    "grad": lambda f: torch.func.grad(lambda x: (f(x) ** 2).sum())(X),
    "vmap": lambda f: torch.vmap(f)(SEVERAL),
    "vmap along axis 1": lambda f: torch.vmap(f, in_dims=1)(SEVERAL),
    "vmap of vmap": lambda f: torch.vmap(torch.vmap(f))(SEVERAL[None]),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(lambda x: f(x).pow(2).sum()))(SEVERAL),
    "grad of vmap": lambda f: torch.func.grad(lambda x: torch.vmap(f)(x).pow(2).sum())(SEVERAL),
    "jvp": lambda f: torch.func.jvp(f, (X,), (X,)),
    "jvp of vmap": lambda f: torch.func.jvp(torch.vmap(f), (SEVERAL,), (SEVERAL,)),
    "grad of jvp": lambda f: torch.func.grad(lambda x: torch.func.jvp(f, (x,), (X,))[1].sum())(X),
    "hessian": lambda f: torch.func.hessian(lambda x: (f(x) ** 2).sum())(X),
    "jacrev": lambda f: torch.func.jacrev(torch.func.jacrev(lambda x: (f(x) ** 2).sum()))(X),
}

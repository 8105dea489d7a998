"""Calls that go straight to a graph's one partition: when they do, what they count, and what keeps the long way."""

from __future__ import annotations

import pytest
import torch
from compiled import same

from vkinductor.codegen import direct
from vkinductor.codegen.direct import DirectGraph

CALLS = 6


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that a test compiles, and how many of their calls were direct."""
    made: list[DirectGraph] = []
    monkeypatch.setattr(DirectGraph, "__init__", _noted(DirectGraph.__init__, made))
    return made


def _noted(original, made):
    def __init__(self, compiled):
        original(self, compiled)
        made.append(self)

    return __init__


def device(*shape):
    return torch.randn(*shape, device="vulkan")


def norm(x, w):
    for _ in range(2):
        x = torch.softmax(x @ w, -1)
    return x


def compiled(f):
    torch._dynamo.reset()
    return torch.compile(f, backend="vulkan", fullgraph=True, dynamic=False)


def run(f, *args):
    with torch.no_grad():
        for _ in range(CALLS):
            result = f(*args)
    return result


def test_a_graph_of_one_partition(graphs):
    x, w = device(8, 16), device(16, 16)
    f = compiled(norm)
    same(run(f, x, w), norm(x.cpu(), w.cpu()), rtol=1e-4, atol=1e-6)
    (graph,) = graphs
    assert graph.way is not None
    graph.compiled = None  # not called any more
    kept = []
    for _ in range(4):  # its own results, new tensors, weights that were replaced
        x, w = run(f, x, w), device(16, 16)
        kept.append((x, w, f(x, w)))
    for x, w, y in kept:
        same(y, norm(x.cpu(), w.cpu()), rtol=1e-4, atol=1e-6)


def test_written_inputs_count_versions(graphs):
    def write(cache, x):
        y = torch.softmax(x, -1)
        cache[1:3] = torch.softmax(y * 2, 0)
        return y

    cache, x = torch.zeros(4, 8, device="vulkan"), device(2, 8)
    f = compiled(write)
    run(f, cache, x)
    assert graphs[0].way is not None
    before = cache._version, x._version
    y = run(f, cache, x)
    assert (cache._version, x._version) == (before[0] + CALLS, before[1])
    same(cache[1:3].cpu(), torch.softmax(y.cpu() * 2, 0), rtol=1e-5, atol=1e-6)


def test_an_input_that_is_not_aligned_takes_the_long_way(graphs):
    x, w = device(8, 16), device(16, 16)
    f = compiled(norm)
    run(f, x, w)
    assert graphs[0].way is not None
    odd = device(8 * 16 + 1)[1:].view(8, 16)
    same(run(f, odd, w), norm(odd.cpu(), w.cpu()), rtol=1e-4, atol=1e-6)


def test_another_shape_of_a_result_is_made_here(graphs):
    def token(x, w):
        y = norm(x, w)
        return y.argmax(-1, keepdim=True).reshape(2, 4), y, y[1:]

    x, w = device(8, 16), device(16, 16)
    f = compiled(token)
    run(f, x, w)
    (graph,) = graphs
    assert graph.way is not None
    assert graph.way.views
    graph.compiled = None
    for _ in range(4):
        x = device(8, 16)
        tokens, y, rest = f(x, w)
        assert tokens.shape == (2, 4)
        assert rest.data_ptr() == y.data_ptr() + 64
        want = norm(x.cpu(), w.cpu())
        same(y, want, rtol=1e-4, atol=1e-6)
        same(rest, want[1:], rtol=1e-4, atol=1e-6)
        assert torch.equal(tokens.cpu().flatten(), y.cpu().argmax(-1))


def test_an_argument_that_moves_is_noticed(graphs):
    x, w = device(8, 16), device(16, 16)
    unused = device(3)
    f = compiled(lambda x, w, u: norm(x, w))
    run(f, x, w, unused)
    graphs[0].compiled = None
    for _ in range(3):  # the same tensors, elsewhere
        w.data, unused.data = device(16, 16), device(3)
        for _ in range(2):
            same(run(f, x, w, unused), norm(x.cpu(), w.cpu()), rtol=1e-4, atol=1e-6)
    before = w.cpu()
    x.data = x.data.clone()
    same(run(f, x, w, unused), norm(x.cpu(), before), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.linalg.inv(torch.softmax(torch.softmax(x, -1), 0) + torch.eye(8, device=x.device)),
        lambda x: (torch.softmax(torch.softmax(x, -1), 0), x.view(-1)),
    ],
    ids=["operator outside", "view of an input"],
)
def test_graphs_that_are_more_keep_their_wrappers(graphs, f, monkeypatch):
    monkeypatch.setattr(direct, "_TRIES", 4)
    x = device(8, 8)
    got, want = run(compiled(f), x), f(x.cpu())
    assert all(graph.way is None for graph in graphs)
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
        same(a, b, rtol=1e-3, atol=1e-4)


def test_training_keeps_its_wrappers(graphs):
    x, w = device(8, 16), device(16, 16).requires_grad_()
    f = compiled(norm)
    for _ in range(CALLS):
        f(x, w).sum().backward()
    assert all(graph.way is None for graph in graphs)
    assert w.grad is not None


def test_weights_that_are_replaced_are_seen_without_guards_of_modules(graphs):
    """What docs/options.md says of ``guard_filter_fn``."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1), torch.nn.Linear(8, 8)).to("vulkan")
    options = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
    torch._dynamo.reset()
    f = torch.compile(model, backend="vulkan", fullgraph=True, dynamic=False, options=options)
    x = device(4, 8)
    for _ in range(2):
        run(f, x)
        assert graphs[0].way is not None
        graphs[0].compiled = None
        same(run(f, x), model(x).cpu(), rtol=1e-4, atol=1e-6)
        model[2].weight = torch.nn.Parameter(device(8, 8))
        model[0].bias.data = device(8)
    assert len(graphs) == 1

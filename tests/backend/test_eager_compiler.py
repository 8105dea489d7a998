"""Single operators through the compiler: right, compiled once a pattern, refused where Inductor would fall back."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import vkinductor
from vkinductor.codegen.eager import EagerCompiler, compiler
from vkinductor.device import hooks
from vkinductor.device.registry import registry

aten = torch.ops.aten


@pytest.fixture
def eager() -> Iterator[EagerCompiler]:
    """A compiler that knows nothing yet, in the place of the process's own."""
    registry.open()
    mine = EagerCompiler()
    before = hooks.set_compile_op(mine)
    vkinductor.reset_stats()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield mine
    hooks.set_compile_op(before)


def both(f: Callable[..., Any], *cpu: torch.Tensor) -> None:
    """f on the device equals f on the CPU; so do the arguments afterwards."""
    device = [t.clone().to("vulkan") for t in cpu]
    host = [t.clone() for t in cpu]
    expected, actual = f(*host), f(*device)
    leaves = torch.utils._pytree.tree_leaves
    for a, e in zip([*leaves(actual), *device], [*leaves(expected), *host], strict=True):
        torch.testing.assert_close(a.cpu(), e, check_stride=False)


def test_one_program_serves_many_sizes(eager: EagerCompiler) -> None:
    for shape in ((4, 5), (2, 9), (7, 7), (3, 300)):
        both(lambda x, y: x + y, torch.randn(shape), torch.randn(shape))
        both(lambda x: x.sum(-1), torch.randn(shape))
        both(lambda x, y: torch.cat([x, y]), torch.randn(shape), torch.randn(shape))
    assert eager.compiled == 3
    both(lambda x, y: x + y, torch.randn(4, 1), torch.randn(4, 5))  # broadcasting is another pattern
    assert eager.compiled == 4
    assert vkinductor.stats()["fallbacks"] == {}
    before = vkinductor.stats()["kernels_compiled"]
    both(lambda x, y: x + y, torch.randn(6, 6), torch.randn(6, 6))
    assert vkinductor.stats()["kernels_compiled"] == before


def test_broadcasting_in_operators_of_many_tensors(eager: EagerCompiler) -> None:
    both(lambda b, x, w: torch.addcmul(b, x, w), torch.randn(4), torch.randn(3, 4), torch.randn(4))
    both(lambda x: torch.nn.functional.layer_norm(x, (4,), x[0], x[1]), torch.randn(3, 4))
    both(lambda c, x, y: torch.where(c > 0, x, y), torch.randn(3, 1), torch.randn(4), torch.randn(3, 4))
    assert vkinductor.stats()["fallbacks"] == {}


def test_numbers_become_inputs(eager: EagerCompiler) -> None:
    x = torch.randn(3, 4)
    for number in (2.5, 3.5, -7.25, 1e-3):
        both(lambda x, n=number: x * n, x)
    assert eager.compiled == 2
    for number in (2, 3, 40):
        both(lambda x, n=number: x + n, x.int())
    assert eager.compiled == 4
    for number in (0.1, 0.2, 0.3):
        both(lambda x, n=number: torch.addcdiv(x, x, x + 3, value=n).lerp(x, n), x)
    assert eager.compiled == 4 + 2 * 2 + 1  # the sum with 3 is a program of its own
    assert vkinductor.stats()["fallbacks"] == {}


@pytest.mark.parametrize("number", [0.0, -0.0, 1.0, float("inf"), float("nan"), True, 1, 0])
def test_special_numbers(eager: EagerCompiler, number: Any) -> None:
    x = torch.tensor([-1.0, 0.0, 2.0])
    for _ in range(2):
        torch.testing.assert_close((x.to("vulkan") * number).cpu(), x * number, equal_nan=True)
        actual, expected = torch.copysign(x.to("vulkan"), number).cpu(), torch.copysign(x, number)
        assert actual.tolist() == pytest.approx(expected.tolist())
    assert eager.compiled <= 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8])
def test_numbers_keep_the_result_dtype(eager: EagerCompiler, dtype: torch.dtype) -> None:
    x = torch.arange(5).to(dtype)
    for number in (2.5, 3.25, 7.125):
        both(lambda x, n=number: x * n, x)
    for number in (2, 3, 5):
        both(lambda x, n=number: x * n, x)


def test_in_place_and_out(eager: EagerCompiler) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    both(lambda x, y: x.add_(y).mul_(2.5).relu_(), x, y)
    both(lambda x: x.add_(x), x)
    both(lambda x, y: torch.add(x, y, out=torch.empty(3, 4, device=x.device)), x, y)
    both(lambda x, y: torch.add(x, y, out=torch.empty(0, device=x.device)), x, y)
    both(lambda x: torch.abs(x, out=torch.empty(0, device=x.device)), x)
    indices = {"dtype": torch.int64}
    both(lambda x: torch.max(x, 0, out=(x.new_empty(0), x.new_empty(0, **indices))), x)
    both(lambda x, y: torch.add(x.int(), y.int(), out=torch.empty(3, 4, device=x.device)), x, y)
    target = torch.empty(3, 4, device="vulkan")
    assert torch.mul(x.to("vulkan"), 2, out=target) is target
    assert vkinductor.stats()["fallbacks"] == {}


def test_several_results_and_lists(eager: EagerCompiler) -> None:
    x = torch.randn(3, 4)
    both(lambda x: x.max(1), x)
    both(lambda x: torch.var_mean(x, 1), x)
    both(lambda x: torch.native_layer_norm(x, [4], None, None, 1e-5), x)
    both(lambda x: aten.split_with_sizes_copy(x, [1, 2], 0), x)
    both(lambda x: aten.unbind_copy(x, 0), x)
    assert vkinductor.stats()["fallbacks"] == {}


def test_results_are_inputs_of_autograd(eager: EagerCompiler) -> None:
    x = torch.randn(3, 4, device="vulkan", requires_grad=True)
    (torch.softmax(x * 2, -1) * x).sum().backward()
    y = x.detach().cpu().requires_grad_()
    (torch.softmax(y * 2, -1) * y).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), y.grad)
    assert vkinductor.stats()["fallbacks"] == {}


def test_reads_where_it_writes(eager: EagerCompiler) -> None:
    """Straight to the compiler: torch's own checks let few operators come with such arguments."""
    for offset in (1, 3):
        base = torch.arange(8.0)
        device = base.to("vulkan")
        target, source = device[offset : offset + 4], device[:4]
        result = eager(aten.add_.Tensor, (target, source), {})
        assert result is target
        expected = base.clone()
        expected[offset : offset + 4] += base[:4]
        assert torch.equal(device.cpu(), expected)


def test_layouts(eager: EagerCompiler) -> None:
    x = torch.randn(4, 6)
    for view in (
        lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[1:, 1:], lambda x: x[:1].expand(4, 6), lambda x: x[:0],
        lambda x: x[0, 0], lambda x: x.view(2, 2, 6).permute(2, 0, 1), lambda x: x.as_strided((3, 3), (1, 1)),
    ):  # fmt: skip
        both(lambda x, v=view: (v(x) + 1.5, v(x).sum(), v(x).exp()), x)


def test_indices_on_the_cpu(eager: EagerCompiler) -> None:
    x = torch.randn(5, 3).to("vulkan")
    index = torch.tensor([4, 0])
    assert torch.equal(x[index].cpu(), x.cpu()[index])
    assert torch.equal((x * torch.tensor(2.0)).cpu(), x.cpu() * 2)
    assert torch.equal((x * torch.tensor(3, dtype=torch.int64)).cpu(), x.cpu() * 3)
    assert vkinductor.stats()["fallbacks"] == {}


def test_what_inductor_falls_back_for_is_refused(eager: EagerCompiler) -> None:
    x = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
    for _ in range(2):
        both(torch.cholesky_inverse, x)
    assert sum(vkinductor.stats()["fallbacks"].values()) == 2
    assert eager.compiled == 0
    assert all(pattern.refused for pattern in eager._patterns.values())


def test_results_whose_size_is_data_are_made_on_the_device(eager: EagerCompiler) -> None:
    both(lambda x: (x[x > 0], x.nonzero(), torch.masked_select(x, x > 0, out=x.new_empty(0))), torch.randn(6))
    assert vkinductor.stats()["fallbacks"] == {}


def test_a_cached_program_keeps_the_sizes_that_were_fixed(eager: EagerCompiler) -> None:
    """Lowering fixes the sizes of a convolution's kernel: one for 5x5 must not come out of the graph cache for 3x3."""
    x = torch.randn(2, 4, 9, 9)
    for k in (5, 3, 5):
        both(lambda x, w: torch.conv2d(x, w, stride=2), x, torch.randn(4, 4, k, k) / 16)


def test_a_wrong_call_refuses_nothing(eager: EagerCompiler, capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(3, 4, device="vulkan")
    with pytest.raises(RuntimeError, match=r"mat1 and mat2|shapes cannot be multiplied"):
        eager(aten.mm.default, (x, x), {}) is NotImplemented and torch.mm(x, x)
    both(lambda a, b: a @ b, torch.randn(3, 4), torch.randn(4, 5))
    with pytest.raises(RuntimeError, match="out"):
        torch.add(x, 1.5, out=torch.empty(3, 4, dtype=torch.int32, device="vulkan"))
    both(lambda a: a + 1.5, torch.randn(3, 4))
    assert vkinductor.stats()["fallbacks"].get("aten.add.out", 0) <= 1
    assert "failed while attempting" not in capfd.readouterr().err


def test_a_failing_compilation_goes_to_the_cpu_once(eager: EagerCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        raise compiler.Refused("no")

    monkeypatch.setattr(compiler, "compile_call", failing)
    both(lambda x: x.exp(), torch.randn(3))
    both(lambda x: x.exp(), torch.randn(5))
    assert len(calls) == 1
    assert sum(vkinductor.stats()["fallbacks"].values()) == 2


def test_past_the_limit_the_least_recently_used_program_goes(
    eager: EagerCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "MAX_PROGRAMS", 2)
    x = torch.randn(8)
    for slope, compiled in ((0.1, 1), (0.2, 2), (0.1, 2), (0.3, 3), (0.1, 3), (0.3, 3), (0.2, 4), (0.3, 4), (0.1, 5)):
        # a number that no formula takes as an input
        both(lambda x, s=slope: torch.nn.functional.leaky_relu(x, s), x)
        assert eager.compiled == compiled
    assert vkinductor.stats()["fallbacks"] == {}
    assert max(pattern.count() for pattern in eager._patterns.values()) == 2


def test_many_patterns_in_turn_never_go_to_the_cpu(eager: EagerCompiler) -> None:
    x = torch.randn(8)
    slopes = [i / 64 for i in range(17)]
    for _ in range(2):
        for slope in slopes:
            both(lambda x, s=slope: torch.nn.functional.leaky_relu(x, s), x)
    assert vkinductor.stats()["fallbacks"] == {}
    assert eager.compiled == len(slopes)


def test_of_programs_for_the_same_numbers_one_goes(eager: EagerCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "MAX_PROGRAMS", 2)
    x = torch.randn(1, 2, 9, 9)
    for size, compiled in ((5, 1), (3, 2), (5, 2), (2, 3), (5, 3), (2, 3), (3, 4)):
        both(lambda x, w: torch.conv2d(x, w, stride=2), x, torch.randn(2, 2, size, size))
        assert eager.compiled == compiled
    assert vkinductor.stats()["fallbacks"] == {}


def test_programs_of_varying_numbers_are_evicted_too() -> None:
    def program(served: int) -> compiler.Program:
        return compiler.Program(lambda tensors, numbers: len(tensors) == served, lambda inputs: [], (int,), ())

    pattern = compiler.Pattern(())
    one, two, three = map(program, (1, 2, 3))
    x = torch.empty(1)
    pattern.add((7,), one, vary=True)
    pattern.add((7,), two, vary=False)
    assert pattern.find([x], [5]) is one
    pattern.add((8,), three, vary=True)
    pattern.evict(keep=2)
    assert pattern.find([x, x], [7]) is None
    assert pattern.find([x, x, x], [9]) is three
    assert pattern.find([x], [9]) is one
    pattern.evict(keep=1)
    assert (pattern.count(), pattern.varying) == (1, [one])


def test_fakes_and_subclasses_never_get_in(eager: EagerCompiler) -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3, device="vulkan")
        assert (fake + 1).shape == (3,)
    assert eager(aten.relu.default, (fake,), {}) is NotImplemented
    assert eager(aten.add.Tensor, (fake, fake), {}) is NotImplemented
    assert not eager._patterns


def test_operators_while_dynamo_traces(eager: EagerCompiler) -> None:
    table = torch.arange(6.0, device="vulkan")

    @torch._dynamo.allow_in_graph
    def constant(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        assert (table * 2.5).sum().item() == 37.5  # a real operator in the middle of a compilation
        return module.forward

    out = torch.compile(lambda x: constant(x) * 2, backend=backend)(table)
    assert out.cpu().tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]


def test_operators_inside_an_inductor_compilation(eager: EagerCompiler) -> None:
    from torch._inductor import config

    def post_grad(graph: torch.fx.Graph) -> None:
        assert torch.ones(4, device="vulkan").exp().sum().item() == pytest.approx(4 * 2.718281828)

    with config.patch(post_grad_custom_post_pass=post_grad, force_disable_caches=True):
        x = torch.randn(3, device="vulkan")
        y = torch.compile(lambda x: x.sin() + 1)(x)
    torch.testing.assert_close(y.cpu(), x.cpu().sin() + 1)
    assert eager.compiled >= 2


def test_threads(eager: EagerCompiler) -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            x = torch.arange(float(seed + 2), device="vulkan")
            for i in range(5):
                assert torch.equal(((x + float(i + 2)) * x).cpu(), (x.cpu() + float(i + 2)) * x.cpu())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert eager.compiled == 3  # the sum with a number, that with another, the product


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    lambda p: torch.optim.AdamW(p, lr=0.1),
    lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False),
], ids=["sgd", "adamw", "adamw single"])  # fmt: skip
def test_optimizer_steps(eager: EagerCompiler, make: Callable[..., torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    host = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(7))]
    device = [torch.nn.Parameter(p.detach().to("vulkan")) for p in host]
    optimizers = [make(host), make(device)]
    compiled = []
    for step in range(5):
        for h, d in zip(host, device, strict=True):
            h.grad = torch.randn_like(h)
            d.grad = h.grad.to("vulkan")
        for optimizer in optimizers:
            optimizer.step()
        compiled.append(eager.compiled)
        del step
    for h, d in zip(host, device, strict=True):
        torch.testing.assert_close(d.cpu(), h)
    assert vkinductor.stats()["fallbacks"] == {}
    assert compiled[-1] == compiled[2], compiled  # numbers that change have all been seen to change
    assert compiled[-1] <= 40


def test_printing_and_reading_compile_nothing(eager: EagerCompiler) -> None:
    x = torch.arange(6.0, device="vulkan").view(2, 3)
    repr(x)
    x[0, 1].item()
    x.tolist()
    x.cpu()
    x.clone().t().contiguous()
    assert eager.compiled == 0


def test_extern_kernels_of_a_compiled_graph(eager: EagerCompiler) -> None:
    x = torch.randn(6, 6, device="vulkan")
    y = torch.compile(lambda x: torch.linalg.det(x * 2) + 1, backend="vulkan", fullgraph=True)(x)
    torch.testing.assert_close(y.cpu(), torch.linalg.det(x.cpu() * 2) + 1)
    assert list(vkinductor.stats()["fallbacks"]) == ["aten._linalg_det.result"]

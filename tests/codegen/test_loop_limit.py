"""Work that takes more passes of a loop than lavapipe makes (see codegen/loop_limit.py): results stay right.

The sizes are past the limit of one invocation or one workgroup of the usual layout, or of several loops in one kernel.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled, same

import vkinductor
from vkinductor.codegen import loop_limit
from vkinductor.runtime.deviceinfo import DeviceInfo, Limits

LIMITED = DeviceInfo(0, "a driver that ends loops", "cpu", limits=Limits(max_loop_iterations=65535))


@pytest.fixture(autouse=True)
def no_fallbacks():
    torch._dynamo.reset()
    torch.manual_seed(0)
    vkinductor.reset_stats()
    yield
    assert not vkinductor.stats()["fallbacks"]


def wide(value):
    """Floats in float64, which is what results are compared with."""
    return value.double() if value.is_floating_point() else value


def check(f, *args, first=None, eager=False, tolerance=1e-4):
    """``f`` compiled (for ``first``, with sizes that vary, if given) or eager, against float64 on the CPU."""
    want = f(*map(wide, args))
    run = f if eager else compiled(f, dynamic=first is not None)
    if first is not None:
        run(*(a.to("vulkan") for a in first))
    got = run(*(a.to("vulkan") for a in args)).cpu()
    if not want.is_floating_point():
        return same(got, want)
    return same(got.double(), want.double(), rtol=tolerance, atol=tolerance * float(want.abs().max()))


REDUCTIONS = {
    "sum": lambda x: x.sum(-1),
    "argmax": lambda x: x.argmax(-1),
    "amax": lambda x: x.amax(-1),
    "var": lambda x: x.var(-1),
    "softmax": lambda x: x.softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "norm": lambda x: x.norm(dim=-1),
}


def numbers(*size, dtype=torch.float32):
    """Normal ones, whose largest element is the fifth from the end."""
    x = torch.randn(*size, dtype=dtype)
    x[..., -5] = 9
    return x


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_long_vector(name):
    check(REDUCTIONS[name], numbers(5_000_000))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_eager_after_a_short_vector(name):
    REDUCTIONS[name](numbers(50).to("vulkan"))
    check(REDUCTIONS[name], numbers(2_000_000), eager=True)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_rows_compiled_for_short_ones(name):
    check(REDUCTIONS[name], numbers(3, 300_000), first=[numbers(3, 40)])


@pytest.mark.parametrize("name", ["sum", "argmax", "softmax"])
def test_half_precision(name):
    check(REDUCTIONS[name], numbers(2, 200_000, dtype=torch.float16), first=[numbers(2, 9).half()], tolerance=2e-3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_sums_and_extremes_of_integers(dtype):
    x = torch.randint(0, 100, (10_000_000,)).to(dtype)
    x[-7] = 120

    def f(x):
        return torch.stack([x.sum(), x.argmax(), x.amax().long()])

    check(f, x)


def test_many_loops_over_one_row():
    def f(x):
        for _ in range(6):
            x = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
        return x

    check(f, numbers(2, 900_000), tolerance=1e-3)


def test_a_row_whose_length_data_decide():
    def f(x):
        return x[x > 0].softmax(0).amax()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check(f, numbers(3_000_000), first=[numbers(90)])


def test_a_row_that_no_guard_covers_is_an_error_when_too_long():
    loop_limit.check_length(5, 5, "a reduction")
    with pytest.raises(vkinductor.UnsupportedError, match="over 6 elements"):
        loop_limit.check_length(6, 5, "a reduction")


@pytest.mark.parametrize("k", [70_000, 200_000])
@pytest.mark.parametrize("dynamic", [False, True])
def test_deep_products(k, dynamic):
    def f(a, b, c):
        return torch.cat(
            [a @ b, torch.addmm(c, a[:1], b), (a @ b[:, 0])[:, None].expand(-1, 6), torch.bmm(a[None], b[None])[0]]
        )

    def args(k):
        return torch.randn(5, k), torch.randn(k, 6), torch.randn(6)

    check(f, *args(k), first=args(30) if dynamic else None)


def test_a_product_of_millions():
    check(torch.matmul, torch.randn(2, 5_000_000), torch.randn(5_000_000, 3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16])
def test_deep_products_of_other_dtypes(dtype):
    a, b = torch.randint(-3, 4, (4, 150_000)).to(dtype), torch.randint(-3, 4, (150_000, 5)).to(dtype)
    check(torch.mm, a, b, tolerance=2e-3)
    check(torch.mm, a, b, eager=True, tolerance=2e-3)


CONVOLUTIONS = {
    "1d, channels": (F.conv1d, (1, 70_000, 3), (2, 70_000, 1), {}),
    "1d, kernel": (F.conv1d, (1, 2, 80_000), (2, 2, 79_999), {"padding": 2}),
    "2d": (F.conv2d, (1, 20_000, 4, 4), (3, 20_000, 3, 3), {"padding": 1}),
    "2d, kernel": (F.conv2d, (1, 2, 302, 301), (3, 2, 300, 300), {}),
    "3d": (F.conv3d, (1, 2, 43, 42, 44), (2, 2, 41, 41, 41), {}),
    "transposed": (F.conv_transpose2d, (1, 30_000, 2, 2), (30_000, 2, 3, 3), {"stride": 2}),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_deep_convolutions(case):
    function, x, weight, options = CONVOLUTIONS[case]
    check(lambda x, w: function(x, w, **options), torch.randn(x), torch.randn(weight))


def test_a_deep_convolution_of_channels_last():
    x, weight = torch.randn(1, 4, 4, 20_000), torch.randn(3, 20_000, 3, 3)
    check(lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w, padding=1), x, weight)


def test_a_convolution_compiled_for_few_channels():
    def args(channels):
        return torch.randn(1, channels, 3), torch.randn(2, channels, 2)

    check(F.conv1d, *args(90_000), first=args(9))


@pytest.mark.parametrize("size", [(1, 1, 300, 300), (70_000, 1, 2, 2), (1, 1, 2, 80_000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_gradient_of_a_weight(size, dtype):
    def gradient(x, w):
        w.requires_grad_()
        return torch.autograd.grad((F.conv2d(x, w, padding=1) * 0.01).sum(), w)[0]

    x, w = torch.randn(size).to(dtype), torch.randn(2, 1, 3, 3).to(dtype)
    check(gradient, x, w, eager=True, tolerance=1e-4 if dtype == torch.float32 else 2e-3)


EXPRESSIONS = {
    "igamma": lambda a: torch.igamma(a * 200, a.flip(-1) * 210),
    "zeta": lambda a: torch.special.zeta(a + 1.5, a.flip(-1) + 0.1),
    "fmod": lambda a: torch.fmod(a * 1e6, 0.5 + a.flip(-1)),
    "searchsorted": lambda a: torch.searchsorted(a[:70_000].cumsum(0), a * 30_000).float(),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("reduction", ["amax", "cumsum"])
def test_loops_inside_a_reduced_expression(name, reduction):
    a = torch.rand(120_000).double().float()
    f = EXPRESSIONS[name]
    on_device = compiled(lambda a: getattr(f(a), reduction)(0))(a.to("vulkan"))
    # Of the device's own elements, so that only the loops are compared.
    elements = f(a.to("vulkan")).cpu().double()
    want = getattr(elements, reduction)(0)
    same(on_device.double(), want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


def test_powers_of_integers():
    a, b = torch.randint(0, 3, (2_000_000,)), torch.randint(0, 39, (2_000_000,))
    check(lambda a, b: torch.stack([(a**b).amax(), (a**b).argmax(), (a**31).sum()]), a, b)


def test_scatters_and_sorts_of_many():
    index = torch.randint(0, 7, (400_000,))
    check(lambda i: torch.bincount(i, minlength=7), index, eager=True)
    check(lambda i: torch.zeros(7).to(i.device).index_add(0, i, torch.ones(400_000).to(i.device)), index, eager=True)
    check(lambda i: i.sort(stable=True)[1], index)


@pytest.mark.parametrize("row", [1, 64, 60_000, 65_536, 10**6, 10**7, 10**9])
@pytest.mark.parametrize("loops", [1, 3, 7])
@pytest.mark.parametrize("within", [0, 10])
def test_layouts_stay_below_the_limit(row, loops, within):
    lanes = loop_limit.lanes(LIMITED, 1, 1024, row, within)
    for unroll in (1, 8, 64):
        most = loop_limit.reach(LIMITED, lanes, unroll, loops, within)
        passes = -(-most // (lanes * unroll))
        assert loops * (passes + 1 + passes * unroll * within) <= 65535
    assert lanes <= 1024
    if not within:
        assert loop_limit.reach(LIMITED, lanes, loop_limit.LARGEST_UNROLL, loops) >= row


def test_other_devices_are_left_alone():
    info = DeviceInfo(0, "a GPU", "discrete")
    assert not loop_limit.limited(info)
    assert loop_limit.lanes(info, 4, 1024, 10**9) == 4
    assert loop_limit.unrolled(info, 10**9, 4, 3) == 1
    assert loop_limit.passes_within(info, [SimpleNamespace(_body=None)]) == 0

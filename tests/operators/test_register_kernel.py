"""Operators in GLSL: eager and compiled, fused, dynamic, differentiated, and every way to be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vkinductor
from vkinductor import OperatorError, ShaderCompileError

Name = Callable[[], str]

SWISH = """
// x * sigmoid(beta * x) + y
float a = {{ x }};
value = a / (1.0 + exp(-{{ beta }} * a)) + {{ y }};
"""

ROW_SUMS = """
part[local] = 0.0;
for (int k = local; k < {{ x.size(1) }}; k += {{ workgroup }}) {
    part[local] += {{ x("group", "k") }};
}
barrier();
if (local == 0) {
    float total = 0.0;
    for (int k = 0; k < {{ workgroup }}; ++k) {
        total += part[k];
    }
    {{ store("group", "total") }}
}
"""


def swish(x: torch.Tensor, y: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x / (1 + torch.exp(-beta * x)) + y


def registered_swish(name: str, **rules: Any) -> Any:
    return vkinductor.register_kernel(
        f"{name}(Tensor x, Tensor y, float beta=1.0) -> Tensor", SWISH, reference=swish, **rules
    )


def close(actual: torch.Tensor, expected: torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(actual.cpu(), expected, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_eager_and_compiled(name: Name, dtype: torch.dtype) -> None:
    op = registered_swish(name())
    x, y = torch.randn(5, 7, dtype=dtype).t(), torch.randn(5, dtype=dtype)
    expected = swish(x.double(), y.double(), 2.0).to(dtype)
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if dtype is torch.float32 else {}
    with vkinductor.set_fallback("error"):
        close(op(x.to("vulkan"), y.to("vulkan"), 2.0), expected, **tolerance)
        close(torch.compile(op, backend="vulkan")(x, y, 2.0), expected, **tolerance)
    assert torch.equal(op(x, y, 2.0), swish(x, y, 2.0))  # the reference


def test_what_follows_is_fused(name: Name) -> None:
    op = registered_swish(name())
    f = torch.compile(lambda x, y: torch.relu(op(x, y)) * 2 + x, backend="vulkan", fullgraph=True)
    x, y = torch.randn(6, 9), torch.randn(9)
    close(f(x, y), torch.relu(swish(x, y)) * 2 + x)
    assert vkinductor.stats()["dispatches"] == 1


def test_dynamic_shapes_and_views(name: Name) -> None:
    op = registered_swish(name())
    f = torch.compile(lambda x, y: op(x[1:, ::2], y) + 1, backend="vulkan", dynamic=True, fullgraph=True)
    for rows, columns in ((3, 8), (5, 10), (17, 31), (2, 4)):
        x, y = torch.randn(rows, columns), torch.randn((columns + 1) // 2)
        close(f(x, y), swish(x[1:, ::2], y) + 1)
        close(op(x.to("vulkan")[1:, ::2], y.to("vulkan")), swish(x[1:, ::2], y))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3, 4, 5)])
def test_shapes(name: Name, shape: tuple[int, ...]) -> None:
    op = registered_swish(name())
    x = torch.randn(shape)
    close(op(x.to("vulkan"), x.to("vulkan")), swish(x, x))
    close(torch.compile(op, backend="vulkan")(x, x), swish(x, x))


@pytest.mark.parametrize("compile_it", [False, True])
def test_workgroups(name: Name, compile_it: bool) -> None:
    op = vkinductor.register_kernel(
        f"{name()}(Tensor x) -> Tensor", ROW_SUMS, style="workgroup", workgroup=32, ranks={"x": 2},
        preamble="shared float part[{{ workgroup }}];", shape=lambda x: [x.shape[0]], groups=lambda x: x.shape[0],
    )  # fmt: skip
    x = torch.randn(9, 100)
    f = torch.compile(lambda x: op(x).exp() + 1, backend="vulkan", dynamic=True) if compile_it else None
    for rows in (9, 4, 1):
        part = x[:rows].to("vulkan")
        close(op(part), x[:rows].sum(1), rtol=1e-5, atol=1e-5)
        if f is not None:
            close(f(part), x[:rows].sum(1).exp() + 1, rtol=1e-4, atol=1e-4)


def test_sizes_numbers_and_choices(name: Name) -> None:
    op = vkinductor.register_kernel(
        f"{name()}(Tensor x, SymInt n, Tensor? scale=None, str mode='add', bool twice=False) -> Tensor",
        """
        int64_t k = {{ index }}(i0) * {{ x.stride(0) }} / max({{ x.stride(0) }}, 1) % int({{ n }});
        float v = {{ x("k") }};
        {% if scale is not none %}
        v *= {{ scale }};
        {% endif %}
        {% for _ in range(2 if twice else 1) %}
        v {{ "+" if mode == "add" else "*" }}= 3.0;
        {% endfor %}
        value = v;
        """,
        shape=lambda x, n, scale, mode, twice: [x.shape[0] + n],
    )
    x = torch.randn(4)
    device = x.to("vulkan")
    wrapped = torch.cat([x[:3], x[:3], x[:1]])
    close(op(device, 3), wrapped + 3)
    close(op(device, 3, mode="mul", twice=True), wrapped * 9)
    scale = torch.tensor([2.0])
    f = torch.compile(lambda x, s, y: op(x, y.shape[0], s), backend="vulkan", dynamic=True)
    for n in (3, 2, 4):
        k = torch.arange(4 + n) % n
        close(f(x, scale, torch.zeros(n)), x[k] * 2 + 3)


def test_dtype_rules_and_integers(name: Name) -> None:
    op = vkinductor.register_kernel(
        f"{name()}(Tensor x, Tensor y) -> Tensor", "value = {{ x }} > {{ y }};", dtype=torch.bool
    )
    x, y = torch.tensor([1, 5, -3], dtype=torch.int8), torch.tensor([2, 2, -4], dtype=torch.int64)
    close(op(x.to("vulkan"), y.to("vulkan")), x > y)
    close(torch.compile(lambda x, y: op(x, y).sum(), backend="vulkan")(x, y), (x > y).sum())
    same = vkinductor.register_kernel(f"{name()}(Tensor x) -> Tensor", "value = {{ x }} * 100;", dtype="x")
    close(same(x.to("vulkan")), x * 100)  # wraps


def test_gradients(name: Name) -> None:
    op = registered_swish(
        name(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
        backward=lambda ctx, g: (g * ctx.saved_tensors[0].cos(), g.sum(0), None),
    )
    expected = torch.randn(3, 4)
    for call in (op, torch.compile(op, backend="vulkan"), torch.compile(op, backend="vulkan", dynamic=True)):
        x = expected.clone().to("vulkan").requires_grad_()
        y = torch.zeros(4, device="vulkan", requires_grad=True)
        call(x, y).sum().backward()
        close(x.grad, expected.cos())
        close(y.grad, torch.full((4,), 3.0))


def test_torch_accepts_the_declaration(name: Name) -> None:
    op = registered_swish(name())
    torch.library.opcheck(op, (torch.randn(3, 4), torch.randn(4), 1.5))


@pytest.mark.parametrize("device", ["cpu", "vulkan", "compiled"])
def test_wrong_arguments(name: Name, device: str) -> None:
    def same_size(x: torch.Tensor, y: torch.Tensor, beta: float) -> str | None:
        return None if x.shape[-1] == y.shape[-1] else f"x and y end in {x.shape[-1]} and {y.shape[-1]}"

    op = registered_swish(name(), dtypes={"x": [torch.float32]}, ranks={"y": (1, 2)}, check=same_size)
    call = torch.compile(op, backend="vulkan") if device == "compiled" else op
    place = "cpu" if device == "compiled" else device
    x = torch.randn(3, 4, device=place)
    with pytest.raises(OperatorError, match=r"'x' is torch.float64; it may be torch.float32"):
        call(x.double(), x)
    with pytest.raises(OperatorError, match=r"'y' has 3 dimensions, \[1, 3, 4\]; it may have 1 to 2"):
        call(x, x[None])
    with pytest.raises(OperatorError, match="x and y end in 4 and 1"):
        call(x, x[:, :1])
    assert call(x, x).shape == (3, 4)


def test_wrong_glsl_names_its_line(name: Name) -> None:
    text = "float a = {{ x }};\n{% for k in range(3) %}\na += {{ k }};\n{% endfor %}\nvalue = nothing(a);\n"
    op = vkinductor.register_kernel(f"{name()}(Tensor x) -> Tensor", text)
    x = torch.ones(3, device="vulkan")
    for call in (op, torch.compile(op, backend="vulkan")):
        with pytest.raises(ShaderCompileError, match=r"line 5 of the GLSL of .*: value = nothing"):
            call(x)
    undefined = vkinductor.register_kernel(f"{name()}(Tensor x) -> Tensor", "value = {{ y }};")
    syntax = vkinductor.register_kernel(f"{name()}(Tensor x) -> Tensor", "\nvalue = {{ x };")
    for op, what in ((undefined, "'y' is undefined. It may name"), (syntax, "line 2 of the GLSL")):
        for call in (op, torch.compile(op, backend="vulkan")):
            with pytest.raises(OperatorError, match=what):
                call(x)


def test_registering_again(name: Name) -> None:
    schema = f"{name()}(Tensor x) -> Tensor"
    op = vkinductor.register_kernel(schema, "value = {{ x }} + 1;")
    x = torch.ones(3, device="vulkan")
    assert op(x).cpu().tolist() == [2.0] * 3
    assert vkinductor.register_kernel(schema, "value = {{ x }} + 1;") is op
    with pytest.raises(OperatorError, match="registered already"):
        vkinductor.register_kernel(schema, "value = {{ x }} + 2;")
    assert torch.compile(op, backend="vulkan")(x).cpu().tolist() == [2.0] * 3
    vkinductor.register_kernel(schema, "value = {{ x }} + 2;", replace=True)
    assert op(x).cpu().tolist() == [3.0] * 3
    torch._dynamo.reset()
    assert torch.compile(op, backend="vulkan")(x).cpu().tolist() == [3.0] * 3  # not the cached graph


def test_operators_that_exist(name: Name) -> None:
    @torch.library.custom_op(name(), mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @cube.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    vkinductor.register_kernel(cube, "value = {{ x }} * {{ x }} * {{ x }};")
    x = torch.randn(4)
    close(cube(x.to("vulkan")), x**3)
    assert vkinductor.stats()["dispatches"] == 1
    close(torch.compile(lambda x: cube(x) + 1, backend="vulkan")(x), x**3 + 1)


@pytest.mark.parametrize(
    ("arguments", "rules", "what"),
    [
        ("(Tensor x) -> (Tensor, Tensor)", {}, "one new tensor"),
        ("(Tensor(a!) x) -> Tensor", {}, "one new tensor"),
        ("(Tensor[] x) -> Tensor", {}, "Tensor"),
        ("(float x) -> Tensor", {}, "an argument that is a tensor"),
        ("(Tensor x) -> Tensor", {"ranks": {"z": 1}}, "no argument 'z'"),
        ("(Tensor x) -> Tensor", {"shape": lambda: (1,)}, "shape= does not take"),
        ("(Tensor x) -> Tensor", {"style": "blockwise"}, "elementwise, workgroup"),
        ("(Tensor x) -> Tensor", {"style": "workgroup"}, "store"),
        ("(Tensor x) -> Tensor", {"setup_context": lambda *a: None}, "backward="),
        ("(Tensor x -> Tensor", {}, "no schema"),
    ],
)
def test_wrong_registrations(name: Name, arguments: str, rules: dict[str, Any], what: str) -> None:
    with pytest.raises(OperatorError, match=what):
        vkinductor.register_kernel(f"{name()}{arguments}", "value = {{ x }};", **rules)


def test_a_name_without_an_operator(name: Name) -> None:
    with pytest.raises(OperatorError, match="there is no operator"):
        vkinductor.register_kernel(name(), "value = 1.0;")
    with pytest.raises(OperatorError, match="no operator's name"):
        vkinductor.register_kernel("nothing", "value = 1.0;")


def test_any_number_of_numbers(name: Name) -> None:
    op = vkinductor.register_kernel(f"{name()}(Tensor x, float n) -> Tensor", "value = {{ x }} * {{ n }};")
    x = torch.ones(2, device="vulkan")
    for n in range(20):
        assert op(x, n + 0.5).cpu().tolist() == [n + 0.5] * 2
    assert op(x, 0.5).cpu().tolist() == [0.5] * 2


def test_without_a_reference(name: Name) -> None:
    op = vkinductor.register_kernel(f"{name()}(Tensor x) -> Tensor", "value = {{ x }} + 1;")
    with pytest.raises(OperatorError, match="move its tensors to 'vulkan'"):
        op(torch.ones(2))
    assert torch.compile(op, backend="vulkan")(torch.ones(2)).tolist() == [2.0, 2.0]

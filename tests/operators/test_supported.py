"""supported_ops says what is in the tables."""

from __future__ import annotations

import pytest

import vkinductor
from vkinductor.cli import main


def test_where_and_why() -> None:
    found = vkinductor.supported_ops("aten.*")
    where = {name: support.where for name, support in found.items()}
    assert len(found) > 2500
    assert where["aten.add.Tensor"] == where["aten.add_.Tensor"] == where["aten.add.out"] == "gpu"
    assert where["aten.mm.default"] == "gpu"
    assert "our lowering" in found["aten.mm.default"].why
    assert "our decomposition" in found["aten.addbmm.default"].why
    assert where["aten.as_strided.default"] == where["aten.view.default"] == "view"
    assert where["aten._local_scalar_dense.default"] == "host"
    assert where["aten.matmul.default"] in ("composed", "gpu")
    assert where["aten._linalg_svd.default"] == "cpu"
    assert set(where.values()) == {"gpu", "view", "host", "composed", "cpu"}
    assert list(vkinductor.supported_ops("aten.mm.*")) == [n for n in found if n.startswith("aten.mm.")]


def test_users_operators_are_listed() -> None:
    op = vkinductor.register_kernel("vkinductor_listed::plus(Tensor x) -> Tensor", "value = {{ x }} + 1;")
    assert vkinductor.supported_ops("vkinductor_listed.*")[str(op)].why == "registered by the user, in GLSL"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "addbmm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("aten.addbmm.default ") and "gpu" in line for line in lines)
    assert "gpu" in lines[-1]
    assert main(["ops", "--where", "cpu", "aten._linalg_svd.default"]) == 0
    assert "neither lowers nor decomposes" in capsys.readouterr().out
    assert main(["ops", "no_such_thing"]) == 1


def test_numbers_drawn_on_the_host_are_not_called_a_kernel() -> None:
    found = vkinductor.supported_ops("aten.uniform_*")["aten.uniform_.default"]
    assert found.where == "host"
    assert "seed" in found.why

"""The tune command: what it takes, what it refuses and how, and what it writes."""

from __future__ import annotations

import json
import logging
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vkinductor
from vkinductor.cli import main, tune
from vkinductor.cli.tune_problems import AttentionSpec, ConvSpec, DepthwiseSpec, GemmSpec, LinearSpec
from vkinductor.cli.tune_report import page
from vkinductor.codegen.gemm import choose
from vkinductor.codegen.gemm.tiles import DirectTile
from vkinductor.codegen.tuning import kernels, layouts
from vkinductor.device.registry import registry


@pytest.fixture
def two_candidates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Matrix products have two candidates, and an empty store takes the results."""
    from vkinductor.runtime.store import DiskStore

    tiles = [DirectTile(tm=2, tn=2, blocks=16), DirectTile(tm=4, tn=4, blocks=16)]
    monkeypatch.setattr(choose, "_ordered", lambda info, problem: tiles)
    device = registry.open().runtime
    monkeypatch.setitem(device.__dict__, "store", DiskStore(tmp_path / "store"))
    registry.tuning = None
    torch._dynamo.reset()
    yield
    registry.tuning = None
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("4096,1024,512", GemmSpec(1, 4096, 1024, 512, "float32", "nn")),
        ("8,16,32,64,float16", GemmSpec(8, 16, 32, 64, "float16", "nn")),
        ("1,4096,4096,bfloat16,nt", GemmSpec(1, 1, 4096, 4096, "bfloat16", "nt")),
        (" 2, 3, 4 , int8 , tt", GemmSpec(1, 2, 3, 4, "int8", "tt")),
    ],
)
def test_problems(text: str, spec: GemmSpec) -> None:
    assert GemmSpec.parse(text) == spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("2,8,128,64", AttentionSpec(2, 8, 8, 128, 128, 64, "float16", False)),
        ("1,32/8,1/8192,128,bfloat16", AttentionSpec(1, 32, 8, 1, 8192, 128, "bfloat16", False)),
        ("1,2,3,4,float32,causal", AttentionSpec(1, 2, 2, 3, 3, 4, "float32", True)),
    ],
)
def test_attention_problems(text: str, spec: AttentionSpec) -> None:
    assert AttentionSpec.parse(text) == spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("2,64,56,57,32,3", ConvSpec(2, 64, 56, 57, 32, 3, 1, 0, "float16")),
        ("2,64,56,57,32,3,2,bfloat16", ConvSpec(2, 64, 56, 57, 32, 3, 2, 0, "bfloat16")),
        ("2,64,56,57,32,3,2,1", ConvSpec(2, 64, 56, 57, 32, 3, 2, 1, "float16")),
    ],
)
def test_convolution_problems(text: str, spec: ConvSpec) -> None:
    assert ConvSpec.parse(text) == spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("2,64,56,57,7", DepthwiseSpec(2, 64, 56, 57, 7, 1, 3, "float16")),
        ("2,64,56,57,3,2,float32", DepthwiseSpec(2, 64, 56, 57, 3, 2, 1, "float32")),
        ("2,64,56,57,3,2,0", DepthwiseSpec(2, 64, 56, 57, 3, 2, 0, "float16")),
    ],
)
def test_depthwise_problems(text: str, spec: DepthwiseSpec) -> None:
    assert DepthwiseSpec.parse(text) == spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("1,2048,2048/256/256", LinearSpec(1, 2048, (2048, 256, 256), "float16", "", "", "")),
        ("2,512,96/96,silu,rms,Q4_K,bfloat16", LinearSpec(2, 512, (96, 96), "bfloat16", "Q4_K", "rms", "silu")),
    ],
)
def test_linear_problems(text: str, spec: LinearSpec) -> None:
    assert LinearSpec.parse(text) == spec
    family, problem = spec.problem()
    assert (problem.m, problem.problem.k, problem.problem.sizes) == (spec.m, spec.k, spec.sizes)
    assert family.name == "linears"


def test_a_depthwise_problem() -> None:
    family, problem = DepthwiseSpec.parse("2,60,5,7,3").problem()
    assert str(family.bucket(problem)) == ("float16 last k3x3 s1x1 p1x1 d1x1 4 batch=2 channels=60 space0=5 space1=7")


def test_a_kernel_of_one_element_is_a_product() -> None:
    family, problem = ConvSpec.parse("2,64,5,7,32,1").problem()
    assert str(family.bucket(problem)) == "float16 nt 8x8 batch=1 m=70 n=32 k=64"
    family, problem = ConvSpec.parse("2,60,5,7,32,1,2").problem()
    assert str(family.bucket(problem)) == "float16 k1x1 s2x2 p0x0 d1x1 batch=2 channels=64 outputs=32 space0=5 space1=7"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--conv", "1,2,3,4,5"], "is no convolution: write N,C,H,W,O,K[,STRIDE[,PADDING]][,DTYPE], such as"),
        (["--conv", "1,2,3,4,5,6,7,8,9"], "is no convolution"),
        (["--conv", "1,8,5,5,8,0"], "sizes are at least 1"),
        (["--conv", "1,8,5,5,8,3,1,-1"], "sizes are at least 1"),
        (["--conv", "1,8,5,5,8,7"], "the kernel is larger than the padded image"),
        (["--conv", "1,8,5,5,8,3,float32"], "unknown dtype 'float32': choose one of float16, bfloat16"),
        (
            ["--depthwise", "1,2,3,4"],
            "is no depthwise convolution: write N,C,H,W,K[,STRIDE[,PADDING]][,DTYPE], such as",
        ),
        (["--depthwise", "1,1,5,5,3"], "a single channel is no depthwise convolution: use --conv"),
        (["--depthwise", "1,8,5,5,7,1,0"], "the kernel is larger than the padded image"),
        (["--linear", "1,256"], "is no linear layer: write M,K,N[/N...][,DTYPE][,FORMAT][,NORM][,GATE], such as"),
        (["--linear", "1,256/8,8"], "is no linear layer"),
        (["--linear", "1,256,8,batch"], "unknown 'batch': choose of float16, bfloat16, float32; Q4_0"),
        (["--linear", "1,256,8,rms,layer"], "rms and layer: one norm, please"),
        (["--linear", "1,256,8/9,silu"], "a gate takes two weights of one size"),
        (["--linear", "1,100,8,Q4_0"], "rows of Q4_0 hold a multiple of 32 weights"),
        (["--linear", "17,256,8"], "these layers have at most 16 rows; with more they are products: use --gemm"),
        (["--attention", "1,2,3"], "is no attention: write B,H[/G],T[/S],D[,DTYPE[,causal]]"),
        (["--attention", "1/1,2,3,4"], "is no attention"),
        (["--attention", "1,2/2/2,3,4"], "is no attention"),
        (["--attention", "1,2,3,4,float16,casual"], "is no attention"),
        (["--attention", "1,a,3,4"], "is no attention"),
        (["--attention", "1,0,3,4"], "sizes are at least 1"),
        (["--attention", "1,2,3,4,int8"], "unknown dtype 'int8': choose one of float16, bfloat16, float32"),
        (["--attention", "1,3/2,3,4"], "3 heads cannot share 2 heads of keys"),
        (["--attention", "1,2,3,512"], "at most 256 columns"),
        (["--gemm", "4096,4096"], "is no matrix product: write [B,]M,N,K[,DTYPE[,LAYOUT]]"),
        (["--gemm", "1,2,3,4,5"], "is no matrix product"),
        (["--gemm", "a,b,c"], "is no matrix product"),
        (["--gemm", "4,4,4,float16,nn,nn"], "is no matrix product"),
        (["--gemm", "4,0,4"], "sizes are at least 1"),
        (["--gemm", "4,-4,4"], "sizes are at least 1"),
        (["--gemm", "4,4,4,float8"], "unknown dtype 'float8': choose one of float16,"),
        (["--gemm", "4,4,4,float16,tn2"], "unknown layout 'tn2': choose one of nn, nt, tn, tt"),
        (["--seconds", "soon", "--gemm", "4,4,4"], "'soon' is no number of seconds"),
        (["--seconds", "0", "--gemm", "4,4,4"], "'0' is no number of seconds"),
    ],
)
def test_arguments_that_do_not_parse(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["tune", *arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to tune: name a program, or a problem with --gemm, --linear, --attention, --conv or --depthwise"),
        (["nowhere.py"], "there is no program nowhere.py"),
        (["--force", __file__], "--force goes with problems"),
        (["--json", "/no/such/folder/x.json", "--gemm", "4,4,4"], "--json: the folder of /no/such/folder/x.json"),
        (["--report", "/no/such/folder/x.html", "--gemm", "4,4,4"], "--report: the folder of"),
    ],
)
def test_arguments_that_make_no_sense(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *arguments]) == 2
    assert f"error: {message}" in capsys.readouterr().err


def test_problems_are_measured_once(two_candidates: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, written = tmp_path / "r.html", tmp_path / "r.json"
    line = ["tune", "--gemm", "32,32,32", "--gemm", "3,16,16,16,float16,nt", "--seconds", "20"]
    assert main([*line, "--report", str(report), "--json", str(written)]) == 0
    shown = capsys.readouterr()
    assert "gemm float32 nn 4x4 batch=1 m=32 n=32 k=32" in shown.out
    assert "(chosen" in shown.out
    assert "6 timings" in shown.out
    assert "] 2 of 2, direct tm=" in shown.err
    found = json.loads(written.read_text())
    assert found["timings"] == 6
    names = [p["problem"] for p in found["problems"]]
    # Of halves, as it stands alone and between others.
    assert [name[: name.index(" batch")] for name in names] == [
        "float32 nn 4x4",
        "float16 nt 8x8",
        "float16 nt 8x8 waits",
    ]
    best = found["problems"][0]["candidates"][0]
    assert best["status"] == "ok"
    assert best["tflop_s"] == pytest.approx(2 * 32**3 / best["us"] * 1e-6)
    assert found["ceilings"]["copy_gb_s"] > 0
    assert set(found["ceilings"]["tflop_s"]) == {"float32", "float16"}
    assert "http" not in report.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert main([*line, "--json", "-"]) == 0
    shown = capsys.readouterr()
    again = json.loads(shown.out)
    assert again["timings"] == 0
    assert again["problems"] == found["problems"]
    assert main(["tune", "--gemm", "32,32,32", "--force", "--seconds", "20"]) == 0
    assert "2 timings" in capsys.readouterr().out


def test_a_program_is_tuned(two_candidates: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, torch\n"
        "assert sys.argv[1:] == ['--size', '24'], sys.argv\n"
        "n = int(sys.argv[2])\n"
        "m = torch.nn.Linear(n, n)\n"
        "y = torch.compile(m, backend='vulkan')(torch.randn(n, n))\n"
        "y.sum().backward()\n"
        "print('the program ran', y.shape)\n"
        "sys.exit(3)\n"
    )
    before = vkinductor.stats()["timings"]
    assert main(["tune", "--seconds", "20", str(script), "--size", "24"]) == 3
    shown = capsys.readouterr()
    assert "the program ran" in shown.out
    assert "gemm float32 nt 4x4 batch=1 m=24 n=24 k=24" in shown.out
    assert vkinductor.stats()["timings"] - before >= 4
    assert "tuned gemm float32 nt" in shown.err
    assert not logging.getLogger("vkinductor.codegen.tuning").handlers


def test_kernels_of_a_program_are_tuned(
    two_candidates: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that Inductor's scheduling generates: in the table, and drawn."""
    monkeypatch.setattr(kernels, "FEWEST_BYTES_OF_ROWS", 1)
    monkeypatch.setitem(layouts.MOST, True, 2)
    script, report = tmp_path / "program.py", tmp_path / "r.html"
    script.write_text(
        "import torch\n"
        "f = torch.compile(lambda x: x.softmax(-1), backend='vulkan', dynamic=False)\n"
        "f(torch.randn(8, 64))\n"
    )
    line = ["tune", "--seconds", "60", "--report", str(report), str(script)]
    before = vkinductor.stats()["timings"]
    assert main(line) == 0
    shown = capsys.readouterr()
    assert "reduction float32 _softmax" in shown.out
    assert "heuristic (" in shown.out
    assert "lanes=" in shown.out
    assert vkinductor.stats()["timings"] - before == 3
    drawn = report.read_text()
    assert "reduction float32 _softmax" in drawn
    assert drawn.count("<rect") == 3
    assert "GB/s" in drawn
    torch._dynamo.reset()
    registry.tuning = None
    assert main(line) == 0
    assert "0 timings: everything was known" in capsys.readouterr().out


def test_one_candidate(
    two_candidates: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(choose, "_ordered", lambda info, problem: [DirectTile(tm=2, tn=2, blocks=16)])
    assert main(["tune", "--gemm", "8,8,8"]) == 0
    assert "m=8 n=8 k=8: there is one candidate on this device" in capsys.readouterr().out


def test_a_problem_that_no_candidate_computes(
    two_candidates: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vkinductor.codegen.tuning.gemm._check", lambda *arguments: "everything is <wrong>")
    assert main(["tune", "--gemm", "8,8,8"]) == 1
    assert "no candidate could be timed" in capsys.readouterr().out


def problem(**changed: Any) -> dict[str, Any]:
    rows = [
        {
            "candidate": "fast <1>",
            "status": "ok",
            "us": 10.0,
            "detail": "",
            "gb_s": 3.0,
            "tflop_s": 2.0,
            "of_heuristic": 2.0,
        },
        {
            "candidate": "slow",
            "status": "ok",
            "us": 20.0,
            "detail": "",
            "gb_s": 1.5,
            "tflop_s": 1.0,
            "of_heuristic": 1.0,
        },
        {"candidate": "next", "status": "late", "us": None, "detail": ""},
        {"candidate": "bad", "status": "wrong", "us": None, "detail": "NaN & more"},
    ]
    of = {"family": "gemm", "problem": "float16 nn m=1", "choice": "fast <1>", "heuristic": "slow", "complete": False}
    return {**of, "nbytes": 10**9, "flops": 10**12, "candidates": rows, **changed}


@pytest.mark.parametrize(("flops", "unit"), [(10**12, "TFLOP/s"), (10**6, "GB/s"), (0, "GB/s")])
def test_the_report_is_well_formed(flops: int, unit: str) -> None:
    ceilings = {"copy_gb_s": 4.0, "tflop_s": {"float16": 2.5}}
    about = {"device": "a & b", "driver": "c", "torch": "2", "timings": 2, "not_tuned": ["<this>"]}
    text = page({**about, "ceilings": ceilings, "problems": [problem(flops=flops)]})
    root = ET.fromstring(text.replace("<!DOCTYPE html>", "").replace('<meta charset="utf-8">', ""))
    svg = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{svg}rect")) == 2
    assert [t.text for t in root.iter(f"{svg}text")][-1] == unit
    paragraphs = [p.text or "" for p in root.iter("p")]
    assert "bad: wrong NaN & more" in paragraphs
    assert "no time was left for 1 more" in paragraphs
    bare = page({**about, "ceilings": {"copy_gb_s": None, "tflop_s": {}}, "problems": [problem(candidates=[])]})
    assert "<svg" not in bare


def test_the_table_says_what_was_left_out() -> None:
    about = {"device": "a", "driver": "c", "torch": "2", "timings": 2, "not_tuned": []}
    text = tune.describe({**about, "ceilings": {"copy_gb_s": None, "tflop_s": {}}, "problems": [problem()]})
    assert "fast <1> (chosen)" in text
    assert "slow (heuristic)" in text
    assert "bad: wrong: NaN & more" in text
    assert "no time was left for 1 more: raise --seconds and use --force" in text

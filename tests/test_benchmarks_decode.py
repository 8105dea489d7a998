"""The decode benchmark: its model, what is measured of it, the file for llama.cpp, processes that end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
TINY = "tiny"


@pytest.fixture
def decode(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's modules, with a shape more."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import decode as module
    from benchmarks import llama

    monkeypatch.setitem(llama.SHAPES, TINY, llama.Shape(1, 64, 4, 2, 96, 128))
    return module


def test_steps_are_measured_and_are_those_of_the_cpu(
    decode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import decode_worker as workers

    torch._dynamo.reset()
    monkeypatch.setattr(workers, "WARM_UP_S", 0.0)
    problem = workers.Problem(TINY, "float16", 32, steps=4, prefill=0)
    results = []
    with torch.no_grad():
        for name in (decode.OURS, decode.REFERENCE):
            worker = workers.Worker(workers.SYSTEMS[name](), problem, problem.graphs())
            torch.save(worker.logits, tmp_path / f"{name}.pt")
            results.append(worker.measure(1))
            decode.compare(results[-1], results, tmp_path)
    ours, right = results
    assert right.equal == problem.steps
    assert right.error < 2e-3
    assert not right.note
    assert ours.counts["submits"] <= 1
    assert ours.counts["replays"] == 1
    assert ours.counts["d2h_bytes"] == 8 / problem.steps  # one token at the end
    assert ours.chained > 0
    assert ours.read > 0
    lines = decode.table(results).splitlines()
    assert len(lines) == 4
    assert problem.key in lines[2]


def test_weights_are_the_same_numbers_and_of_one_size(decode: Any) -> None:
    from benchmarks import llama

    torch.testing.assert_close(llama.Weights().matrix(8, 32, 0.5), llama.Weights().matrix(8, 32, 0.5), rtol=0, atol=0)
    for name, (number, *_) in llama.FORMATS.items():
        packed = llama.Weights(name).matrix(64, 512, 0.02)
        values = gguf.quants.dequantize(packed.numpy(), gguf.GGMLQuantizationType(number))
        assert values.shape == (64, 512)
        assert values.std() == pytest.approx(0.02, rel=0.1), name
        assert abs(values.mean()) < 0.003
    with pytest.raises(ValueError, match="blocks of 256"):
        llama.Weights("Q4_K").matrix(1, 576, 1.0)


def test_a_case_counts_the_bytes_of_its_model(decode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "SHAPES", {TINY: decode.SHAPES[TINY]})
    case = next(decode.cases(False))
    (call,) = case.calls(lambda f: f, "cpu")
    token, position = call()
    assert token.shape == (1, 1)
    assert position.tolist() == [decode.CONTEXTS[0]]
    assert case.nbytes == case.inputs("cpu")[0].step_bytes()


@pytest.mark.parametrize("format", ["float16", "Q8_0"])
def test_llama_cpps_file_has_the_models_weights(decode: Any, tmp_path: Path, format: str) -> None:
    from benchmarks.llama import Llama

    model = Llama(decode.SHAPES[TINY], 16, format)
    decode.llama_cpp.write(model, tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    tensors = {t.name: t for t in reader.tensors}

    def values(name: str) -> Any:
        return gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)

    attention, head = model.layers[0].attention, model.shape.head
    expected = {"attn_q": attention.q, "attn_v": attention.v, "ffn_down": model.layers[0].mlp.down}
    for name, linear in expected.items():
        weight = linear.weight.numpy()
        weight = weight if format == "float16" else gguf.quants.dequantize(weight, gguf.GGMLQuantizationType.Q8_0)
        found = values(f"blk.0.{name}.weight")
        if name == "attn_q":  # the other halves of pairs that rotate together are neighbours there
            heads = weight.reshape(-1, head, weight.shape[1])
            weight = np.stack([heads[:, : head // 2], heads[:, head // 2 :]], 2).reshape(weight.shape)
        np.testing.assert_array_equal(found, weight)
    assert reader.fields["llama.attention.head_count_kv"].contents() == 2
    assert set(tensors) >= {"token_embd.weight", "output.weight", "output_norm.weight", "blk.0.ffn_norm.weight"}


def test_a_process_that_ends_is_a_result_with_the_reason(decode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"problem": "p", "system": "peer", "chained": 2.0, "after_prompt": 3}
    programs = {
        decode.OURS: "import sys; print('ready'); sys.exit(3)",
        "peer": f"print('ready', flush=True); input(); print('{json.dumps(good)}')",
    }
    lines = {name: [sys.executable, "-c", program] for name, program in programs.items()}
    monkeypatch.setattr(decode, "systems", lambda *_: lines)
    ended, answered = decode.collect(None, decode.Problem(TINY, "float16", 32))
    assert "exit 3" in ended.note
    assert answered.chained == 2.0
    assert "exit 3" in decode.table([ended, answered])

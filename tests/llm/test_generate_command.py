"""The generate command from end to end on a tiny model."""

from __future__ import annotations

import json

import pytest

from vkinductor.cli import main

OPTIONS = ["--prompt", "w5 w7 w9", "--tokens", "6"]


def generate(model_directory, *arguments: str) -> int:
    return main(["generate", "--model", str(model_directory), *OPTIONS, *arguments])


def test_on_the_cpu(model_directory, tmp_path, capsys):
    file = tmp_path / "report.json"
    assert generate(model_directory, "--device", "cpu", "--json", str(file)) == 0
    text = capsys.readouterr().out
    assert "all 6 tokens equal CPU eager's (float32)" in text
    report = json.loads(file.read_text())
    assert len(report["tokens"]) == 6
    assert report["equal_tokens"] == 6
    assert report["prompt_tokens"] == 3
    assert report["device"] == "cpu"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_on_the_device(model_directory, capsys, device, dtype):
    assert generate(model_directory, "--dtype", dtype, "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["device"] == device.info.name
    assert report["graphs"] == 2
    assert report["fallbacks_per_token"] == 0
    assert report["dispatches_per_token"] > 0
    assert len(report["tokens"]) == 6
    if dtype == "float32":
        assert report["equal_tokens"] == 6


def test_model_on_the_cpu_with_mirrored_weights(model_directory, capsys, device):
    assert generate(model_directory, "--device", "cpu", "--backend", "vulkan", "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["device"] == device.info.name
    assert report["equal_tokens"] == 6
    assert report["fallbacks_per_token"] == 0


def test_progress_goes_to_stderr(model_directory, capsys):
    assert generate(model_directory, "--device", "cpu", "--backend", "eager", "--no-check") == 0
    captured = capsys.readouterr()
    assert "compiling the decode graph" in captured.err
    assert "2 graphs" in captured.out
    assert "not compared with CPU eager" in captured.out


def test_too_many_tokens(model_directory, capsys):
    assert generate(model_directory, "--device", "cpu", "--tokens", "1000") == 1
    assert "error: the prompt's 3 tokens and 1000 new ones exceed the context of 256" in capsys.readouterr().err


def test_int8_activations_want_the_backend(model_directory, capsys):
    assert generate(model_directory, "--device", "cpu", "--int8-activations") == 1
    assert "error: --int8-activations is an option of the backend vulkan" in capsys.readouterr().err


def test_stream_ends_at_a_stop_and_prints_the_text_once(model_directory, capsys):
    eager = ("--device", "cpu", "--no-check")
    assert generate(model_directory, *eager, "--json", "-") == 0
    words = json.loads(capsys.readouterr().out)["text"].split()
    stop = next((word for word in words[1:] if word != words[0]), words[0])
    assert generate(model_directory, *eager, "--stream", "--stop", stop, "--steps-per-submit", "3") == 0
    printed = capsys.readouterr().out
    assert printed.split("model:")[0].split() == words[: words.index(stop)]


def test_draws_follow_the_seed_and_are_not_compared(model_directory, capsys):
    options = (
        "--device",
        "cpu",
        "--temperature",
        "0.9",
        "--top-k",
        "50",
        "--top-p",
        "0.9",
        "--seed",
        "4",
        "--json",
        "-",
    )
    reports = []
    for _ in range(2):
        assert generate(model_directory, *options) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0]["tokens"] == reports[1]["tokens"]
    assert reports[0]["equal_tokens"] is None


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--temperature", "-1"), "temperature"),
        (("--top-p", "0"), "top_p"),
        (("--tokens", "0"), "tokens"),
        (("--steps-per-submit", "0"), "steps-per-submit"),
        (("--stop", ""), "--stop"),
    ],
)
def test_options_out_of_range(model_directory, capsys, option, message):
    assert generate(model_directory, "--device", "cpu", *option) == 1
    assert message in capsys.readouterr().err

"""What drawing tokens means: the operator on the CPU, its shapes and what it refuses."""

from __future__ import annotations

import pytest
import torch

from vkinductor.device.sampling import sample


def drawn(logits: torch.Tensor, uniform: list[float], temperature: float, top_k: int, top_p: float) -> list[int]:
    parameters = torch.tensor(temperature), torch.tensor(top_k), torch.tensor(top_p)
    rows = logits.expand(len(uniform), -1)
    return sample(rows, torch.tensor(uniform), *parameters)[:, 0].tolist()


EIGHTHS = torch.tensor([1 / 8, 1 / 2, 1 / 8, 1 / 4]).log()


def test_each_token_has_its_share_of_uniform() -> None:
    assert drawn(EIGHTHS, [0, 0.12, 0.13, 0.62, 0.63, 0.74, 0.76, 0.99], 1, 0, 1) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_likeliest_count_and_of_equals_the_first() -> None:
    assert drawn(EIGHTHS, [0, 0.66, 0.67, 0.99], 1, 2, 1) == [1, 1, 3, 3]
    assert drawn(EIGHTHS, [0, 0.14, 0.15, 0.71, 0.72, 0.99], 1, 3, 1) == [0, 0, 1, 1, 3, 3]


def test_the_mass_is_that_of_what_top_k_leaves() -> None:
    assert drawn(EIGHTHS, [0, 0.99], 1, 0, 0.5) == [1, 1]
    assert drawn(EIGHTHS, [0, 0.99], 1, 0, 0.51) == [1, 3]
    assert drawn(EIGHTHS, [0, 0.99], 1, 2, 0.6) == [1, 1]
    assert drawn(EIGHTHS, [0, 0.99], 1, 2, 0.7) == [1, 3]
    assert drawn(EIGHTHS, [0.5], 1, 0, 0.0) == [1]


def test_temperature() -> None:
    logits = torch.tensor([0.0, 2.0])
    share = 1 / (1 + torch.e)
    assert drawn(logits, [share - 0.01, share + 0.01], 2, 0, 1) == [0, 1]
    assert drawn(logits, [0, 0.99], 0, 0, 1) == [1, 1]


def test_no_finite_best_is_an_argmax() -> None:
    for values in ([1, float("inf"), 2], [1, 2, float("nan")], [float("-inf")] * 3):
        logits = torch.tensor(values)
        assert drawn(logits, [0.9], 1, 0, 1) == [int(logits.argmax())]


def test_a_parameter_for_each_row() -> None:
    logits = torch.tensor([[0.0, 1], [0, 1], [0, 1]])
    parameters = torch.tensor([0.0, 1, 1]), torch.tensor([0, 1, 0]), torch.ones(3)
    assert sample(logits, torch.zeros(3), *parameters).tolist() == [[1], [1], [0]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"logits": torch.zeros(4)}, "1 dimensions"),
        ({"logits": torch.zeros(2, 4, dtype=torch.float64)}, "float64"),
        ({"uniform": torch.zeros(1)}, r"uniform has shape \(1,\), not \[2\]"),
        ({"top_k": torch.ones(1)}, "top_k is torch.float32"),
        ({"top_p": torch.ones(3)}, r"top_p has shape"),
        ({"temperature": torch.ones(2, 1)}, "temperature has 2 dimensions"),
    ],
)
def test_wrong_arguments(wrong: dict[str, torch.Tensor], message: str) -> None:
    right = {
        "logits": torch.zeros(2, 4),
        "uniform": torch.zeros(2),
        "temperature": torch.ones(1),
        "top_k": torch.ones(1, dtype=torch.int64),
        "top_p": torch.ones(1),
    }
    with pytest.raises(RuntimeError, match=message):
        sample(*(x.to("meta") for x in (right | wrong).values()))

"""Saving and loading."""

from __future__ import annotations

import io
import pickle

import pytest
import torch

DEVICE = "vulkan"


def through_file(value: object, **options: object) -> object:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


def test_tensors() -> None:
    base = torch.arange(12.0).to(DEVICE).view(3, 4)
    back = through_file({"base": base, "part": base[1], "half": base.half().t()})
    assert back["base"].device == base.device
    assert torch.equal(back["base"].cpu(), base.cpu())
    assert torch.equal(back["half"].cpu(), base.cpu().half().t())
    back["part"].zero_()
    assert back["base"][1].abs().sum().item() == 0  # shared memory is shared again


@pytest.mark.parametrize("source", ["cpu", DEVICE])
@pytest.mark.parametrize("location", ["cpu", DEVICE, "vulkan:0", torch.device(DEVICE), {"cpu": DEVICE}], ids=str)
def test_map_location(source: str, location: object) -> None:
    host = torch.randn(5)
    back = through_file(host.to(source), map_location=location)
    mapped = location if not isinstance(location, dict) else location.get(source, source)
    assert back.device.type == torch.device(mapped).type
    assert torch.equal(back.cpu(), host)


def test_callable_location() -> None:
    back = through_file(torch.ones(3), map_location=lambda storage, tag: storage.to(device=DEVICE))
    assert back.is_vulkan


def test_state_dict() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(DEVICE)
    state = model.state_dict()
    assert all(t.is_vulkan for t in state.values())
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    fresh.load_state_dict(through_file(state, map_location="cpu"))
    assert torch.equal(fresh[0].weight, model[0].weight.cpu())
    model.load_state_dict(fresh.state_dict())  # from the CPU, copied in place
    assert model[0].weight.is_vulkan
    with torch.device("meta"):
        empty = torch.nn.Linear(3, 4)
    empty.to_empty(device=DEVICE)
    empty.load_state_dict(state.__class__((k[2:], v) for k, v in state.items() if k.startswith("0.")))
    assert torch.equal(empty.weight.cpu(), fresh[0].weight)
    empty = torch.nn.Linear(3, 4, device="meta")
    empty.load_state_dict({k[2:]: v for k, v in state.items() if k.startswith("0.")}, assign=True)
    assert empty.weight.is_vulkan


def test_parameters_and_pickle() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    back = through_file(parameter)
    assert isinstance(back, torch.nn.Parameter)
    assert back.is_vulkan
    assert torch.equal(pickle.loads(pickle.dumps(parameter.detach())).cpu(), torch.ones(2))


def test_optimiser_state() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimiser = torch.optim.Adam([weight])
    weight.sum().backward()
    optimiser.step()
    other = torch.optim.Adam([torch.nn.Parameter(torch.ones(2, device=DEVICE))])
    other.load_state_dict(through_file(optimiser.state_dict()))
    assert other.state_dict()["state"][0]["exp_avg"].is_vulkan

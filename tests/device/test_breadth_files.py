"""Tensors on their way to the device: safetensors files, checkpoints, and a loader's pinned batches."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file, save_model
from torch.utils.data import DataLoader, TensorDataset

import vkinductor


def load(path: Path) -> dict[str, torch.Tensor]:
    """safetensors' reader accepts the devices on its own list alone, and "vulkan" is not there: through host memory."""
    return {name: tensor.to("vulkan") for name, tensor in load_file(path).items()}


def test_safetensors(tmp_path: Path) -> None:
    tensors = {
        "float": torch.randn(3, 5),
        "half": torch.randn(4).half(),
        "bfloat16": torch.randn(2, 2).bfloat16(),
        "int": torch.arange(6),
        "bool": torch.tensor([True, False, True]),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    loaded = load(tmp_path / "a.safetensors")
    for name, value in tensors.items():
        assert loaded[name].device.type == "vulkan"
        assert torch.equal(loaded[name].cpu(), value)
    save_file(loaded, tmp_path / "b.safetensors")  # from the device
    again = load_file(tmp_path / "b.safetensors")
    assert all(torch.equal(again[name], value) for name, value in tensors.items())


def test_safetensors_of_a_model(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).to("vulkan")
    save_model(model, str(tmp_path / "model.safetensors"))
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).to("vulkan")
    fresh.load_state_dict(load(tmp_path / "model.safetensors"))
    for mine, theirs in zip(fresh.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine.cpu(), theirs.cpu())


def test_checkpoint_of_model_and_optimizer(tmp_path: Path) -> None:
    """Training goes on from a file as it would have gone on without one."""

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3, device="vulkan")).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach().cpu()

    model = torch.nn.Linear(3, 4).to("vulkan")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    expected = [step(model, optimizer) for _ in range(2)]
    for location in (None, "cpu", "vulkan"):
        fresh = torch.nn.Linear(3, 4).to("vulkan")
        restored = torch.optim.AdamW(fresh.parameters(), lr=0.1)
        state = torch.load(tmp_path / "state.pt", map_location=location)
        fresh.load_state_dict(state["model"])
        restored.load_state_dict(state["optimizer"])
        assert [step(fresh, restored) for _ in range(2)] == expected


def test_loader_of_pinned_batches() -> None:
    """Pinning is accepted and does nothing: copies to the device go through staging memory of its own."""
    data = TensorDataset(torch.arange(24.0).view(12, 2), torch.arange(12))
    seen = []
    vkinductor.reset_stats()
    for x, y in DataLoader(data, batch_size=5, pin_memory=True):
        seen.append((x.to("vulkan", non_blocking=True), y.to("vulkan", non_blocking=True)))
    torch.vulkan.synchronize()
    assert torch.equal(torch.cat([x.cpu() for x, _ in seen]), data.tensors[0])
    assert torch.equal(torch.cat([y.cpu() for _, y in seen]), data.tensors[1])

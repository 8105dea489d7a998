"""What torch cannot do for this device says so, and what it can goes through unharmed."""

from __future__ import annotations

import copy

import pytest
import torch

from vkinductor.runtime.errors import UnsupportedError


def test_untyped_storage() -> None:
    storage = torch.UntypedStorage(16, device="vulkan")
    assert storage.nbytes() == 16
    assert storage.device == torch.device("vulkan", 0)
    assert torch.UntypedStorage(device="vulkan").nbytes() == 0
    assert list(torch.UntypedStorage([1, 2, 3], device=torch.device("vulkan")).cpu()) == [1, 2, 3]
    tensor = torch.empty(0, dtype=torch.uint8, device="vulkan").set_(storage)
    tensor.fill_(5)
    assert storage.cpu().tolist() == [5] * 16
    with pytest.raises(UnsupportedError, match="vulkan:0"):
        torch.UntypedStorage(16, device="vulkan:3")
    assert torch.UntypedStorage(16).device.type == "cpu"
    assert torch.UntypedStorage(4, device="meta").device.type == "meta"


def test_storage_access() -> None:
    storage = torch.arange(4, dtype=torch.uint8).to("vulkan").untyped_storage()
    assert storage[2] == 2
    assert storage.tolist() == [0, 1, 2, 3]
    assert storage.clone().tolist() == [0, 1, 2, 3]
    assert storage.fill_(9).tolist() == [9] * 4
    other = torch.UntypedStorage(4, device="vulkan").copy_(storage)
    assert other.tolist() == [9] * 4


def test_storage_resize() -> None:
    storage = torch.zeros(4, device="vulkan").untyped_storage()
    assert storage.resize_(16) is storage
    with pytest.raises(UnsupportedError, match=r"tensor\.resize_"):
        storage.resize_(0)
    assert torch.UntypedStorage(4).resize_(8).nbytes() == 8


def test_generator() -> None:
    with pytest.raises(UnsupportedError, match=r"torch\.vulkan\.manual_seed"):
        torch.Generator(device="vulkan")
    with pytest.raises(UnsupportedError):
        torch.Generator("vulkan:0")
    assert isinstance(torch.Generator(), torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert issubclass(type(torch.default_generator), torch.Generator)
    assert torch.Generator().manual_seed(3).initial_seed() == 3


def test_sharing_between_processes() -> None:
    with pytest.raises(UnsupportedError, match="cpu"):
        torch.ones(3, device="vulkan").untyped_storage()._share_fd_cpu_()
    torch.ones(3, device="vulkan").share_memory_()


def test_deepcopy() -> None:
    base = torch.arange(6.0).to("vulkan")
    pair = {"whole": base, "part": base[2:4], "parameter": torch.nn.Parameter(base.clone())}
    twin = copy.deepcopy(pair)
    assert torch.equal(twin["whole"].cpu(), base.cpu())
    twin["part"].zero_()
    assert twin["whole"].cpu().tolist() == [0, 1, 0, 0, 4, 5]  # the two still share memory
    assert base.cpu().tolist() == [0, 1, 2, 3, 4, 5]
    assert isinstance(twin["parameter"], torch.nn.Parameter)
    assert copy.copy(base).device.type == "vulkan"
    module = torch.nn.Linear(3, 2).to("vulkan")
    assert torch.equal(copy.deepcopy(module).weight.cpu(), module.weight.cpu())


def test_printing() -> None:
    from vkinductor.runtime import stats

    before = dict(stats.counters.fallbacks)
    assert repr(torch.arange(3).to("vulkan")) == "tensor([0, 1, 2], device='vulkan:0')"
    text = repr(torch.nn.Parameter(torch.ones(2, device="vulkan")))
    assert "Parameter" in text
    assert "requires_grad=True" in text
    assert "..." in repr(torch.zeros(5000, device="vulkan"))
    assert f"{torch.tensor(1.5, device='vulkan'):.2f}" == "1.50"
    assert "grad_fn" in repr(torch.ones(2, device="vulkan", requires_grad=True).view(2, 1))
    assert "vulkan" in repr(torch.ones(2, 2, dtype=torch.complex64, device="vulkan").conj())
    assert stats.counters.fallbacks == before


def test_numpy_is_refused_by_torch() -> None:
    with pytest.raises(TypeError, match="cpu"):
        torch.ones(2, device="vulkan").numpy()

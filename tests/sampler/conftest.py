"""Where there is no card, Triton's kernels run in its interpreter; where there is one, they run on it."""

from __future__ import annotations

import pytest
import torch

CUDA = torch.cuda.is_available()


def pytest_itemcollected(item):
    """On a card, whatever runs on the device is a GPU test too."""
    if CUDA and "device" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.gpu)


@pytest.fixture
def device() -> torch.device:
    """The card, or the CPU."""
    return torch.device("cuda" if CUDA else "cpu")


@pytest.fixture(params=["torch", "triton"])
def kernels(request, device):
    """Each implementation that this machine can run."""
    from dgen.sampler import kernels_for

    return kernels_for(request.param, device)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """Fresh memory holds NaN and huge integers, so that whatever a kernel forgets to write shows."""
    empty = torch.empty

    def poisoned(*args, **kwargs):
        tensor = empty(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(2**30 + 7)

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture
def generator() -> torch.Generator:
    """Inputs of the tests; the code under test has its own noise."""
    return torch.Generator().manual_seed(20260601)


@pytest.fixture(autouse=True)
def one_thread():
    """The tests' tensors are small: threads only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

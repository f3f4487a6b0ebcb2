"""Kernels run on the card where there is one, else in Triton's interpreter, which knows fp32 alone."""

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


@pytest.fixture(params=["float32", "bfloat16"] if CUDA else ["float32"])
def dtype(request, device) -> torch.dtype:
    """What kernels are given; the interpreter's products are wrong in bf16."""
    return getattr(torch, request.param)


@pytest.fixture
def draw(device):
    """Normal numbers that both sides of a comparison can hold: drawn, rounded to the dtype."""
    generator = torch.Generator().manual_seed(20260714)

    def normal(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    return normal


@pytest.fixture
def poisoned(monkeypatch):
    """Fresh memory holds NaN and huge integers, so that whatever a kernel forgets to write shows."""

    def filled(plain):
        def fill(*args, **kwargs):
            tensor = plain(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(2**30 + 7)

        return fill

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))


@pytest.fixture(autouse=True)
def one_thread():
    """The tests' tensors are small: threads only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

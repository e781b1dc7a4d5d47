"""Accuracy does not depend on how many records a device has room for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from adadpigu.training.evaluation import predict

CPU = torch.device("cpu")


class Cramped(nn.Module):
    """Stands for a GPU with room for `fits` records at once."""

    def __init__(self, fits: int) -> None:
        super().__init__()
        self.fits, self.sizes = fits, list[int]()

    def forward(self, inputs: Tensor) -> Tensor:
        self.sizes.append(len(inputs))
        if len(inputs) > self.fits:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return inputs * 2


@pytest.mark.parametrize("fits", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 10, 33])
def test_fewer_at_once_gives_the_same_outputs(fits: int, count: int) -> None:
    inputs = torch.randn(count, 3)
    assert torch.equal(predict(Cramped(fits), inputs, device=CPU, chunk=16), inputs * 2)


def test_a_size_that_failed_is_not_tried_again() -> None:
    model = Cramped(fits=4)
    predict(model, torch.zeros(32, 1), device=CPU, chunk=16)
    assert model.sizes == [16, 8] + [4] * 8


def test_no_room_for_one_record_is_an_error_and_leaves_the_mode() -> None:
    model = Cramped(fits=0).train()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        predict(model, torch.zeros(4, 1), device=CPU)
    assert model.training

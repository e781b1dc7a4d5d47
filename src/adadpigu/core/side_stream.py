"""A second stream of a GPU: short vectors are made ready while a batch goes through the net. Does nothing on a CPU.

`with side_stream(device)` waits for all that the main stream was told before; after `join(device)` the main stream has
what was made within. So memory that either stream lets go of is never written by the other too early. Orders work
on either side of the privacy line and reads no value.
"""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


@functools.cache
def side_stream(device: torch.device) -> AbstractContextManager[None]:
    """Runs the body on the side stream."""
    return _SideStream(device) if device.type == "cuda" else nullcontext()


class _SideStream:
    """May be entered any number of times, also within itself."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._entered: list[Any] = []

    def __enter__(self) -> None:
        stream = _stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        self._entered.append(torch.cuda.stream(stream))
        self._entered[-1].__enter__()

    def __exit__(self, *error: object) -> None:
        self._entered.pop().__exit__(*error)


def join(device: torch.device) -> None:
    """Makes the main stream wait for the side stream."""
    if device.type == "cuda" and (stream := _stream(device)) != torch.cuda.current_stream(device):
        torch.cuda.current_stream(device).wait_stream(stream)


def _stream(device: torch.device) -> Any:
    return _made(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _made(index: int) -> Any:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call, unused-ignore]

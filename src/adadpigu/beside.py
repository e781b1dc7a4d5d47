"""A second line of work on a GPU: short vectors are made ready while a batch goes through the net.

    with beside(device):      forked from here: waits for all that the main line has been told so far
        …
    join(device)              the main line waits for it

On a CPU both do nothing. A fork waits for the main line and what it made is read after a join, so memory that either
line lets go of is never written by the other too early.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """What is done within runs beside the main line."""
    stream = _stream(device)
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


def join(device: torch.device) -> None:
    """What was done beside is there from here on."""
    stream = _stream(device)
    if stream is not None and stream != torch.cuda.current_stream(device):
        torch.cuda.current_stream(device).wait_stream(stream)


def _stream(device: torch.device) -> Any:
    if device.type != "cuda":
        return None
    return _made(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _made(index: int) -> Any:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call, unused-ignore]

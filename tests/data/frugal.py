"""Tells whether something small was allowed to become large in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

MIB = 1 << 20


@contextmanager
def frugal(limit: int = 16 * MIB) -> Iterator[None]:
    """Fails where Python or numpy held `limit` more bytes at any time within."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak} bytes were held"

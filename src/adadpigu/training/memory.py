"""How many records are processed at once: as many as fit. Found on synthetic records of the public shape.

    bytes(b) ≤ limit,   bytes(b) = what one micro-batch of b records takes beside model, data and optimiser, at its peak

No private record is looked at, so the size that is found is public. On a GPU torch's allocator tells the peak; on a CPU
the bytes of all tensors that live at a time are counted, which does not depend on what else the process has used.
"""

import math
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adadpigu.core.gradients.norms import train_mode
from adadpigu.core.randomness import SystemRandomness, isolated
from adadpigu.core.sampling import Population
from adadpigu.core.sensitive import Records
from adadpigu.errors import InputError, require
from adadpigu.training.task import synthetic, synthetic_records

if TYPE_CHECKING:
    from adadpigu.training.micro_batches import View

_SHARE_OF_FREE = 0.8  # of what a device has free; the rest is for the optimiser, the noise, and whoever else is there
_MARGIN = 1.1  # on what is measured: for what operators take inside and for memory that lies between tensors
_MEASURED_AT_MOST = {"cpu": 512}  # most records measured on a CPU; larger sizes are extrapolated
_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{kind}": base**power
    for kind, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt", start=1)
}


class MemoryWarning(UserWarning):
    """A device ran out of memory, and fewer records at once are processed from here on."""


def most_drawn(batch_size: int) -> int:
    """Of so many expected records; a Poisson draw is practically never larger."""
    return batch_size + math.ceil(8 * math.sqrt(batch_size))


def parse_memory(limit: int | str) -> int:
    """A memory limit in bytes.

    >>> parse_memory("4GiB"), parse_memory("800 MB"), parse_memory(1000)
    (4294967296, 800000000, 1000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(limit).lower())
    count = int(float(found[1]) * _UNITS.get(found[2], 0)) if found and not isinstance(limit, float) else 0
    allowed = "allowed: bytes, at least 1, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB, such as '4GiB'"
    require(count >= 1, f"memory_limit={limit!r} is not an amount of memory; {allowed}")
    return count


def format_bytes(count: float) -> str:
    """Bytes for people, rounded up.

    >>> format_bytes(532_000), format_bytes(3 * 2**30)
    ('520 KiB', '3 GiB')
    """
    power = max(0, min(4, int(math.log(max(count, 1), 1024))))
    return f"{math.ceil(count / 1024**power)} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def free_memory(device: torch.device) -> int:
    """What a device has free, rounded down by up to an eighth: more exact, it would tell what else is there."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch hands it out again
        return _coarse(torch.cuda.mem_get_info(device)[0] + kept)
    return _coarse(min(_available(), _left_to_the_container()))


def _coarse(count: int) -> int:
    step = 1 << max(0, count.bit_length() - 4)
    return max(0, count) // step * step


def _available() -> int:
    """Unlike free pages, this counts those that only cache files."""
    with suppress(OSError):
        if found := re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_to_the_container() -> int:
    try:
        most, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        return int(most) - int(used)
    except (OSError, ValueError):  # no such file, or "max": no limit
        return sys.maxsize


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that are made within and live at a time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._now = 0
        self._held: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._see((args, kwargs), new=False)
        result = func(*args, **(kwargs or {}))
        self._see(result, new=True)
        return result

    def _see(self, tensors: object, *, new: bool) -> None:
        for tensor in tree_leaves(tensors):
            if not isinstance(tensor, Tensor) or tensor.is_mkldnn or tensor.layout != torch.strided:
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self._held:
                weakref.finalize(storage, self._forget, key)
                self._held[key] = storage.nbytes() if new else 0
                self._now += self._held[key]
        self.peak = max(self.peak, self._now)

    def _forget(self, key: int) -> None:
        self._now -= self._held.pop(key)


def peak_memory(work: Callable[[], object], device: torch.device) -> float:
    """Bytes that `work` takes at its peak beyond what was held before; infinite where a GPU does not have them."""
    if device.type != "cuda":
        with _LiveBytes() as live:
            return math.inf if runs_out(work) else float(live.peak)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return math.inf if runs_out(work) else float(torch.cuda.max_memory_allocated(device) - before)


def runs_out(work: Callable[[], object]) -> bool:
    """Does `work`, and says whether a GPU ran out of memory over it; then what it held is free again."""
    try:
        work()
        return False
    except torch.cuda.OutOfMemoryError:
        pass  # its traceback, and with it every tensor of the attempt, goes before the cache is emptied
    torch.cuda.empty_cache()
    return True


class Rehearsal:
    """Runs what a draw does with a micro-batch on synthetic records, to see how many of them fit."""

    def __init__(self, population: Population, view: "View") -> None:
        self._population, self._view = population, view

    def records(self, size: int) -> Records:
        """So many synthetic records as the model takes them; no private one is read."""
        view, device = self._view, self._view.device
        inputs, blank = synthetic_records(self._population, device, size)
        if view.variants is None:
            return view(Records((inputs, blank)))
        copies = view.augmentation.copies  # positions would name private features: these are made up instead
        with torch.no_grad():
            shown = synthetic(view.variants[:0, 0], size * copies, device, torch.Generator().manual_seed(0))
            return Records((shown if view.front is None else view.front(shown), blank), copies=copies)

    def largest(self, work: Callable[[Records], object], asked: int | str | None, most: int) -> int:
        """The most records, up to `most`, that `work` can take within the limit asked for; None: what is free.

        Sizes grow up to fourfold, but never past the line through the growth so far, which is an upper bound.
        """
        limit = _SHARE_OF_FREE * free_memory(self._view.device) if asked is None else float(parse_memory(asked))
        size, peak = 1, self._peak(work, 1)
        if peak > limit:
            fits = math.isfinite(peak)
            need = f"one record at a time takes {format_bytes(peak)}" if fits else "one record does not fit"
            free = f"physical_batch_size='auto': {format_bytes(limit)} of memory can be used, but {need}"
            given = f"memory_limit={asked!r} is too small: {need}; allowed: at least that"
            raise InputError(free if asked is None else given)
        slope, over = peak, most + 1
        most_measured = min(_MEASURED_AT_MOST.get(self._view.device.type, most), most)
        while True:
            reach = min(size + int((limit - peak) / max(slope, 1.0)), over - 1)
            if size == most_measured:
                return reach
            step = min(reach, 4 * size, most_measured)
            if step - size < max(1, size // 16):
                return size
            found = self._peak(work, step)
            if found <= limit:
                slope, size, peak = (found - peak) / (step - size), step, found
            else:
                over = step
                slope = max(slope, (found - peak) / (step - size) if math.isfinite(found) else 2 * slope)

    def passing(self, work: Callable[[Records], object], size: int) -> int:
        """`size`, halved as often as a GPU runs out of memory over it."""
        while size > 1 and math.isinf(self._peak(work, size)):
            size //= 2
        return size

    def _peak(self, work: Callable[[Records], object], size: int) -> float:
        device = self._view.device
        with isolated(SystemRandomness(), device):  # neither the user's stream nor the run's moves on
            return _MARGIN * peak_memory(lambda: work(self.records(size)), device)


@contextmanager
def in_training(model: nn.Module) -> Iterator[None]:
    """Within, the model is in training mode; every module is then as it was."""
    modes = {module: module.training for module in model.modules()}
    train_mode(model)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode

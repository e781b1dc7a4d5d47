"""A draw in micro-batches: how it is parted. Its sums and what becomes of it without memory: `test_memory.py`."""

from __future__ import annotations

import pytest
import torch

from adadpigu.core.bounding import BoundedSum, GradientSum
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sampling import Drawn
from adadpigu.core.sensitive import Records, unseal
from adadpigu.methods import DPSGD
from adadpigu.training.micro_batches import MicroBatches
from trials import prepare_small


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize(("count", "parts"), [(10, [4, 4, 4]), (8, [4, 4]), (9, [4, 4, 4]), (1, [4]), (0, [0])])
def test_parts_have_one_shape_every_record_is_in_one_with_its_copies_and_an_empty_draw_is_one_empty_part(
    count: int, parts: list[int], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare_small(DPSGD(), copies=copies, flip=copies > 1, batch_size=8, physical_batch_size=4)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    present: list[torch.Tensor] = []
    genuine = prepared.engine.clipped_sum

    def watched(records: Records, query: GradientSum) -> BoundedSum:
        seen.append(unseal(records))
        everyone = torch.ones(len(seen[-1][1]), dtype=torch.bool)
        present.append(everyone if records.present is None else unseal(records.present))
        return genuine(records, query)

    monkeypatch.setattr(prepared.engine, "clipped_sum", watched)
    batches = MicroBatches(prepared, ReproducibleRandomness(0))
    drawn = torch.arange(7, 7 + count)
    monkeypatch.setattr(batches, "_checksums", lambda positions: positions)
    batches.sums(Drawn(drawn), None, (GradientSum(clip_norm=1.0),), 4)
    assert [len(targets) for _, targets in seen] == parts
    assert [len(inputs) for inputs, _ in seen] == [copies * part for part in parts]
    targets, here = torch.cat([targets for _, targets in seen]), torch.cat(present)
    for place in range(4):  # that of a record is its checksum, here its position, modulo the size: not rehearsed
        own = prepared.data.train.take(drawn[drawn % 4 == place])[1]
        assert torch.equal(targets[place::4][here[place::4]], own)


def test_memory_that_can_be_done_without_is_freed_before_parts_get_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_small(DPSGD(), batch_size=16, physical_batch_size=8)
    sizes: list[int] = []
    genuine, room = prepared.engine.clipped_sum, [False]

    def cramped(records: Records, query: GradientSum) -> BoundedSum:
        sizes.append(len(unseal(records)[1]))
        if not room[0]:
            raise torch.cuda.OutOfMemoryError("full")
        return genuine(records, query)

    def relief() -> bool:
        room[0], held = True, not room[0]
        return held

    monkeypatch.setattr(prepared.engine, "clipped_sum", cramped)
    batches = MicroBatches(prepared, ReproducibleRandomness(0))
    batches.relief = relief
    monkeypatch.setattr(batches, "_checksums", lambda positions: positions)
    query = GradientSum(clip_norm=1.0)
    (found,) = batches.sums(Drawn(torch.arange(16)), None, (query,), 8)
    assert sizes == [8, 8, 8]  # once in vain, then both parts as they were
    assert batches.ran_out
    room[0] = True
    (expected,) = batches.sums(Drawn(torch.arange(16)), None, (query,), 8)
    assert torch.equal(unseal(found), unseal(expected))

"""A draw in micro-batches: how it is parted. Its sums and what becomes of it without memory: `test_memory.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adadpigu.bounding import ClippedSum, GradientSum
from adadpigu.methods import DPSGD
from adadpigu.randomness import ReproducibleRandomness
from adadpigu.records import Records
from adadpigu.sampling import Drawn
from adadpigu.sensitive import unseal
from adadpigu.training.micro_batches import MicroBatches
from trials import prepare_small


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize(("count", "parts"), [(10, [4, 4, 4]), (8, [4, 4]), (9, [4, 4, 4]), (1, [4]), (0, [0])])
def test_parts_have_one_shape_every_record_is_in_one_with_its_copies_and_an_empty_draw_is_one_empty_part(
    count: int, parts: list[int], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare_small(DPSGD(), copies=copies, flip=copies > 1)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    present: list[torch.Tensor] = []
    genuine = prepared.engine.clipped_sum

    def watched(records: Records, query: GradientSum) -> ClippedSum:
        seen.append(unseal(records))
        everyone = torch.ones(len(seen[-1][1]), dtype=torch.bool)
        present.append(everyone if records.present is None else unseal(records.present))
        return genuine(records, query)

    monkeypatch.setattr(prepared.engine, "clipped_sum", watched)
    shared: dict[str, Any] = {"model": prepared.model, "engine": prepared.engine, "view": prepared.view}
    batches = MicroBatches(
        population=prepared.data.train,
        randomness=ReproducibleRandomness(0),
        at_once=4,
        expected=8,
        diagnostics=None,
        **shared,
    )
    drawn = torch.arange(7, 7 + count)
    batches.sums(Drawn(drawn), None, (GradientSum(clip_norm=1.0),), 4)
    assert [len(targets) for _, targets in seen] == parts
    assert [len(inputs) for inputs, _ in seen] == [copies * part for part in parts]
    targets, here = torch.cat([targets for _, targets in seen]), torch.cat(present)
    for place in range(4):  # that of a record is its position, modulo the size, which was not rehearsed
        own = prepared.data.train.take(drawn[drawn % 4 == place])[1]
        assert torch.equal(targets[place::4][here[place::4]], own)


def test_memory_that_can_be_done_without_is_freed_before_parts_get_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare_small(DPSGD())
    sizes: list[int] = []
    genuine, room = prepared.engine.clipped_sum, [False]

    def cramped(records: Records, query: GradientSum) -> ClippedSum:
        sizes.append(len(unseal(records)[1]))
        if not room[0]:
            raise torch.cuda.OutOfMemoryError("full")
        return genuine(records, query)

    def relief() -> bool:
        room[0], held = True, not room[0]
        return held

    monkeypatch.setattr(prepared.engine, "clipped_sum", cramped)
    shared: dict[str, Any] = {"model": prepared.model, "engine": prepared.engine, "view": prepared.view}
    batches = MicroBatches(
        population=prepared.data.train,
        randomness=ReproducibleRandomness(0),
        at_once=8,
        expected=16,
        diagnostics=None,
        **shared,
    )
    batches.relief = relief
    query = GradientSum(clip_norm=1.0)
    (found,) = batches.sums(Drawn(torch.arange(16)), None, (query,), 8)
    assert sizes == [8, 8, 8]  # once in vain, then both parts as they were
    assert batches.ran_out
    room[0] = True
    (expected,) = batches.sums(Drawn(torch.arange(16)), None, (query,), 8)
    assert torch.equal(unseal(found), unseal(expected))

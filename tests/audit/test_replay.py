"""Record and replay catches planted bugs, and says what they cost; that everything is clean: test_replay_everything.py.

Most bugs are those of `plants.py`, which the audits' table has too; here it is seen what replay finds of each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import plants
import plants_before_noise as before
import pytest
import torch
from test_replay_everything import OPTIONS, PLAIN, RECORDS, SHARE, Option, data_for, images, plain_net, prepare_on
from torch import Tensor, nn

from adadpigu.audit.adversarial import EDGE, Record, adversarial_records
from adadpigu.audit.coins import PerRecordRng
from adadpigu.audit.replay import REMOVED, Recording, ReplayResult, replay_edge
from adadpigu.core import bounding
from adadpigu.core.bounding import BoundedSum
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.sensitive import unseal
from adadpigu.data import DataSet, TensorRecords
from adadpigu.errors import InputError, ModelError
from adadpigu.methods import DPSGD, AdaDPIGU, Method
from adadpigu.training import Preparation
from adadpigu.training.optimiser import MaskedOptimiser
from open_method import OpenMethod
from replays import replay
from trials import prepare_small, small_digits

RECORD = torch.full((1, 8, 8), 0.5), torch.tensor(1)
MASKED = AdaDPIGU(importance_steps=2, retention=0.5)
MOVING = AdaDPIGU(retention=1.0, importance_steps=0, mean_decay=0.9, variance_decay=0.9, offset=0.01)
UNFREEZING = AdaDPIGU(importance_steps=1, retention=0.3, schedule="linear")
COPIES, MICRO = OPTIONS["copies, adam, average"], OPTIONS["automatic clipping, micro-batches"]
Plant = Callable[[], AbstractContextManager[object]]


def recorded(method: Method, option: Option = PLAIN, **training: Any) -> Recording:
    ready, data = prepare_on(method, option, **training), data_for(method, option)
    return Recording(ready, data, share=SHARE, empty=frozenset({1}))


def on_neighbour(name: str, method: Method, option: Option = PLAIN, **training: Any) -> ReplayResult:
    """A replay on one neighbour alone."""
    if name == EDGE:
        return replay_edge(prepare_on(method, option, **training), data_for(method, option), share=SHARE)
    recording = recorded(method, option, **training)
    if name == REMOVED:
        return recording.without_last()
    return recording.with_record(adversarial_records(option.data())[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "method", "option", "neighbour", "breach"),
    [
        (before.unclipped, DPSGD(), PLAIN, "large", "above its sensitivity"),
        (before.unclipped, MASKED, PLAIN, EDGE, "above its sensitivity"),
        (before.nan_passes, DPSGD(), PLAIN, "NaN", "moves by inf"),
        (before.inf_times_zero, DPSGD(), PLAIN, "infinite", "moves by inf"),
        (before.micro_batch_as_one, DPSGD(), MICRO, EDGE, "above its sensitivity"),
        (before.copy_as_record, DPSGD(), COPIES, "large", "above its sensitivity"),
        (before.normalised_over_the_batch, DPSGD(), PLAIN, "large", "above its sensitivity"),
        (before.empty_batch_skipped, DPSGD(), PLAIN, "zero", "4 draws were asked for, 3 released"),
        (plants.importance_from_unnoised, MASKED, PLAIN, REMOVED, "another active"),
        (plants.statistics_from_unnoised, MOVING, PLAIN, REMOVED, "another center"),
        (plants.drawn_divisor, DPSGD(), PLAIN, "zero", r"draw 1: '1\.bias' of the model is another"),
        (plants.length_divisor, DPSGD(), PLAIN, REMOVED, r"draw 1: '1\.bias' of the model is another"),
        (plants.gradient_left_behind, DPSGD(), PLAIN, REMOVED, r"draw 1: '1\.bias\.grad' of the model is another"),
        (plants.mask_moved_after_noise, UNFREEZING, PLAIN, REMOVED, "were released without noise"),
        (plants.frozen_without_noise, MASKED, PLAIN, EDGE, "something on frozen coordinates"),
    ],
)
def test_replay_catches_a_planted_bug(
    plant: Plant, method: Method, option: Option, neighbour: str, breach: str
) -> None:
    with plant():
        found = on_neighbour(neighbour, method, option).breaches
    assert re.search(breach, " | ".join(found))
    assert on_neighbour(neighbour, method, option).breaches == ()


def test_replay_catches_an_operation_across_records_that_no_probe_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the probe for mixing switched off, a centred batch gets to the engines."""

    class Centred(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs - inputs.mean(dim=0)

    option = Option(net=lambda: nn.Sequential(Centred(), plain_net()))
    with pytest.raises(ModelError, match="mixes records"):
        recorded(DPSGD(), option)
    monkeypatch.setattr("adadpigu.core.gradients.choice.refuse_by_behaviour", lambda *_: None)
    assert "above its sensitivity" in on_neighbour("large", DPSGD(), option, engine="ghost").breaches[0]
    assert on_neighbour("large", DPSGD(), option, engine="loop").breaches == ()  # one record at a time mixes nothing


def test_replay_catches_an_un_noised_gradient_that_an_optimiser_picks_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the sum before the noise, left where the optimiser adds to it."""
    sums: list[Tensor] = []
    release, step = GaussianMechanism.release, MaskedOptimiser.step

    def spied(self: GaussianMechanism, totals: Any, receipt: Any) -> dict[str, Release]:
        sums[:] = [unseal(total) for total in totals]
        return release(self, totals, receipt)

    def heavier(self: MaskedOptimiser, direction: Release) -> None:
        step(self, direction.map(lambda value: value + sums[0].to(value)))

    monkeypatch.setattr(GaussianMechanism, "release", spied)
    monkeypatch.setattr(MaskedOptimiser, "step", heavier)
    found = on_neighbour(REMOVED, DPSGD())
    assert "'1.bias' of the model is another on the neighbour, after the same releases" in found.breaches[0]
    assert found.exposed


def test_replay_looks_at_the_last_step_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: after the last draw the un-noised sum gets into the average that is kept."""
    sums: list[Tensor] = []
    genuine = GaussianMechanism.release

    def spied(self: GaussianMechanism, totals: Any, receipt: Any) -> dict[str, Release]:
        sums.extend(unseal(total) for total in totals)
        return genuine(self, totals, receipt)

    def kept(self: Any) -> None:
        self._layout.write(self._p.model, self.learned.average.value + (sums[-1].float() if len(sums) % 4 == 0 else 0))

    monkeypatch.setattr(GaussianMechanism, "release", spied)
    monkeypatch.setattr("adadpigu.training.loop.Session._keep_weights", kept)
    found = on_neighbour("duplicated", DPSGD(), ema=0.9)
    assert [breach for breach in found.breaches if "of the model that is kept is another" in breach]


def test_replay_catches_a_run_that_stops_because_of_what_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a large un-noised sum ends the run as an interrupt would."""
    genuine = GaussianMechanism.release

    def wary(self: GaussianMechanism, sums: Any, receipt: Any) -> dict[str, Release]:
        made = genuine(self, sums, receipt)
        if len(seen) == 2 and float(unseal(sums[0]).norm()) > 0:
            raise KeyboardInterrupt
        seen.append(1)
        return made

    seen: list[int] = []
    monkeypatch.setattr(GaussianMechanism, "release", wary)
    recording = Recording(prepare_on(DPSGD()), images(), share=0.0, empty=frozenset(range(4)))  # nobody: it goes on
    seen.clear()
    found = recording.with_record(RECORD)
    assert "4 draws recorded, 2 replayed" in found.breaches
    assert any("interrupted" in breach for breach in found.breaches)


@pytest.mark.slow
def test_replay_catches_public_facts_that_depend_on_the_records() -> None:
    """Planted: the clip norm, the number of steps or the declared record count follow len(dataset)."""

    def clip(data: DataSet) -> Preparation:
        return prepare_small(DPSGD(clip_norm=100 / len(data.train)), data, steps=3)

    def longer(data: DataSet) -> Preparation:
        return prepare_small(DPSGD(), data, steps=3 + (len(data.train) < 240))

    def shorter(data: DataSet) -> Preparation:
        return prepare_small(DPSGD(), data, steps=3 - (len(data.train) < 240))

    def declared(data: DataSet) -> Preparation:
        return prepare_small(DPSGD(), replace(data, records=len(data.train)), steps=3)

    for plant, breach in (
        (clip, "other releases"),
        (longer, "more draws"),
        (shorter, "3 draws recorded, 2 replayed"),
        (declared, "sample_rate"),
    ):
        found = replay(plant, small_digits(), removed=0)
        assert any(breach in text for text in found.breaches), breach
        assert found.exposed


def test_replay_catches_a_query_that_is_changed_between_its_charge_and_its_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: the mask that was asked for is written to before noise is drawn."""
    genuine = GaussianMechanism.release

    def late(self: GaussianMechanism, sums: list[BoundedSum], receipt: Any) -> dict[str, Release]:
        for total in sums:
            if total.query.active is not None:
                total.query.active[0] ^= True
        return genuine(self, sums, receipt)

    monkeypatch.setattr(GaussianMechanism, "release", late)
    found = on_neighbour("zero", MASKED)
    assert "has another active when its noise is drawn than when it was asked for" in found.breaches[0]


@pytest.mark.parametrize("factor", [1.001, 1.00002])
def test_replay_sees_a_clip_that_is_a_little_too_wide(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From two parts in a hundred thousand on."""
    widen(monkeypatch, factor)
    found = on_neighbour("large", DPSGD(clip_norm=0.01))
    assert found.breaches
    assert found.largest == pytest.approx(factor, abs=1e-8)
    assert not found.exposed


def widen(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Plants a clip to more than C."""
    genuine = bounding.clip_factors

    def wide(norms: Tensor, clip_norm: float, stability: float | None = None, *, length: int) -> Tensor:
        return genuine(norms, clip_norm * factor, stability, length=length)

    monkeypatch.setattr(bounding, "clip_factors", wide)


def test_the_effect_of_a_record_on_a_draw_is_reckoned_in_units_of_its_noise() -> None:
    """Oracle: several releases of one draw, each moved by r_k of its sensitivity and paid with s_k, make √(Σ s_k r_k²).

    The method releases a gradient (s = 0.9) and a share of records (s = 0.1) from one batch, and tests on a second.
    """
    found = on_neighbour(EDGE, OpenMethod())
    gradients, tests = found.effects[::2], found.effects[1::2]
    assert gradients == pytest.approx([1.0] * 4, abs=1e-9)  # clipped to C, and 0.5 from the middle of the share
    assert tests == pytest.approx([1.0] * 4, abs=1e-9)  # its loss moves by far more than is counted


def test_chance_of_common_records_does_not_depend_on_the_last_one() -> None:
    """Every random operation gives the same rows with one row more; unfrozen, the second of two does not."""

    def rows(count: int, chance: PerRecordRng | None) -> list[Tensor]:
        def drawn() -> list[Tensor]:
            shape = torch.zeros(count, 7, dtype=torch.float64)
            mapped = torch.func.vmap(lambda row: nn.functional.dropout(row + 1), randomness="different")(shape)
            noise = [torch.randn(count, 7), torch.randn_like(shape), torch.zeros(count, 7).normal_(), mapped]
            return [torch.rand(count, 3), nn.functional.dropout(shape + 1, 0.3), shape.clone().uniform_(2, 3), *noise]

        torch.manual_seed(5)
        if chance is None:
            return drawn()
        chance.rekey(torch.tensor([5]))
        with chance:
            return drawn()

    fewer, more = (rows(count, PerRecordRng()) for count in (20, 21))
    assert all(torch.equal(few, many[:20]) for few, many in zip(fewer, more, strict=True))
    assert not torch.equal(fewer[3], fewer[5])
    unfrozen = zip(rows(20, None), rows(21, None), strict=True)
    assert not all(torch.equal(few, many[:20]) for few, many in unfrozen)


@pytest.mark.parametrize("used", [True, False])
def test_frozen_chance_has_the_laws_it_replaces(used: bool) -> None:
    """Means and variances of 20,000 numbers each, within 7 standard errors: a false alarm below 3e-12 for each."""
    chance = PerRecordRng()
    chance.rekey(torch.tensor([11]))
    torch.manual_seed(3)
    with chance if used else torch.no_grad():
        normal, uniform, kept = torch.randn(20_000), torch.rand(20_000), nn.functional.dropout(torch.ones(20_000), 0.3)
        dropped = torch.native_dropout(torch.ones(20_000), 0.3, True)[0]
    for values, mean, variance in (
        (normal, 0.0, 1.0),
        (uniform, 0.5, 1 / 12),
        (kept, 1.0, 3 / 7),
        (dropped, 1.0, 3 / 7),
    ):
        assert abs(float(values.mean()) - mean) < 7 * math.sqrt(variance / 20_000)
        assert float(values.var()) == pytest.approx(variance, rel=7 * math.sqrt(2 / 20_000))
    assert chance.used == used


def test_a_removed_record_is_looked_at_wherever_it_stands() -> None:
    """Its place is the last one, so that nobody else's augmentation moves."""
    found = replay(lambda data: prepare_small(DPSGD(), data, steps=3, copies=2, flip=True), small_digits(), removed=3)
    assert found.breaches == ()
    assert 0.01 < found.largest <= 1 + 1e-5


def test_a_label_outside_the_classes_is_refused_and_past_the_check_ends_the_run() -> None:
    """A run that ends is seen by anybody: so the check is part of the guarantee. Label −100 means none to torch."""
    data = images()
    assert isinstance(data.train, TensorRecords)
    outside = (data.train.inputs[0], torch.tensor(10))
    worse = TensorRecords(
        torch.cat([data.train.inputs, outside[0][None]]), torch.cat([data.train.targets, outside[1][None]])
    )
    with pytest.raises(InputError, match=f"record {RECORDS} has label 10"):
        prepare_on(DPSGD())(replace(data, train=worse))
    recording = recorded(DPSGD())
    assert (
        "ends where the recorded one goes on: RuntimeError: an error amid" in recording.with_record(outside).breaches[0]
    )
    unlabelled: Record = data.train.inputs[0], torch.tensor(-100)
    assert recording.with_record(unlabelled).breaches == ()

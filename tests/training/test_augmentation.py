"""Augmented copies: one record, one gradient, one clip; and what each copy shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from adadpigu.audit.coins import RecordedCoins
from adadpigu.audit.tapes import Recorder
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sensitive import Records
from adadpigu.data.augmentation import Augmentation
from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.features.front import make_front
from adadpigu.methods import DPSGD, AdaDPIGU
from adadpigu.models import make_model
from adadpigu.training import Run, placement, train_prepared
from replays import replay
from trials import prepare_small, run_small, small_digits


def test_rows_that_do_not_make_whole_records_are_refused() -> None:
    with pytest.raises(PrivacyLineError, match="clipped as several"):
        Records((torch.zeros(6, 2), torch.zeros(6)), copies=2)


def shifted(image: Tensor, down: int, right: int, reach: int) -> Tensor:
    """The image moved by whole pixels, its reflection moving in: by index arithmetic."""
    height, width = image.shape[-2:]

    def mirror(position: int, size: int) -> int:
        position = abs(position)
        return 2 * (size - 1) - position if position >= size else position

    rows = [mirror(y + down - reach, height) for y in range(height)]
    columns = [mirror(x + right - reach, width) for x in range(width)]
    return image[:, rows][:, :, columns]


def test_every_copy_is_a_shift_of_its_record_perhaps_mirrored_and_all_shifts_occur() -> None:
    torch.manual_seed(3)
    images = torch.randn(2, 3, 6, 5)
    copies = Augmentation(copies=200, shift=1, flip=True)(images)
    assert copies.shape == (400, 3, 6, 5)
    for number, image in enumerate(images):
        allowed = {
            (down, right, flipped): shifted(image, down, right, 1).flip(-1)
            if flipped
            else shifted(image, down, right, 1)
            for down in range(3)
            for right in range(3)
            for flipped in (False, True)
        }
        seen = set()
        for copy in copies[200 * number : 200 * (number + 1)]:
            matches = [key for key, one in allowed.items() if torch.equal(one, copy)]
            assert len(matches) == 1
            seen.add(matches[0])
        assert (
            seen == allowed.keys()
        )  # missing one of 18 in 200 draws: below 18·(17/18)^200 < 2e-4, and the seed is fixed


@pytest.mark.parametrize(
    ("shift", "step", "flip"), [(0, 1, True), (1, 1, False), (2, 1, False), (2, 2, False), (2, 2, True), (4, 2, True)]
)
def test_the_variants_are_all_shifts_by_whole_steps_along_each_axis_mirrored_only_if_told(
    shift: int, step: int, flip: bool
) -> None:
    """Each exactly once, of images that are not square, and wide enough that no mirrored shift is a plain one too."""
    images = torch.randn(2, 3, 8, 11, generator=torch.Generator().manual_seed(0))
    augmentation = Augmentation(shift=shift, shift_step=step, flip=flip)
    moves = range(0, 2 * shift + 1, step)
    for image in images:
        allowed = [shifted(image, down, right, shift) for down in moves for right in moves]
        allowed += [one.flip(-1) for one in allowed] if flip else []
        assert augmentation.variants == len(allowed)
        which = torch.arange(len(allowed))
        shown = augmentation.show(image.expand(len(allowed), -1, -1, -1), which)
        found = [[k for k, one in enumerate(allowed) if torch.equal(one, copy)] for copy in shown]
        assert sorted(found) == [[k] for k in which.tolist()]


def test_every_variant_is_drawn_equally_often() -> None:
    """Chi-square over 18 variants of 9,000 draws, 17 degrees of freedom: above 69 with probability below 3e-8."""
    torch.manual_seed(0)
    augmentation = Augmentation(copies=9, shift=2, shift_step=2, flip=True)
    assert augmentation.variants == 18
    counts = torch.bincount(augmentation.draw(1000, torch.device("cpu")), minlength=18).double()
    assert float(((counts - 500) ** 2 / 500).sum()) < 69
    images = torch.randn(1, 1, 6, 6)
    shown = [augmentation.show(images, torch.tensor([v])) for v in range(18)]
    assert len({tuple(one.flatten().tolist()) for one in shown}) == 18


def test_features_of_all_variants_computed_beforehand_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws once from stored variants and once transformed on the fly: equal sums, equal accuracy."""

    def trained(memory: float) -> tuple[Recorder, Run]:
        monkeypatch.setattr(placement, "free_memory", lambda _: memory)
        front, shape = make_front("scattering", "group:9", (1, 8, 8))
        recorder = Recorder()
        prepared = prepare_small(
            DPSGD(clip_norm=0.3),
            net=lambda: make_model("scatter-linear", shape=shape, seed=0),
            front=front,
            copies=3,
            shift=1,
            flip=True,
            steps=3,
        )
        assert (prepared.view.variants is None) == (memory == 0)
        return recorder, train_prepared(prepared, randomness=ReproducibleRandomness(2), mechanism=recorder.mechanism)

    (stored, first), (fresh, second) = trained(1e12), trained(0.0)
    for ours, theirs in zip(stored.calls, fresh.calls, strict=True):
        torch.testing.assert_close(ours[0].total, theirs[0].total, rtol=1e-4, atol=1e-5)
    assert first.accuracy == second.accuracy


def test_without_shift_or_flip_records_are_shown_as_they_are() -> None:
    images = torch.randn(3, 1, 4, 4)
    assert torch.equal(Augmentation()(images), images)
    assert Augmentation(copies=3, shift=1)(images[:0]).shape == (0, 1, 4, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies": 0}, "copies=0"),
        ({"shift": -1}, "shift=-1"),
        ({"copies": 4}, "would be equal"),
        ({"shift": 3, "shift_step": 2}, "not a multiple"),
        ({"shift_step": 0}, "shift_step=0"),
        ({"copies": 2, "shift": 8}, "not below the image's 8 pixels"),
    ],
)
def test_bad_augmentation_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare_small(DPSGD(), **options)


def test_flat_records_cannot_be_shifted() -> None:
    with pytest.raises(InputError, match="need images"):
        Augmentation(shift=1).check((64,))


def test_copies_change_neither_the_charge_nor_the_sensitivity() -> None:
    one, four = Recorder(), Recorder()
    plain = run_small(DPSGD(clip_norm=0.3), tape=one, steps=3)
    augmented = run_small(DPSGD(clip_norm=0.3), tape=four, steps=3, copies=4, shift=1)
    assert plain.epsilon == augmented.epsilon
    assert [c[0].sensitivity for c in one.calls] == [c[0].sensitivity for c in four.calls]
    assert not torch.equal(one.calls[0][0].total, four.calls[0][0].total)


@pytest.mark.parametrize("method", [DPSGD(clip_norm=0.3), AdaDPIGU(retention=0.5, importance_steps=2)])
def test_one_record_with_many_copies_moves_no_sum_by_more_than_its_sensitivity(method: DPSGD | AdaDPIGU) -> None:
    """A huge extra record; it is the last of every batch, so the others' augmentation draws are the same."""
    image = torch.full((1, 8, 8), 1e3)
    found = replay(
        lambda data: prepare_small(method, data, copies=4, shift=2, flip=True),
        small_digits(),
        added=(image, torch.tensor(3)),
    )
    assert found.breaches == ()
    assert 0.9 < found.largest <= 1 + 1e-5


def test_physical_batches_change_nothing_about_what_is_charged_and_little_about_sums() -> None:
    coins = RecordedCoins(ReproducibleRandomness(1))
    run = run_small(DPSGD(), randomness=coins, steps=2, copies=2, flip=True, physical_batch_size=7)
    assert run.steps == 2

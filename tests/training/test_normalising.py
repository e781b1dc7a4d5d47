"""Released normalisation constants: charged, bounded, noisy, and right; fixed fronts: by definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from adadpigu.accounting import epsilon
from adadpigu.accounting.events import compose, draw_event
from adadpigu.audit.coins import RecordedCoins
from adadpigu.audit.tapes import Recorder
from adadpigu.core.bounding import BoundedSum, GradientSum, RecordSum
from adadpigu.core.randomness import ReproducibleRandomness, SystemRandomness
from adadpigu.core.sensitive import Records
from adadpigu.data import DataSet, TensorRecords
from adadpigu.errors import InputError
from adadpigu.features.front import ChannelNorm, Front, Fronted, ReleasedNorm, make_front
from adadpigu.methods import DPSGD
from adadpigu.training import Preparation, Run, TrainingOptions, prepare, train_prepared
from replays import replay
from trials import small_digits, small_net


def colourful() -> DataSet:
    """The digits as two channels of different scale."""
    data = small_digits()
    assert isinstance(data.train, TensorRecords)
    inputs = torch.cat([data.train.inputs, 3.0 * data.train.inputs + 1.0], dim=1)
    return DataSet(name="two", train=TensorRecords(inputs, data.train.targets), records=240, classes=10)


def prepared(
    norm: ReleasedNorm, data: DataSet | None = None, channels: int = 1, sigma: float = 1.5, **options: Any
) -> Preparation:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 10))
    chosen: dict[str, Any] = {"batch_size": 40, "steps": 3, "lr": 0.5} | options
    return prepare(
        model,
        data or small_digits(),
        method=DPSGD(),
        budget=None,
        delta=1e-5,
        options=TrainingOptions(noise_multiplier=sigma, **chosen),
        front=Front(None, norm),
    )


def filled(run: Run) -> ReleasedNorm:
    """The normaliser of the model that a run has kept."""
    assert isinstance(run.model, Fronted)
    released = run.model.front.released
    assert isinstance(released, ReleasedNorm)
    return released


def test_the_constants_are_charged_as_one_draw_of_all_records_before_training() -> None:
    ready = prepared(ReleasedNorm(1, clip=1.0, noise_multiplier=8.0))
    stage = ready.plan.stages[0]
    assert (stage.name, stage.steps, ready.plan.steps) == ("normalisation", 1, 4)
    assert stage.draws[0].sample_rate == 1.0
    both_at_eight = compose([(draw_event(1.0, [8.0, 8.0]), 1), (draw_event(40 / 240, [1.5]), 3)])
    run = train_prepared(ready, randomness=ReproducibleRandomness(0))
    assert run.epsilon == pytest.approx(epsilon(both_at_eight, 1e-5), rel=1e-6)
    assert {r.name for r in run.privacy.releases} == {"channel means", "channel squares", "gradient"}
    assert all(r.noise_multiplier == pytest.approx(8.0) for r in run.privacy.releases if r.name != "gradient")


def test_with_little_noise_the_constants_are_the_channels_mean_and_std() -> None:
    data, norm = colourful(), ReleasedNorm(2, clip=10.0, noise_multiplier=1e-3)
    norm = filled(train_prepared(prepared(norm, data, channels=2), randomness=ReproducibleRandomness(0)))
    assert isinstance(data.train, TensorRecords)
    x = data.train.inputs.double()
    torch.testing.assert_close(norm.mean.double(), x.mean(dim=(0, 2, 3)), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(norm.std.double(), x.std(dim=(0, 2, 3), correction=0), rtol=1e-2, atol=1e-3)


def test_the_sums_are_clipped_record_by_record_at_the_public_bound() -> None:
    recorder = Recorder()
    train_prepared(
        prepared(ReleasedNorm(2, clip=0.25, noise_multiplier=8.0), colourful(), channels=2),
        randomness=ReproducibleRandomness(0),
        mechanism=recorder.mechanism,
    )
    means, squares = recorder.calls[0]
    assert (means.sensitivity, squares.sensitivity) == (0.25, 0.0625)
    records = colourful().train
    assert isinstance(records, TensorRecords)
    vectors = records.inputs.double().mean(dim=(2, 3))
    clipped = vectors * (0.25 / vectors.norm(dim=1, keepdim=True)).clamp(max=1)
    torch.testing.assert_close(means.total, clipped.sum(dim=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [1e6, -1e6, 0.0])
def test_one_record_moves_the_moments_by_no_more_than_their_sensitivity(value: float) -> None:
    found = replay(
        lambda data: prepared(ReleasedNorm(1, clip=0.5, noise_multiplier=8.0), data),
        small_digits(),
        added=(torch.full((1, 8, 8), value), torch.tensor(1)),
    )
    assert found.breaches == ()
    assert found.largest <= 1 + 1e-5


def test_the_model_is_trained_on_normalised_records_and_kept_with_its_constants() -> None:
    norm = ReleasedNorm(1, clip=1.0, noise_multiplier=8.0)
    run = train_prepared(prepared(norm), randomness=RecordedCoins(ReproducibleRandomness(0)))
    assert isinstance(run.model, Fronted)
    assert torch.equal(norm.mean, torch.zeros(1))  # the caller's stays as it was: a second run begins like the first
    norm = filled(run)
    assert not torch.equal(norm.mean, torch.zeros(1))
    inputs, targets = small_digits().test.take(torch.arange(100))  # type: ignore[union-attr]
    body = (inputs - norm.mean.view(-1, 1, 1)) / norm.std.view(-1, 1, 1)
    torch.testing.assert_close(run.model(inputs), run.model.body(body))
    assert run.accuracy == pytest.approx(float((run.model(inputs).argmax(1) == targets).float().mean()))


@pytest.mark.parametrize("clip", [0.5, 20.0])
def test_where_noise_makes_a_variance_negative_the_std_is_a_thousandth_of_the_bound(clip: float) -> None:
    """Of two channels and six runs under heavy noise, some variances come out negative and some do not."""
    negative = []
    for seed in range(6):
        recorder = Recorder()
        ready = prepared(ReleasedNorm(2, clip=clip, noise_multiplier=1e3), colourful(), channels=2, steps=1)
        std = filled(train_prepared(ready, randomness=ReproducibleRandomness(seed), mechanism=recorder.mechanism)).std
        means, squares = (recorder.released[0][f"channel {what}"].value.double() for what in ("means", "squares"))
        variances = squares / 240 - (means / 240) ** 2
        for variance, made in zip(variances.tolist(), std.tolist(), strict=True):
            negative.append(variance < 0)
            expected = 1e-3 * clip if variance < 0 else max(math.sqrt(variance), 1e-3 * clip)
            assert made == pytest.approx(expected, rel=1e-5)
    assert {True, False} == set(negative)


def test_columns_of_a_table_are_normalised_each_by_its_own_mean_and_std() -> None:
    generator = torch.Generator().manual_seed(0)
    scales, centres = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([-1.0, 0.0, 3.0])
    rows = torch.randn(300, 3, generator=generator) * scales + centres
    data = DataSet(name="table", train=TensorRecords(rows, torch.arange(300) % 10), records=300, classes=10)
    front, shape = make_front("none", "released", (3,), normalisation_clip=20.0, normalisation_noise=1e-3)
    assert front is not None
    ready = prepare(
        nn.Linear(shape[0], 10),
        data,
        method=DPSGD(),
        budget=None,
        delta=1e-5,
        options=TrainingOptions(batch_size=40, steps=1, noise_multiplier=1.5),
        front=front,
    )
    norm = filled(train_prepared(ready, randomness=ReproducibleRandomness(0)))
    torch.testing.assert_close(norm.mean.double(), rows.double().mean(dim=0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(norm.std.double(), rows.double().std(dim=0, correction=0), rtol=1e-2, atol=5e-3)


def test_a_query_for_inputs_costs_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = prepared(ReleasedNorm(1, clip=1.0, noise_multiplier=8.0))
    batches: list[int] = []
    genuine = ready.engine.clipped_sum

    def counted(records: Records, query: GradientSum) -> BoundedSum:
        batches.append(1)
        return genuine(records, query)

    monkeypatch.setattr(ready.engine, "clipped_sum", counted)
    train_prepared(ready, randomness=ReproducibleRandomness(0))
    assert len(batches) == 3
    assert RecordSum(name="x", of=lambda r: r.loss, clip_norm=1.0).needs == {"gradient", "loss"}


@pytest.mark.parametrize(
    ("spec", "shape", "check"),
    [
        ("record", (1, 8, 8), lambda x, y: torch.allclose(y.flatten(1).mean(1), torch.zeros(4), atol=1e-5)),
        ("group:2", (4, 3, 3), lambda x, y: torch.allclose(y[:, :2].flatten(1).mean(1), torch.zeros(4), atol=1e-5)),
        ("constants:1,2/2,4", (2, 5), lambda x, y: torch.allclose(y[:, 1], (x[:, 1] - 2) / 4)),
        ("none", (2, 5), lambda x, y: torch.equal(x, y)),
    ],
)
def test_fixed_normalisers_do_what_their_name_says(spec: str, shape: tuple[int, ...], check: Any) -> None:
    front, made = make_front("none", spec, shape)
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0)) * 3 + 1
    assert made == shape
    assert check(x, x if front is None else front(x))
    assert front is None or not list(front.parameters())


@pytest.mark.parametrize(
    "spec", ["batch", "group:5", "group:x", "constants:1/2", "constants:1,2", "record:3", "group:0"]
)
def test_a_normalisation_that_does_not_fit_is_refused_by_value(spec: str) -> None:
    with pytest.raises(InputError, match="normalisation="):
        make_front("none", spec, (2, 4, 4))


def test_bad_bounds_and_scales_are_refused() -> None:
    for clip, noise in ((0.0, 1.0), (1.0, -1.0), (math.inf, 1.0), (1e-170, 1.0), (1e160, 1.0)):
        with pytest.raises(InputError, match="normalisation_"):
            ReleasedNorm(1, clip=clip, noise_multiplier=noise)
    with pytest.raises(InputError, match="std above 0"):
        ChannelNorm(torch.zeros(1), torch.zeros(1))


@pytest.mark.parametrize(
    "module", [nn.BatchNorm2d(1), nn.InstanceNorm2d(1), nn.Linear(8, 8), nn.Dropout(), nn.LayerNorm((1, 8, 8))]
)
def test_a_front_learns_nothing_and_stays_in_evaluation_mode(module: nn.Module) -> None:
    for features, normaliser in ((module, None), (None, module)):
        front = Front(features, normaliser).train()
        assert not any(part.training for part in front.modules())
        assert not any(parameter.requires_grad for parameter in front.parameters())


class Centring(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.BatchNorm2d(1, track_running_stats=False), "even in eval()"),
        (Centring(), "mixes records"),
        (nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (1, -1))), "a row a record"),
    ],
)
def test_a_front_that_mixes_records_is_refused(module: nn.Module, words: str) -> None:
    options = TrainingOptions(batch_size=40, steps=1, noise_multiplier=1.0)
    with pytest.raises(InputError) as refused:
        prepare(small_net(), small_digits(), method=DPSGD(), budget=None, delta=1e-5, options=options, front=module)
    assert words in str(refused.value)


def test_a_model_trained_behind_a_front_is_known_as_trained() -> None:
    norm = ReleasedNorm(1, clip=1.0, noise_multiplier=8.0)
    ready = prepared(norm)
    run = train_prepared(ready, randomness=ReproducibleRandomness(0))
    assert not any("trained before" in warning for warning in run.privacy.warnings)
    again = train_prepared(ready, randomness=ReproducibleRandomness(0))
    assert any("trained before" in warning for warning in again.privacy.warnings)
    options = TrainingOptions(batch_size=40, steps=1, noise_multiplier=1.0)
    whole = prepare(run.model, small_digits(), method=DPSGD(), budget=None, delta=1e-5, options=options)
    assert any("trained before" in warning for warning in whole.warnings)


def test_the_statement_tells_each_kind_of_draw_and_what_was_declared() -> None:
    run = train_prepared(prepared(ReleasedNorm(1, clip=0.5, noise_multiplier=8.0)), randomness=SystemRandomness())
    words = " ".join(run.privacy.statement().split())
    assert "1 with probability 1 and noise multiplier 5.65685" in words
    assert "3 with probability 0.166667 and noise multiplier 1.5" in words
    assert "the bound 0.5 on a record's channel means" in words

"""Owners: the unit of privacy is a person with several records, drawn together and covered by the noise together."""

from __future__ import annotations

import os
import signal
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adadpigu as ad
from adadpigu.accounting import create_shared, read_ledger
from adadpigu.accounting.accountants import epsilon
from adadpigu.accounting.plan import plan_for
from adadpigu.core.bounding import GradientSum
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.randomness import ReproducibleRandomness, SystemRandomness
from adadpigu.core.sampling import Owners, OwnerSampler
from adadpigu.core.sensitive import unseal
from adadpigu.data import TensorRecords
from adadpigu.errors import InputError, PrivacyLineError
from conftest import one_draw_ledger

C, CAP = 0.5, 3


def people(names: list[str]) -> TensorRecords:
    return TensorRecords(torch.zeros(len(names), 1), torch.zeros(len(names), dtype=torch.long))


def train(names: list[Any] | Tensor, inputs: Tensor, **options: Any) -> ad.Run:
    """Records of one class each, so that gradients point in known directions."""
    torch.manual_seed(0)
    settings = {
        "records": 40,
        "batch_size": 20,
        "steps": 3,
        "lr": 1.0,
        "method": ad.DPSGD(clip_norm=C),
        "owner_cap": CAP,
    }
    data = inputs, torch.zeros(len(inputs), dtype=torch.long)
    return ad.train(nn.Linear(inputs.shape[1], 2), data, owners=names, **{**settings, **options})


def test_all_records_of_an_owner_are_drawn_together_up_to_the_cap() -> None:
    names = ["ann", "bob", "ann", "cy", "ann", "ann", "bob"]
    sampler = OwnerSampler(sample_rate=0.5, owners=Owners.of(names, cap=2))
    seen = set()
    for _ in range(300):  # a combination is missed with a probability below 8 · (7/8)^300 < 1e-16
        taken = unseal(sampler.toss(people(names), SystemRandomness())).tolist()
        assert taken[0] == taken[2]
        assert taken[1] == taken[6]
        assert not taken[4]
        assert not taken[5]
        seen.add((taken[0], taken[1], taken[3]))
    assert len(seen) == 8


def test_owners_are_drawn_independently_at_the_rate() -> None:
    """2,000 draws of 100 owners with 1 to 4 records; each statistic within 6 deviations: false alarm below 1e-6."""
    names = [str(owner) for owner in range(100) for _ in range(1 + owner % 4)]
    first = [names.index(str(owner)) for owner in range(100)]
    sampler = OwnerSampler(sample_rate=0.3, owners=Owners.of(names, cap=4))
    hits = torch.stack([unseal(sampler.toss(people(names), SystemRandomness()))[first] for _ in range(2000)]).double()
    assert abs(hits.mean().item() - 0.3) < 6 * (0.21 / hits.numel()) ** 0.5
    pairs = (hits[:, 0::2] - 0.3).mul(hits[:, 1::2] - 0.3).mean().item()
    assert abs(pairs) < 6 * 0.21 / (2000 * 50) ** 0.5


class _Watch:
    """Keeps what was asked and released."""

    def __init__(self) -> None:
        self.releases: list[Release] = []

    def before_draw(self, draw: str, queries: Any) -> None:
        return

    def after_draw(self, draw: str, queries: Any, releases: dict[str, Release]) -> None:
        self.releases += releases.values()


@pytest.mark.parametrize("method", [ad.DPSGD(clip_norm=C), ad.AdaDPIGU(clip_norm=C, importance_steps=1)])
def test_noise_covers_all_records_of_an_owner(method: Any) -> None:
    """Its standard deviation is σ · cap · C: an owner with `cap` records of norm C moves the sum by cap · C."""
    from adadpigu.training.train import prepared_for, session

    watch = _Watch()
    data = torch.randn(9, 4), torch.zeros(9, dtype=torch.long)
    prepared = prepared_for(
        nn.Linear(4, 2), data, records=40, owners=list(range(9)), owner_cap=CAP, method=method, batch_size=20, steps=3
    )
    with session(prepared, watch=watch) as begun:
        run = begun.run()
    assert [release.noise_stddev for release in watch.releases] == pytest.approx(
        [run.privacy.noise_multiplier * CAP * C] * 3
    )
    assert {release.sensitivity for release in run.privacy.releases} == {CAP * C}


def test_an_owner_more_moves_the_sum_by_at_most_cap_times_c() -> None:
    """Found without noise of any size: the same seed with and without an owner whose records pull one way.

    The owner has ten records; three are trained on. Weights start alike, so the first step shows the sum itself.
    """
    loud = torch.cat([torch.randn(6, 4), torch.full((10, 4), 100.0)])
    names = [*range(6), *["loud"] * 10]
    found = []
    for count in (16, 6):
        run = train(
            names[:count],
            loud[:count],
            steps=1,
            batch_size=40,
            randomness=ReproducibleRandomness(7),
            noise_multiplier=1e-6,
            privacy=None,
        )
        weights = torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])
        found.append(weights.double() * 40)
    move = (found[0] - found[1]).norm().item()
    assert move == pytest.approx(CAP * C, rel=1e-3)


def test_the_claim_is_that_of_the_rate_and_statement_and_ledger_name_the_owner(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = train([0, 0, 1, 2, 3, 4] * 6, torch.randn(36, 4), privacy=ad.Budget(epsilon=2), out=folder)
    assert read_ledger(folder / "ledger.log").header["relation"] == "add or remove one owner"
    assert run.epsilon == pytest.approx(epsilon(plan_for(0.5, 3)(run.privacy.noise_multiplier).event(), 1e-5))
    assert run.epsilon <= 2
    report = run.privacy
    assert report.unit_of_privacy == "one owner with up to 3 records"
    text = " ".join(report.statement().split())
    assert "the presence of any one owner with up to 3 records among about 40 training records" in text
    assert "differ by one owner (add or remove one)" in text
    assert f"each owner's part of a gradient sum bounded by {CAP * C:g}" in text
    assert "at most 3 records of one owner are trained on" in text


def test_the_statement_says_that_test_records_may_be_of_the_same_owners() -> None:
    test = torch.rand(4, 4), torch.zeros(4, dtype=torch.long)
    for given in (None, test):
        run = train(list(range(20)), torch.randn(20, 4), test=given)
        assert any("split by owner" in line for line in run.privacy.not_covered) == (given is not None)


def test_a_query_for_single_records_cannot_be_charged_to_a_draw_of_owners() -> None:
    """A method or a change that forgets the cap gets no noise for one record in the place of that for three."""
    ledger = one_draw_ledger(2.0, rate=0.5)
    sampler = OwnerSampler(sample_rate=0.5, owners=Owners.of(["a", "a"], cap=CAP))
    with pytest.raises(PrivacyLineError, match="up to 3 records an owner"):
        GaussianMechanism(ledger, SystemRandomness()).charge(
            [GradientSum(clip_norm=C)],
            source=sampler,
            noise_multiplier=2.0,
            size=4,
            stage="training",
            step=0,
            draw="gradient",
        )


def test_a_loop_of_ones_own_has_owners_too() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(12, 4), torch.zeros(12, dtype=torch.long)
    names = np.repeat([f"person {number}" for number in range(6)], 2)
    loop = ad.PrivateLoop(model, optimizer, data, records=12, owners=names, owner_cap=2, batch_size=4, steps=2)
    with loop:
        for batch in loop:
            batch.backward()
            optimizer.step()
    assert loop.run is not None
    assert loop.run.privacy.unit_of_privacy == "one owner with up to 2 records"


@pytest.mark.parametrize("kind", [torch.int64, torch.float32, torch.bfloat16, torch.bool])
def test_one_owner_is_one_however_their_name_is_held(kind: torch.dtype) -> None:
    """A tensor hashes by identity: `list(ids)` made every record another owner's, and one moved a sum by 10 cap·C."""
    ids = torch.tensor([1, 0, 1, 1], dtype=kind)
    forms: list[Any] = [ids, list(ids), [(number,) for number in ids], ids.tolist()]
    if kind != torch.bfloat16:
        forms += [ids.numpy(), list(ids.numpy())]
    assert {tuple(unseal(Owners.of(form, cap=2)).tolist()) for form in forms} == {(0, 1, 0, -1)}


def test_names_of_every_kind_are_told_apart() -> None:
    names = ["a", b"a", 1, 2.0, date(2001, 2, 3), UUID(int=4), ("a", 1), np.str_("b"), np.datetime64("2001-02-04")]
    assert unseal(Owners.of(names, cap=1)).tolist() == list(range(len(names)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"owner_cap": None}, "owner_cap=None and owners given; allowed: both"),
        ({"names": None}, "owner_cap=3 and owners not given; allowed: both"),
        ({"owner_cap": 0}, "owner_cap=0"),
        ({"names": list(range(7))}, "owners: 7 of them for 8 records; allowed: one owner a record"),
        ({"names": [*range(7), float("nan")]}, "owners: a record has none"),
        ({"names": [*range(7), None]}, "owners: a record has none"),
        ({"names": [*"abcdefg", "nan"]}, "owners: a record has none, or 'nan' for it"),
        ({"names": [*"abcdefg", np.datetime64("NaT")]}, "owners: a record has none"),
        ({"names": [*"abcdefg", ("ann", "<NA>")]}, "owners: a record has none, or '<NA>' for it"),
        ({"names": torch.tensor([2.0**24] * 8)}, "owners: float32 cannot tell such numbers apart"),
        ({"names": torch.full((8,), 0.5)}, "owners: float32 cannot tell such numbers apart"),
        ({"names": [*np.full(8, 2049, np.float16)]}, "owners: float16 cannot tell such numbers apart"),
        ({"names": [object() for _ in range(8)]}, "owners: a name is a object; allowed: str, bytes, int,"),
        ({"names": torch.zeros(8, 1)}, "owners: a name is a Tensor of 1 dimensions; allowed: str, bytes, int,"),
    ],
)
def test_owners_that_do_not_fit_are_refused_in_one_line(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        train(
            change.get("names", list(range(8))), torch.randn(8, 4), **{k: v for k, v in change.items() if k != "names"}
        )
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_shared_ledger_which_counts_records_takes_no_run_of_owners(tmp_path: Path) -> None:
    shared = tmp_path / "shared.log"
    create_shared(shared, ad.Budget(epsilon=4), dataset="own data", records=40)
    with pytest.raises(InputError, match="a shared ledger adds up single records"):
        train(list(range(8)), torch.randn(8, 4), ledger=shared)


def test_a_run_goes_on_only_with_the_cap_it_began_with(tmp_path: Path) -> None:
    class Stop:
        def begin(self, facts: Any) -> None:
            return

        def update(self, metrics: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        def end(self, run: Any) -> None:
            return

    names, inputs = list(range(8)), torch.randn(8, 4)
    folder = tmp_path / "run"
    assert train(names, inputs, out=folder, evaluate_every=1, observers=[Stop()]).interrupted
    with pytest.raises(InputError, match="owner_cap=2 is not what the run began with; allowed: 3"):
        train(names, inputs, out=folder, resume=True, owner_cap=2)
    assert train(names, inputs, out=folder, resume=True).privacy.unit_of_privacy == "one owner with up to 3 records"

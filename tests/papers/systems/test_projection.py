"""Projections on public directions: float64 oracles of the bases and of each method's sums, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from adadpigu.audit.adversarial import adversarial_records
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.data.public import PublicRecords, process_records
from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.methods import DPSGD, Method, make_method
from adadpigu.methods.base import RunContext
from adadpigu.training import Preparation
from adadpigu_systems import projection
from adadpigu_systems.projection import GEP, PCDPSGD, Basis, ProjectedDPSGD, by_power, leading
from conftest import one_draw_ledger, released
from float64_world import DATA, LR, B, clipped_sum, gradients, record
from replays import replay
from trials import prepare_small, run_small, small_digits, small_net, weights

START = weights(small_net()).double().numpy()
D = len(START)
PUBLIC = process_records(40, DATA.train.take(torch.arange(1))[0], 10, 3)
FIXED = PublicRecords(inputs=PUBLIC.inputs, targets=PUBLIC.targets, origin="made up")


def public_rows(theta: np.ndarray) -> np.ndarray:
    """∇ℓ of each public record, one at a time."""
    model = small_net().double()
    torch.nn.utils.vector_to_parameters(torch.tensor(theta), model.parameters())
    rows = []
    for x, y in zip(PUBLIC.inputs, PUBLIC.targets, strict=True):
        grads = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]).numpy())
    return np.stack(rows)


def principal(theta: np.ndarray, rank: int) -> np.ndarray:
    """The leading eigenvectors of the explicit second moment, [d, k]."""
    a = public_rows(theta)
    values, vectors = np.linalg.eigh(a.T @ a / len(a))
    return np.asarray(vectors[:, np.argsort(values)[::-1][:rank]])


def parts(rows: Tensor) -> Iterator[Tensor]:
    yield from torch.split(rows, 7)


def test_the_leading_directions_are_those_of_the_explicit_second_moment() -> None:
    rows = torch.randn(30, 80, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    v = leading(parts(rows), 6).blocks[0][1].numpy()
    _, vectors = np.linalg.eigh(rows.numpy().T @ rows.numpy())
    wanted = vectors[:, -6:]
    np.testing.assert_allclose(v.T @ v, np.eye(6), atol=1e-10)
    np.testing.assert_allclose(v @ v.T, wanted @ wanted.T, atol=1e-8)


def test_one_power_iteration_finds_the_span_of_few_directions() -> None:
    """Rows that lie in 4 dimensions of each block: those of the basis, whatever Ω is."""
    rng = torch.Generator().manual_seed(1)
    low = [
        torch.randn(30, 4, dtype=torch.float64, generator=rng) @ torch.randn(4, 20, dtype=torch.float64, generator=rng)
        for _ in range(2)
    ]
    rows, places = torch.cat(low, dim=1), [slice(0, 20), slice(20, 40)]
    basis = by_power(parts(rows), [4, 4], places, seed=5)
    assert basis.size == 8
    torch.testing.assert_close(basis.beside(rows), torch.zeros_like(rows), atol=1e-9, rtol=0)
    back = torch.stack([basis.back(w, 40) for w in basis.onto(rows)])
    torch.testing.assert_close(back, rows, atol=1e-9, rtol=0)


def test_what_a_basis_leaves_is_orthogonal_to_it() -> None:
    rng = torch.Generator().manual_seed(2)
    rows = torch.randn(9, 50, dtype=torch.float64, generator=rng)
    basis = leading(parts(torch.randn(12, 50, dtype=torch.float64, generator=rng)), 5)
    torch.testing.assert_close(
        basis.onto(basis.beside(rows)), torch.zeros(9, 5, dtype=torch.float64), atol=1e-12, rtol=0
    )


def test_projected_dpsgd_projects_the_release_of_dpsgd() -> None:
    """The tape is DP-SGD's; the update is its projection, from the given share of the steps on."""
    method = ProjectedDPSGD(rank=5, clip_norm=0.3, basis_every=2, project_from=0.25)
    recorded, theta = record(method, steps=4, public=FIXED), START
    plain = record(DPSGD(clip_norm=0.3), steps=1)
    np.testing.assert_array_equal(recorded.total(0), plain.total(0))
    v = np.zeros((D, 5))
    for t in range(4):
        v = principal(theta, 5) if t % 2 == 0 else v
        np.testing.assert_allclose(recorded.total(t), clipped_sum(gradients(theta, recorded.drawn(t)), 0.3), atol=1e-9)
        ghat = recorded.released(t) / B
        theta = theta - LR * (ghat if t < 1 else v @ (v.T @ ghat))
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-7)


def test_pcdp_sgd_clips_the_projection_and_leaves_the_rest_of_the_weights_alone() -> None:
    recorded, theta = record(PCDPSGD(rank=5, clip_norm=0.2, basis_every=2), steps=4, public=FIXED), START
    v = np.zeros((D, 5))
    for t in range(4):
        v = principal(theta, 5) if t % 2 == 0 else v
        rows = [v.T @ g for g in gradients(theta, recorded.drawn(t))]
        assert np.linalg.norm(recorded.total(t)) == pytest.approx(np.linalg.norm(clipped_sum(rows, 0.2)), abs=1e-7)
        used = np.linalg.lstsq(v, recorded.recorder.calls[t][0].public["learned['basis 0']"].numpy(), rcond=None)[0]
        np.testing.assert_allclose(recorded.total(t), used.T @ clipped_sum(rows, 0.2), atol=1e-7)
        step = v @ (used @ recorded.released(t, "embedding")) / B
        theta = theta - LR * step
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-6)


def test_gep_releases_both_parts_of_one_draw_at_their_own_bounds() -> None:
    method = GEP(rank=6, groups=2, clip_norm=0.2, residual_clip=0.1, residual_share=0.3, basis_every=1)
    recorded, theta = record(method, steps=3, public=FIXED), START
    for t in range(3):
        known = recorded.recorder.calls[t][0].public
        half = round(D / 2)
        v = np.zeros((D, 6))
        v[:half, :3], v[half:, 3:] = known["learned['basis 0']"], known["learned['basis 1']"]
        np.testing.assert_allclose(v.T @ v, np.eye(6), atol=1e-6)
        rows = gradients(theta, recorded.drawn(t))
        np.testing.assert_allclose(recorded.total(t), clipped_sum([v.T @ g for g in rows], 0.2), atol=1e-6)
        np.testing.assert_allclose(recorded.total(t, 1), clipped_sum([g - v @ (v.T @ g) for g in rows], 0.1), atol=1e-6)
        theta = theta - LR * (v @ recorded.released(t, "embedding") + recorded.released(t, "residual")) / B
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-6)
    shares = [call.share for call in recorded.recorder.calls[0]]
    assert shares == [0.7, 0.3]


def test_a_square_basis_gives_dpsgd_in_other_coordinates() -> None:
    """k = d: nothing is projected away, so norms and clipped sums are DP-SGD's."""
    rows = torch.randn(60, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    basis = leading(parts(rows), 30)
    torch.testing.assert_close(torch.stack([basis.back(w, 30) for w in basis.onto(rows)]), rows, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("gep", {"rank": 41}, r"rank=41 asks for 41 directions; allowed: 1 to 40"),
        ("gep", {"rank": 3, "groups": 4}, r"rank=3 with groups=4 asks for"),
        ("gep", {"rank": 30, "groups": 99999}, r"rank=30 with groups=99999 .*allowed: 1 to 30 groups"),
        ("gep", {"rank": 3, "groups": 2, "basis": "eigen"}, r"groups=2 with basis='eigen'; allowed: basis='power'"),
        ("gep", {"residual_share": 1.0}, "residual_share"),
        ("dpsgd", {}, "looks at no public record; leave it out"),
    ],
)
def test_a_basis_that_public_records_cannot_give_is_refused_in_one_line(
    method: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        prepare_small(make_method(method, options), data=DATA, net=lambda: small_net().double(), public=FIXED)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda: PublicRecords(inputs=torch.zeros(3, 2), targets=torch.zeros(3, dtype=torch.long), origin="x"),
            "as the private ones",
        ),
        (lambda: PublicRecords(inputs=PUBLIC.inputs[:2], targets=torch.tensor([0, 10]), origin="x"), "from 0 to 9"),
        (lambda: "processes:0", "processes:COUNT"),
        (lambda: "nowhere.npz", "is no .npz file"),
        (
            lambda: PublicRecords(inputs=DATA.train.take(torch.arange(9))[0], targets=torch.zeros(1), origin="x"),
            "one label each",
        ),
    ],
)
def test_public_records_that_do_not_fit_are_refused(change: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        prepare_small(GEP(rank=2), data=DATA, net=lambda: small_net().double(), public=change())


def test_private_records_cannot_be_declared_public_by_type() -> None:
    with pytest.raises(PrivacyLineError, match="two tensors, got TensorRecords"):
        PublicRecords(inputs=DATA.train, targets=torch.zeros(1), origin="x")  # type: ignore[arg-type]
    own = DATA.train.inputs  # type: ignore[attr-defined]
    public = PublicRecords(inputs=own[:5], targets=torch.zeros(5, dtype=torch.long), origin="x")
    with pytest.raises(InputError, match="public: there are training records"):
        prepare_small(GEP(rank=2), data=DATA, net=lambda: small_net().double(), public=public)


def test_a_basis_knows_its_size() -> None:
    assert Basis(((slice(0, 4), torch.zeros(4, 2)), (slice(4, 9), torch.zeros(5, 3)))).size == 5


def test_the_start_of_a_power_iteration_is_not_drawn_from_the_stream_of_the_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts, images = set[int](), set[int]()

    def noting(seeds: set[int], function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            seeds.add(given[-1])
            return function(*given)

        return noted

    monkeypatch.setattr(projection, "by_power", noting(starts, by_power))
    monkeypatch.setattr("adadpigu.data.public.process_records", noting(images, process_records))
    run_small(PCDPSGD(rank=2, basis="power", basis_every=1), steps=3, seed=5, public="processes:20")
    assert len(starts) == 3
    assert len(images) == 4  # those that are declared, and other ones for each basis
    assert not starts & images


def planted(method: Method, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Preparations in which the basis is made of the private records' gradients."""
    right = Preparation.run_context

    def leaking(self: Preparation, *given: Any) -> RunContext:
        inputs, targets = self.data.train.take(torch.arange(len(self.data.train)))
        return right(replace(self, public=PublicRecords(inputs=inputs, targets=targets, origin="x")), *given)

    monkeypatch.setattr(Preparation, "run_context", leaking)
    return partial(prepare_small, method, steps=3, public="processes:20")


@pytest.mark.parametrize("method", [GEP(rank=4, groups=2), PCDPSGD(rank=4)], ids=["gep", "pcdp-sgd"])
def test_a_basis_of_private_gradients_is_caught_by_replay(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_digits(40)
    loud = adversarial_records(data)["large"]
    assert not replay(partial(prepare_small, method, steps=3, public="processes:20"), data, added=loud).breaches
    found = replay(planted(method, monkeypatch), data, added=loud).breaches
    assert ["'embedding' has another learned['basis" in breach for breach in found] == [True]


def test_a_residual_without_noise_is_caught_by_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what the basis leaves is released as it is."""
    right: Any = GaussianMechanism._with_noise

    def bare(self: Any, content: Tensor, active: Any, stddev: float, dtype: torch.dtype, *grid: Any) -> Tensor:
        return content.to(dtype) if len(content) == D else right(self, content, active, stddev, dtype, *grid)

    monkeypatch.setattr(GaussianMechanism, "_with_noise", bare)
    data = small_digits(40)
    found = replay(partial(prepare_small, GEP(rank=4), steps=3, public="processes:20"), data, removed=0)
    assert any("entries of 'residual' were released without noise" in breach for breach in found.breaches)
    assert not any("'embedding'" in breach for breach in found.breaches)


def test_a_whole_basis_is_dpsgd_to_the_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """V = I: PCDP-SGD makes DP-SGD's steps, and GEP's rest is nothing but noise."""
    whole = Basis(((slice(0, D), torch.eye(D, dtype=torch.float64)),))
    monkeypatch.setattr(projection, "leading", lambda *_: whole)
    one, plain = record(PCDPSGD(rank=5, clip_norm=0.3), steps=3, public=FIXED), record(DPSGD(clip_norm=0.3), steps=3)
    for t in range(3):
        np.testing.assert_allclose(one.total(t), plain.total(t), atol=1e-12, rtol=0)
    np.testing.assert_allclose(weights(one.run.model), weights(plain.run.model), atol=1e-12, rtol=0)
    both = record(GEP(rank=5, clip_norm=0.3, basis="eigen"), steps=1, public=FIXED)
    np.testing.assert_allclose(both.total(0), plain.total(0), atol=1e-12, rtol=0)
    assert not both.total(0, 1).any()


def test_the_noise_of_an_update_has_the_energy_of_k_directions() -> None:
    """kσ²C²/B² within 1 %: of 500,000 numbers that is 5 standard deviations, so it fails with a chance of 6e-7."""
    k, draws, sigma, clip = 500, 1000, 1.5, 0.3
    prepared = prepare_small(PCDPSGD(rank=k, clip_norm=clip, basis="power"), steps=1, public=f"processes:{k}")
    state = prepared.method.begin(prepared.run_context())
    state.begin_step(prepared.stages[0], 0, weights(prepared.model))
    mechanism = GaussianMechanism(one_draw_ledger(sigma, steps=draws), ReproducibleRandomness(0))

    class Nobody:
        """Draws in which nobody is drawn."""

        def release(self, *queries: Any) -> dict[str, Release]:
            return released(mechanism, torch.zeros(0, D), *queries, sigma=sigma)

        def denoise(self, made: Release, _: object) -> Release:
            return made

    made: Any = Nobody()
    energy = sum(float(state.step(made, prepared.stages[0], 0).value.double().square().sum()) for _ in range(draws))
    assert energy / draws == pytest.approx(k * (sigma * clip / B) ** 2, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_are_made_orthonormal_in_stretches(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of lengths from 1 to 1e-5, as a power iteration leaves them: the span is that of a QR in float64."""
    monkeypatch.setattr(projection, "_AT_ONCE", 7)
    rng = torch.Generator().manual_seed(4)
    columns = (torch.randn(40, 6, dtype=torch.float64, generator=rng) * 10.0 ** -torch.arange(6)).to(dtype)
    wanted = np.linalg.qr(columns.double().numpy())[0]
    v = projection.orthonormal(columns).double().numpy()
    close = 1e-6 if dtype == torch.float32 else 1e-13
    np.testing.assert_allclose(v.T @ v, np.eye(6), atol=close)
    np.testing.assert_allclose(v @ v.T, wanted @ wanted.T, atol=1e2 * close)


def test_columns_that_span_less_leave_zeros_and_nothing_that_is_no_number() -> None:
    one = torch.randn(9, 1, generator=torch.Generator().manual_seed(5))
    v = projection.orthonormal(torch.cat([one, torch.zeros(9, 1), one], dim=1)).double()
    assert bool(torch.isfinite(v).all())
    values = torch.linalg.eigvalsh(v.T @ v)
    assert values.min() > -1e-6
    assert values.max() < 1 + 1e-6


@pytest.mark.parametrize("method", [PCDPSGD(rank=6, basis_precision="bf16"), GEP(rank=6, basis_precision="bf16")])
def test_a_basis_in_bf16_is_near_the_exact_one_and_keeps_the_bounds(method: Any) -> None:
    exact = replace(method, basis_precision="float32")
    one, other = (record(each, steps=1, public=FIXED) for each in (method, exact))
    difference = np.linalg.norm(one.total(0) - other.total(0)) / np.linalg.norm(other.total(0))
    assert 1e-6 < difference < 0.02
    data = small_digits(40)
    found = replay(partial(prepare_small, method, steps=3, public="processes:20"), data, removed=0)
    assert not found.breaches

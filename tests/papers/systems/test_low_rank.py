"""RGP and PowerSGD: carriers against autograd and SVD in float64, each run recomputed, and planted leaks caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adadpigu.core.layout import Layout
from adadpigu.core.mechanism import Release
from adadpigu.core.sensitive import unseal
from adadpigu.methods import DPSGD, Method
from adadpigu.methods.base import Batches, MethodState, RunContext, Stage
from adadpigu_systems.low_rank import (
    RGP,
    Carriers,
    Matrix,
    PowerSGD,
    _BothSides,
    _FromReleases,
    _FromWeights,
    matrices_of,
    orth,
)
from float64_world import DATA, LR, SIGMA, B, Recorded, clipped_sum, gradients, record
from replays import breaches, neighbours
from trials import prepare_small, small_net, weights

START = weights(small_net()).double().numpy()
FIRST, LAST = slice(0, 768), slice(780, 900)
"""the matrices of the small net: 12 × 64 and 10 × 12, each with its biases behind it"""
N, M = 5, 7


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def carriers(rank: int, sides: str = "both") -> Carriers:
    """Of one matrix N × M between three coordinates and two."""
    left, right = (orth(draw(N, rank, seed=1)),), (orth(draw(M, rank, seed=2)),)
    return Carriers(
        matrices=(Matrix(slice(3, 3 + N * M), N, M, rank),),
        left=() if sides == "right" else left,
        right=() if sides == "left" else right,
    )


SIZE = 3 + N * M + 2


@pytest.mark.parametrize("sides", ["both", "left", "right"])
def test_rebuilding_carriers_is_an_orthogonal_projection_that_leaves_the_rest_alone(sides: str) -> None:
    made, rows = carriers(2, sides), draw(6, SIZE)
    once = torch.stack([made.rebuilt(w, SIZE) for w in made.of(rows)])
    twice = torch.stack([made.rebuilt(w, SIZE) for w in made.of(once)])
    torch.testing.assert_close(once, twice, atol=1e-12, rtol=0)
    torch.testing.assert_close(once[:, :3], rows[:, :3], atol=0, rtol=0)
    torch.testing.assert_close(once[:, -2:], rows[:, -2:], atol=0, rtol=0)
    torch.testing.assert_close((once * (rows - once)).sum(1), torch.zeros(6).double(), atol=1e-12, rtol=0)
    assert not torch.allclose(once, rows)
    assert sum(made.sizes(SIZE)) == made.of(rows).shape[1]


@pytest.mark.parametrize("sides", ["both", "left", "right"])
def test_at_full_rank_nothing_is_lost(sides: str) -> None:
    made, rows = carriers(M if sides == "right" else N, sides), draw(4, SIZE)
    back = torch.stack([made.rebuilt(w, SIZE) for w in made.of(rows)])
    torch.testing.assert_close(back, rows, atol=1e-12, rtol=0)
    if sides != "both":  # in another basis the norms are the same, and so is what is clipped
        torch.testing.assert_close(made.of(rows).norm(dim=1), rows.norm(dim=1), atol=1e-12, rtol=0)


def test_carriers_are_the_gradients_of_the_reparametrised_layer() -> None:
    """W = L R + (W₀ − L R held): autograd through L and R gives G Rᵀ and Lᵀ G."""
    made, w, x = carriers(2), draw(N, M, seed=5), draw(M, seed=6)
    left, right = made.left[0].clone().requires_grad_(), made.right[0].T.clone().requires_grad_()
    held = (w - left @ right).detach()

    def loss(weight: Tensor) -> Tensor:
        return torch.tanh(weight @ x).square().sum()

    by_left, by_right = torch.autograd.grad(loss(held + left @ right), [left, right])
    whole = w.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(whole), [whole])
    flat = torch.cat([torch.zeros(3).double(), g.flatten(), torch.zeros(2).double()])
    _, (p,), (q,) = made.split(made.of(flat[None])[0], SIZE)
    torch.testing.assert_close(p, by_left, atol=1e-12, rtol=0)
    torch.testing.assert_close(q, by_right, atol=1e-12, rtol=0)


def test_noise_free_halves_converge_to_the_singular_vectors_of_a_fixed_matrix() -> None:
    u, _, v = torch.linalg.svd(draw(N, M, seed=8), full_matrices=False)
    fixed = (u * torch.tensor([9.0, 6.0, 2.0, 1.0, 0.5]).double()) @ v
    right = orth(draw(M, 2, seed=9))
    for _ in range(30):  # (2/6)^60 is left
        right = orth(fixed.T @ orth(fixed @ right))
    torch.testing.assert_close(right @ right.T, v[:2].T @ v[:2], atol=1e-10, rtol=0)
    best = (u[:, :2] * torch.tensor([9.0, 6.0]).double()) @ v[:2]
    torch.testing.assert_close(fixed @ right @ right.T, best, atol=1e-9, rtol=0)


def test_matrices_are_compressed_where_that_saves() -> None:
    """With the largest rank that does; a convolution is out × in·k²."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(32, 1), nn.Linear(1, 6))
    found = matrices_of(Layout.of(net), 4, saving=1)
    assert [(m.n, m.m, m.rank) for m in found] == [(8, 27, 4)]
    layout = Layout.of(small_net())
    assert [(m.place, m.rank) for m in matrices_of(layout, 16, saving=1)] == [(FIRST, 10), (LAST, 5)]
    assert [(m.place, m.rank) for m in matrices_of(layout, 4, saving=2, but_last=True)] == [(FIRST, 4)]
    for m in matrices_of(layout, 99, saving=2):
        assert m.n * m.m / ((m.n + m.m) * m.rank) > 2 >= m.n * m.m / ((m.n + m.m) * (m.rank + 1))


def learned(recorded: Any, draw: int) -> dict[str, np.ndarray]:
    public = recorded.recorder.calls[draw][0].public
    return {key[9:-2]: value.numpy() for key, value in public.items()}


def projector(basis: np.ndarray) -> np.ndarray:
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-10)
    return np.asarray(basis @ basis.T)


@pytest.mark.parametrize("left_only", [False, True])
def test_rgp_releases_the_carriers_of_the_weights_directions(left_only: bool) -> None:
    """In float64 by numpy: W at first, from step 2 on what training has changed; renewed every second step."""
    method = RGP(rank=3, clip_norm=0.3, renew_every=2, history_from=0.5, left_only=left_only)
    recorded, theta, at = record(method, steps=4), START, START
    for t in range(4):
        at = theta if t % 2 == 0 else at
        known = learned(recorded, t)
        right = known["right 0"]
        u = at[FIRST].reshape(12, 64)
        if t >= 2:  # u of the last renewal, at step 2
            u = u / np.linalg.norm(u) - START[FIRST].reshape(12, 64) / np.linalg.norm(START[FIRST])
        omega = np.random.default_rng([0, t - t % 2]).standard_normal((64, 3))
        left = np.linalg.qr(u @ omega)[0]
        np.testing.assert_allclose(projector(right), projector(np.linalg.qr(u.T @ left)[0]), atol=1e-9)
        if not left_only:
            np.testing.assert_allclose(projector(known["left 0"]), projector(left), atol=1e-9)
        rows, theta_rows = [], gradients(theta, recorded.drawn(t))
        for g in theta_rows:
            whole = g[FIRST].reshape(12, 64)
            sides = [whole @ right] + ([] if left_only else [known["left 0"].T @ whole])
            rows.append(np.concatenate([g[768:], *(side.ravel() for side in sides)]))
        np.testing.assert_allclose(recorded.total(t), clipped_sum(rows, 0.3), atol=1e-9)
        released = recorded.released(t, "carriers")
        step = np.zeros(len(theta))
        step[768:] = released[: 910 - 768]
        by_right = released[142 : 142 + 36].reshape(12, 3)
        update = by_right @ right.T
        if not left_only:
            left = known["left 0"]
            by_left = released[178:].reshape(3, 64)
            update = update + left @ by_left - left @ left.T @ by_right @ right.T
        step[FIRST] = update.ravel()
        theta = theta - LR * step / B
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-9)


def test_powersgd_alternates_sides_that_were_released() -> None:
    method = PowerSGD(rank=2, clip_norm=0.3, start_after=0.2)
    recorded, theta = record(method, steps=5), START
    kept: dict[str, np.ndarray] = {}
    for t in range(5):
        rows = gradients(theta, recorded.drawn(t))
        if t == 0:
            np.testing.assert_allclose(recorded.total(t), clipped_sum(rows, 0.3), atol=1e-9)
            theta = theta - LR * recorded.released(t) / B
            continue
        known, step, parts = learned(recorded, t), np.zeros(len(theta)), []
        side = "right" if t % 2 else "left"
        assert set(known) == {f"{side} 0", f"{side} 1"}
        for key, value in kept.items():
            np.testing.assert_allclose(projector(known[key]), projector(value), atol=1e-10)
        for g in rows:
            pieces = [g[768:780], g[900:]]
            for k, (place, shape) in enumerate([(FIRST, (12, 64)), (LAST, (10, 12))]):
                whole, basis = g[place].reshape(shape), known[f"{side} {k}"]
                pieces.append((whole @ basis if t % 2 else basis.T @ whole).ravel())
            parts.append(np.concatenate(pieces))
        np.testing.assert_allclose(recorded.total(t), clipped_sum(parts, 0.3), atol=1e-9)
        released, taken, kept = recorded.released(t, "carriers"), 22, {}
        step[768:780], step[900:] = released[:12], released[12:22]
        for k, (place, (n, m)) in enumerate([(FIRST, (12, 64)), (LAST, (10, 12))]):
            basis, shape = known[f"{side} {k}"], (n, 2) if t % 2 else (2, m)
            side_released = released[taken : taken + shape[0] * shape[1]].reshape(shape)
            taken += side_released.size
            step[place] = (side_released @ basis.T if t % 2 else basis @ side_released).ravel()
            other = np.linalg.qr(side_released if t % 2 else side_released.T)[0]
            kept[f"{'left' if t % 2 else 'right'} {k}"] = other
        theta = theta - LR * step / B
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-9)


def by_both(theta: np.ndarray, right: list[np.ndarray], recorded: Recorded, t: int) -> tuple[list[np.ndarray], Any]:
    """Rows of both queries, and L from what the first released."""
    rows = gradients(theta, recorded.drawn(t))
    matrices = [(FIRST, (12, 64)), (LAST, (10, 12))]
    rest = [np.concatenate([g[768:780], g[900:]]) for g in rows]
    sides = [
        [(g[place].reshape(shape) @ r).ravel() for (place, shape), r in zip(matrices, right, strict=True)] for g in rows
    ]
    np.testing.assert_allclose(
        recorded.total(t),
        clipped_sum([np.concatenate([a, *b]) for a, b in zip(rest, sides, strict=True)], 0.3),
        atol=1e-9,
    )
    released = recorded.released(t, "right")
    left = [np.linalg.qr(released[22:46].reshape(12, 2))[0], np.linalg.qr(released[46:66].reshape(10, 2))[0]]
    pieces = [
        [(basis.T @ g[place].reshape(shape)).ravel() for (place, shape), basis in zip(matrices, left, strict=True)]
        for g in rows
    ]
    return [np.concatenate([a, *b]) for a, b in zip(rest, pieces, strict=True)], left


def test_powersgd_of_both_sides_releases_the_second_given_the_first() -> None:
    recorded, theta = record(PowerSGD(rank=2, clip_norm=0.3, start_after=0.0, both=True), steps=3), START
    right = [value for _, value in sorted(learned(recorded, 0).items())]
    for t in range(3):
        second, left = by_both(theta, right, recorded, t)
        np.testing.assert_allclose(abs(recorded.total(t, 1)), abs(clipped_sum(second, 0.3)), atol=1e-9)  # QR's signs
        released, step = recorded.released(t, "left"), np.zeros(len(theta))
        step[768:780], step[900:] = released[:12], released[12:22]
        q = [released[22:150].reshape(2, 64), released[150:174].reshape(2, 12)]
        for place, basis, side, shape in zip((FIRST, LAST), left, q, ((12, 64), (10, 12)), strict=True):
            step[place] = (basis @ side).reshape(shape).ravel()
        theta = theta - LR * step / B
        right = [np.linalg.qr(side.T)[0] for side in q]
    np.testing.assert_allclose(weights(recorded.run.model).numpy(), theta, atol=1e-9)


def test_both_sides_of_a_draw_are_one_event_at_sigma() -> None:
    recorded, plain = record(PowerSGD(rank=2, start_after=0.0, both=True), steps=2), record(DPSGD(), steps=2)
    assert recorded.run.epsilon == plain.run.epsilon
    made = recorded.recorder.released[1]
    deviations = [made[name].noise_stddev / 0.5 for name in ("right", "left")]  # type: ignore[operator]
    assert sum(d**-2 for d in deviations) ** -0.5 == pytest.approx(SIGMA, rel=1e-12)


def test_weights_that_start_at_zero_get_random_directions() -> None:
    def net() -> nn.Module:
        made = small_net().double()
        nn.init.zeros_(made[1].weight)  # type: ignore[index]
        return made

    ready = prepare_small(RGP(rank=2), data=DATA, net=net)
    method_state = ready.method.begin(ready.run_context())
    method_state.begin_step(ready.stages[0], 0, ready.engine.layout.read(ready.model))
    for basis in method_state.state().values():
        projector(basis.numpy())


# Planted leaks


class PrivateCarriers(_FromWeights):
    """L, R from the un-noised carriers of the step before."""

    def _release(self, batches: Batches, made: Carriers) -> Release:
        released = super()._release(batches, made)
        total = unnoised(batches)
        _, p, _ = made.split(total, self._context.layout.size)
        self._leaked = tuple(orth(side) for side in p)
        return released

    def begin_step(self, stage: Stage, index: int, flat: Tensor) -> None:
        super().begin_step(stage, index, flat)
        if index > 0:
            self._bases = {**self._bases, "left": self._leaked}


class FedBack(_FromReleases):
    """Adds to every update what compression left of the un-noised sum: PowerSGD's own error feedback."""

    def _rebuilt(self, batches: Batches, made: Carriers, released: Release) -> Release:
        size = self._context.layout.size
        total = unnoised(batches)
        restored = made.rebuilt(total, size)
        error, self._error = getattr(self, "_error", torch.zeros(size)), restored / self._context.batch_size
        return super()._rebuilt(batches, made, released).map(lambda update: update + 0.1 * error)


def unnoised(batches: Any) -> Tensor:
    """What came to the noise last: no honest method reaches it."""
    total: Tensor = unseal(batches._mechanism._sums[-1])
    return total.clone().float()


@dataclass(frozen=True, kw_only=True)
class Planted(Method):
    """A method with another state in it."""

    made: Callable[[RunContext], MethodState]
    name, source, adds, costs = "planted", "tests", "a leak", "more than it says"

    def begin(self, context: RunContext) -> MethodState:
        return self.made(context)


RANKED, POWER = RGP(rank=2), PowerSGD(rank=2, start_after=0.0)


class SecondOfPrivate(_BothSides):
    """L from the un-noised first sum of the draw."""

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        self._batches = batches
        return super().step(batches, stage, index)

    def _left(self, right: Carriers, released: Tensor) -> Carriers:
        sums: list[Any] = self._batches._mechanism._sums  # type: ignore[attr-defined]
        return super()._left(right, unseal(sums[0]).float())


@pytest.mark.parametrize(
    ("made", "breach"),
    [
        (lambda context: SecondOfPrivate(POWER, context), "of the model is another"),
        (lambda context: PrivateCarriers(RANKED, context), r"another learned\['left 0'\]"),
        (lambda context: FedBack(POWER, context), "of the model is another"),
    ],
)
def test_replay_catches_a_basis_or_feedback_from_private_gradients(made: Any, breach: str) -> None:
    found = breaches(neighbours(Planted(made=made), "large", "zero"))
    assert found
    assert any(breach.replace("\\", "") in text for texts in found.values() for text in texts)


@pytest.mark.parametrize(
    "method",
    [RANKED, POWER, replace(POWER, both=True), replace(RANKED, left_only=True, renew_every=3, history_from=0.3)],
)
def test_no_record_moves_honest_carriers_beyond_their_bound(method: Method) -> None:
    found = neighbours(method)
    assert breaches(found) == {}
    assert max(result.largest for result in found.values()) > 0.99

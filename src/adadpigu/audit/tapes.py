"""Tapes: a run on D is recorded, a run on a neighbour is played the same releases. Sensitive values, kept in memory.

A recorder keeps what reached the noise, what was released, and all that is public on the way: queries, weights, masks,
metrics. A player hands the recorded releases out again and notes every breach: a sum that moves by more than its
sensitivity, and public state that moves at all. They audit what lies before the noise; `noise_capture` audits it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.accounting import Ledger
from adadpigu.audit.coins import ReplayError
from adadpigu.core.bounding import BoundedSum, Query, RecordSum
from adadpigu.core.gradients.state import identical
from adadpigu.core.mechanism import GaussianMechanism, Receipt, Release
from adadpigu.core.processes import Processes
from adadpigu.core.randomness import Randomness
from adadpigu.core.sensitive import unseal
from adadpigu.runs.run import Facts, Metrics, Run
from adadpigu.tensors import digest

TOLERANCE = 1e-5  # relative to the sensitivity, for floating-point noise
LOSS_TOLERANCE = 1e-3
"""the same for sums of float32 losses: in another batch each is rounded otherwise, by 1e-7, however small the bound"""
_BARE = 1e-3  # share of a release's entries that may equal the sum itself by chance
_FEW = 4

State = Mapping[str, Tensor]  # public tensors by name


@dataclass(frozen=True)
class Call:
    """What reached the noise for one release."""

    name: str
    sensitivity: float
    share: float  # of the draw's privacy cost
    public: dict[str, Tensor]  # the learned tensors that shaped the sum: mask, centre, scale, parameters
    total: Tensor = field(repr=False)
    tolerance: float = TOLERANCE


def _call(total: BoundedSum) -> Call:
    query = total.query
    of_losses = isinstance(query, RecordSum) and ("loss" in query.needs or len(query.losses_at) > 0)
    return Call(
        name=query.name,
        sensitivity=total.sensitivity,
        share=query.share,
        public=_tensors(query),
        total=unseal(total).detach().clone(),
        tolerance=LOSS_TOLERANCE if of_losses and total.dtype != torch.float64 else TOLERANCE,
    )


def _tensors(query: Query) -> dict[str, Tensor]:
    tensors = {key: value for key, value in vars(query).items() if isinstance(value, Tensor)}
    tensors |= {f"losses_at[{k}]": value for k, value in enumerate(getattr(query, "losses_at", ()))}
    tensors |= {f"learned[{name!r}]": value for name, value in getattr(query, "learned", {}).items()}
    return {key: value.detach().clone() for key, value in tensors.items()}


def _plain(query: Query) -> dict[str, object]:
    """What a query asks for besides tensors."""
    named = {key: value for key, value in vars(query).items() if not isinstance(value, Tensor | tuple)}
    return {key: value for key, value in named.items() if not callable(value) and key != "learned"}


def public_state(*modules: nn.Module | None) -> dict[str, Tensor]:
    """Copies of every parameter, its gradient where it has one, and every buffer: what whoever holds a model sees."""
    found: dict[str, Tensor] = {}
    for number, module in enumerate(modules):
        if module is None:
            continue
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            found[f"{number}:{name}"] = tensor.detach().clone()
            if tensor.grad is not None:
                found[f"{number}:{name}.grad"] = tensor.grad.detach().clone()
    return found


def differing(one: State, other: State) -> str | None:
    """The first name under which two states differ by a bit; None where they are the same."""
    for key in sorted(one.keys() | other.keys()):
        if key not in one or key not in other or not identical(one[key], other[key]):
            return key.partition(":")[2] or key
    return None


class TapedMechanism(GaussianMechanism):
    """Charges and releases as every run does, and shows a tape both; what the tape replays gets no noise."""

    def __init__(self, tape: "Tape", ledger: Ledger, randomness: Randomness, processes: Processes) -> None:
        super().__init__(ledger, randomness, processes)
        self._tape = tape
        self._sums: list[BoundedSum] = []
        self._releases: dict[str, Release] = {}

    def charge(self, queries: Sequence[Query], **given: Any) -> Receipt:
        receipt = super().charge(queries, **given)
        self._sums, self._releases = [], {}
        self._tape.asked(queries)
        return receipt

    def release(self, sums: Sequence[BoundedSum], receipt: Receipt) -> dict[str, Release]:
        releases = super().release(sums, receipt)
        self._releases |= releases
        if self._sums and not receipt.owes:  # none: it released what never came to the noise, the count will tell
            self._tape.record(self._sums, self._releases)
        return releases

    def _noisy(self, total: BoundedSum, noise_multiplier: float) -> Release:
        whole = self._processes.all_gather(unseal(total), total.size).clone()
        self._sums.append(BoundedSum(whole, total.query, size=total.size, dtype=total.dtype))
        return self._tape.replayed(total.query.name) or super()._noisy(total, noise_multiplier)


class Tape:
    """Keeps what each draw was asked for, what reached the noise, and, as an observer, what the run reports.

    `state` reads what is public when a draw is asked for.
    """

    def __init__(self, state: Callable[[], State] = dict) -> None:
        self._state = state
        self.mechanism = partial(TapedMechanism, self)  # makes the mechanism of the run which this tape follows
        self.calls: list[list[Call]] = []
        self.asked_for: list[list[tuple[dict[str, object], dict[str, Tensor]]]] = []
        self.states: list[State] = []
        self.reported: list[Mapping[str, object]] = []
        self.kept: State = {}
        self.breaches: list[str] = []

    def asked(self, queries: Sequence[Query]) -> None:
        self.asked_for.append([(_plain(query), _tensors(query)) for query in queries])
        self.states.append(self._state())

    def replayed(self, name: str) -> Release | None:
        """The release to hand out instead of a noisy one."""
        return None

    def record(self, sums: Sequence[BoundedSum], releases: dict[str, Release]) -> None:
        self.calls.append([_call(total) for total in sums])

    def tell(self, facts: Mapping[str, object]) -> None:
        self.reported.append(facts)

    def begin(self, facts: Facts) -> None:
        self.tell(vars(facts))

    def update(self, metrics: Metrics) -> None:
        self.tell(vars(metrics))

    def end(self, run: Run) -> None:
        """All that a finished run says of itself, the clock aside, and its model."""
        facts = {key: value for key, value in vars(run).items() if key not in ("seconds", "model", "privacy")}
        self.tell({**facts, "outputs": digest(sorted(run.outputs.items())), **vars(run.privacy)})
        self.kept = public_state(run.model)


class Recorder(Tape):
    """The tape of the run on D. Its breaches need no neighbour."""

    def __init__(self, state: Callable[[], State] = dict) -> None:
        super().__init__(state)
        self.released: list[dict[str, Release]] = []
        self._bare: dict[str, tuple[int, int]] = {}

    def record(self, sums: Sequence[BoundedSum], releases: dict[str, Release]) -> None:
        super().record(sums, releases)
        self.released.append(releases)
        for call, (_, asked) in zip(self.calls[-1], self.asked_for[-1], strict=True) if self.asked_for else ():
            self._check(call, asked, releases[call.name])

    def end(self, run: Run) -> None:
        super().end(run)
        if len(self.asked_for) != len(self.calls):
            self.breaches.append(f"{len(self.asked_for)} draws were asked for, {len(self.calls)} released")
        for name, (equal, looked) in self._bare.items():
            # Noise rounds to nothing beside an entry with a chance of about 1e-7: a false alarm has one below 1e-9 for
            # up to a million entries.
            if equal >= max(_FEW, _BARE * looked):
                self.breaches.append(f"{equal} of {looked} entries of {name!r} were released without noise")

    def _check(self, call: Call, asked: State, release: Release) -> None:
        """Whether noise was drawn for what was asked for, on all of it and on nothing else."""
        where = f"draw {len(self.calls) - 1}: {call.name!r}"
        if (key := differing(call.public, asked)) is not None:
            self.breaches.append(f"{where} has another {key} when its noise is drawn than when it was asked for")
        value, active = release.value, release.active
        looked = call.total if active is None else call.total[active]
        if active is not None and bool((value[~active] != 0).any()):
            self.breaches.append(f"{where} releases something on frozen coordinates")
        if not release.noise_stddev:
            return
        bare = (value if active is None else value[active]) == looked.to(value.dtype)
        equal, seen = self._bare.get(call.name, (0, 0))
        self._bare[call.name] = equal + int(bare.sum()), seen + len(looked)


class TraceReplayer(Tape):
    """The tape of a neighbour's run: hands out the recorded releases and notes every breach.

    `aim` is told what is about to be asked, before a record is looked at.
    """

    def __init__(
        self,
        recorded: Recorder,
        state: Callable[[], State] = dict,
        aim: Callable[[Sequence[Query]], None] | None = None,
    ) -> None:
        super().__init__(state)
        self._recorded, self._aim = recorded, aim
        self.exposed = False
        """whether one of the breaches is more than a move beyond a sensitivity: then no noise covers it"""
        self.largest = 0.0  # share of its sensitivity by which a sum has moved at most
        self.effects: list[float] = []
        """for each draw √(Σ_k s_k (difference_k/sensitivity_k)²): how far a record moves it, in units of σ"""

    def asked(self, queries: Sequence[Query]) -> None:
        if len(self.states) >= len(self._recorded.states):
            raise ReplayError(f"draw {len(self.states)}: the neighbour asks for more draws than were recorded")
        super().asked(queries)
        draw, recorded = f"draw {len(self.states) - 1}", self._recorded
        if (key := differing(recorded.states[len(self.states) - 1], self.states[-1])) is not None:
            raise ReplayError(f"{draw}: {key!r} of the model is another on the neighbour, after the same releases")
        before, now = recorded.asked_for[len(self.states) - 1], self.asked_for[-1]
        if [plain for plain, _ in before] != [plain for plain, _ in now]:
            raise ReplayError(f"{draw}: the neighbour asks for other releases than were recorded")
        for (_, old), (plain, new) in zip(before, now, strict=True):
            _refuse_difference(f"{draw}: {plain['name']!r}", old, new)
        if self._aim is not None:
            self._aim(queries)

    def replayed(self, name: str) -> Release:
        recorded, position = self._recorded.released, len(self.calls)
        if position >= len(recorded) or name not in recorded[position]:
            raise ReplayError(f"draw {position}: the neighbour asks for other releases than were recorded")
        return recorded[position][name]

    def record(self, sums: Sequence[BoundedSum], releases: dict[str, Release]) -> None:
        super().record(sums, releases)
        before = self._recorded.calls[len(self.calls) - 1]
        shares = [self._compare(old, new) for old, new in zip(before, self.calls[-1], strict=True)]
        self.effects.append(math.sqrt(sum(call.share * share**2 for call, share in zip(before, shares, strict=True))))

    def tell(self, facts: Mapping[str, object]) -> None:
        super().tell(facts)
        before, *_ = [*self._recorded.reported[len(self.reported) - 1 :], facts]
        if odd := [key for key in before.keys() | facts.keys() if before.get(key) != facts.get(key)]:
            self.expose(f"the neighbour's run says something else of {', '.join(sorted(odd))}")

    def end(self, run: Run) -> None:
        super().end(run)
        if (key := differing(self._recorded.kept, self.kept)) is not None:
            self.expose(f"{key!r} of the model that is kept is another on the neighbour, after the same releases")
        if len(self.calls) != len(self._recorded.calls):
            self.expose(f"{len(self._recorded.calls)} draws recorded, {len(self.calls)} replayed")

    def expose(self, breach: str) -> None:
        """Notes what anybody can see without noise."""
        self.breaches.append(breach)
        self.exposed = True

    def _compare(self, old: Call, new: Call) -> float:
        """How far the record moved a sum, as a share of its sensitivity."""
        where = f"draw {len(self.calls) - 1}: {new.name!r}"
        _refuse_difference(where, old.public, new.public)
        difference = float(torch.linalg.vector_norm(old.total - new.total))
        difference = difference if math.isfinite(difference) else math.inf
        share = difference / old.sensitivity if math.isfinite(old.sensitivity) else 0.0
        self.largest = max(self.largest, share)
        if not difference <= old.sensitivity * (1 + old.tolerance):
            self.breaches.append(f"{where} moves by {difference:.6g}, above its sensitivity {old.sensitivity:.6g}")
        return share


def _refuse_difference(where: str, old: State, new: State) -> None:
    if (key := differing(old, new)) is not None:
        raise ReplayError(f"{where} has another {key} on the neighbour")

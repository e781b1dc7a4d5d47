"""Replay through Hugging Face's Trainer: a record moves sums within their bound, nothing else.

The runs are Trainer's from end to end: the auditor puts its mechanism or its watch where a session has one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_models import LENGTH, RECORDS, WORDS, arguments, records, trained_part, trainer
from torch import nn

from adadpigu.audit.coins import NeighbourCoins, RecordedCoins
from adadpigu.audit.tapes import Recorder, TraceReplayer, public_state
from adadpigu.core.mechanism import GaussianMechanism
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.training import own_loop
from adadpigu.training.earlier import earlier_runs

STEPS = 3


SESSION: Any = vars(own_loop)["session"]
NAMES = ("recorded", "played")


def audited(monkeypatch: pytest.MonkeyPatch, chance: Any = None, **how: Any) -> None:
    """Every loop from here on has an auditor's mechanism or watch; forwards of its steps draw from `chance`."""

    @contextlib.contextmanager
    def session(*args: Any, **kwargs: Any) -> Iterator[Any]:
        isolated = earlier_runs.isolated_history()
        with isolated, SESSION(*args, **{**kwargs, **how}) as begun, chance or contextlib.nullcontext():
            yield begun

    monkeypatch.setattr(own_loop, "session", session)


NEIGHBOURS: dict[str, list[dict[str, Any]]] = {
    "one more, of one token": [*records(), {"input_ids": [WORDS - 1], "label": 2}],
    "one more, as long as can be": [*records(), {"input_ids": [5] * LENGTH, "label": 0}],
    "one more, twice there": [*records(), records()[0]],
    "one less": records()[:-1],
}


class _Runs:
    """A run on D, and runs on neighbours under the same releases."""

    def __init__(self, part: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._part, self._folder, self._patch = part, folder, monkeypatch
        self.coins = RecordedCoins(ReproducibleRandomness(0), always=RECORDS - 1, share=0.5, empty=frozenset({1}))
        model = trained_part(part)
        self.tape = Recorder(functools.partial(public_state, model))
        self.written = self._run("recorded", model, records(), self.coins, self.tape)

    def player(self, data: list[dict[str, Any]]) -> TraceReplayer:
        model = trained_part(self._part)
        player = TraceReplayer(self.tape, functools.partial(public_state, model))
        coins = NeighbourCoins(self.coins, removed=len(data) if len(data) < RECORDS else None)
        self.replayed = self._run("played", model, data, coins, player)
        return player

    def _run(self, name: str, model: nn.Module, data: list[dict[str, Any]], coins: Any, tape: Any) -> list[Any]:
        """All of Trainer's log but its last line, which says how long it took; its files are put aside."""
        audited(self._patch, coins.chance, mechanism=tape.mechanism)
        place = arguments(self._folder / "run", max_steps=STEPS, save_strategy="steps", save_steps=1)
        private = trainer(model, place, train_dataset=data, randomness=coins, observers=[tape])
        private.train()
        shutil.rmtree(self._folder / name, ignore_errors=True)
        (self._folder / "run").rename(self._folder / name)
        return list(private.state.log_history[:-1])


@pytest.mark.parametrize("part", ["head", *(pytest.param(part, marks=pytest.mark.slow) for part in ("full", "lora"))])
def test_one_record_moves_sums_within_their_bound_and_nothing_public(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = _Runs(part, tmp_path, monkeypatch)
    assert runs.tape.breaches == []
    for data in NEIGHBOURS.values():
        played = runs.player(data)
        assert tuple(played.breaches) == ()
        assert 0 < played.largest <= 1 + 1e-5
        assert runs.replayed == runs.written
        states = (tmp_path / name / "checkpoint-2" / "trainer_state.json" for name in NAMES)
        one, other = (json.loads(path.read_text()) for path in states)
        assert one == other


def test_replay_would_see_a_batch_that_is_not_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: sums are doubled on their way to the noise."""
    genuine = GaussianMechanism.release

    def doubled(self: Any, sums: Any, receipt: Any) -> Any:
        for total in sums:
            total._content.mul_(2)
        return genuine(self, sums, receipt)

    monkeypatch.setattr(GaussianMechanism, "release", doubled)
    runs = _Runs("head", tmp_path, monkeypatch)
    assert "above its sensitivity" in " ".join(runs.player(NEIGHBOURS["one less"]).breaches)

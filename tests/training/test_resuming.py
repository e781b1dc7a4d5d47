"""A run that goes on is the run that it was: whatever was learned comes back, noise never does, no charge is lost.

Noise is never restored, so a resumed run cannot be compared with an undisturbed one as they are. Here coins and noise
are made a function of the step alone (`ByStep`); then both must agree to the last bit.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adadpigu.accounting import read_ledger
from adadpigu.core.randomness import ReproducibleRandomness, SystemRandomness
from adadpigu.data import TensorRecords
from adadpigu.errors import InputError
from adadpigu.features.front import make_front
from adadpigu.methods import DPSGD, AdaDPIGU, Method, all_methods, make_method
from adadpigu.training import Facts, Metrics, Run, train_prepared
from adadpigu.training.checkpoints import Checkpoint, Checkpoints
from adadpigu.training.step import Draws
from open_method import OpenMethod
from trials import method_case, prepare_small, small_digits, small_net

VARIANTS: dict[str, dict[str, dict[str, object]]] = {
    "adaclip": {"quick to learn": {"mean_decay": 0.5, "variance_decay": 0.5}},
    "adadpigu": {
        "moving statistics": {
            "importance_steps": 3,
            "mean_decay": 0.9,
            "variance_decay": 0.9,
            "offset": 0.01,
            "debias": True,
        },
        "per layer, unfreezing": {"importance_steps": 2, "retention": 0.4, "schedule": "linear", "per_layer": True},
        "from stage 1, pruned": {"importance_steps": 2, "variance_start": "stage-1", "mode": "prune"},
        "top-k": {"importance_steps": 2, "top_k": 0.3},
        "quantile, blocks": {
            **{"importance_steps": 2, "clip_quantile": 0.5, "clip_rate": 2.0, "count_noise": 3.0},
            **{"blocks": 5, "restrict": "worthwhile", "variance_decay": 0.9},
        },
        "public scores": {"score": "public", "variance_start": "noise", "normalise": True},
    },
    "dpdr": {"throughout": {"until": 1.0}},
    "dpsur": {"small tests": {"test_batch_size": 20, "test_clip": 0.01, "test_noise_multiplier": 1.5}},
    "gradient-encoding": {"kept": {"renew_every": 4}},
    "parameter-freezing": {
        "selection": {"every": "step", "retention": 0.3},
        "random": {"select": "random", "retention": 0.3},
        "random, every step": {"select": "random", "every": "step"},
        "public model": {"select": "public-model", "public_model": "A FILE", "retention": 0.2},
    },
    "quantile": {"quick to learn": {"clip_rate": 2.0, "count_noise": 1.0}},
    "powersgd": {"from the start": {"rank": 2, "start_after": 0.0}},
    "rgp": {"kept": {"rank": 3, "renew_every": 4, "history_from": 0.4}},
    "random-freeze": {"constant": {"rise": "constant"}, "cosine": {"rise": "cosine", "rise_by": 0.5}},
}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    f"{name}: {label}" if label else name: (name, options)
    for name in all_methods()
    for label, options in {"": {}, **VARIANTS.get(name, {})}.items()
}
STEPS = 6
RECORDS = 300
SEVERAL_STAGES = {"importance_steps": 3, "mean_decay": 0.9, "variance_decay": 0.9, "offset": 0.01}
OPTIMISERS = sorted(
    name.lower()
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    if name not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
)


@pytest.fixture(scope="module", params=[*CASES, "all the frame allows"])
def method(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Method:
    """Every registered method with its defaults and with options that change what it learns."""
    return method_case(CASES[request.param], tmp_path_factory) if request.param in CASES else OpenMethod()


class ByStep(ReproducibleRandomness):
    """Coins and noise that are a function of the step."""

    def __init__(self) -> None:
        super().__init__(0)

    def begin_step(self, step: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([7, step])))


@pytest.fixture(autouse=True)
def _by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = Draws.begin_step

    def begin_step(self: Draws, stage: str, step: int, planned: Any) -> None:
        if isinstance(self._randomness, ByStep):
            self._randomness.begin_step(step)
        genuine(self, stage, step, planned)

    monkeypatch.setattr(Draws, "begin_step", begin_step)


class After:
    """Does something after a step, once: an observer."""

    def __init__(self, step: int | None, what: Callable[[], object]) -> None:
        self._step, self._what = step, what

    def begin(self, facts: Facts) -> None: ...

    def end(self, run: Run) -> None: ...

    def update(self, metrics: Metrics) -> None:
        if metrics.step == self._step:
            self._what()


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def interrupt() -> None:
    raise KeyboardInterrupt


def live(
    method: Method, folder: Path, *, stop: int | None = None, by: Callable[[], object] = terminate, **options: Any
) -> Run:
    """One process's work on a run, begun or gone on with; stopped after a step where one is named."""
    randomness = options.pop("randomness", ByStep())
    chosen = {"steps": STEPS, "momentum": 0.9, "weight_decay": 0.1, "evaluate_every": 1, "reserve": 1} | options
    return train_prepared(
        prepare_small(method, small_digits(RECORDS), **chosen),
        out=folder,
        randomness=randomness,
        observers=[After(stop, by)],
        resuming=folder.exists(),
    )


def in_lives(method: Method, folder: Path, stops: Iterator[int] | range | list[int], **options: Any) -> Run:
    """A run that is stopped after each of these steps, and goes on."""
    for stop in stops:
        run = live(method, folder, stop=stop, **options)
        assert run.interrupted
        assert run.steps_done == stop
    return live(method, folder, **options)


def kept(folder: Path) -> Checkpoint:
    found, problems = Checkpoints(folder).newest()
    assert found is not None
    assert problems == ()
    return found


def assert_same(run: Run, other: Run) -> None:
    """Equal to the last bit: the model that is kept, all that was learned, the metrics but for ε, which is no lower."""
    assert run.folder is not None
    assert other.folder is not None
    ours, theirs = run.model.state_dict(), other.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    state, wanted = kept(run.folder).state, kept(other.folder).state
    assert state.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(state[key], value), key
        assert state[key].dtype == value.dtype, key
    assert run.accuracy == other.accuracy
    for one, two in zip(run.metrics, other.metrics, strict=True):
        assert {**vars(one), "epsilon": 0} == {**vars(two), "epsilon": 0}
        if two.epsilon is not None:  # the plan's at the last step: with steps to spare more than was spent
            assert (one.epsilon or 0) >= min(two.epsilon, run.privacy.epsilon_spent) * (1 - 1e-6)
    lines = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (run.folder, other.folder)]
    assert [json.loads(line)["step"] for line in lines[0]] == [json.loads(line)["step"] for line in lines[1]]


def test_every_method_stopped_after_every_step_ends_as_if_nobody_had_stopped_it(method: Method, tmp_path: Path) -> None:
    whole = live(method, tmp_path / "whole")
    parts = in_lives(method, tmp_path / "parts", range(1, STEPS))
    assert_same(parts, whole)
    ledger = read_ledger(tmp_path / "parts" / "ledger.log")
    assert ledger.spent() == read_ledger(tmp_path / "whole" / "ledger.log").spent()  # no step was charged twice
    assert [(session.first_step, session.steps, session.end) for session in ledger.sessions()] == [
        *((step, 1, "interrupted") for step in range(STEPS - 1)),
        (STEPS - 1, 1, "finished"),
    ]
    assert parts.privacy.steps_charged == STEPS
    assert parts.epsilon == whole.epsilon
    assert not parts.interrupted


@pytest.mark.parametrize("stop", range(1, STEPS))
def test_one_stop_at_any_step_the_ends_of_stages_too_changes_nothing(stop: int, tmp_path: Path) -> None:
    method = make_method("adadpigu", SEVERAL_STAGES)
    whole = live(method, tmp_path / "whole", ema=0.9)
    assert_same(in_lives(method, tmp_path / "parts", [stop], ema=0.9), whole)


FURTHER: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "lr": 0.01},
    "cosine with warm-up": {"lr_schedule": "cosine", "warmup": 0.3},
    "linear with warm-up and tail": {"lr_schedule": "linear", "warmup": 0.3, "tail": 0.3},
    "augmented": {"copies": 2, "flip": True, "shift": 1},
    "automatic clipping": {"clipping": "automatic"},
    "reserved ahead": {"reserve": 3},
    "in parts": {"physical_batch_size": 7},
}


@pytest.mark.parametrize("options", FURTHER.values(), ids=FURTHER)
def test_what_else_is_learned_and_scheduled_goes_on(options: dict[str, Any], tmp_path: Path) -> None:
    method = make_method("adadpigu", SEVERAL_STAGES)
    whole = live(method, tmp_path / "whole", **options)
    assert_same(in_lives(method, tmp_path / "parts", [2, 4], **options), whole)
    assert whole.privacy.steps_charged == read_ledger(tmp_path / "parts" / "ledger.log").steps == STEPS


@pytest.mark.parametrize("optimizer", OPTIMISERS)
def test_every_optimiser_goes_on(optimizer: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "lr": 0.01, "weight_decay": 0.0, "steps": 5}
    whole = live(DPSGD(), tmp_path / "whole", **options)
    assert_same(in_lives(DPSGD(), tmp_path / "parts", [1, 3], **options), whole)


def dropout_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Dropout(0.5), nn.Linear(12, 10))


def front_net(width: int) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(width, 10))

    return made


@pytest.mark.parametrize(
    ("features", "normalisation"),
    [("none", "released"), ("scattering", "none"), ("scattering", "released"), ("none", "record")],
)
def test_a_front_goes_on_with_the_constants_that_were_released(
    features: str, normalisation: str, tmp_path: Path
) -> None:
    front, shape = make_front(features, normalisation, (1, 8, 8))
    options: dict[str, Any] = {"front": front, "net": front_net(int(np.prod(shape))), "steps": 4}
    method = make_method("adadpigu", {"importance_steps": 1})
    steps = 4 + (normalisation == "released")
    whole = live(method, tmp_path / "whole", **options)
    parts = in_lives(method, tmp_path / "parts", range(1, steps), **options)
    assert_same(parts, whole)
    assert parts.steps == steps


def test_dropout_goes_on(tmp_path: Path) -> None:
    whole = live(DPSGD(), tmp_path / "whole", net=dropout_net)
    assert_same(in_lives(DPSGD(), tmp_path / "parts", [3, 5], net=dropout_net), whole)


def test_steps_after_the_checkpoint_are_repeated_and_charged_again(tmp_path: Path) -> None:
    """A second Ctrl-C saves nothing: the run goes on from the checkpoint before, and the statement counts both."""
    options: dict[str, Any] = {"checkpoint_every": 3, "spare_steps": 2}
    method = make_method("adadpigu", SEVERAL_STAGES)
    whole = live(method, tmp_path / "whole", **options)
    live(method, tmp_path / "parts", stop=5, by=interrupt, **options)
    parts = live(method, tmp_path / "parts", **options)
    assert_same(parts, whole)
    assert [(session.first_step, session.steps) for session in parts.privacy.sessions] == [(0, 5), (3, 3)]
    assert parts.privacy.steps_charged == STEPS + 2
    assert parts.privacy.epsilon_spent > whole.privacy.epsilon_spent
    assert parts.epsilon == whole.epsilon >= parts.privacy.epsilon_spent


def test_without_spare_steps_the_run_ends_before_its_budget_is_exceeded(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint_every": 3}
    live(DPSGD(), tmp_path / "run", stop=5, by=interrupt, **options)
    run = live(DPSGD(), tmp_path / "run", **options)
    assert (run.steps, run.steps_done, run.interrupted) == (STEPS, STEPS - 2, False)
    assert run.privacy.steps_charged == STEPS
    assert run.privacy.epsilon_spent == pytest.approx(run.epsilon)
    assert [session.end for session in run.privacy.sessions] == ["interrupted", "exhausted"]
    assert run.accuracy is not None
    with pytest.raises(InputError, match="its budget is spent"):
        live(DPSGD(), tmp_path / "run", **options)


def test_no_session_repeats_the_noise_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first hundred numbers of each; no two of 64-bit floats are equal by chance but with probability 1e-10."""
    sessions: list[list[Tensor]] = []
    genuine = SystemRandomness.normal

    def normal(self: SystemRandomness, count: int) -> Tensor:
        sessions[-1].append(genuine(self, count))
        return sessions[-1][-1]

    monkeypatch.setattr(SystemRandomness, "normal", normal)
    for stop in (2, 4, None):
        sessions.append([])
        live(DPSGD(), tmp_path / "run", stop=stop, randomness="secure")
    first = [set(torch.cat(drawn)[:100].tolist()) for drawn in sessions]
    assert [len(numbers) for numbers in first] == [100, 100, 100]
    assert not any(one & other for one, other in itertools.combinations(first, 2))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def saved(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("name", ["checkpoint.json", "state.safetensors"])
@pytest.mark.parametrize("where", [0, 0.3, 0.6, 1])
def test_a_damaged_checkpoint_is_left_out_for_the_one_before_and_that_is_told(
    name: str, where: float, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"checkpoint_every": 2, "spare_steps": 4}
    whole = live(DPSGD(), tmp_path / "whole", **options)
    live(DPSGD(), tmp_path / "run", stop=5, **options)
    assert [folder.name for folder in saved(tmp_path / "run")] == ["step-00000004", "step-00000005"]
    damaged = saved(tmp_path / "run")[-1] / name
    flip(damaged, int(where * (damaged.stat().st_size - 1)))
    run = live(DPSGD(), tmp_path / "run", **options)
    assert [session.first_step for session in run.privacy.sessions] == [0, 4]
    told = "checkpoint 'step-00000005' is damaged and was left out"
    assert told in run.summary()["warnings"]  # type: ignore[operator]
    assert told in json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    assert run.privacy.steps_charged == STEPS + 1
    assert_same(run, whole)


def test_with_no_whole_checkpoint_the_run_begins_again_and_all_stays_charged(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint_every": 2, "spare_steps": STEPS}
    whole = live(DPSGD(), tmp_path / "whole", **options)
    live(DPSGD(), tmp_path / "run", stop=5, **options)
    for folder in saved(tmp_path / "run"):
        flip(folder / "state.safetensors", 100)
    stopped = live(DPSGD(), tmp_path / "run", stop=3, **options)
    assert [session.first_step for session in stopped.privacy.sessions] == [0, 0]
    assert [folder.name for folder in saved(tmp_path / "run")] == ["step-00000002", "step-00000003"]
    run = live(DPSGD(), tmp_path / "run", **options)
    assert [(session.first_step, session.steps) for session in run.privacy.sessions] == [(0, 5), (0, 3), (3, 3)]
    assert_same(run, whole)


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    live(DPSGD(), tmp_path / "run", stop=2, by=interrupt, spare_steps=2)
    assert saved(tmp_path / "run") == []
    run = live(DPSGD(), tmp_path / "run", spare_steps=2)
    assert [(session.first_step, session.steps) for session in run.privacy.sessions] == [(0, 2), (0, STEPS)]


def test_what_a_crash_leaves_half_written_is_ignored_and_removed(tmp_path: Path) -> None:
    live(DPSGD(), tmp_path / "run", stop=3)
    part = tmp_path / "run" / "checkpoints" / ".step-00000099.part"
    part.mkdir()
    (part / "state.safetensors").write_bytes(b"half")
    run = live(DPSGD(), tmp_path / "run")
    assert [session.first_step for session in run.privacy.sessions] == [0, 3]
    assert not part.exists()


def test_the_last_two_are_kept_for_their_owner_alone(tmp_path: Path) -> None:
    live(DPSGD(), tmp_path / "run", checkpoint_every=2)
    assert [folder.name for folder in saved(tmp_path / "run")] == ["step-00000004", "step-00000006"]
    folders = [tmp_path / "run", tmp_path / "run" / "checkpoints", *saved(tmp_path / "run")]
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700] * 4


def test_a_checkpoint_holds_functions_of_releases_and_nothing_else(tmp_path: Path) -> None:
    """No coins, no records, no state of a generator: the list of what is there, and of its sizes."""
    method = make_method("adadpigu", SEVERAL_STAGES)
    live(method, tmp_path / "run", stop=5, ema=0.9, randomness=None)
    (folder,) = saved(tmp_path / "run")
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.json", "state.safetensors"]
    facts = json.loads((folder / "checkpoint.json").read_text())
    assert facts.keys() == {"format", "step", "run", "ledger", "metrics", "tensors", "digest"}
    assert all(line.keys() == Metrics.__dataclass_fields__.keys() for line in facts["metrics"])
    sizes = {name: tuple(value.shape) for name, value in kept(tmp_path / "run").state.items()}
    size = sum(parameter.numel() for parameter in small_net().parameters())
    parameters = {name: tuple(value.shape) for name, value in small_net().named_parameters()}
    expected = {f"model.{name}": shape for name, shape in parameters.items()}
    expected |= {f"optimiser.{number}.momentum_buffer": shape for number, shape in enumerate(parameters.values())}
    expected |= {"average.value": (size,), "average.steps": ()}
    assert {name: shape for name, shape in sizes.items() if not name.startswith("method.")} == expected
    learned = {name: shape for name, shape in sizes.items() if name.startswith("method.")}
    assert learned
    assert set(learned.values()) <= {(size,), (2,), ()}
    records = small_digits().train
    assert isinstance(records, TensorRecords)
    assert size != len(records.inputs)


ODD: dict[str, Callable[[dict[str, Any]], object]] = {
    "a weight is missing": lambda facts: facts["state"].pop("model.1.bias"),
    "a tensor too many": lambda facts: facts["state"].update({"model.other": torch.zeros(3)}),
    "another shape": lambda facts: facts["state"].update({"model.1.bias": torch.zeros(3)}),
    "an odd owner": lambda facts: facts["state"].update({"optimiser.x.momentum_buffer": torch.zeros(3)}),
    "an average of another shape": lambda facts: facts["state"].update({"average.value": torch.zeros(3)}),
    "no average": lambda facts: facts["state"].pop("average.value"),
    "no importance": lambda facts: [facts["state"].pop(key) for key in [*facts["state"]] if key.startswith("method.")],
    "a step beyond the last": lambda facts: facts.update(step=STEPS + 1),
}


@pytest.mark.parametrize("what", ODD)
def test_a_checkpoint_that_does_not_fit_is_refused_in_words(what: str, tmp_path: Path) -> None:
    """Its digest is right, so somebody made it so: no error but ours, and what was charged stays charged."""
    method = make_method("adadpigu", SEVERAL_STAGES)
    live(method, tmp_path / "run", stop=5, ema=0.9)
    facts = vars(kept(tmp_path / "run")).copy()
    facts["state"] = dict(facts["state"])
    ODD[what](facts)
    for folder in saved(tmp_path / "run"):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    Checkpoints(tmp_path / "run").save(Checkpoint(**facts))
    with pytest.raises(InputError, match="checkpoint"):
        live(method, tmp_path / "run", ema=0.9)
    assert read_ledger(tmp_path / "run" / "ledger.log").steps == 5


@pytest.mark.slow
def test_adadpigu_without_options_goes_on_from_python(tmp_path: Path) -> None:
    """`train(resume=True)`, as the documentation has it."""
    from adadpigu import train

    options: dict[str, Any] = {
        "records": 240,
        "batch_size": 40,
        "steps": 12,
        "noise_multiplier": 1.5,
        "out": tmp_path / "run",
        "seed": 1,
    }
    records = small_digits().train
    assert isinstance(records, TensorRecords)
    data = (records.inputs, records.targets)
    train(small_net(), data, method=AdaDPIGU(importance_steps=2), observers=[After(5, terminate)], **options)
    run = train(small_net(), data, method=AdaDPIGU(importance_steps=2), resume=True, **options)
    assert (run.steps_done, run.privacy.steps_charged, len(run.privacy.sessions)) == (12, 12, 2)

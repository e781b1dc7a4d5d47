"""`adadpigu audit`: what it prints and writes, its exit codes, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from adadpigu.accounting.ledger_reading import LEDGER_FILE
from adadpigu.audit import AuditResult, white_box
from adadpigu.cli.app import run as command
from adadpigu.cli.audit_output import KINDS, claimed
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.training.own_loop import PrivateBatch
from conftest import Call

pytestmark = pytest.mark.usefixtures("coarse_cost")
SMALL = ("--noise-multiplier", "0.6", "--steps", "20", "--sample-rate", "0.05", "--method", "dpsgd")
"""σ is given: to calibrate takes longer than such an audit"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as `adadpigu train` leaves it."""
    out = tmp_path_factory.mktemp("audit") / "run"
    flags = ["--method", "dpsgd", "--steps", "20", "--batch-size", "64", "--seed", "1"]
    flags += ["--noise-multiplier", "0.6"]
    assert command(["train", *flags, "--out", str(out), "--json"]) == 0
    return out


@pytest.mark.slow
def test_an_audit_prints_its_keys_and_writes_json_and_a_figure(call: Any, tmp_path: Path) -> None:
    """So many show 0.93 of the claim, give or take 0.02; with 500, 4 of 13 tries showed less than 0.6."""
    code, out, _ = call("audit", "white-box", *SMALL, "--observations", "8000", "--json", "--out", "found")
    facts = json.loads(out)
    assert code == 0
    assert facts["passed"]
    assert facts["noise_multiplier"] == 0.6
    assert 0.6 * facts["epsilon_claimed"] < facts["epsilon_lower"]
    assert facts["observations"] >= 8000
    assert {"epsilon_lower", "confidence", "assumed", "findings", "delta"} <= facts.keys()
    assert json.loads((tmp_path / "found" / "white-box.json").read_text()) == facts
    assert (tmp_path / "found" / "white-box.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_refuted_claim_exits_1_and_says_so(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet(ReproducibleRandomness):
        def normal(self, count: int) -> torch.Tensor:
            return 0.3 * super().normal(count)

    monkeypatch.setattr(white_box, "choose_randomness", lambda *_: Quiet(0))
    code, out, _ = call("audit", "white-box", *SMALL, "--observations", "2000")
    assert code == 1
    assert "REFUTED" in out


@pytest.mark.slow
def test_an_audit_goes_through_a_loop_and_catches_a_fault_that_is_there_alone(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: after a step the weights move by something that was not released."""
    flags = ("audit", "white-box", *SMALL, "--observations", "500", "--through", "loop")
    code, out, _ = call(*flags, "--json")
    facts = json.loads(out)
    assert (code, facts["through"], facts["subject"]) == (0, "loop", "dpsgd on digits, through loop")
    genuine = PrivateBatch.settle

    def moved(self: PrivateBatch) -> None:
        genuine(self)
        with torch.no_grad():
            next(self._loop._prepared.model.parameters()).add_(0.01)

    monkeypatch.setattr(PrivateBatch, "settle", moved)
    code, out, _ = call(*flags)
    assert code == 1
    assert "weights or p.grad were not made by what was released" in " ".join(out.split())


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("white-box", "--through", "lop"), "unknown way to train (--through) 'lop'"),
        (("sampler", "--through", "processes"), "a process sees its own records alone; allowed in white-box, noise"),
        (("one-run", "--through", "loop"), "allowed in white-box, noise, replay, sampler, accountant"),
        (("--through", "loop"), "allowed in white-box, noise, replay"),
        (("noise", "--through", "opacus", "--method", "adadpigu"), "allowed there: dpsgd"),
        (("replay", "--through", "lightning"), "pip install 'adadpigu[lightning]'"),
    ],
)
def test_what_an_audit_cannot_go_through_is_refused_in_one_line(
    flags: tuple[str, ...], told: str, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    code, _, err = call("audit", *flags)
    assert code == 2
    assert told in err
    assert err.count("\n") == 1


def test_a_finished_run_is_audited_by_its_own_claim_and_noise(call: Any, finished: Path) -> None:
    code, out, _ = call("audit", "white-box", str(finished), "--observations", "500", "--json")
    facts, privacy = json.loads(out), json.loads((finished / "privacy.json").read_text())
    assert code == 0
    assert facts["epsilon_claimed"] == privacy["epsilon_pld"]
    assert facts["noise_multiplier"] == privacy["noise_multiplier"]
    assert facts["steps"] == 20
    assert (finished / "audits" / "white-box.json").is_file()


@pytest.mark.parametrize("epsilon", [3.99412, 0.0123449, 7.0001, 2.0, 1234.51])
def test_a_claim_is_never_told_below_what_it_is(epsilon: float) -> None:
    assert epsilon <= float(claimed(epsilon)) <= epsilon * 1.001
    assert claimed(float("inf")) == "∞"


@pytest.mark.slow
def test_an_audit_tells_the_claim_of_a_run_rounded_up(call: Any, finished: Path) -> None:
    code, out, _ = call("audit", "noise", str(finished), "--numbers", "10000")
    told = re.search(r"ε claimed +(\S+) at", out)
    assert code == 0
    assert told is not None
    assert float(told[1]) >= json.loads((finished / "privacy.json").read_text())["epsilon_pld"]


def tampered(finished: Path, tmp_path: Path, **changes: object) -> Path:
    """A copy of the run whose privacy.json says something else."""
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    claim = json.loads((copy / "privacy.json").read_text()) | changes
    claim = {key: value for key, value in claim.items() if value != "GONE"}
    (copy / "privacy.json").write_text(json.dumps(claim))
    return copy


@pytest.mark.slow
def test_a_claim_below_what_the_ledger_holds_is_refuted(call: Any, finished: Path, tmp_path: Path) -> None:
    run = tampered(finished, tmp_path, epsilon_pld=1.0)
    code, out, _ = call("audit", "white-box", str(run), "--observations", "100", "--json")
    assert code == 1
    assert "above the claim of 1" in json.loads(out)["findings"][0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_without_a_ledger_is_refused_by_every_audit(call: Any, finished: Path, tmp_path: Path, kind: str) -> None:
    run = tampered(finished, tmp_path)
    (run / LEDGER_FILE).unlink()
    assert_refused(call("audit", kind, str(run)), "has no ledger.log")


@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_without_delta_is_refused_by_every_audit(call: Any, finished: Path, tmp_path: Path, kind: str) -> None:
    assert_refused(call("audit", kind, str(tampered(finished, tmp_path, delta="GONE"))), "without a delta")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["white-box", *SMALL, "--observations", "20"], "observations=20 a world are too few"),
        (["one-run", *SMALL, "--guesses", "5"], "at least 20"),
        (["many-runs", *SMALL, "--runs", "2"], "runs=2"),
        (["white-bocks"], "unknown audit 'white-bocks'; did you mean 'white-box'"),
        (["white-box", "--method", "sgd"], "method='sgd' claims no privacy"),
        (["white-box", "--draws", "3"], "draws=3 does nothing in audit white-box; allowed in sampler"),
        (["white-box", "--full"], "--full with AUDIT='white-box'"),
        (["white-box", "--part", "1/2"], "part='1/2' with AUDIT='white-box'"),
        (["white-box", "--diagnostics"], "looks at no private record"),
        (["white-box", *SMALL, "--confidence", "1.5"], "confidence=1.5"),
        (["white-box", "--delta", "2"], "delta=2"),
        (["white-box", "--sample-rate", "1.5"], "sample_rate=1.5 is not in (0, 1]"),
        (["white-box", "--epsilon", "-1"], "epsilon=-1"),
        (["white-box", "--preset", "nope"], "unknown preset 'nope'"),
        (["white-box", "nowhere"], "run='nowhere' has no ledger.log"),
        (["--epsilon", "3"], "epsilon=3.0 with AUDIT=None"),
        (["--confidence", "0.9"], "confidence=0.9 with AUDIT=None"),
        (["white-box", "--trust-model-code"], "trust_model_code=True with RUN=None"),
        (["white-box", "--epsilon", "8", "--noise-multiplier", "1"], "give one of them, not both"),
        (["white-box", "--noise-multiplier", "1e-9"], "claims no finite epsilon"),
        (["one-run", "--canaries", "10000000000000"], "canaries=10000000000000 is more than"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(call: Any, arguments: list[str], message: str, tmp_path: Path) -> None:
    assert_refused(call("audit", *arguments), message)
    assert not (tmp_path / "audits").exists()


def test_flags_that_a_finished_run_would_ignore_are_refused(call: Any, finished: Path) -> None:
    assert_refused(call("audit", "noise", str(finished), "--epsilon", "3"), "epsilon=3.0 with RUN=")


def test_a_model_that_cannot_take_the_block_is_refused(call: Any, tmp_path: Path) -> None:
    """A public model that knows nothing of the block decides the mask."""
    from safetensors.torch import save_file

    from adadpigu.models import make_model

    body = make_model("digits-mlp", shape=(1, 8, 8), classes=10)
    save_file(dict(body.named_parameters()), str(tmp_path / "public.safetensors"))
    options = ["--set", "select=public-model", "--set", f"public_model={tmp_path / 'public.safetensors'}"]
    done = call("audit", "white-box", "--method", "parameter-freezing", "--observations", "100", *options)
    assert_refused(done, "dummy block")


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    """A table of somebody's records."""
    rows = "\n".join(f"{i % 7},{i % 5},{'yes' if i % 3 else 'no'}" for i in range(200))
    (tmp_path / "own.csv").write_text(f"a,b,label\n{rows}\n")
    (tmp_path / "own.toml").write_text(OWN)
    return ["--dataset", "own.csv", "--describe", "own.toml", "--noise-multiplier", "1", "--steps", "20"]


OWN = """\
records = 200
label = "label"
classes = ["no", "yes"]

[columns]
a = { range = [0, 6] }
b = { range = [0, 4] }
"""


@pytest.mark.slow
def test_own_records_are_stood_in_for(call: Any, own: list[str]) -> None:
    code, out, err = call("audit", "white-box", *own, "--sample-rate", "0.1", "--observations", "300", "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert "stand-in" in facts["subject"]
    assert not facts["diagnostics_exposed"]


@pytest.mark.parametrize("kind", ["one-run", "many-runs", "membership"])
def test_audits_that_look_at_own_records_need_diagnostics(call: Any, own: list[str], kind: str) -> None:
    assert_refused(call("audit", kind, *own), "--diagnostics")


def test_with_diagnostics_they_look_and_say_so(call: Any, own: list[str]) -> None:
    sizes = ["--canaries", "100", "--guesses", "20"]
    code, out, err = call("audit", "one-run", *own, "--sample-rate", "0.1", *sizes, "--diagnostics", "--json")
    assert code == 0, err
    assert json.loads(out)["diagnostics_exposed"]


def assert_refused(done: Call, message: str) -> None:
    code, out, err = done
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon_pld": float("nan")}, "privacy.json cannot be read"),
        ({"epsilon_pld": float("inf")}, "privacy.json cannot be read"),
        ({"epsilon_pld": 10**400}, "epsilon_pld is invalid"),
        ({"epsilon_pld": True}, "epsilon_pld is invalid"),
        ({"epsilon_pld": None}, "claims no privacy"),
        ({"private": False}, "claims no privacy"),
        ({"delta": "a lot"}, "delta is invalid"),
    ],
)
def test_a_claim_that_is_none_is_refused(
    call: Any, finished: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    assert_refused(call("audit", "white-box", str(tampered(finished, tmp_path, **changes))), message)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "not json"])
def test_a_privacy_json_that_cannot_be_read_is_refused(call: Any, finished: Path, tmp_path: Path, text: str) -> None:
    run = tampered(finished, tmp_path)
    (run / "privacy.json").write_text(text)
    assert_refused(call("audit", "white-box", str(run)), "privacy.json cannot be read")


@pytest.mark.slow
def test_a_config_that_was_edited_since_is_a_finding(call: Any, finished: Path, tmp_path: Path) -> None:
    run = tampered(finished, tmp_path)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace('clipping = "flat"', 'clipping = "automatic"'))
    code, out, _ = call("audit", "white-box", str(run), "--observations", "100", "--json")
    assert code == 1
    assert "config.toml is not the one that the run began with" in json.loads(out)["findings"]


@pytest.mark.slow
def test_a_run_whose_noise_can_be_repeated_is_refuted_whatever_it_claims(call: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = ["--method", "dpsgd", "--steps", "5", "--batch-size", "64", "--seed", "1", "--reproducible-noise"]
    flags += ["--noise-multiplier", "0.6"]
    assert call("train", *flags, "--out", str(out), "--json")[0] == 0
    claim = json.loads((out / "privacy.json").read_text()) | {"private": True}
    (out / "privacy.json").write_text(json.dumps(claim))
    code, printed, _ = call("audit", "white-box", str(out), "--observations", "100", "--json")
    assert code == 1
    assert "not secret" in json.loads(printed)["findings"][0]


@pytest.mark.slow
def test_a_run_of_another_model_than_its_config_names_is_refused(call: Any, tmp_path: Path) -> None:
    """One that was trained from Python: the audit would look at another model."""
    import adadpigu as ad
    from trials import SHORT, small_digits, small_net

    data = small_digits()
    ad.train(small_net(), data, method="dpsgd", noise_multiplier=2.0, out=tmp_path / "run", **SHORT)
    assert_refused(call("audit", "white-box", str(tmp_path / "run")), "trained was one of")


def test_an_audit_that_is_interrupted_is_none(call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from adadpigu.audit.canaries import Canaries

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Canaries, "before_draw", stop)
    code, out, _ = call("audit", "white-box", *SMALL, "--observations", "500", "--json", "--out", "found")
    assert (code, out) == (130, "")
    assert not (tmp_path / "found").exists()


class Listed(NamedTuple):
    """An audit of a list that takes no time."""

    subject: str
    audit: str = "noise"

    def result(self, progress: object) -> AuditResult:
        RAN.append(self.subject)
        shown = 9.0 if self.subject == "leaky" else 1.0
        return AuditResult(
            audit=self.audit,
            subject=self.subject,
            epsilon_claimed=8.0,
            delta=1e-5,
            epsilon_lower=shown,
            epsilon_certain=shown,
            confidence=0.95,
            observations=1,
            assumed=(),
        )


RAN: list[str] = []


def test_a_list_is_audited_in_parts_and_keeps_what_was_found(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [Listed("one"), Listed("two"), Listed("leaky"), Listed("four, small")]
    monkeypatch.setattr("adadpigu.audit.suite.entries", lambda *, full: iter(whole if full else whole[:2]))
    RAN.clear()
    code, out, _ = call("audit", "--full", "--part", "2/2", "--out", "all", "--json")
    assert (code, RAN) == (0, ["two", "four, small"])
    code, out, _ = call("audit", "--full", "--out", "all", "--json")
    assert (code, RAN[2:]) == (1, ["one", "leaky"])
    assert [found["subject"] for found in json.loads(out)["audits"]] == ["one", "two", "leaky", "four, small"]
    assert call("audit", "--full", "--part", "3/4", "--out", "all", "--json")[0] == 1  # kept, with its verdict
    assert len(RAN) == 4
    Path("all/one-noise.json").write_text("{")
    assert_refused(call("audit", "--full", "--out", "all"), "one-noise.json cannot be read")


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b", "1/"])
def test_a_part_that_is_none_is_refused(call: Any, part: str) -> None:
    assert_refused(call("audit", "--full", "--part", part), f"part={part!r} is not K/N")


@pytest.mark.slow
def test_links_in_a_strangers_folder_lead_nowhere(call: Any, finished: Path, tmp_path: Path) -> None:
    run, victim = tampered(finished, tmp_path), tmp_path / "victim"
    victim.write_text("mine")
    shutil.rmtree(run / "audits", ignore_errors=True)
    (run / "audits").mkdir()
    (run / "audits" / ".white-box.json.part").symlink_to(victim)
    assert call("audit", "white-box", str(run), "--observations", "100", "--json")[0] == 0
    assert victim.read_text() == "mine"
    assert (run / "audits" / "white-box.json").is_file()
    shutil.rmtree(run / "audits")
    (run / "audits").symlink_to(tmp_path)
    assert_refused(call("audit", "white-box", str(run)), "is a link")


@pytest.mark.slow
def test_a_second_audit_stands_beside_the_first(call: Any, tmp_path: Path) -> None:
    for _ in range(2):
        assert call("audit", "white-box", *SMALL, "--observations", "100", "--json", "--out", "found")[0] == 0
    assert {path.name for path in (tmp_path / "found").glob("*.json")} == {"white-box.json", "white-box-2.json"}


def test_an_audit_that_could_not_have_refuted_says_so(call: Any) -> None:
    code, out, _ = call("audit", "one-run", *SMALL, "--canaries", "100", "--guesses", "20")
    assert code == 0
    assert "too few to refute" in out
    assert "most that could be shown" in out

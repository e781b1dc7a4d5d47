"""However a run ends, its ledger's last record binds what it leaves; one that was cut off before says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adadpigu as ad
import run_folders
from adadpigu.accounting import Budget, Ledger
from adadpigu.accounting.journal import Journal, read_journal
from adadpigu.accounting.ledger_reading import LEDGER_FILE, OLDER, read_ledger
from adadpigu.accounting.shared import create_shared
from adadpigu.export import facts_of_run
from adadpigu.runs.run import MODEL, TEXTS, Facts, Metrics, Run, RunFolder
from adadpigu.runs.verifying import verify
from adadpigu.tensors import read_file, read_tensors, write_tensors
from run_folders import changed, rewritten


class Stopping:
    """Ends the process's work at a step."""

    def __init__(self, step: int, error: type[BaseException]) -> None:
        self.step, self.error = step, error

    def begin(self, facts: Facts) -> None: ...

    def update(self, metrics: Metrics) -> None:
        if metrics.step == self.step:
            raise self.error

    def end(self, run: Run) -> None: ...


class Killed(BaseException):
    pass


def killed(*_: object) -> None:
    raise Killed


def trained(out: Path, **options: Any) -> Run:
    torch.manual_seed(1)
    data = torch.randn(48, 4, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 3
    asked: dict[str, Any] = {"method": "dpsgd", "batch_size": 6, "steps": 8, "noise_multiplier": 1.0, **options}
    return ad.train(nn.Linear(4, 3), data, records=48, out=out, **asked)


@pytest.mark.slow
def test_every_end_of_a_resumed_run_binds_what_is_there(tmp_path: Path) -> None:
    out, shared = tmp_path / "run", tmp_path / "s.ledger"
    create_shared(shared, Budget(epsilon=60.0), dataset="own data", records=48)
    how: dict[str, Any] = {"checkpoint_every": 1, "spare_steps": 4, "ledger": shared}
    with pytest.raises(ZeroDivisionError):
        trained(out, observers=[Stopping(3, ZeroDivisionError)], **how)
    assert verify(out).bound
    assert MODEL not in (read_ledger(out / LEDGER_FILE).closing or {})
    run = trained(out, observers=[Stopping(5, KeyboardInterrupt)], resume=True, **how)
    assert verify(out).bound
    assert facts_of_run(out).privacy == run.privacy
    run = trained(out, resume=True, **how)
    assert facts_of_run(out).privacy == run.privacy
    assert (run.steps_done, len(run.privacy.sessions)) == (8, 3)


def test_a_model_in_the_folder_of_a_run_that_failed_is_not_the_runs(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        trained(tmp_path / "run", observers=[Stopping(3, ZeroDivisionError)])
    trained(tmp_path / "other")
    (tmp_path / "run" / MODEL).write_bytes((tmp_path / "other" / MODEL).read_bytes())
    found = verify(tmp_path / "run")
    assert (found.state, found.file) == ("differs", MODEL)
    assert "left none" in found.why


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Ledger, "write_closing"), (RunFolder, "write_privacy"), (RunFolder, "end"), (RunFolder, "rewind")],
)
def test_a_run_that_is_cut_off_before_it_closes_says_so_and_can_be_brought_to_its_end(
    owner: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, how = tmp_path / "run", {"checkpoint_every": 1, "spare_steps": 4}
    before = [Stopping(4, KeyboardInterrupt)] if name == "rewind" else []
    with monkeypatch.context() as patched:
        if before:
            trained(out, observers=before, **how)
        patched.setattr(owner, name, killed)
        with pytest.raises(Killed):
            trained(out, resume=bool(before), **how)
    found = verify(out)
    assert (found.state, found.file) == ("open", LEDGER_FILE)
    assert "--resume" in found.why
    with pytest.raises(ad.InputError, match="has no closing record"):
        facts_of_run(out)
    assert trained(out, resume=True, **how).steps_done == 8
    assert verify(out).bound
    with pytest.raises(ad.InputError, match="it is finished"):
        trained(out, resume=True, **how)


def test_a_folder_from_before_weights_were_bound_is_read_and_told(tmp_path: Path, call: Any) -> None:
    trained(tmp_path / "run")
    older(tmp_path / "run")
    assert verify(tmp_path / "run").state == "older"
    with pytest.raises(ad.InputError, match=r"before weights were bound to the ledger.*--unbound"):
        facts_of_run(tmp_path / "run")
    code, out, _ = call("ledger", "verify", str(tmp_path / "run"), "--json")
    assert (code, json.loads(out)["ok"], json.loads(out)["bound"]) == (0, True, False)
    code, out, _ = call("report", str(tmp_path / "run"), "--json")
    (line,) = json.loads(out)["left_out"]
    assert "before weights were bound" in line
    with pytest.raises(ad.InputError, match="it is finished"):
        trained(tmp_path / "run", resume=True)


def older(folder: Path) -> None:
    """As a version wrote it that did not close ledgers."""
    rewritten(folder, lambda header: header.update(ledger=OLDER), records=-1)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["card", "torch-export"])
def test_a_folder_from_before_is_exported_where_the_file_says_that_nothing_binds_it(
    form: str, tmp_path: Path, call: Any
) -> None:
    run, file = run_folders.trained(tmp_path / "run", "--method", "dpsgd"), tmp_path / "out.pt2"
    how = ("export", str(run), "--to", form, "--out", str(file), "--unbound")
    assert call(*how, "--json")[0] == 0
    assert b"NOT BOUND" not in file.read_bytes()
    file.unlink()
    older(run)
    code, out, err = call(*how)
    assert (code, "NOT BOUND" in out + err) == (0, True)
    assert b"NOT BOUND" in file.read_bytes()
    file.unlink()
    changed(run, "privacy.json", epsilon_pld=0.01)
    code, _, err = call(*how)
    assert (code, "costs epsilon" in err, file.exists()) == (2, True, False)


def test_weights_that_are_the_same_and_of_another_run_are_told_apart(tmp_path: Path) -> None:
    """Two runs may end with equal weights, as without noise; the model names its own."""
    trained(tmp_path / "run")
    path = tmp_path / "run" / MODEL
    tensors = read_tensors(path, "model")
    assert read_file(path, "model")[1] == {"run": read_ledger(tmp_path / "run" / LEDGER_FILE).header["facts"]["run"]}
    write_tensors(path, tensors, {"run": "0" * 32})
    assert "'00000000'" in verify(tmp_path / "run").why
    write_tensors(path, tensors)
    assert verify(tmp_path / "run").bound


@pytest.mark.parametrize("name", [*TEXTS, MODEL])
def test_a_closing_record_that_leaves_a_file_out_binds_nothing(name: str, tmp_path: Path) -> None:
    trained(tmp_path / "run")
    closing = read_journal(tmp_path / "run" / LEDGER_FILE).bodies[-1]["closing"]
    rewritten(tmp_path / "run", records=-1)
    journal = Journal(tmp_path / "run" / LEDGER_FILE, new=False)
    journal.append({"closing": {key: value for key, value in closing.items() if key != name}})
    journal.close()
    (tmp_path / "run" / name).unlink()
    found = verify(tmp_path / "run")
    assert (found.state, found.file) == ("differs", name)
    assert f"does not name {name}" in found.why

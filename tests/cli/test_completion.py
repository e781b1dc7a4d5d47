"""The Tab key: what a shell gets from the program once `--install-completion` has set it up."""

from __future__ import annotations

from pathlib import Path

import pytest

from adadpigu.cli.app import run


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("adadpigu tr", ["train"]),
        ("adadpigu train --epsi", ["--epsilon"]),
        ("adadpigu train --preset mnist-hf", ["mnist-hf-eps2", "mnist-hf-eps4"]),
        ("adadpigu train --method ada", ["adaclip", "adadpigu"]),
        ("adadpigu train --model digits-m", ["digits-mlp"]),
        ("adadpigu train --dataset di", ["digits"]),
    ],
)
def test_tab_completes_commands_flags_and_names(
    typed: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ADADPIGU_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    with pytest.raises(SystemExit):
        run([])
    assert capsys.readouterr().out.split() == offered


def test_completion_is_installed_for_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))  # whichever shell runs the tests
    with pytest.raises(SystemExit, match="0"):
        run(["--install-completion"])
    assert ".bash_completions/adadpigu.sh" in (tmp_path / ".bashrc").read_text()
    assert "_ADADPIGU_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "adadpigu.sh").read_text()

"""One record unlike all others, and every place where a run could let it slip: files, output, logs and errors."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.methods import make_method
from method_cases import OWN

CANARY, TARGET, AT = 1234567.875, 7654321.125, 3
OPTIONS: dict[str, dict[str, object]] = {"adadpigu": {"importance_steps": 2}, "dpsur": {"test_batch_size": 12}}


def records() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(24, 4, generator=chance), torch.randn(24, 1, generator=chance)
    inputs[AT], targets[AT] = CANARY, TARGET
    return inputs, targets


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def trained(method: str, out: Path, model: nn.Module | None = None, **options: Any) -> ad.Run:
    """Noise and draws are fixed, so that two runs see the same records."""
    chosen = make_method(method, OPTIONS.get(method, {}))
    if chosen.private:
        options["noise_multiplier"] = 1.0
    return ad.train(
        model or net(),
        records(),
        records=24,
        method=chosen,
        loss=F.mse_loss,
        out=out,
        batch_size=18,
        steps=6,
        lr=0.01,
        randomness=ReproducibleRandomness(5),
        **options,
    )


def told(content: bytes, secret: float) -> bool:
    """Whether bytes hold a number, in any usual way of writing it, as text or as a float."""
    ways = {
        repr(secret),
        str(int(secret)),
        *(f"{secret:{form}}" for form in (".0f", ",.0f", ".1f", ".2f", ".4f", "g", ".4e")),
    }
    text = content.decode("latin-1")
    if any(re.search(rf"(?<![0-9A-Za-z.]){re.escape(way)}(?![0-9A-Za-z])", text) for way in ways):
        return True
    digits = re.sub(r"\D", "", repr(secret))[:10]
    return digits in text.replace(".", "") or any(struct.pack(kind, secret) in content for kind in ("<f", "<d"))


def tellers(folder: Path, secrets: list[float]) -> set[str]:
    """The files of a folder that hold one of the numbers, in their names or inside."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    return {
        path.name for path in files if any(told(path.name.encode() + path.read_bytes(), secret) for secret in secrets)
    }


def norm_at_start() -> float:
    model, (x, y) = net(), records()
    F.mse_loss(model(x[AT : AT + 1]), y[AT : AT + 1]).backward()  # type: ignore[no-untyped-call]
    return float(torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None]).norm())


@pytest.fixture
def said(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> Callable[[], bytes]:
    """All that was printed, logged (at any level) or warned of so far."""
    caplog.set_level(logging.DEBUG)

    def gathered() -> bytes:
        out, err = capfd.readouterr()
        return "\n".join([out, err, caplog.text, *(str(warning.message) for warning in recwarn)]).encode()

    return gathered


@pytest.mark.parametrize("form", ["x=1234567.875,", "[1.23457e+06]", "1,234,568 of", "1234567", "12345678.75e-1"])
def test_the_search_finds_a_number_however_it_is_written(form: str) -> None:
    assert told(form.encode(), CANARY)
    assert told(b"..." + np.float32(CANARY).tobytes(), CANARY)
    assert not told(b"1234 567875 and ab1234567f", CANARY)


@pytest.mark.slow
@pytest.mark.parametrize("method", OWN)
def test_a_run_tells_a_record_and_its_gradient_to_diagnostics_alone(
    method: str, tmp_path: Path, said: Callable[[], bytes]
) -> None:
    """The second run sees the same records as the first, whose diagnostics say what there was to be told."""
    quiet = trained(method, tmp_path / "quiet")
    printed = said()
    trained(method, tmp_path / "loud", diagnostics=True)
    rows = [json.loads(line) for line in (tmp_path / "loud" / "diagnostics.jsonl").read_text().splitlines()]
    seen = [row[key] for row in rows for key in ("norm_max", "loss_mean") if row[key] > 1e5]
    assert any(abs(value / norm_at_start() - 1) < 1e-5 for value in seen), "the record was never drawn"
    secrets = [CANARY, TARGET, norm_at_start(), *seen]
    assert tellers(tmp_path / "quiet", secrets) == set()
    assert tellers(tmp_path / "loud", secrets) == {"diagnostics.jsonl"}
    spoken = [
        printed,
        said(),
        repr(quiet.summary()).encode(),
        repr(quiet.metrics).encode(),
        repr(quiet.privacy).encode(),
    ]
    assert not any(told(words, secret) for words in spoken for secret in secrets)


class Quoting(nn.Module):
    """Fails over the record and quotes it."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().max()) > 1e6:
            raise self.error(f"{x.detach().max().item()} is odd") from RuntimeError(f"because of {CANARY}")
        made: Tensor = self.layer(x)
        return made


@pytest.mark.parametrize("method", OWN)
@pytest.mark.parametrize("error", [ValueError, MemoryError, ad.InputError])
def test_an_error_that_quotes_a_record_is_withheld_everywhere(
    method: str, error: type[Exception], tmp_path: Path, said: Callable[[], bytes]
) -> None:
    with pytest.raises(ad.ModelError, match="withheld") as caught:
        trained(method, tmp_path / "run", Quoting(error))
    whole = "".join(traceback.format_exception(caught.value)).encode()
    assert not any(told(words, CANARY) for words in (whole, repr(caught.value.args).encode(), said()))
    assert tellers(tmp_path / "run", [CANARY, TARGET]) == set()


class Unreadable(Dataset[Any]):
    """Quotes a record that cannot be read."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, place: int) -> Any:
        inputs, targets = records()
        if float(inputs[place].max()) > 1e6:
            raise LookupError(f"{inputs[place].max().item()} is odd")
        return inputs[place], targets[place]


class QuotingFront(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if float(x.max()) > 1e6:
            raise LookupError(f"{x.max().item()} is odd")
        return x


@pytest.mark.parametrize("by", ["data set", "front"])
def test_an_error_over_a_record_is_withheld_while_a_run_is_prepared(by: str, said: Callable[[], bytes]) -> None:
    """Records are read, and features computed, before the first draw."""
    data: Any = Unreadable() if by == "data set" else records()
    front = QuotingFront() if by == "front" else None
    common: dict[str, Any] = {"records": 24, "loss": F.mse_loss, "batch_size": 8, "steps": 1, "method": "dpsgd"}
    with pytest.raises(LookupError, match=rf"^LookupError at {__file__}:\d+: an error amid private") as caught:
        ad.train(nn.Linear(4, 1), data, front=front, **common)
    assert (caught.value.__context__, caught.value.__cause__) == (None, None)
    whole = "".join(traceback.format_exception(caught.value)).encode()
    assert not any(told(words, CANARY) for words in (whole, said()))
    with pytest.raises(LookupError, match="is odd"):
        ad.train(nn.Linear(4, 1), data, front=front, diagnostics=True, **common)


@pytest.mark.parametrize("code", [f"{CANARY} is odd", 3])
def test_an_exit_amid_a_draw_exits_without_quoting_a_record(code: Any, said: Callable[[], bytes]) -> None:
    class Exiting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if bool((x == CANARY).any()):
                sys.exit(code)
            return super().forward(x)

    with pytest.raises(SystemExit) as caught:
        ad.train(Exiting(4, 1), records(), records=24, loss=F.mse_loss, batch_size=24, steps=1, method="dpsgd")
    assert caught.value.code == 3 if code == 3 else "its message is withheld" in str(caught.value.code)
    assert not told(repr(caught.value).encode() + said(), CANARY)


def test_diagnostics_let_the_error_through(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{CANARY} is odd"):
        trained("dpsgd", tmp_path / "run", Quoting(ValueError), diagnostics=True)


@pytest.mark.slow
def test_the_command_line_tells_nothing_either(tmp_path: Path, said: Callable[[], bytes]) -> None:
    """With its table, its progress and its figures."""
    from adadpigu.cli.app import run

    inputs, _ = records()
    np.savez(tmp_path / "own.npz", x=inputs.numpy(), y=np.arange(24) % 2)
    own = ["--dataset", str(tmp_path / "own.npz"), "--records", "24", "--classes", "2", "--model", "mlp"]
    short = ["--set", "importance_steps=2", "--steps", "6", "--batch-size", "18", "--out", str(tmp_path / "run")]
    assert run(["train", *own, *short]) == 0
    assert list((tmp_path / "run" / "figures").iterdir())
    assert tellers(tmp_path / "run", [CANARY]) == set()
    assert not told(said(), CANARY)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("no_umask")
def test_a_run_folder_is_private_from_its_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not made open and closed later: here nothing can change a mode after a folder is made."""
    monkeypatch.setattr(Path, "chmod", lambda *_, **__: None)
    trained("dpsgd", tmp_path / "runs" / "one")
    assert mode(tmp_path / "runs" / "one") == 0o700
    assert mode(tmp_path / "runs" / "one" / "model.safetensors") == 0o600
    assert mode(tmp_path / "runs") == 0o777


@pytest.mark.usefixtures("no_umask")
def test_an_empty_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert mode(tmp_path / "run") == 0o777
    trained("dpsgd", tmp_path / "run")
    assert mode(tmp_path / "run") == 0o700

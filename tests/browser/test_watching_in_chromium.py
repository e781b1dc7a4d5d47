"""A page that is served changes while its run trains, keeps what the reader has opened, and says when it is over."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium
from looked_at import browser, needs_browser, runs

from adadpigu.accounting.journal import Journal, head_path, read_journal
from adadpigu.report.serving import LiveCollection, ReportServer

pytestmark = needs_browser
__all__ = ["browser", "runs"]  # fixtures

ROW = "document.querySelector('#table tbody tr')"
STEPS = "document.querySelector('#table tbody tr td:nth-child(9)').textContent"


@pytest.fixture
def training(runs: Path, tmp_path: Path) -> Path:
    """A run as it is amid its training: metrics and a ledger, and no end."""
    folder = Path(shutil.copytree(runs / "mask", tmp_path / "run"))
    for name in ("summary.json", "privacy.json", "statement.txt", "model.safetensors"):
        (folder / name).unlink()
    come_to(folder, runs / "mask", 5)
    return folder


def come_to(folder: Path, whole: Path, step: int) -> None:
    """Metrics and ledger of a whole run as they were after so many of its steps, one record each."""
    lines = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:step]))
    ledger = folder / "ledger.log"
    for old in (ledger, head_path(ledger)):
        old.unlink()
    journal = Journal(ledger, new=True)
    for body in read_journal(whole / "ledger.log").bodies[: 1 + step]:
        journal.append(body)
    journal.close()


@pytest.fixture
def server(training: Path) -> Iterator[ReportServer]:
    with ReportServer(LiveCollection([training])) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_page_follows_its_run_to_the_end_and_keeps_what_was_opened(
    browser: Chromium, server: ReportServer, training: Path, runs: Path
) -> None:
    browser.complaints()
    browser.requests()
    browser.open(server.url)
    assert browser.get(STEPS) == "5 of 12"
    assert "Nothing is claimed yet" in browser.get("document.getElementById('details-body').textContent")
    browser.click("[data-chart='mask'] summary")
    browser.type("#filter", "digits")
    assert "so far" in browser.get(f"{ROW}.children[3].textContent")
    come_to(training, runs / "mask", 9)
    browser.until(f"{STEPS} === '9 of 12'")
    assert browser.get("document.querySelector('[data-chart=\"mask\"] details').open") is True
    assert browser.get("document.activeElement.id") == "filter"
    assert browser.get("document.getElementById('filter').value") == "digits"
    shutil.copytree(runs / "mask", training, dirs_exist_ok=True)
    browser.until(f"{STEPS} === '12'")
    summary = json.loads((runs / "mask" / "summary.json").read_text())
    body = browser.until("document.querySelector('.statement')?.textContent")
    assert f"delta = {summary['delta']:g}" in body
    assert browser.complaints() == []
    assert all(url.startswith(server.url) for url in browser.requests())


def test_a_page_opened_before_the_first_run_fills_by_itself(browser: Chromium, runs: Path, tmp_path: Path) -> None:
    with ReportServer(LiveCollection([tmp_path / "later"])) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        browser.complaints()
        browser.open(made.url)
        assert browser.get("document.getElementById('count').textContent").startswith("No run yet")
        shutil.copytree(runs / "mask", tmp_path / "later" / "mask")
        browser.until(f"{ROW}?.querySelector('th').textContent === 'mask'")
        browser.until("document.querySelectorAll('#compare-charts canvas').length === 2")
        assert browser.complaints() == []
        made.shutdown()
        thread.join()


def test_a_page_says_when_its_server_has_ended(browser: Chromium, training: Path) -> None:
    with ReportServer(LiveCollection([training])) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        browser.open(made.url)
        browser.until("document.documentElement.dataset.followed === 'yes'")
        made.shutdown()
        thread.join()
    browser.until("document.getElementById('written').textContent.startsWith('The server has ended')")
    assert browser.get("document.querySelectorAll('#table tbody tr').length") == 1

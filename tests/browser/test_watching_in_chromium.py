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

from adadpigu.report.watching import ReportServer, Watched

pytestmark = needs_browser
__all__ = ["browser", "runs"]  # fixtures

STEPS = "document.querySelector('#table tbody tr td:nth-child(9)').textContent"


@pytest.fixture
def training(runs: Path, tmp_path: Path) -> Path:
    """A run as it is amid its training: metrics and a ledger, and no end."""
    folder = Path(shutil.copytree(runs / "mask", tmp_path / "run"))
    for name in ("summary.json", "privacy.json", "statement.txt", "model.safetensors"):
        (folder / name).unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:5]))
    return folder


@pytest.fixture
def server(training: Path) -> Iterator[ReportServer]:
    with ReportServer(Watched([training])) as made:
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
    lines = (runs / "mask" / "metrics.jsonl").read_text().splitlines(keepends=True)
    with (training / "metrics.jsonl").open("a") as file:
        file.write("".join(lines[5:9]))
    browser.until(f"{STEPS} === '9 of 12'")
    assert browser.get("document.querySelector('[data-chart=\"mask\"] details').open") is True
    assert browser.get("document.activeElement.id") == "filter"
    assert browser.get("document.getElementById('filter').value") == "digits"
    for name in ("metrics.jsonl", "privacy.json", "summary.json"):
        shutil.copy(runs / "mask" / name, training / name)
    browser.until(f"{STEPS} === '12'")
    summary = json.loads((runs / "mask" / "summary.json").read_text())
    body = browser.until("document.querySelector('.statement')?.textContent")
    assert f"delta = {summary['delta']:g}" in body
    assert browser.complaints() == []
    assert all(url.startswith(server.url) for url in browser.requests())


def test_a_page_says_when_its_server_has_ended(browser: Chromium, training: Path) -> None:
    with ReportServer(Watched([training])) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        browser.open(made.url)
        browser.until("document.documentElement.dataset.followed === 'yes'")
        made.shutdown()
        thread.join()
    browser.until("document.getElementById('written').textContent.startsWith('The server has ended')")
    assert browser.get("document.querySelectorAll('#table tbody tr').length") == 1

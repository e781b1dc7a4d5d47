"""Whatever a stranger wrote into a run folder or into results is shown as it is, and never run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from chromium import Chromium
from looked_at import browser, needs_browser, runs

from adadpigu.report.collecting import collect
from adadpigu.report.page import write_page
from run_folders import changed

pytestmark = needs_browser
__all__ = ["browser", "runs"]  # fixtures

IMAGE = "<img src=x onerror=window.taken=1>"
SCRIPT = "</script><script>window.taken=2</script><!--"
LINK = "javascript:window.taken=3"
QUOTE = "\"' onfocus=window.taken=4 autofocus x='"
WORDS = (IMAGE, SCRIPT, LINK, QUOTE)


@pytest.fixture
def hostile(runs: Path, tmp_path: Path) -> Path:
    """A folder with a run and a row of results whose every word is an attack."""
    run = Path(shutil.copytree(runs / "mask", tmp_path / IMAGE.replace("/", "")))
    changed(run, "summary.json", method=SCRIPT, dataset=QUOTE, execution=IMAGE)
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(f'model = "{SCRIPT}"\n# {IMAGE}\nlr = "{LINK}"\ndataset = "x"\n[kept]\n{config}')
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"stage": f"{IMAGE}{line['step'] > 6}", "mask": dict.fromkeys([*WORDS, "__proto__"], 0.5)}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "audits").mkdir()
    audit = {
        **{"audit": IMAGE, "subject": SCRIPT, "epsilon_claimed": 1, "epsilon_lower": 0.5, "epsilon_lower_certain": 0.1},
        **{"delta": 1e-5, "confidence": 0.95, "observations": 9, "passed": True, "assumed": [QUOTE]},
    }
    (run / "audits" / f"{IMAGE}.json").write_text(json.dumps(audit))
    (run / "audits" / "broken.json").write_text(json.dumps({**audit, "findings": SCRIPT}))
    row = {"name": SCRIPT, "method": IMAGE, "dataset": LINK, "accuracy": 0.5, "epsilon": 1.0, "score": QUOTE}
    other = {IMAGE: SCRIPT, SCRIPT: [IMAGE], "__proto__": LINK}
    (tmp_path / f"{IMAGE}.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(other) + "\n" + SCRIPT + "\n")
    return tmp_path


def test_hostile_words_are_shown_and_not_executed(browser: Chromium, hostile: Path, tmp_path: Path) -> None:
    found = collect([hostile, hostile / f"{IMAGE}.jsonl"])
    assert (len(found.runs), len(found.tables)) == (2, 1)
    out = tmp_path / "page.html"
    write_page(found, out)
    browser.complaints()
    browser.requests()
    browser.open(out.as_uri())
    for place in (1, 2):
        browser.click(f"#table tbody tr:nth-child({place}) th button")
        browser.get("document.querySelectorAll('details').forEach(part => { part.open = true; })")
        browser.until("[...document.querySelectorAll('details')].every(part => part.childElementCount > 1)")
        text = browser.get("document.body.innerText")
        assert all(words in text for words in WORDS), place
    assert browser.get("window.taken === undefined")
    assert browser.get("document.scripts.length") == 3
    assert browser.get("document.querySelectorAll('img, iframe, object, [onerror], [onfocus]').length") == 0
    assert browser.get("[...document.links].map(link => link.getAttribute('href'))") == ["#runs"]
    assert browser.complaints() == []
    assert browser.requests() == [out.as_uri()]


def test_hostile_words_do_not_filter_or_sort_the_page_to_pieces(
    browser: Chromium, hostile: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    write_page(collect([hostile]), out)
    browser.open(out.as_uri())
    for key in browser.get("COLUMNS.map(column => column.key)"):
        browser.click(f"[data-key='sort {key}']")
    browser.type("#filter", "<script>window")
    assert browser.get("document.querySelectorAll('#table tbody tr').length") >= 1
    assert browser.get("window.taken === undefined")
    assert browser.complaints() == []

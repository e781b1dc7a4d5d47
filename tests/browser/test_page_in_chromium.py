"""The report in a real browser: it draws, sorts, filters, hovers, changes its theme, and says nothing to anybody."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium
from looked_at import browser, needs_browser, runs

from adadpigu.accounting.wording import percent
from adadpigu.report.collecting import collect
from adadpigu.report.page import write_page

pytestmark = needs_browser
__all__ = ["browser", "runs"]  # fixtures

ROWS = "[...document.querySelectorAll('#table tbody tr')]"
NAMES = f"{ROWS}.map(row => row.querySelector('th').textContent)"


@pytest.fixture(scope="module")
def file(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    write_page(collect([runs]), out)
    return out


@pytest.fixture
def page(browser: Chromium, file: Path) -> Chromium:
    """The page, opened anew and wide."""
    browser.resize(1280, 900)
    browser.complaints()
    browser.requests()
    browser.open(file.as_uri())
    return browser


def column(page: Chromium, number: int) -> list[str]:
    return list(page.get(f"{ROWS}.map(row => row.children[{number}].textContent)"))


def open_run(page: Chromium, name: str) -> None:
    place = page.get(NAMES).index(name) + 1
    page.click(f"#table tbody tr:nth-child({place}) th button")
    assert page.get("document.getElementById('details-title').textContent") == name


def test_it_loads_from_disk_without_a_complaint_or_a_request(page: Chromium, file: Path) -> None:
    assert page.get(NAMES) == ["crashed", "mask", "open-book", "plain"]
    assert page.get("document.querySelectorAll('#compare-charts .uplot canvas').length") == 2
    assert page.complaints() == []
    assert page.requests() == [file.as_uri()]


def test_the_browser_would_refuse_a_request_to_anywhere(page: Chromium) -> None:
    tried = page.until(
        "(window.tried ??= (fetch('https://example.org/').then(() => 'sent', error => { window.how = error.name; })), "
        "window.how)"
    )
    assert tried == "TypeError"
    assert any("Content Security Policy" in line for line in page.complaints())
    assert not [url for url in page.requests() if url.startswith("http")]


def test_text_cannot_become_markup_even_where_a_script_tries(page: Chromium) -> None:
    script = "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'done'; } catch (e) { return e.name; } })()"
    assert page.get(script) == "TypeError"


def test_a_heading_sorts_by_its_column_both_ways_and_says_so(page: Chromium) -> None:
    page.click("[data-key='sort accuracy']")
    down = [float(text.split()[0]) for text in column(page, 2)]
    assert down == sorted(down, reverse=True)
    sorted_by = "document.querySelector('[data-key=\"sort accuracy\"]').closest('th').getAttribute('aria-sort')"
    assert page.get(sorted_by) == "descending"
    page.click("[data-key='sort accuracy']")
    assert [float(text.split()[0]) for text in column(page, 2)] == sorted(down)
    assert page.get(sorted_by) == "ascending"
    assert page.get("document.querySelectorAll('th[aria-sort=\"none\"]').length") == 9


def test_no_guarantee_sorts_as_the_largest_epsilon(page: Chromium) -> None:
    page.click("[data-key='sort epsilon']")
    assert page.get(NAMES)[0] == "open-book"
    assert column(page, 3)[0] == "∞"


def test_a_filter_keeps_the_rows_that_have_all_its_words(page: Chromium) -> None:
    page.type("#filter", "DPSGD dig")
    assert page.get(NAMES) == ["plain"]
    assert page.get("document.getElementById('count').textContent") == "1 of 4 shown"
    page.type("#filter", "x")
    assert page.get(NAMES) == []


def test_hovering_shows_the_values_of_the_step_under_the_mouse(page: Chromium, runs: Path) -> None:
    figure = "document.querySelector('[data-chart=\"accuracy\"]')"
    assert page.get(f"{figure}.querySelector('output').textContent") == "step 12"
    page.hover("[data-chart='accuracy'] .u-over", 0)
    words = page.until(f"(t => t !== 'step 12' && t)({figure}.querySelector('output').textContent)")
    step = int(words.removeprefix("step "))
    assert 4 <= step <= 8  # the middle of a chart from 0 to 12
    shown = page.get(
        f"[...{figure}.querySelectorAll('.values li')].map(e => [...e.children].slice(1).map(c => c.textContent))"
    )
    for name, text in shown:
        stored = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
        value = {line["step"]: line["test_accuracy"] for line in stored}[step]
        assert float(text.split()[0]) == pytest.approx(100 * value, abs=0.006)


def test_beyond_its_last_point_a_line_tells_the_step_of_the_value_that_is_shown(
    page: Chromium, runs: Path, tmp_path: Path
) -> None:
    for name in ("mask", "plain"):
        shutil.copytree(runs / name, tmp_path / name)
    lines = (tmp_path / "mask" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "mask" / "metrics.jsonl").write_text("".join(lines[:6]))
    write_page(collect([tmp_path]), tmp_path / "page.html")
    page.open((tmp_path / "page.html").as_uri())
    values = "[...document.querySelectorAll('[data-chart=\"accuracy\"] .values .value')].map(e => e.textContent)"
    short, whole = page.get(values)
    assert short == f"{100 * json.loads(lines[5])['test_accuracy']:.2f} % (step 6)"
    assert whole.endswith(" %")
    page.get("pointTo('accuracy', 2)")
    assert all(text.endswith(" %") for text in page.get(values))


def test_a_claim_that_its_ledger_does_not_bear_out_is_seen_in_the_row_and_above_all(
    page: Chromium, runs: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(runs / "mask", tmp_path / "edited")
    shutil.copy(runs / "crashed" / "privacy.json", folder)
    write_page(collect([folder]), tmp_path / "page.html")
    page.open((tmp_path / "page.html").as_uri())
    assert column(page, 3) == ["—"]
    assert column(page, 11) == ["claim not trusted"]
    assert "edited: claim not trusted" in page.get("document.getElementById('cautions').textContent")


def test_cautions_are_there_even_where_drawing_the_rest_fails(page: Chromium) -> None:
    page.get("byId('cautions').replaceChildren()")
    page.get("(() => { try { looked.sort = null; drawAll(); } catch { return 'failed'; } })()")
    assert "open-book: NOT PRIVATE" in page.get("document.getElementById('cautions').textContent")


def test_a_list_longer_than_a_call_has_room_for_is_drawn(page: Chromium) -> None:
    assert page.get("el('ul', {}, Array.from({ length: 300000 }, () => 'x')).childNodes.length") == 300_000
    assert (
        page.get("plainTable('t', ['a'], Array.from({ length: 150000 }, () => ['x'])).querySelectorAll('tr').length")
        == 150_001
    )


def test_epsilon_and_delta_are_never_rounded_down(page: Chromium) -> None:
    shown = page.get("[1.00001e-5, 1e-5, 3.99412, 4, 0, null].map(roundedUp)")
    assert shown == ["1.001e−5", "1e−5", "3.995", "4", "0", "—"]


def test_a_box_takes_a_run_out_of_the_comparison_and_puts_it_back(page: Chromium) -> None:
    lines = "document.querySelectorAll('[data-chart=\"accuracy\"] .values li').length"
    assert page.get(lines) == 4
    page.click("#table tbody tr:nth-child(2) input")
    assert page.get(lines) == 3
    page.click("#plot-none")
    assert page.get("document.getElementById('compare-charts').childElementCount") == 0
    assert page.get("document.getElementById('compare-note').textContent") == "No run is ticked in the table."
    page.click("#plot-shown")
    assert page.get(lines) == 4


def test_the_theme_follows_the_system_until_it_is_switched(page: Chromium) -> None:
    colour = "getComputedStyle(document.documentElement).backgroundColor"
    axis = "charts.get('accuracy').drawn.axes[0].stroke()"
    seen = {}
    for scheme in ("light", "dark"):
        page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.until(f"{axis} === css('--soft')")  # charts are drawn anew at the browser's next frame
        seen[scheme] = page.get(f"[{colour}, {axis}]")
    assert seen["light"] != seen["dark"]
    for words, scheme in (("Theme: light", "light"), ("Theme: dark", "dark"), ("Theme: system", "dark")):
        page.click("#theme")
        assert page.get("document.getElementById('theme').textContent") == words
        assert page.get(f"[{colour}, {axis}]") == seen[scheme]
    page.devtools("Emulation.setEmulatedMedia", features=[])
    assert page.complaints() == []


def test_a_crash_and_a_resume_are_seen_on_the_timeline(page: Chromium) -> None:
    open_run(page, "crashed")
    body = page.get("document.getElementById('details-body').textContent")
    assert "15 steps were charged, 12 were planned, and 8 spare to repeat lost ones" in body
    assert "ended without notice (a crash, a kill or a power cut)" in body
    assert page.get("charts.get('ledger').data.map(line => line.filter(v => v != null))") == [
        [0, 8, 15],
        [0, 8],
        [5, 12],
    ]


def test_the_statement_and_the_cautions_stand_with_the_run(page: Chromium, runs: Path) -> None:
    body = "document.getElementById('details-body')"
    for name, caution in (("plain", "Diagnostics were on"), ("open-book", "NOT PRIVATE: the noise was reproducible")):
        open_run(page, name)
        assert caution in page.get(f"{body}.querySelector('.caution').textContent")
        first = (runs / name / "statement.txt").read_text().splitlines()[0]
        assert page.get(f"{body}.querySelector('.statement p').textContent") == first
        listed = page.get("document.getElementById('cautions').textContent")
        assert name in listed


def test_what_guesses_gain_stands_with_a_private_run_alone(page: Chromium, runs: Path) -> None:
    open_run(page, "mask")
    told = page.get("document.querySelector('[data-figure=guesses] tbody').textContent")
    right = json.loads((runs / "mask" / "privacy.json").read_text())["best_accuracy"]["0.5"]
    assert percent(right) in told
    assert "50 %" in told
    open_run(page, "open-book")
    assert page.get("document.querySelector('[data-figure=guesses]') === null")


def test_every_chart_has_a_table_of_the_same_numbers(page: Chromium, runs: Path) -> None:
    open_run(page, "mask")
    page.click("[data-chart='mask'] summary")
    page.until("document.querySelector('[data-chart=\"mask\"] table')")
    cells = page.get(
        "[...document.querySelectorAll('[data-chart=\"mask\"] tbody tr')]"
        ".map(row => [...row.children].map(cell => cell.textContent))"
    )
    stored = [json.loads(line) for line in (runs / "mask" / "metrics.jsonl").read_text().splitlines()]
    expected = [[line["step"], *line["mask"].values(), line["active"]] for line in stored]
    assert len(cells) == len(expected)
    for row, (step, *shares) in zip(cells, expected, strict=True):
        assert int(row[0]) == step
        assert [float(text.split()[0]) for text in row[1:]] == pytest.approx([100 * s for s in shares], abs=0.006)


@pytest.mark.parametrize("width", [320, 360, 768])
def test_a_narrow_screen_has_no_sideways_scroll(page: Chromium, width: int) -> None:
    page.resize(width, 780, phone=True)
    page.until(f"[...document.querySelectorAll('.uplot')].every(plot => plot.clientWidth < {width})")
    for name in page.get(NAMES):
        open_run(page, name)
        assert page.get("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    beyond = page.get(
        f"[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .plot, .skip, pre') "
        f"&& e.getBoundingClientRect().right > {width} + 0.5).map(e => e.outerHTML.slice(0, 80))"
    )
    assert beyond == []


def test_everything_can_be_reached_and_used_by_keyboard(page: Chromium) -> None:
    wanted = set(
        page.get(
            "[...document.querySelectorAll('[data-key]')].filter(e => !e.disabled && e.checkVisibility())"
            ".map(e => e.dataset.key)"
        )
    )
    seen, hidden = set(), []
    for _ in range(3 * len(wanted)):
        page.press("Tab")
        key, outlined = page.get(
            "[document.activeElement.dataset.key ?? '', getComputedStyle(document.activeElement).outlineStyle]"
        )
        seen.add(key)
        hidden += [] if outlined != "none" else [key]
        if seen >= wanted:
            break
    assert seen >= wanted
    assert hidden == []


def test_a_sort_by_keyboard_keeps_the_focus(page: Chromium) -> None:
    page.get("document.querySelector('[data-key=\"sort steps\"]').focus()")
    page.press("Enter")
    assert page.get("document.activeElement.dataset.key") == "sort steps"
    assert page.get("document.activeElement.closest('th').getAttribute('aria-sort')") == "descending"


def test_arrow_keys_move_the_step_whose_values_are_told(page: Chromium) -> None:
    slider = "document.querySelector('[data-key=\"slider epsilon\"]')"
    page.get(f"{slider}.focus()")
    before = page.get(f"{slider}.getAttribute('aria-valuetext')")
    page.press("Left")
    after = page.get(f"{slider}.getAttribute('aria-valuetext')")
    assert before.startswith("step 12: ")
    assert after.startswith("step 11: ")


def accessible(page: Chromium) -> list[dict[str, Any]]:
    """What a screen reader is given, without what is ignored."""
    page.devtools("Accessibility.enable")
    return [node for node in page.devtools("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]


def test_a_screen_reader_is_given_landmarks_headings_and_a_name_for_each_control(page: Chromium) -> None:
    nodes = accessible(page)
    roles = [node["role"]["value"] for node in nodes]
    assert {"banner", "main", "contentinfo"} <= set(roles)
    named = {"button", "checkbox", "slider", "searchbox", "combobox", "table", "region", "figure", "link"}
    nameless = [n["role"]["value"] for n in nodes if n["role"]["value"] in named and not n.get("name", {}).get("value")]
    assert nameless == []
    levels = [
        prop["value"]["value"]
        for node in nodes
        if node["role"]["value"] == "heading"
        for prop in node["properties"]
        if prop["name"] == "level"
    ]
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))
    assert levels.count(1) == 1

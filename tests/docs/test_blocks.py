"""Every command and every block of code on the pages and in the README is run, or is told why not and checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from blocks import PAGES, Block, Command, blocks, commands, indented_blocks, inline_commands
from checking import check_command, check_mention, check_python, parse, placeholder_free
from readings import READINGS
from running import SHELL, Page, Reading, check_data, compare

WITH_CODE = [path for path in PAGES if any(block.language != "text" for block in blocks(path))]
by_name = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.stem)
def test_every_block_of_a_page_runs(
    path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("ADADPIGU_DATA", str(tmp_path / "cache"))
    Page(READINGS.get(path.stem, Reading()), tmp_path, capfd.readouterr).run(blocks(path))


def pieces(block: Block) -> list[str]:
    """What of a block is run by itself: each command, or the whole of it."""
    return [command.line for command in commands(block)] if block.language in SHELL else [block.text]


def test_few_blocks_are_not_run_and_each_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    ran, left = 0, []
    for path in WITH_CODE:
        reasons = READINGS.get(path.stem, Reading()).not_run
        for piece in (piece for block in blocks(path) if block.language != "text" for piece in pieces(block)):
            why = [reason for beginning, reason in reasons.items() if piece.startswith(beginning)]
            left += [f"{path.name}: {piece.splitlines()[0]}: {reason}" for reason in why[:1]]
            ran += not why
    with capsys.disabled():
        print(f"\n{ran} commands and blocks of the pages are run, {len(left)} are not:", *left, sep="\n  ")
    assert all(len(reason) > 10 for reading in READINGS.values() for reason in reading.not_run.values())
    assert len(left) < ran / 2


def test_readings_are_of_pages_with_code() -> None:
    assert READINGS.keys() <= {path.stem for path in WITH_CODE}


@by_name
def test_code_stands_in_fences(path: Path) -> None:
    assert indented_blocks(path) == []


@by_name
def test_text_blocks_hold_no_commands(path: Path) -> None:
    texts = [block for block in blocks(path) if block.language in ("text", "output")]
    assert [b.place for b in texts for line in b.text.splitlines() if line.startswith(("adadpigu ", "python "))] == []


@by_name
def test_commands_in_the_running_text_can_be_typed(path: Path) -> None:
    for line in inline_commands(path):
        check_mention(line)


@by_name
def test_nothing_is_left_to_be_filled_in(path: Path) -> None:
    assert placeholder_free(path) == []


def test_a_command_with_a_wrong_flag_name_file_or_extra_is_caught() -> None:
    wrong = ["adadpigu train --epsilom 3", "adadpigu trian", "adadpigu train --preset mnist-none", "make nothing"]
    wrong += ["python experiments/absent.py", "python experiments/tune.py --wrokers 2", "pip install 'adadpigu[nope]'"]
    for line in wrong:
        with pytest.raises(Exception, match=r"."):
            check_command(Command(line))
    for line in ["adadpigu train --epsilon 3 > log", "make train", "torchrun --nproc-per-node 2 -m adadpigu train"]:
        check_command(Command(line))
    with pytest.raises(AssertionError, match="has no nothing"):
        check_python("from adadpigu import nothing")
    parse(["ledger", "show", "RUN"])


def made(folder: Path, text: str) -> list[Block]:
    (folder / "page.md").write_text(text)
    return blocks(folder / "page.md")


@pytest.mark.parametrize(
    "text",
    [
        "```python\nassert False\n```\n",
        "```python\nprint(1)\n```\n\n```output\n2\n```\n",
        "```sh\nfalse\n```\n",
        "```console\n$ echo 12\n13\n```\n",
        "```toml\na = \n```\n",
        "```rust\nfn main() {}\n```\n",
        "```sh\nadadpigu calibrate --epsilon 3\n```\n",
    ],
)
def test_a_block_that_does_not_do_what_it_says_fails(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError, match=r"page\.md, line \d"):
        Page(Reading(), tmp_path, capfd.readouterr).run(made(tmp_path, text))


def test_blocks_of_a_page_share_names_and_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = '```toml title="a.toml"\nx = 10\n```\n\n```sh\ncat a.toml > b.toml\n```\n\n'
    text += "```python\nimport pathlib\n```\n\n```python\nprint(pathlib.Path('b.toml').read_text())\n```\n\n"
    text = text.replace("'b.toml'", f"'{tmp_path}/b.toml'")
    reading = Reading(smaller={"x = 10": "x = 3"})  # not a bare number: the folder has one in its name
    Page(reading, tmp_path, capfd.readouterr).run(made(tmp_path, text + "```output\nx = 3\n```\n"))


def test_an_instruction_that_meets_nothing_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reading = Reading(smaller={"epochs=30": "epochs=1"})
    with pytest.raises(AssertionError, match="epochs=30"):
        Page(reading, tmp_path, capfd.readouterr).run(made(tmp_path, "```python\n1\n```\n"))


def test_figures_are_compared_unless_they_are_noisy() -> None:
    compare("ε 3.9\n…\nend", "ε 3.9\nmore\nend", words_only=False)
    compare("ε 3.9", "ε 3.8", words_only=True)
    compare("ε = 3.9 of 4", "first\nε = 3.9\n  of 4\nlast", words_only=False)
    for words_only, actual in ((False, "ε 3.8"), (False, "ε 3.95"), (True, "δ 3.9")):
        with pytest.raises(AssertionError, match="not printed"):
            compare("ε 3.9", actual, words_only=words_only)
    with pytest.raises(AssertionError, match="nobody runs"):
        check_data(Block("page", 1, "rust", None, ""))

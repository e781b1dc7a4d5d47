"""The model card is one that Hugging Face reads, says what the statement says, and lets no name say anything else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.export import facts_of_run, write_card
from adadpigu.export.card import code_block, markdown_text, model_card, to_yaml
from adadpigu.export.subject import CardFacts
from adadpigu.extras import import_extra
from run_folders import rebound

yaml = import_extra("yaml", group="", purpose="")
EVIL = 'x\n---\nlicense: mit\n# owned\n| a | <script>alert(1)</script> ![p](http://e.vil/p) [l](javascript:1) `c` "q\\'
"""a data set's name that wants to be more"""


def trained(out: Path | None = None, **options: Any) -> ad.Run:
    torch.manual_seed(1)
    chance = torch.Generator().manual_seed(0)
    data = torch.randn(24, 4, generator=chance), torch.arange(24) % 3
    options = {"method": ad.DPSGD(), "noise_multiplier": 1.0, **options}
    test = torch.randn(9, 4, generator=chance), torch.arange(9) % 3
    return ad.train(nn.Linear(4, 3), data, records=24, test=test, batch_size=6, steps=3, out=out, **options)


def parsed(card: str) -> dict[str, Any]:
    matter: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return matter


@pytest.fixture(scope="module")
def facts() -> CardFacts:
    return replace(facts_of_run(trained()), shape=(4,), dataset="clinic")


def test_hugging_face_reads_licence_tags_metrics_and_result(facts: CardFacts) -> None:
    card = import_extra("huggingface_hub", group="", purpose="").ModelCard(model_card(facts, license="apache-2.0"))
    assert card.data.license == "apache-2.0"
    assert {"adadpigu", "differential-privacy", "dpsgd"} <= set(card.data.tags)
    assert card.data.datasets == ["clinic"]
    assert card.data.pipeline_tag == "tabular-classification"
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("accuracy", facts.accuracy, "clinic")
    assert result.verified is False
    assert card.text.lstrip().startswith("# dpsgd on clinic")


def test_the_statement_stands_in_the_card_word_for_word(facts: CardFacts) -> None:
    card = model_card(facts)
    block = card.split("## Privacy statement\n\n")[1].split("\n\n## ")[0]
    assert [line[4:] for line in block.splitlines()] == facts.privacy.statement().splitlines()
    matter = parsed(card)["privacy"]
    assert (matter["private"], matter["epsilon"], matter["delta"]) == (True, facts.privacy.epsilon_pld, 1e-5)
    assert "CAUTION" not in card


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "sgd", "noise_multiplier": None}, "**NOT PRIVATE.**"),
        ({"randomness": ReproducibleRandomness(1)}, "**NOT PRIVATE.**"),
        ({"diagnostics": True}, "**DIAGNOSTICS WERE EXPOSED.**"),
    ],
)
def test_what_has_no_guarantee_is_said_first(options: dict[str, Any], words: str) -> None:
    run = trained(**options)
    card = model_card(facts_of_run(run))
    first = card.split("---\n", 2)[2].strip().split("\n\n")[1]
    assert first.startswith(f"> [!CAUTION]\n> {words}")
    matter = parsed(card)
    assert matter["privacy"]["private"] is run.privacy.private
    if not run.privacy.private:
        assert matter["privacy"]["epsilon"] is None
        assert "not-private" in matter["tags"]
        assert "differential-privacy" not in matter["tags"]


def plain_lines(card: str) -> list[str]:
    """The lines of a card outside of its front matter and its blocks of code."""
    body = card.split("\n---\n", 1)[1]
    body = re.sub(r"```.*?```", "", body, flags=re.S)
    return [line for line in body.splitlines() if not line.startswith("    ")]


def test_a_name_that_wants_to_be_more_stays_a_name(facts: CardFacts) -> None:
    """The same keys, headings and table rows as with a harmless one; and the name is read back, in one line."""
    privacy = replace(facts.privacy, method=EVIL, not_covered=(EVIL,), warnings=(EVIL,))
    evil = replace(facts, dataset=EVIL, privacy=privacy, settings={"model": EVIL, EVIL: EVIL})
    calm = replace(facts, settings={"model": "m", "option": "o"}, privacy=replace(facts.privacy, warnings=("w",)))
    card, other = model_card(evil, name=EVIL), model_card(calm)
    matter = parsed(card)
    assert matter.keys() | {"datasets"} == parsed(other).keys()
    assert matter["license"] == "unknown"
    line = "".join(c if c.isprintable() else " " for c in EVIL)
    assert matter["model-index"][0]["name"] == line
    assert matter["model-index"][0]["results"][0]["dataset"]["name"] == line
    assert matter["tags"][-1] == line
    kinds = [[line[:2] for line in plain_lines(text) if line] for text in (card, other)]
    assert kinds[0] == kinds[1]
    shown = "\n".join(plain_lines(card))
    for mark in ("<script", "![", "[l]", "](", "://", "`c`"):
        assert re.search(r"(?<!\\)" + re.escape(mark), shown) is None or mark == "]("
    assert re.search(r"(?<!\\)\]\(", shown) is None
    for line in plain_lines(card):
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 3


@given(st.text())
def test_any_text_survives_yaml(text: str) -> None:
    whole = "".join(c if c.isprintable() else " " for c in text)
    assert yaml.safe_load(f"key: {to_yaml(text)}\nnext: 1") == {"key": whole, "next": 1}


@given(st.floats(allow_nan=False))
def test_any_number_survives_yaml(number: float) -> None:
    wanted = None if number in (float("inf"), float("-inf")) else number
    assert yaml.safe_load(to_yaml(number)) == wanted


@given(st.text())
def test_no_text_ends_its_line_or_its_block(text: str) -> None:
    assert len(markdown_text(text).splitlines()) <= 1
    assert all(line.startswith("    ") for line in code_block(text).split("\n"))


def test_the_card_of_a_folder_is_the_card_of_its_run(tmp_path: Path) -> None:
    """A folder that was written from Python, whose model nobody could build again."""
    run = trained(tmp_path / "run")
    write_card(run, tmp_path / "a.md", name="n")
    write_card(tmp_path / "run", tmp_path / "b.md", name="n")
    assert (tmp_path / "a.md").read_text() == (tmp_path / "b.md").read_text()
    assert str(tmp_path) not in (tmp_path / "a.md").read_text()


@pytest.mark.slow
def test_the_code_on_the_card_runs(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("train", "--method", "dpsgd", "--steps", "2", "--batch-size", "64", "--out", "RUN", "--json")[0] == 0
    for form, name in (("onnx", "model.onnx"), ("torch-export", "model.pt2"), ("card", "README.md")):
        assert call("export", "RUN", "--to", form, "--out", name)[0] == 0
    blocks = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), flags=re.S)
    assert len(blocks) == 3
    for block in blocks:
        space: dict[str, Any] = {}
        exec(block, space)
        assert "outputs" not in space or space["outputs"].shape == (1, 10)
    code, _, err = call("export", "RUN", "--to", "onnx", "--out", "b.onnx", "--license", "mit")
    assert (code, "license='mit' does nothing with to='onnx'" in err) == (2, True)
    code, _, err = call("export", "RUN", "--to", "card", "--out", "c.md", "--license", "a: b")
    assert (code, "license='a: b': allowed" in err) == (2, True)


def edited(folder: Path, name: str, **changes: Any) -> None:
    stored = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**stored, **changes}))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("privacy.json", {"epsilon_pld": 0.01}, "privacy.json is not as the run left it"),
        ("summary.json", {"test_accuracy": 0.5}, "summary.json is not as the run left it"),
    ],
)
def test_a_folder_that_lies_has_no_card(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    trained(tmp_path / "run")
    edited(tmp_path / "run", name, **changes)
    with pytest.raises(ad.InputError, match=re.escape(words)) as caught:
        write_card(tmp_path / "run", tmp_path / "card.md")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "card.md").exists()


@pytest.mark.parametrize("accuracy", [1.5, "high"])
def test_a_folder_that_was_rewritten_as_a_whole_has_no_odd_card(accuracy: object, tmp_path: Path) -> None:
    trained(tmp_path / "run")
    edited(tmp_path / "run", "summary.json", test_accuracy=accuracy)
    rebound(tmp_path / "run")
    with pytest.raises(ad.InputError, match="test_accuracy is invalid"):
        write_card(tmp_path / "run", tmp_path / "card.md")

"""A model card: README.md as Hugging Face reads it, with the privacy statement word for word.

Every value is public: from the privacy report, from the run's settings, and from test records, which are exact and
said to be. A run without a guarantee says so before anything else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from adadpigu.accounting.wording import number
from adadpigu.durable import write_text
from adadpigu.errors import InputError
from adadpigu.export.card_facts import CardFacts, facts_of_run
from adadpigu.export.escaping import Tree, code_block, markdown_text, yaml_lines
from adadpigu.export.same import check_new
from adadpigu.training.run import Run

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
"""how a data set is called on the hub; others are named in the model index alone"""
_TASKS = {1: "tabular-classification", 3: "image-classification"}
"""what a model does, by the dimensions of a record"""


def write_card(
    run: Run | CardFacts | Path | str,
    path: Path | str,
    *,
    name: str | None = None,
    license: str = "unknown",  # noqa: A002
) -> Path:
    """Writes the model card of a run; `license` is the model's, as Hugging Face abbreviates it."""
    path = Path(path)
    check_new(path)
    text = model_card(facts_of_run(run), name=name, license=license)
    try:
        write_text(path, text)
    except OSError as error:
        raise InputError(f"out={str(path)!r} cannot be written: {error.strerror}") from None
    return path


def model_card(facts: CardFacts, *, name: str | None = None, license: str = "unknown") -> str:  # noqa: A002
    """The card: front matter, what the model gives away, how it was trained, how good it is, how to use it."""
    if not _LICENSE.fullmatch(license):
        raise InputError(f"license={license!r}; allowed: an identifier such as apache-2.0, mit, other or unknown")
    title = name or f"{facts.privacy.method} on {facts.dataset}"
    parts = [
        "\n".join(["---", *yaml_lines(_front_matter(facts, title, license)), "---"]),
        f"# {markdown_text(title)}",
        *_alarms(facts),
        _introduction(facts),
        _table(_guarantee(facts)),
        "## Privacy statement",
        code_block(facts.privacy.statement()),
        "## Training",
        _table(_training(facts)),
        "## Evaluation",
        _evaluation(facts),
        "## How to use",
        *_use(facts),
        "## How to check",
        _CHECK,
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(facts: CardFacts, title: str, license: str) -> dict[str, Tree]:  # noqa: A002
    privacy = facts.privacy
    task = _TASKS.get(len(facts.shape or ()), "other")
    held = "differential-privacy" if privacy.private else "not-private"
    exposed = ["diagnostics-exposed"] if privacy.diagnostics_exposed else []
    matter: dict[str, Tree] = {
        "license": license,
        "library_name": "adadpigu",
        "tags": list(dict.fromkeys(["adadpigu", "pytorch", held, *exposed, privacy.method])),
    }
    if task != "other":
        matter["pipeline_tag"] = task
    if _HUB_NAME.fullmatch(facts.dataset):
        matter["datasets"] = [facts.dataset]
    if facts.accuracy is not None:
        matter["metrics"] = ["accuracy"]
        measured: Tree = {
            "type": "accuracy",
            "name": "test accuracy, outside the guarantee",
            "value": facts.accuracy,
            "verified": False,
        }
        result: Tree = {
            "task": {"type": task},
            "dataset": {"name": facts.dataset, "type": facts.dataset},
            "metrics": [measured],
        }
        matter["model-index"] = [{"name": title, "results": [result]}]
    matter["privacy"] = {
        "private": privacy.private,
        "epsilon": privacy.epsilon_pld if privacy.private else None,
        "delta": privacy.delta if privacy.private else None,
        "unit": privacy.unit_of_privacy,
        "relation": privacy.relation,
        "diagnostics_exposed": privacy.diagnostics_exposed,
        "interrupted": privacy.interrupted,
    }
    return matter


def _alarms(facts: CardFacts) -> list[str]:
    """What a reader has to know before anything else, where there is such a thing."""
    privacy, alarms = facts.privacy, []
    if not privacy.private:
        alarms.append(
            "> [!CAUTION]\n> **NOT PRIVATE.** This model gives no guarantee for anybody's record: treat it as you "
            "would treat the records that it was trained on, and do not publish it."
        )
    if privacy.diagnostics_exposed:
        alarms.append(
            "> [!CAUTION]\n> **DIAGNOSTICS WERE EXPOSED.** Un-noised values of the records (losses, norms, batch "
            "sizes) were looked at while this model was trained. They, and whatever was decided because of them, are "
            "outside any guarantee."
        )
    if privacy.interrupted:
        alarms.append("> [!WARNING]\n> **INTERRUPTED.** Training was stopped before its end.")
    return alarms


def _introduction(facts: CardFacts) -> str:
    method, dataset = markdown_text(facts.privacy.method), markdown_text(facts.dataset)
    held = "with differential privacy" if facts.privacy.private else "**without a privacy guarantee**"
    return f"A PyTorch model, trained on {dataset} {held}, by the method {method} of the package adadpigu."


def _guarantee(facts: CardFacts) -> list[tuple[str, str]]:
    privacy = facts.privacy
    if not privacy.private:
        return [("guarantee", "none"), ("epsilon", "infinite, or void: see the statement")]
    return [
        ("guarantee", f"(epsilon, delta)-differential privacy: {privacy.relation}"),
        ("epsilon", number(privacy.epsilon_pld)),
        ("delta", f"{privacy.delta:g}"),
        ("who is protected", privacy.unit_of_privacy),
        ("covered", "the model, and all metrics that use no test records; the statement lists what is not covered"),
    ]


def _training(facts: CardFacts) -> list[tuple[str, str]]:
    privacy = facts.privacy
    sizes = [release.dimension for release in privacy.releases if release.dimension is not None]
    last = "versions" if len(privacy.lives) < 2 else "versions, of the last process, as it recorded them, not verified"
    return [
        ("data set", facts.dataset),
        ("records (declared)", f"{privacy.records}"),
        ("expected batch size", f"{privacy.expected_batch_size:g} ({privacy.sampler} sampling)"),
        ("method", privacy.method),
        ("noise multiplier", f"{privacy.noise_multiplier:.6g}"),
        ("clipping bound", "none" if privacy.clip_norm is None else f"{privacy.clip_norm:g}"),
        ("steps", ", ".join(f"{stage.name}: {stage.done} of {stage.planned}" for stage in privacy.stages)),
        *([("trained parameters", f"{max(sizes)}")] if sizes else []),
        *((key, str(value)) for key, value in facts.settings.items()),
        (last, ", ".join(f"{package} {version}" for package, version in privacy.versions.items())),
    ]


def _table(rows: Sequence[tuple[str, str]]) -> str:
    lines = [f"| {markdown_text(key)} | {markdown_text(value)} |" for key, value in rows]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _evaluation(facts: CardFacts) -> str:
    if facts.accuracy is None:
        return "No test records were given, so nothing was measured."
    return (
        f"Test accuracy: {facts.accuracy:.2%}, as the run recorded it, not verified. It is exact, without noise: test "
        "records are outside the guarantee, and if settings were chosen by this number it is too good."
    )


def _use(facts: CardFacts) -> list[str]:
    """How to load each form that a run can be exported to; a record here is all zeros."""
    shape = ", ".join(map(str, facts.shape or ())) or "..."
    folder = (
        "From the run folder (`pip install adadpigu`):\n\n```python\nfrom pathlib import Path\n\n"
        'from adadpigu.report.loading import load_run\n\nmodel = load_run(Path("RUN")).model\n```'
    )
    weights = (
        "The weights are in `model.safetensors` of the run folder, by the names of the model's parameters; the model "
        "itself is the code of whoever trained it."
    )
    onnx = (
        "From `model.onnx` (`adadpigu export RUN --to onnx --out model.onnx`):\n\n```python\nimport numpy\n"
        'import onnxruntime\n\nsession = onnxruntime.InferenceSession("model.onnx")\n'
        f'outputs = session.run(["outputs"], {{"inputs": numpy.zeros((1, {shape}), numpy.float32)}})[0]\n```'
    )
    program = (
        "From `model.pt2` (`adadpigu export RUN --to torch-export --out model.pt2`):\n\n```python\nimport torch\n\n"
        f'outputs = torch.export.load("model.pt2").module()(torch.zeros(1, {shape}))\n```'
    )
    return [folder if facts.loadable else weights, *([onnx, program] if facts.loadable and facts.shape else [])]


_CHECK = (
    "The run folder holds `privacy.json`, with every event that was planned, and `ledger.log`, with every draw that "
    "was charged. `adadpigu ledger verify RUN` finds whether the record is whole, and any accountant that knows the "
    "events can compute epsilon again."
)

"""A model card: README.md as Hugging Face reads it, with the privacy statement word for word.

Every value is public: from the privacy report, from the run's settings, and from test records, which are exact and
said to be. Names of data sets, models and layers are whatever users call them, so they are quoted: no key, list, link,
image, table cell, heading or HTML can come out of one.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.events import RELATION, SAMPLER
from adadpigu.durable import write_text, writing
from adadpigu.errors import check
from adadpigu.export.program import check_new
from adadpigu.export.subject import CardFacts, facts_of_run, is_unbound, statement_of
from adadpigu.runs.run import Run
from adadpigu.runs.verifying import UNBOUND

_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~!&@$:/=^]|(?<=[wW]{3})\.)")
"""what could mean something in the middle of a line; a backslash makes a plain character of it"""

Tree = str | int | float | bool | None | Sequence["Tree"] | Mapping[str, "Tree"]


def _printable(text: str, instead: str = " ") -> str:
    return "".join(c if c.isprintable() else instead for c in text)


def to_yaml(value: Tree) -> str:
    """A value in one line, as YAML reads it back: words in double quotes, an infinite number as null."""
    if isinstance(value, str):
        return json.dumps(_printable(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_yaml(key)}: {to_yaml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(to_yaml, value)) + "]"
    if isinstance(value, float) and math.isfinite(value):
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))  # YAML takes 1e-05 for a word
    return "null" if isinstance(value, float) else json.dumps(value)


def markdown_text(value: object) -> str:
    """Words that mean nothing but themselves in the middle of a line of Markdown."""
    return _MARKS.sub(r"\\\1", " ".join(_printable(str(value)).split()))


def code_block(text: str) -> str:
    """Lines as they are, in an indented block, which nothing inside it can end."""
    return "\n".join("    " + _printable(line, "\ufffd") for line in re.split(r"\r\n|\r|\n", text))


_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
"""how a data set is called on the hub; others are named in the model index alone"""
_TASKS = {1: "tabular-classification", 3: "image-classification"}  # what a model does, by the dimensions of a record


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
    with writing(path):
        write_text(path, text)
    return path


def model_card(facts: CardFacts, *, name: str | None = None, license: str = "unknown") -> str:  # noqa: A002
    """The card: front matter, what the model gives away, how it was trained, how good it is, how to use it."""
    known = _LICENSE.fullmatch(license) is not None
    check("license", repr(license), known, "allowed: an identifier such as apache-2.0, mit, other or unknown")
    title = name or f"{facts.privacy.method} on {facts.dataset}"
    held = "with differential privacy" if facts.privacy.private else "**without a privacy guarantee**"
    matter = [f"{key}: {to_yaml(value)}" for key, value in _front_matter(facts, title, license).items()]
    parts = [
        "\n".join(["---", *matter, "---"]),
        f"# {markdown_text(title)}",
        *_alarms(facts.privacy),
        f"A PyTorch model, trained on {markdown_text(facts.dataset)} {held}, by the method "
        f"{markdown_text(facts.privacy.method)} of the package adadpigu.",
        "## Privacy statement",
        code_block(statement_of(facts.privacy)),
        "## Training",
        _training(facts),
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
    measured = facts.accuracy is not None
    accuracy = {"type": "accuracy", "name": "test accuracy, outside the guarantee", "value": facts.accuracy}
    result: Tree = {
        "task": {"type": task},
        "dataset": {"name": facts.dataset, "type": facts.dataset},
        "metrics": [{**accuracy, "verified": False}],
    }
    matter: dict[str, Tree] = {
        "license": license,
        "library_name": "adadpigu",
        "tags": list(dict.fromkeys(["adadpigu", "pytorch", held, *exposed, privacy.method])),
        "pipeline_tag": None if task == "other" else task,
        "datasets": [facts.dataset] if _HUB_NAME.fullmatch(facts.dataset) else None,
        "metrics": ["accuracy"] if measured else None,
        "model-index": [{"name": title, "results": [result]}] if measured else None,
        "privacy": {
            "private": privacy.private,
            "epsilon": privacy.epsilon_pld if privacy.private else None,
            "delta": privacy.delta if privacy.private else None,
            "unit": privacy.unit_of_privacy,
            "relation": RELATION,
            "diagnostics_exposed": privacy.diagnostics_exposed,
            "interrupted": privacy.interrupted,
            **({"bound": False} if is_unbound(privacy) else {}),
        },
    }
    return {key: value for key, value in matter.items() if value is not None}


def _alarms(privacy: PrivacyReport) -> list[str]:
    """What a reader has to know before anything else, where there is such a thing."""
    not_private = (
        "**NOT PRIVATE.** This model gives no guarantee for anybody's record: treat it as you would treat the records "
        "that it was trained on, and do not publish it."
    )
    exposed = (
        "**DIAGNOSTICS WERE EXPOSED.** Un-noised values of the records (losses, norms, batch sizes) were looked at "
        "while this model was trained. They, and whatever was decided because of them, are outside any guarantee."
    )
    alarms = [
        ("CAUTION", not_private, not privacy.private),
        ("CAUTION", f"**NOT BOUND.** {UNBOUND[0].upper()}{UNBOUND[1:]}.", is_unbound(privacy)),
        ("CAUTION", exposed, privacy.diagnostics_exposed),
        ("WARNING", "**INTERRUPTED.** Training was stopped before its end.", privacy.interrupted),
    ]
    return [f"> [!{kind}]\n> {text}" for kind, text, there in alarms if there]


def _training(facts: CardFacts) -> str:
    privacy = facts.privacy
    sizes = [release.dimension for release in privacy.releases if release.dimension is not None]
    resumed = len(privacy.sessions) > 1
    last = "versions, of the last process, as it recorded them, not verified" if resumed else "versions"
    rows = [
        ("data set", facts.dataset),
        ("records (declared)", f"{privacy.records}"),
        ("expected batch size", f"{privacy.expected_batch_size:g} ({SAMPLER} sampling)"),
        ("method", privacy.method),
        ("noise multiplier", f"{privacy.noise_multiplier:.6g}"),
        ("clipping bound", "none" if privacy.clip_norm is None else f"{privacy.clip_norm:g}"),
        ("steps", ", ".join(f"{stage.name}: {stage.done} of {stage.planned}" for stage in privacy.stages)),
        *([("trained parameters", f"{max(sizes)}")] if sizes else []),
        *((key, str(value)) for key, value in facts.settings.items()),
        (last, ", ".join(f"{package} {version}" for package, version in privacy.versions.items())),
    ]
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
        "From the run folder, where the package `adadpigu` is installed:\n\n```python\nfrom pathlib import Path\n\n"
        'from adadpigu.runs.loading import load_run\n\nmodel = load_run(Path("RUN")).model\n```'
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

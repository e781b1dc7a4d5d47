"""A trained model as an ONNX file, for runtimes without Python: graph and weights, the privacy statement as metadata.

The graph is the one of `program`; onnxruntime runs it on synthetic records before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.errors import ModelError, first_line
from adadpigu.export.program import plain, quiet, traced
from adadpigu.export.same import Exported, check_new, require_same, written
from adadpigu.export.subject import Exportable, subject_of
from adadpigu.export.synthetic import Synthetic
from adadpigu.extras import extra

_LARGEST = 2**31 - 1
"""bytes of one ONNX file"""


def export_onnx(run: Exportable, path: Path | str, *, records: Synthetic | None = None) -> Exported:
    """Writes a run's model to an ONNX file with one input, `inputs`, and one output, `outputs`.

    `records` says what a record looks like, where the run does not. Refused where onnxruntime's outputs differ from the
    model's by more than `TOLERANCE` on synthetic records. `metadata_props` hold `adadpigu.privacy.json` and
    `adadpigu.statement.txt`.
    """
    path = Path(path)
    check_new(path, ".onnx")
    onnx, _, runtime = (_needed(name) for name in ("onnx", "onnxscript", "onnxruntime"))
    subject = subject_of(run)
    synthetic = subject.records(records)
    proto = _converted(subject.model, synthetic)
    _clean(proto)
    onnx.helper.set_model_props(proto, subject.embedded())
    if proto.ByteSize() > _LARGEST:
        raise ModelError(f"an ONNX file of this model would have {proto.ByteSize()} bytes; allowed: up to {_LARGEST}")
    content: bytes = proto.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def outputs(inputs: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["outputs"], {"inputs": inputs.numpy()})[0])

    apart = require_same(plain(subject.model), outputs, synthetic, kind="an ONNX file")
    return written(path, content, apart)


def _converted(model: nn.Module, synthetic: Synthetic) -> Any:
    program = traced(model, synthetic)
    try:
        with quiet():
            made = torch.onnx.export(
                program, (), input_names=["inputs"], output_names=["outputs"], dynamo=True, verbose=False
            )
    except Exception as error:
        raise ModelError(f"the model cannot be written as ONNX: {first_line(error)}") from error
    assert made is not None
    return made.model_proto


def _clean(proto: Any) -> None:
    """Takes out what the conversion notes of the user's source code: paths, lines, names of variables."""
    for part in (proto, *_parts(proto.graph), *(part for function in proto.functions for part in _parts(function))):
        part.doc_string = ""
        del part.metadata_props[:]


def _parts(graph: Any) -> Iterator[Any]:
    """A graph or function, and everything in it that can bear notes, through the branches of its nodes."""
    yield graph
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            attribute.doc_string = ""
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _parts(inner)
    yield from graph.value_info
    for name in ("input", "output", "initializer"):  # those of a function are names alone
        yield from (value for value in getattr(graph, name, ()) if not isinstance(value, str))


def _needed(module: str) -> Any:
    return extra(module, group="onnx", purpose="export to ONNX")

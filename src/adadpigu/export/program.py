"""A trained model as a `torch.export` program (.pt2) or an ONNX file: weights and graph, the privacy statement inside.

The files hold none of the source lines and paths that tracing notes. Each is run on synthetic records before it is
written.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from adadpigu.durable import check_place, write_bytes, writing
from adadpigu.errors import ModelError, first_line
from adadpigu.export.subject import Exportable, Synthetic, subject_of
from adadpigu.extras import extra
from adadpigu.features.scattering import Scattering

TOLERANCE = 1e-4
"""how far outputs may be apart, in units of the largest output or of 1, whichever is more"""
_BATCHES = (1, 2, 3, 16)
"""sizes that are tried: the first dimension is free, and programs like to specialise for one and two"""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file that was written, and how far its outputs were from the model's."""

    path: Path
    bytes: int
    difference: float
    """the largest that was seen, in the units of `TOLERANCE`, which it does not exceed"""


@torch.no_grad()
def difference(model: nn.Module, exported: Callable[[Tensor], Tensor], synthetic: Synthetic) -> float:
    """The largest difference between two models' outputs, relative to the largest output where that is above 1."""
    found = 0.0
    for size in _BATCHES:
        inputs = synthetic.draw(size, seed=size)
        wanted, got = model(inputs), exported(inputs)
        if wanted.shape != got.shape or not bool(torch.isfinite(wanted).all()):
            raise ModelError(
                f"outputs of shape {tuple(got.shape)} for {size} synthetic records; allowed: finite ones of the "
                f"model's shape {tuple(wanted.shape)}"
            )
        apart = (wanted.double() - got.double()).abs().max() / wanted.double().abs().max().clamp(min=1.0)
        found = max(found, float(apart.nan_to_num(nan=float("inf"))))
    return found


def require_same(model: nn.Module, exported: Callable[[Tensor], Tensor], synthetic: Synthetic, *, kind: str) -> float:
    """`difference` from the model as it is used, on the CPU; refused beyond `TOLERANCE`."""
    try:
        apart = difference(copy.deepcopy(model).cpu().eval(), exported, synthetic)
    except Exception as error:
        why = error if isinstance(error, ModelError) else f"it does not run: {first_line(error)}"
        raise ModelError(f"{kind} of this model was not written: {why}") from error
    if not apart <= TOLERANCE:
        raise ModelError(
            f"{kind} of this model was not written: its outputs are up to {apart:.3g} from the model's on synthetic "
            f"records; allowed: up to {TOLERANCE:g}"
        )
    return apart


def check_new(path: Path, suffix: str = "") -> None:
    """Refuses a file that is there, since nothing is written over, and a name that its readers would not take."""
    folder = path.absolute().parent
    check_place(
        path,
        {
            f"is no name for it; allowed: one that ends in {suffix}": bool(suffix) and path.suffix != suffix,
            "is there already; allowed: a new file": path.exists() or path.is_symlink(),
            f"cannot be written: there is no folder {folder}; allowed: a file in a folder that is": not folder.is_dir(),
        },
    )


def write_exported(path: Path, content: bytes, apart: float) -> Exported:
    """Writes a file, whole or not at all."""
    with writing(path):
        write_bytes(path, content)
    return Exported(path=path, bytes=len(content), difference=apart)


class UndividedScattering(nn.Module):
    """A scattering that takes all records at once."""

    def __init__(self, scattering: Scattering) -> None:
        super().__init__()
        self.scattering = scattering

    def forward(self, x: Tensor) -> Tensor:
        planes = x.to(self.scattering.fine.bank.dtype).flatten(0, 1)
        return self.scattering._planes(planes).reshape(x.shape[0], *self.scattering.features)


def exportable(model: nn.Module) -> nn.Module:
    """A copy of a model on the CPU, in evaluation mode, that needs no gradient; the model stays as it is."""
    made = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    if isinstance(made, Scattering):
        return UndividedScattering(made)
    for path, module in list(made.named_modules()):
        if isinstance(module, Scattering):
            made.set_submodule(path, UndividedScattering(module))
    return made


_TRACED = 4
"""records at once while tracing; any number later"""
_NOTES = ("stack_trace", "from_node", "source_fn_stack", "nn_module_stack", "torch_fn")
"""what tracing writes to every node of where in the user's code it came from"""


def export_program(run: Exportable, path: Path | str, *, records: Synthetic | None = None) -> Exported:
    """Writes a run's model to a .pt2 file, which `torch.export.load` reads, for any number of records at once.

    `records` says what a record looks like, where the run does not. Refused where the program's outputs differ from the
    model's by more than `TOLERANCE` on synthetic records. Extra files in it: `adadpigu.privacy.json` and
    `adadpigu.statement.txt`.
    """
    path = Path(path)
    check_new(path, ".pt2")
    subject = subject_of(run)
    synthetic = subject.records(records)
    content = io.BytesIO()
    torch.export.save(traced(subject.model, synthetic), content, extra_files=subject.embedded())
    content.seek(0)
    loaded = torch.export.load(content).module()
    apart = require_same(subject.model, loaded, synthetic, kind="a torch.export program")
    return write_exported(path, content.getvalue(), apart)


@torch.no_grad()
def traced(model: nn.Module, synthetic: Synthetic) -> ExportedProgram:
    """The graph of a model, with a first dimension of any size and without notes on source code."""
    copied, inputs = exportable(model), synthetic.draw(_TRACED)
    try:
        outputs = copied(inputs)
        program = _graph_of(copied, inputs)
    except Exception as error:
        raise ModelError(
            f"the model cannot be exported for synthetic records of shape {synthetic.shape}: {_reason(error)}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.ndim < 1 or len(outputs) != _TRACED:
        raise ModelError(
            f"the model gives a {type(outputs).__name__}; allowed for export: one tensor with a row for each record"
        )
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                for note in _NOTES:
                    node.meta.pop(note, None)
    return program


def _graph_of(model: nn.Module, inputs: Tensor) -> ExportedProgram:
    """What the model does with these inputs; where that binds their number, e.g. by `len(x)`, what its code says."""
    shapes = ({0: Dim("records")},)
    with quiet():
        try:
            return torch.export.export(model, (inputs,), dynamic_shapes=shapes, strict=False)
        except Exception:
            return torch.export.export(model, (inputs,), dynamic_shapes=shapes, strict=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the remarks of tracing and conversion, which quote code; what fails is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: Exception) -> str:
    """Why tracing failed; a model that depends on how many records there are is the most frequent cause."""
    if "Constraints violated" in str(error):
        return "what it computes depends on how many records there are at once"
    return first_line(error)


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

    apart = require_same(subject.model, outputs, synthetic, kind="an ONNX file")
    return write_exported(path, content, apart)


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

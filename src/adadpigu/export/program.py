"""A trained model as a `torch.export` program (.pt2) or an ONNX file: weights and graph, the privacy statement inside.

The files hold none of the source lines and paths that tracing notes. Each is run on synthetic records before it is
written.
"""

import contextlib
import copy
import io
import json
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
from adadpigu.errors import InputError, ModelError, first_line
from adadpigu.export.subject import Exportable, Synthetic, read_exportable, statement_of
from adadpigu.extras import import_extra

TOLERANCE = 1e-4  # how far outputs may be apart, in units of the largest output or of 1, whichever is more
_BATCHES = (1, 2, 3, 16)  # sizes to try: the first dimension is free, and programs like to specialise for one and two
_TRACED = 4  # records at once while tracing; any number later
_NOTES = ("stack_trace", "from_node", "source_fn_stack", "nn_module_stack", "torch_fn")
"""what tracing writes to every node of where in the user's code it came from"""
_LARGEST = 2**31 - 1  # bytes of one ONNX file

Outputs = Callable[[Tensor], Tensor]
Convert = Callable[[ExportedProgram, dict[str, str]], tuple[bytes, Outputs]]
"""a program and the texts that go with it, as the content of a file and as what a reader of that file computes"""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file that was written, and how far its outputs were from the model's."""

    path: Path
    bytes: int
    difference: float  # the largest that was seen, in the units of `TOLERANCE`, which it does not exceed


def export_program(run: Exportable, path: Path | str, *, records: Synthetic | None = None) -> Exported:
    """Writes a run's model to a .pt2 file, which `torch.export.load` reads, for any number of records at once.

    `records` says what a record looks like, where the run does not. On synthetic records the program's outputs must be
    within `TOLERANCE` of the model's. Extra files in it: `adadpigu.privacy.json` and `adadpigu.statement.txt`.
    """

    def convert(program: ExportedProgram, texts: dict[str, str]) -> tuple[bytes, Outputs]:
        content = io.BytesIO()
        torch.export.save(program, content, extra_files=texts)
        content.seek(0)
        return content.getvalue(), torch.export.load(content).module()

    return _export(run, Path(path), ".pt2", records, convert, "a torch.export program")


def export_onnx(run: Exportable, path: Path | str, *, records: Synthetic | None = None) -> Exported:
    """As `export_program`, to an ONNX file with one input, `inputs`, and one output, `outputs`.

    `metadata_props` hold `adadpigu.privacy.json` and `adadpigu.statement.txt`.
    """
    packages = ("onnx", "onnxscript", "onnxruntime")
    onnx, _, runtime = (import_extra(name, group="onnx", purpose="export to ONNX") for name in packages)

    def convert(program: ExportedProgram, texts: dict[str, str]) -> tuple[bytes, Outputs]:
        names: dict[str, Any] = {"input_names": ["inputs"], "output_names": ["outputs"]}
        try:
            with quiet():
                made = torch.onnx.export(program, (), **names, dynamo=True, verbose=False)
        except Exception as error:
            raise ModelError(f"the model cannot be written as ONNX: {first_line(error)}") from error
        assert made is not None
        proto: Any = made.model_proto
        _clean(proto)
        onnx.helper.set_model_props(proto, texts)
        size = proto.ByteSize()
        if size > _LARGEST:
            raise ModelError(f"an ONNX file of this model would have {size} bytes; allowed: up to {_LARGEST}")
        content = proto.SerializeToString()
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        return content, lambda inputs: torch.from_numpy(session.run(["outputs"], {"inputs": inputs.numpy()})[0])

    return _export(run, Path(path), ".onnx", records, convert, "an ONNX file")


def _export(run: Exportable, path: Path, end: str, records: Synthetic | None, convert: Convert, kind: str) -> Exported:
    """Writes a file, whole or not at all, if its outputs are those of the model on the CPU."""
    check_new(path, end)
    subject = read_exportable(run)
    synthetic = records or subject.synthetic
    if synthetic is None:
        raise InputError("records=None: the run does not say what a record looks like; give Synthetic(shape=…)")
    texts = {
        "adadpigu.privacy.json": json.dumps(subject.privacy.to_json(), allow_nan=False),
        "adadpigu.statement.txt": statement_of(subject.privacy),
    }
    content, outputs = convert(_traced(subject.model, synthetic), texts)
    try:
        apart = _difference(copy.deepcopy(subject.model).cpu().eval(), outputs, synthetic)
    except Exception as error:
        why = error if isinstance(error, ModelError) else f"it does not run: {first_line(error)}"
        raise ModelError(f"{kind} of this model was not written: {why}") from error
    with writing(path):
        write_bytes(path, content)
    return Exported(path=path, bytes=len(content), difference=apart)


def check_new(path: Path, suffix: str = "") -> None:
    """Refuses a file that is there, since nothing is written over, and a name that its readers would not take."""
    folder = path.absolute().parent
    problems = {
        f"is no name for it; allowed: one that ends in {suffix}": bool(suffix) and path.suffix != suffix,
        "is there already; allowed: a new file": path.exists() or path.is_symlink(),
        f"cannot be written: there is no folder {folder}; allowed: a file in a folder that is": not folder.is_dir(),
    }
    check_place(path, problems)


@torch.no_grad()
def _traced(model: nn.Module, synthetic: Synthetic) -> ExportedProgram:
    """The graph of a model, with a first dimension of any size and without notes on source code."""
    copied = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    inputs = synthetic.draw(_TRACED)
    try:
        outputs = copied(inputs)
        program = _graph_of(copied, inputs)
    except Exception as error:
        bound = "Constraints violated" in str(error)  # the most frequent cause
        reason = "what it computes depends on how many records there are at once" if bound else first_line(error)
        fault = f"the model cannot be exported for synthetic records of shape {synthetic.shape}"
        raise ModelError(f"{fault}: {reason}") from error
    if not isinstance(outputs, Tensor) or outputs.ndim < 1 or len(outputs) != _TRACED:
        allowed = "one tensor with a row for each record"
        raise ModelError(f"the model gives a {type(outputs).__name__}; allowed for export: {allowed}")
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
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
    """Silences what tracing and conversion print and log, which quotes code."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@torch.no_grad()
def _difference(model: nn.Module, exported: Outputs, synthetic: Synthetic) -> float:
    """The largest difference between two models' outputs, relative to the largest output where that is above 1."""
    found = 0.0
    for size in _BATCHES:
        inputs = synthetic.draw(size, seed=size)
        wanted, got = model(inputs), exported(inputs)
        if wanted.shape != got.shape or not bool(torch.isfinite(wanted).all()):
            fault = f"outputs of shape {tuple(got.shape)} for {size} synthetic records"
            raise ModelError(f"{fault}; allowed: finite ones of the model's shape {tuple(wanted.shape)}")
        apart = (wanted.double() - got.double()).abs().max() / wanted.double().abs().max().clamp(min=1.0)
        found = max(found, float(apart.nan_to_num(nan=float("inf"))))
    if found > TOLERANCE:
        fault = f"its outputs are up to {found:.3g} from the model's on synthetic records"
        raise ModelError(f"{fault}; allowed: up to {TOLERANCE:g}")
    return found


def _clean(message: Any) -> None:
    """Removes notes on the user's source code from an ONNX message: paths, lines, names of variables."""
    for field, value in message.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for part in [value] if hasattr(value, "ListFields") else value:
                _clean(part)

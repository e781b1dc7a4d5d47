"""A trained model as a `torch.export` program (.pt2): weights and graph in one file, the privacy statement inside.

The file holds the graph, weights and synthetic inputs; not the source lines and paths that tracing notes beside them.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from adadpigu.errors import ModelError, first_line
from adadpigu.export.fixed_features import exportable
from adadpigu.export.same import Exported, check_new, require_same, written
from adadpigu.export.subject import Exportable, subject_of
from adadpigu.export.synthetic import Synthetic

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
    apart = require_same(plain(subject.model), loaded, synthetic, kind="a torch.export program")
    return written(path, content.getvalue(), apart)


def plain(model: nn.Module) -> nn.Module:
    """What an exported model is compared with: the model as it is used, on the CPU."""
    return copy.deepcopy(model).cpu().eval()


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

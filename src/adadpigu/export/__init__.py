"""Export: a trained model as a torch.export program, an ONNX file or a model card, each with its privacy statement."""

from adadpigu.export.card import write_card
from adadpigu.export.program import export_onnx, export_program
from adadpigu.export.subject import Synthetic, facts_of_run, read_exportable

__all__ = ["Synthetic", "export_onnx", "export_program", "facts_of_run", "read_exportable", "write_card"]

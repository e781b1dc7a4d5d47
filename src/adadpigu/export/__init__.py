"""Export: a trained model as a torch.export program, an ONNX file or a model card, each with its privacy statement."""

from adadpigu.export.card import model_card, write_card
from adadpigu.export.program import TOLERANCE, Exported, export_onnx, export_program
from adadpigu.export.subject import CardFacts, ExportedModel, Synthetic, facts_of_run, read_exportable

__all__ = [
    "TOLERANCE",
    "CardFacts",
    "Exported",
    "ExportedModel",
    "Synthetic",
    "export_onnx",
    "export_program",
    "facts_of_run",
    "model_card",
    "read_exportable",
    "write_card",
]

"""Export: a trained model as a torch.export program, an ONNX file or a model card, each with its privacy statement."""

from __future__ import annotations

from adadpigu.export.card import model_card, write_card
from adadpigu.export.card_facts import CardFacts, facts_of_run
from adadpigu.export.onnx_file import export_onnx
from adadpigu.export.program import export_program
from adadpigu.export.same import TOLERANCE, Exported
from adadpigu.export.subject import Subject, subject_of
from adadpigu.export.synthetic import Synthetic

__all__ = [
    "TOLERANCE",
    "CardFacts",
    "Exported",
    "Subject",
    "Synthetic",
    "export_onnx",
    "export_program",
    "facts_of_run",
    "model_card",
    "subject_of",
    "write_card",
]

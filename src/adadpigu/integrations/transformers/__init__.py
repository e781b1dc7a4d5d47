"""Hugging Face: `PrivateTrainer`, a `transformers.Trainer` whose training is private. See docs/hugging-face.md."""

from adadpigu.extras import import_extra

for _needed in ("transformers", "accelerate"):
    import_extra(_needed, group="transformers", purpose="PrivateTrainer")

from adadpigu.integrations.transformers.trainer import PrivateTrainer  # noqa: E402  after what it needs was asked for

__all__ = ["PrivateTrainer"]

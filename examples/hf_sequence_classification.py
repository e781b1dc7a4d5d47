"""Hugging Face's Trainer, made private: a small transformer from a config learns which of two words comes first.

    python examples/hf_sequence_classification.py --train lora     (or: full, head)

Nothing is downloaded. `PrivateTrainer` stands where `Trainer` would; the record count and the length are public.
"""

from __future__ import annotations

import argparse
import tempfile

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import adadpigu as ad
from adadpigu.integrations.transformers import PrivateTrainer

WORDS, LENGTH = 30, 12


def sentences(count: int, seed: int) -> list[dict[str, object]]:
    """Token ids of several lengths; the label says whether the first token is from the upper half of the words."""
    chance = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        ids = chance.integers(1, WORDS, size=chance.integers(4, LENGTH + 1))
        made.append({"input_ids": ids.tolist(), "label": int(ids[0] >= WORDS // 2)})
    return made


def classifier(part: str) -> torch.nn.Module:
    """A BERT of two layers, of which all, low-rank adapters, or the head is trained."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    if part == "lora":
        return get_peft_model(
            model, LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=32, target_modules=["query", "value", "dense"])
        )
    if part == "head":
        model.bert.encoder.requires_grad_(False)
        model.bert.embeddings.requires_grad_(False)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", choices=("full", "lora", "head"), default="lora")
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--epochs", type=float, default=15)
    given = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=min(200, given.records),  # the expected batch
            num_train_epochs=given.epochs,
            learning_rate=5e-3,
            lr_scheduler_type="constant",
            logging_steps=50,
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = PrivateTrainer(
            classifier(given.train),
            args,
            train_dataset=sentences(given.records, seed=1),
            eval_dataset=sentences(400, seed=2),
            records=given.records,
            max_length=LENGTH,
            privacy=ad.Budget(epsilon=8, delta=1e-5),
            method=ad.DPSGD(clip_norm=0.1),
            compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
        )
        trainer.train()
        print(f"{given.train}: evaluation accuracy {trainer.evaluate()['eval_accuracy']:.1%}")
        print(trainer.run.privacy.statement().splitlines()[0])


if __name__ == "__main__":
    main()

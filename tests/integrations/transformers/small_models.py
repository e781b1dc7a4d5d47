"""Small Hugging Face models built from configs, dict records for them, and trainers that train in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    AlbertConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    LlamaConfig,
    RobertaConfig,
    TrainingArguments,
)

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.integrations.transformers import PrivateTrainer

WORDS, LENGTH, CLASSES, RECORDS, BATCH = 40, 10, 3, 48, 12
_BERT = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_labels": CLASSES,
}
CONFIGS: dict[str, Any] = {
    "bert": BertConfig(**_BERT, max_position_embeddings=LENGTH),
    "distilbert": DistilBertConfig(
        vocab_size=WORDS,
        dim=16,
        n_layers=2,
        n_heads=2,
        hidden_dim=24,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
    ),
    "roberta": RobertaConfig(**_BERT, max_position_embeddings=LENGTH + 2),
    "electra": ElectraConfig(**_BERT, embedding_size=16, max_position_embeddings=LENGTH),
    "albert": AlbertConfig(**_BERT, embedding_size=16, max_position_embeddings=LENGTH),
    "gpt2": GPT2Config(
        vocab_size=WORDS,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=LENGTH,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        num_labels=CLASSES,
    ),
    "llama": LlamaConfig(**_BERT, max_position_embeddings=LENGTH, pad_token_id=0),
}


def config(name: str = "bert", **changes: Any) -> Any:
    return type(CONFIGS[name]).from_dict({**CONFIGS[name].to_dict(), **changes})


def classifier(name: str = "bert", **changes: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config(name, **changes))


def trained_part(part: str, name: str = "bert") -> Any:
    """A classifier of which all, adapters and head, or the head alone is trained."""
    model = classifier(name)
    if part == "lora":
        torch.manual_seed(1)
        adapters = LoraConfig(
            task_type="SEQ_CLS", r=2, lora_alpha=4, lora_dropout=0.1, target_modules=["query", "value"]
        )
        return get_peft_model(model, adapters)
    if part == "head":
        model.base_model.requires_grad_(False)
    return model


def records(count: int = RECORDS, seed: int = 1) -> list[dict[str, Any]]:
    """Sentences of several lengths, with a column that no model takes."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        length = int(torch.randint(2, LENGTH + 1, (1,), generator=generator))
        ids = torch.randint(3, WORDS, (length,), generator=generator).tolist()
        made.append({"input_ids": ids, "attention_mask": [1] * length, "label": number % CLASSES, "text": "no matter"})
    return made


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": BATCH,
        "max_steps": 4,
        "learning_rate": 0.1,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(output_dir=str(folder), **{**settings, **changes})


def trainer(model: nn.Module, args: TrainingArguments, **changes: Any) -> PrivateTrainer:
    settings: dict[str, Any] = {
        "train_dataset": records(),
        "records": RECORDS,
        "max_length": LENGTH,
        "method": ad.DPSGD(clip_norm=0.5),
        "noise_multiplier": 1.0,
        "randomness": ReproducibleRandomness(5),
        "seed": 3,
    }
    kind: type[PrivateTrainer] = changes.pop("kind", PrivateTrainer)
    return kind(model, args, **{**settings, **changes})

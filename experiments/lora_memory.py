"""Peak memory of LoRA on a transformer built from a config: Hugging Face's Trainer with peft, and ours, side by side.

Each trains in a fresh process. What is compared is VmHWM − VmRSS: the most that a process has held since its model,
records and trainer were built, beside what it held then; imports and weights do not count. Both process the same number
of records at once: the plain batch is B, the private one has physical_batch_size=B. Inspecting the model counts.

    python experiments/lora_memory.py [--layers 4 --width 256 --length 128 --batch 64 --steps 5]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TARGET = 1.3
"""private over plain"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 4), ("width", 256), ("length", 128), ("batch", 64), ("rank", 8), ("steps", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", choices=("plain", "private"), help="one of them, in this process")
    given = parser.parse_args()
    if given.only:
        print(json.dumps({"bytes": measured(given)}))
        return
    found = {kind: alone(kind) for kind in ("plain", "private")}
    facts = {key: value for key, value in vars(given).items() if key != "only"}
    ratio = found["private"] / found["plain"]
    print(json.dumps({**facts, **found, "ratio": round(ratio, 3), "target": TARGET, "held": ratio <= TARGET}, indent=2))


def alone(kind: str) -> int:
    """The bytes of one kind, from a process that does nothing else."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    asked = [sys.executable, __file__, *sys.argv[1:], "--only", kind]
    told = subprocess.run(asked, env=environment, capture_output=True, text=True)
    if told.returncode:
        raise SystemExit(told.stderr)
    return int(json.loads(told.stdout.splitlines()[-1])["bytes"])


def measured(given: argparse.Namespace) -> int:
    """What training takes at its peak, beside what stood there before."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = built(given, folder)
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        before = held("VmRSS")
        trainer.train()
        return held("VmHWM") - before


def held(what: str) -> int:
    """A line of the process's status, in bytes."""
    found = re.search(rf"^{what}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def built(given: argparse.Namespace, folder: str) -> Any:
    """A trainer of the kind asked for, with its model and its records."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    import adadpigu as ad
    from adadpigu.integrations.transformers import PrivateTrainer

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=given.width,
        num_hidden_layers=given.layers,
        num_attention_heads=4,
        intermediate_size=4 * given.width,
        max_position_embeddings=given.length,
        num_labels=2,
    )
    targets = ["query", "key", "value", "dense"]
    adapters = LoraConfig(task_type="SEQ_CLS", r=given.rank, lora_alpha=16, lora_dropout=0.1, target_modules=targets)
    model = get_peft_model(BertForSequenceClassification(config), adapters)
    count = 8 * given.batch
    ids = torch.randint(1, 1000, (count, given.length))
    records = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": int(row[0]) % 2} for row in ids]
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=given.batch,
        max_steps=given.steps,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    if given.only == "plain":
        return Trainer(model=model, args=args, train_dataset=records)
    return PrivateTrainer(
        model,
        args,
        train_dataset=records,
        records=count,
        max_length=given.length,
        physical_batch_size=given.batch,
        method=ad.DPSGD(clip_norm=0.1),
        noise_multiplier=1.0,
    )


if __name__ == "__main__":
    main()

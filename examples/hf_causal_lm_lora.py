"""A causal language model with LoRA, bf16 and gradient checkpointing, trained privately on pieces of text.

    python examples/hf_causal_lm_lora.py

Nothing is downloaded: the model is built from a config, the text is Python's own manual, a token is a character.
"""

import argparse
import tempfile
from pydoc_data.topics import topics

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

import adadpigu as ad
from adadpigu.integrations.transformers import PrivateTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=float, default=20)
epochs = parser.parse_args().epochs

LENGTH = 32  # characters of a record
text = "".join(topics.values()).encode("ascii", "ignore")[: 500 * LENGTH]
records = [{"input_ids": list(text[i : i + LENGTH])} for i in range(0, len(text), LENGTH)]
train, held_out = records[:450], records[450:]

torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, pad_token_id=0, **size))
adapters = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear", modules_to_save=["lm_head"])
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=64,  # the expected batch
        num_train_epochs=epochs,
        learning_rate=1e-2,
        bf16=True,  # on a GPU; a CPU computes in float32, and a warning says so
        gradient_checkpointing=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = PrivateTrainer(
        get_peft_model(model, adapters),
        args,
        train_dataset=train,
        eval_dataset=held_out,
        records=len(train),
        max_length=LENGTH,
        privacy=ad.Budget(epsilon=8, delta=1e-4),
        method=ad.DPSGD(clip_norm=1.0),
    )
    print(f"before: {trainer.evaluate()['eval_loss']:.2f} nats a character")
    trainer.train()
    print(f"after: {trainer.evaluate()['eval_loss']:.2f} nats a character")
    print(trainer.run.privacy.statement().splitlines()[0])

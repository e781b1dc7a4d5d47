"""Settings of Hugging Face's Trainer that would make training non-private, or could not be kept: refused by name.

Checked before anything is built. What is not named here comes after the noise (optimiser, schedule, saving, logging of
public values) and is the user's. All of it is public.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainingArguments

from adadpigu.errors import InputError, ModelError

_MEMORY = "physical_batch_size= bounds memory and changes nothing else"


@dataclass(frozen=True)
class _Only:
    """What a setting may be, and why."""

    allowed: tuple[object, ...]
    why: str


_OFF: tuple[object, ...] = (False, None, 0, "", [], {})
SETTINGS: Mapping[str, _Only] = {
    "gradient_accumulation_steps": _Only(
        (1,), f"per_device_train_batch_size is the whole expected batch B, and {_MEMORY}; allowed: 1"
    ),
    "max_grad_norm": _Only(
        (1.0, 0.0, None),
        "records are clipped one by one, by the method's clip_norm; the release is not clipped again; allowed: 0, or "
        "its default, which does nothing here",
    ),
    "fp16": _Only(_OFF, "loss scaling would see un-noised gradients; allowed: False, or precision='bf16' on a GPU"),
    "bf16": _Only(_OFF, "autocast does not reach the engines; allowed: False, and precision='bf16' on a GPU instead"),
    "tf32": _Only((None, False), "bounds are reckoned for float32; allowed: None or False"),
    "gradient_checkpointing": _Only(
        _OFF,
        f"the forward that is repeated would draw another dropout than the one measured; allowed: False; {_MEMORY}",
    ),
    "auto_find_batch_size": _Only(_OFF, "B is part of the guarantee; allowed: False, and physical_batch_size='auto'"),
    "train_sampling_strategy": _Only(
        ("random",), "batches by length or in order are no Poisson draws; allowed: 'random', which is Poisson here"
    ),
    "dataloader_drop_last": _Only(_OFF, "a Poisson draw has no last batch to drop; allowed: False"),
    "data_seed": _Only((None,), "a draw that can be repeated is none; allowed: None"),
    "include_num_input_tokens_seen": _Only(
        ("no", False), "how many tokens were drawn is about the records; allowed: 'no'"
    ),
    "skip_memory_metrics": _Only((True,), "peak memory tells how large a draw was; allowed: True"),
    "debug": _Only(_OFF, "it prints activations of private records; allowed: ''"),
    "neftune_noise_alpha": _Only((None,), "its hook changes the model that was inspected; allowed: None"),
    "use_liger_kernel": _Only(_OFF, "it replaces layers that per-record gradients are known for; allowed: False"),
    "torch_compile": _Only(_OFF, "compiled modules hide their layers; allowed: False"),
    "deepspeed": _Only(_OFF, "it reduces un-noised gradients; allowed: None, one process"),
    "fsdp": _Only(_OFF, "it shards what is clipped record by record; allowed: '', one process"),
    "parallelism_config": _Only((None,), "one process trains here; allowed: None"),
    "world_size": _Only((1,), "one process trains here; allowed: 1 (for several: torchrun -m adadpigu train)"),
    "n_gpu": _Only((0, 1), "DataParallel would split a draw; allowed: one device (CUDA_VISIBLE_DEVICES=0)"),
}
ARGUMENTS: Mapping[str, str] = {
    "data_collator": "records are padded to max_length by the trainer; allowed: none, with the columns of a tokeniser",
    "compute_loss_func": "it is given a whole batch; allowed: loss=, a function of logits and labels that is taken "
    "record by record",
    "model_init": "a model made again would be trained again, and charged; allowed: model=",
    "optimizer_cls_and_kwargs": "allowed: optimizers=(optimizer, scheduler), or args.optim",
    "preprocess_logits_for_metrics": "allowed: compute_metrics",
    "batch_size": "allowed: args.per_device_train_batch_size, the expected batch",
    "steps": "allowed: args.max_steps or args.num_train_epochs",
    "epochs": "allowed: args.num_train_epochs or args.max_steps",
    "device": "allowed: args.use_cpu, or the device that args finds",
    "out": "allowed: args.output_dir; the run folder is in it",
    "lr": "allowed: args.learning_rate",
    "momentum": "allowed: args.optim and args.optim_args, or optimizers=",
    "weight_decay": "allowed: args.weight_decay",
    "optimizer": "allowed: args.optim, or optimizers=(optimizer, scheduler)",
    "lr_schedule": "allowed: args.lr_scheduler_type",
    "warmup": "allowed: args.warmup_steps",
    "execution": "steps are run as they are; allowed: none",
    "evaluate_every": "allowed: args.eval_strategy and args.eval_steps",
    "front": "allowed: a part of the model that is not trained (requires_grad_(False))",
    "resume": "allowed: trainer.train(resume_from_checkpoint=True)",
    "test": "allowed: eval_dataset",
}
"""arguments that the trainer does not take, and what stands for them"""
_FUSED = ("lomo", "layerwise")
"""optimisers that step within a backward pass"""


def refuse_settings(args: Any) -> None:
    """Raises `InputError` for the first setting that cannot be kept."""
    if not isinstance(args, TrainingArguments):
        raise InputError(f"args={type(args).__name__}; allowed: transformers.TrainingArguments(output_dir=...)")
    if not args.output_dir or Path(args.output_dir).is_file():
        raise InputError(
            f"output_dir={args.output_dir!r} is no folder; allowed: the name of one, where the ledger and the model's "
            "files are to be"
        )
    for name, only in SETTINGS.items():
        value = getattr(args, name, only.allowed[0])
        if _plain(value) not in only.allowed:
            raise InputError(f"{name}={_plain(value)!r}: {only.why}")
    optimiser = str(_plain(args.optim))
    if any(kind in optimiser for kind in _FUSED):
        raise InputError(f"optim={optimiser!r} steps within a backward pass; allowed: one that steps along p.grad")
    accumulated = getattr(args.accelerator_config, "gradient_accumulation_kwargs", None) or {}
    if accumulated.get("num_steps", 1) != 1:
        raise InputError(f"accelerator_config: gradient accumulation over {accumulated['num_steps']}; allowed: 1")
    if args.max_steps <= 0 and not args.num_train_epochs > 0:
        raise InputError(f"num_train_epochs={args.num_train_epochs}: there is nothing to train; allowed: above 0")


def refuse_rate(args: Any) -> None:
    """Raises `InputError` for a learning rate by which nothing could be learned, though it would be paid for."""
    rate = args.learning_rate
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise InputError(
            f"learning_rate={rate!r}: the run would be charged and learn nothing; allowed: a finite number above 0, "
            "such as 1e-3, or optimizers=(optimizer, scheduler) with an optimizer of your own"
        )


def refuse_accelerator(accelerator: Any) -> None:
    """Raises `InputError` for what accelerate was told behind Trainer's back, by its own variables or launcher."""
    state = accelerator.state
    for name, value, allowed in (
        ("mixed_precision", accelerator.mixed_precision, "no"),
        ("distributed_type", _plain(accelerator.distributed_type), "NO"),
        ("dynamo_backend", _plain(state.dynamo_plugin.backend), "NO"),
        ("gradient_accumulation_steps", accelerator.gradient_accumulation_steps, 1),
    ):
        if value != allowed:
            raise InputError(
                f"accelerate: {name}={value!r}, which changes the model or its batches behind the engines' back; "
                f"allowed: {allowed!r} (it reads ACCELERATE_{name.upper()}, or was started by accelerate launch)"
            )


def _plain(value: Any) -> Any:
    """Of an enumeration, its value."""
    return getattr(value, "value", value)


def refuse_arguments(given: Mapping[str, object]) -> None:
    """Raises `InputError` for an argument of Hugging Face's Trainer, or of `train`, that has no place here."""
    for name, why in ARGUMENTS.items():
        if name in given:
            raise InputError(f"{name}={type(given[name]).__name__}: {why}")


def refuse_model(model: Any) -> None:
    """Raises `ModelError` for a model that was set up to repeat its forward, or that is spread over devices."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"model={type(model).__name__}; allowed: a model of transformers or peft")
    repeated = [
        path or "model" for path, part in model.named_modules() if getattr(part, "gradient_checkpointing", False)
    ]
    if getattr(model, "is_gradient_checkpointing", False):
        repeated.append("model")
    if repeated:
        raise ModelError(
            f"{repeated[0]!r}: gradient checkpointing is on, and the forward that is repeated would draw another "
            f"dropout than the one measured; allowed: model.gradient_checkpointing_disable(); {_MEMORY}"
        )
    if getattr(model, "is_quantized", False):
        raise ModelError(f"{type(model).__name__}: its weights are quantised; allowed: float32 weights")
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        raise ModelError(f"{type(model).__name__} is spread over several devices; allowed: one")

"""Settings of Hugging Face's Trainer, as a private run takes them: translated, warned of, or refused. All public.

What is not named here comes after the noise (optimiser, schedule, saving, logging of public values) and is the user's.
"""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

from accelerate.utils import DynamoBackend

from adadpigu.errors import require
from adadpigu.integrations.shared import Rule, refuse_settings, warn_of_no_effect

_OFF: tuple[object, ...] = (False, None, 0, "", [], {})
REFUSED: Mapping[str, Rule] = {
    "tf32": ((None, False), "norms are bounded in float32; allowed: None or False"),
    "train_sampling_strategy": (("random",), "other batches are no Poisson draws; allowed: 'random', Poisson here"),
    "debug": (_OFF, "it prints activations of private records; allowed: ''"),
    "use_liger_kernel": (_OFF, "it replaces layers that per-record gradients are known for; allowed: False"),
    "deepspeed": (_OFF, "it reduces un-noised gradients; allowed: None, one process"),
    "fsdp": (_OFF, "it shards what is clipped record by record; allowed: '', one process"),
    "world_size": ((1,), "one process trains here; allowed: 1 (for several: torchrun -m adadpigu train)"),
}
"""settings that would break the guarantee, or that cannot be kept"""
IDLE: Mapping[str, Rule] = {
    "max_grad_norm": ((1.0, 0.0, None), "records are clipped one by one, by the method's clip_norm"),
    "fp16": (_OFF, "the net is computed in float32; for less memory: bf16=True on a GPU"),
    "bf16": (_OFF, "the net is computed in float32; it takes a GPU, and layer rules (no compute_loss of your own)"),
    "torch_compile": (_OFF, "per-record gradients are computed by hooks, which run uncompiled"),
    "dataloader_drop_last": (_OFF, "a Poisson draw has no last batch to drop"),
    "data_seed": ((None,), "who is drawn is secret, so draws cannot be repeated"),
    "include_num_input_tokens_seen": (("no", False), "how many tokens were drawn is about the records"),
    "skip_memory_metrics": ((True,), "peak memory tells how large a draw was, so it is not logged"),
}
"""settings that are safe and do nothing here: they are warned of"""
ELSEWHERE: Mapping[str, str] = {
    "batch_size": "args.per_device_train_batch_size, the expected batch",
    "steps": "args.max_steps or args.num_train_epochs",
    "epochs": "args.num_train_epochs or args.max_steps",
    "device": "args.use_cpu, or the device that args finds",
    "out": "args.output_dir; the run folder is in it",
    "lr": "args.learning_rate",
    **dict.fromkeys(("optimizer", "momentum", "weight_decay"), "args.optim and its like, or optimizers=(…, …)"),
    "body_lr": "optimizers=(…, …), with groups of parameters",
    **dict.fromkeys(("lr_schedule", "warmup"), "args.lr_scheduler_type and args.warmup_steps, or optimizers=(…, …)"),
    "evaluate_every": "args.eval_strategy and args.eval_steps",
    "resume": "trainer.train(resume_from_checkpoint=True)",
    "test": "eval_dataset",
    "model_init": "model=; a model made again would be trained again, and charged",
}
"""arguments of `train` or of Trainer that the private trainer does not take, and what stands for them"""


def private_settings(args: Any, options: dict[str, Any], *, by_rules: bool) -> Any:
    """A copy of the arguments for a private run; `options` of `train` get what the arguments ask for.

    A logical batch in parts is one expected batch B here: the parts become `physical_batch_size`.
    """
    refuse_settings(REFUSED, {name: _plain(getattr(args, name)) for name in REFUSED if hasattr(args, name)})
    optim = str(_plain(args.optim))
    within = "lomo" in optim or "layerwise" in optim
    require(not within, f"optim={optim!r} steps within a backward pass; allowed: one that steps along p.grad")
    kept = copy.copy(args)
    if kept.bf16 and by_rules and kept.device.type == "cuda":
        options.setdefault("precision", "bf16")
        kept.bf16 = False
    if kept.auto_find_batch_size:
        options.setdefault("physical_batch_size", "auto")
        kept.auto_find_batch_size = False
    if kept.gradient_accumulation_steps > 1:
        options.setdefault("physical_batch_size", kept.per_device_train_batch_size)
        kept.per_device_train_batch_size *= kept.gradient_accumulation_steps
        kept.gradient_accumulation_steps = 1
    if (kept.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
        warnings.warn("use_reentrant=True: gradients go through hooks; use_reentrant=False is taken", stacklevel=3)
        kept.gradient_checkpointing_kwargs = {**kept.gradient_checkpointing_kwargs, "use_reentrant": False}
    if kept.n_gpu > 1:
        warnings.warn(f"{kept.n_gpu} GPUs are visible, and one trains (CUDA_VISIBLE_DEVICES=0)", stacklevel=3)
        kept._n_gpu = 1
    for name, (allowed, why) in IDLE.items():
        value = _plain(getattr(kept, name, allowed[0]))
        if value not in allowed:
            warn_of_no_effect(f"{name}={value!r}", why)
            setattr(kept, name, allowed[0])
    if args.bf16 or args.fp16:
        kept.mixed_precision = "no"
    return kept


def check_accelerator(accelerator: Any) -> None:
    """Refuses what accelerate was told by its own variables or launcher; it compiles nothing."""
    accelerator.state.dynamo_plugin.backend = DynamoBackend.NO
    for name, allowed in (("mixed_precision", "no"), ("distributed_type", "NO")):
        value = _plain(getattr(accelerator, name))
        fault = f"accelerate: {name}={value!r} changes model or batches"
        where = f"it reads ACCELERATE_{name.upper()}, or was started by accelerate launch"
        require(value == allowed, f"{fault}; allowed: {allowed!r} ({where}), and TrainingArguments in its place")


def _plain(value: Any) -> Any:
    """Of an enumeration, its value."""
    return getattr(value, "value", value)

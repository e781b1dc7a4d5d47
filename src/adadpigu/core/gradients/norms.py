"""Norms that use stored statistics: they treat each record on its own and write nothing, so they are safe to keep.

A batch norm counts as frozen if its parameters are frozen, or if it is in evaluation mode when the run is prepared. It
then stays in evaluation mode while the model trains, also after the user's own `model.train()`.
"""

import math
import weakref

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

_frozen: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # norms that `train_mode` leaves in evaluation mode


def has_frozen_statistics(module: nn.Module) -> bool:
    """Whether a norm uses its stored statistics, or would do so without loss: its parameters are frozen too.

    >>> [has_frozen_statistics(norm) for norm in (nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval())]
    [False, True]
    """
    if not isinstance(module, _BatchNorm | _InstanceNorm) or module.running_mean is None:
        return False
    own = list(module.parameters(recurse=False))
    return not module.training or (bool(own) and not any(parameter.requires_grad for parameter in own))


def freeze_norms(model: nn.Module) -> int:
    """Notes which norms of a model stay in evaluation mode from here on, and puts them there. Returns their number."""
    for module in model.modules():
        note = _frozen.add if has_frozen_statistics(module) else _frozen.discard
        note(module)
    return keep_norms_frozen(model)


def train_mode(model: nn.Module, training: bool = True) -> None:
    """`model.train(training)`, but frozen norms stay in evaluation mode."""
    model.train(training)
    keep_norms_frozen(model)


def keep_norms_frozen(model: nn.Module) -> int:
    """Puts frozen norms back into evaluation mode, where `model.train()` took them out. Returns their number."""
    frozen = [module for module in model.modules() if module in _frozen]
    for module in frozen:
        module.training = False
    return len(frozen)


def group_norm(module: _BatchNorm) -> nn.GroupNorm:
    """What to put in its place; flat features make one group, since a group of one value would normalise to zero.

    >>> [group_norm(norm).num_groups for norm in (nn.BatchNorm2d(64), nn.BatchNorm2d(6), nn.BatchNorm1d(16))]
    [16, 2, 1]
    """
    channels = module.num_features
    groups = 1 if isinstance(module, nn.BatchNorm1d) else math.gcd(channels, 16)
    return nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine)


def objection_to_norm(module: nn.Module) -> str | None:
    """Why a norm mixes or keeps records, with the remedies; None where it does neither."""
    if not isinstance(module, _BatchNorm | _InstanceNorm):
        return None
    if isinstance(module, _InstanceNorm):
        kept = module.track_running_stats and not has_frozen_statistics(module)
        return "keeps running statistics of the data; build it with track_running_stats=False" if kept else None
    known = module.num_features
    other = f"nn.GroupNorm({group_norm(module).num_groups}, {known})" if known else "nn.GroupNorm(groups, channels)"
    if not module.track_running_stats:
        return f"mixes records even in eval(), since it stores no statistics; replace it by {other}"
    if has_frozen_statistics(module):
        return None
    return (
        "mixes records through batch statistics; if it is pretrained, freeze it (norm.eval(), or requires_grad_(False) "
        f"on its parameters); if it is trained from scratch, replace it by {other}"
    )

"""`ModuleValidator`: what of a model cannot be trained privately, and the same model with it replaced."""

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from adadpigu.core.gradients.inspection import objections
from adadpigu.core.gradients.norms import group_norm, has_frozen_statistics
from adadpigu.errors import ModelError


class ModuleValidator:
    """Checks by type; what only shows in a forward is found by `make_private`, on synthetic records."""

    @staticmethod
    def validate(module: nn.Module, *, strict: bool = False) -> list[ModelError]:
        """What stands in the way, each with its place and a remedy; `strict` raises the first."""
        found = [ModelError(text) for text in objections(module)]
        if strict and found:
            raise found[0]
        return found

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Whether nothing stands in the way, by type."""
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: nn.Module, **_: object) -> nn.Module:
        """A copy in which batch norm is group norm, and instance norm keeps no statistics; frozen norms stay.

        New layers start as torch makes them: what a trained batch norm had learned is gone.
        """
        holder = nn.ModuleList([copy.deepcopy(module)])  # the module itself may be what is replaced
        for parent in list(holder.modules()):
            for name, child in list(parent.named_children()):
                if (replacement := _replacement(child)) is not None:
                    setattr(parent, name, replacement)
        return holder[0]

    @classmethod
    def fix_and_validate(cls, module: nn.Module, **_: object) -> nn.Module:
        """`fix`, and an error where something is left."""
        fixed = cls.fix(module)
        cls.validate(fixed, strict=True)
        return fixed


def _replacement(module: nn.Module) -> nn.Module | None:
    if has_frozen_statistics(module):
        return None
    if isinstance(module, _BatchNorm):
        return group_norm(module)
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return type(module)(module.num_features, eps=module.eps, affine=module.affine, track_running_stats=False)
    return None

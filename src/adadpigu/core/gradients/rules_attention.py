"""The unfolding of multi-head attention. Sees sensitive sequences and keeps nothing.

softmax(Q Kᵀ/√h + mask) V, head by head, between affine maps: x → Q, K, V and heads → output. All trained parameters
are in those maps, but for the optional extra key and value. The output map's own forward is never called, by torch
neither.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adadpigu.core.gradients.rules import Destination
from adadpigu.core.gradients.unfolding import Note, Part, affine, unfolding
from adadpigu.errors import ModelError

Three = tuple[Tensor, Tensor, Tensor]


def _extra(name: str) -> Part:
    """One more position that all records share, [1, 1, e]."""

    def rule(module: nn.MultiheadAttention, x: Tensor, dy: Tensor, into: Destination) -> None:
        if into.wants(name):
            into.add(name, dy.unsqueeze(1))

    return Part((name,), rule)


@unfolding(nn.MultiheadAttention)
def attention(
    module: nn.MultiheadAttention,
    note: Note,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As the module's forward; the batch is brought to the front inside where the module has it second."""
    if query.dim() != 3 or query.is_nested:
        raise ModelError("MultiheadAttention: takes one record without a batch, or nested; give it [batch, length, e]")
    if not module.batch_first:  # inputs that are the same tensor stay the same: they are projected together
        turned = {id(each): each.transpose(0, 1) for each in (query, key, value)}
        query, key, value = (turned[id(each)] for each in (query, key, value))
    q, k, v = _projected(module, note, (query, key, value))
    hinted = is_causal and key_padding_mask is None and not need_weights
    mask = None if hinted else _merged(module, attn_mask, key_padding_mask, q)
    k, v, mask = _extended(module, note, k, v, mask)
    if need_weights:
        mixed, weights = _weighted(module, q, k, v, mask)
    else:
        q, k, v = (_heads(module, each) for each in (q, k, v))
        dropout = module.dropout if module.training else 0.0
        mixed, weights = F.scaled_dot_product_attention(q, k, v, mask, dropout, hinted), None
    mixed = mixed.permute(2, 0, 1, 3).flatten(2)
    # In memory the sequence comes before the batch, as in torch's output: a dropout that follows draws in that order.
    output = F.linear(mixed, module.out_proj.weight, module.out_proj.bias).transpose(0, 1)
    note(mixed.transpose(0, 1), output, affine("weight", "bias"), "out_proj")
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    return output if module.batch_first else output.transpose(0, 1), weights


def _projected(module: nn.MultiheadAttention, note: Note, given: Three) -> Three:
    """Inputs that are one tensor are projected together; those of different widths have weights of their own."""
    query, key, value = given
    one_weight, bias, width = module._qkv_same_embed_dim, module.in_proj_bias, module.embed_dim
    if one_weight and query is key and key is value:
        together = [(query, 3)]
    elif one_weight and key is value:
        together = [(query, 1), (key, 2)]
    else:
        together = [(query, 1), (key, 1), (value, 1)]
    parts: list[Tensor] = []
    for x, count in together:
        rows = slice(len(parts) * width, (len(parts) + count) * width)
        name = "in_proj_weight" if one_weight else f"{'qkv'[len(parts)]}_proj_weight"
        weight = module.get_parameter(name)
        y = F.linear(x, weight[rows] if one_weight else weight, None if bias is None else bias[rows])
        start = rows.start if one_weight else 0
        note(x, y, affine(name, None if bias is None else "in_proj_bias", start, bias_start=rows.start))
        parts += y.chunk(count, dim=-1)
    return parts[0], parts[1], parts[2]


def _merged(
    module: nn.MultiheadAttention, attn_mask: Tensor | None, key_padding_mask: Tensor | None, like: Tensor
) -> Tensor | None:
    """One mask to add to the scores [b, heads, l, s], or None."""
    mask = None
    if attn_mask is not None:
        mask = _added(attn_mask, like)
        # Of three dimensions it has a mask for each record and head.
        mask = mask.view(len(like), module.num_heads, *mask.shape[1:]) if mask.dim() == 3 else mask[None, None]
    if key_padding_mask is not None:
        padding = _added(key_padding_mask, like)[:, None, None]
        mask = padding if mask is None else mask + padding
    return mask


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask to be added to scores: true means not allowed."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -float("inf"))


def _extended(
    module: nn.MultiheadAttention, note: Note, k: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Adds the trained extra key and value, and the one of zeros, where the module has them; none is masked."""
    if module.bias_k is not None and module.bias_v is not None:
        more = [each.expand(len(k), 1, -1) for each in (module.bias_k, module.bias_v)]
        note(k, more[0], _extra("bias_k"))
        note(v, more[1], _extra("bias_v"))
        k, v = torch.cat((k, more[0]), dim=1), torch.cat((v, more[1]), dim=1)
        mask = None if mask is None else F.pad(mask, (0, 1))
    if module.add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        mask = None if mask is None else F.pad(mask, (0, 1))
    return k, v, mask


def _weighted(
    module: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Heads [b, heads, l, h] and the weights [b, heads, l, s] they are made with."""
    q, k, v = (_heads(module, each) for each in (q, k, v))
    scores = (q * math.sqrt(1.0 / module.head_dim)) @ k.mT
    weights = F.softmax(scores if mask is None else scores + mask, dim=-1)
    if module.training and module.dropout > 0.0:
        weights = F.dropout(weights, module.dropout)
    return weights @ v, weights


def _heads(module: nn.MultiheadAttention, x: Tensor) -> Tensor:
    return x.view(len(x), x.shape[1], module.num_heads, module.head_dim).transpose(1, 2)

"""The unfolding of recurrent nets, step by step. Sees sensitive sequences and keeps nothing.

All steps share W: gates_t = x_t W_ihᵀ + b_ih + h_{t-1} W_hhᵀ + b_hh, so that ∂ℓ_i/∂W_ih = Σ_t dgates_it x_itᵀ and
∂ℓ_i/∂W_hh = Σ_t dgates_it h_i,t-1ᵀ: two products a record. In a GRU one gate meets the hidden part by a factor, so the
hidden part has a gradient of its own.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adadpigu.core.gradients.unfolding import Note, affine, tapped, unfolding
from adadpigu.errors import ModelError

State = tuple[Tensor, ...]  # h [b, hidden], and c of an LSTM
Step = Callable[[Tensor, Tensor, State], State]  # (input's part of the gates, hidden part, state before) to state after


def lstm(_: Tensor, gates: Tensor, state: State) -> State:
    i, f, g, o = gates.chunk(4, dim=1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru(entering: Tensor, hidden: Tensor, state: State) -> State:
    size = state[0].shape[1]
    entering_rz, entering_n = torch.split(entering, [2 * size, size], dim=1)
    hidden_rz, hidden_n = torch.split(hidden, [2 * size, size], dim=1)
    r, z = torch.sigmoid(entering_rz + hidden_rz).chunk(2, dim=1)
    n = torch.tanh(torch.addcmul(entering_n, r, hidden_n))
    return (torch.addcmul(n, z, state[0] - n),)


def _step(module: nn.RNNBase | nn.RNNCellBase) -> Step:
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return lstm
    if isinstance(module, nn.GRU | nn.GRUCell):
        return gru
    activation = torch.relu if module.nonlinearity == "relu" else torch.tanh
    return lambda _, gates, state: (activation(gates),)


@unfolding(nn.LSTM, nn.GRU, nn.RNN)
def recurrent(module: nn.RNNBase, note: Note, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:  # noqa: A002
    """As the module's forward, by whose names callers may pass inputs, with dropout drawn in the same order."""
    _refuse_shape(module, input, 3, "[batch, length, features]")
    x = input if module.batch_first else input.transpose(0, 1)
    directions = 2 if module.bidirectional else 1
    starts = _starts(module, hx, x)
    ends = []
    for layer in range(module.num_layers):
        outputs = []
        for way in range(directions):
            suffix = f"_l{layer}" + ("_reverse" if way else "")
            output, end = _along(module, note, x, starts[layer * directions + way], suffix, backwards=way == 1)
            outputs.append(output)
            ends.append(end)
        joined = outputs[0] if directions == 1 else torch.cat(outputs, dim=2)
        if layer < module.num_layers - 1 and module.dropout > 0.0:
            joined = F.dropout(joined, module.dropout, module.training)
        x = joined.transpose(0, 1)
    last = tuple(torch.stack(each) for each in zip(*ends, strict=True))
    return x if module.batch_first else joined, last if isinstance(module, nn.LSTM) else last[0]


@unfolding(nn.LSTMCell, nn.GRUCell, nn.RNNCell)
def one_step(module: nn.RNNCellBase, note: Note, input: Tensor, hx: Any = None) -> Any:  # noqa: A002
    """As the module's forward: a sequence of one step."""
    _refuse_shape(module, input, 2, "[batch, features]")
    given = hx if isinstance(module, nn.LSTMCell) else (hx,)
    start = _zeros(module, input, module.hidden_size) if hx is None else given
    _, end = _along(module, note, input.unsqueeze(1), start, "", backwards=False)
    return end if isinstance(module, nn.LSTMCell) else end[0]


def _along(
    module: nn.RNNBase | nn.RNNCellBase, note: Note, x: Tensor, state: State, suffix: str, *, backwards: bool
) -> tuple[Tensor, State]:
    """One layer in one direction over x [b, t, f]: outputs [t, b, hidden] and the state at the end."""
    step = _step(module)
    entering, hidden = _gates(module, x, suffix)
    narrow = _narrowing(module, x, suffix)
    steps, hidden_steps = entering.unbind(1), hidden.unbind(1)
    before, wide, outputs = ([state[0]] * len(steps) for _ in range(3))
    turned = getattr(module, f"weight_hh{suffix}").mT
    for t in reversed(range(len(steps))) if backwards else range(len(steps)):
        before[t] = state[0]
        state = step(steps[t], torch.addmm(hidden_steps[t], state[0], turned), state)
        if narrow is not None:
            wide[t] = state[0]
            state = (torch.addmm(narrow[1][t], state[0], narrow[2]), *state[1:])
        outputs[t] = state[0]
    biases = _names(module, suffix)
    note(x, entering, affine(f"weight_ih{suffix}", biases[0]))
    note(torch.stack(before, dim=1).detach(), hidden, affine(f"weight_hh{suffix}", biases[1]))
    if narrow is not None:
        note(torch.stack(wide, dim=1).detach(), narrow[0], affine(f"weight_hr{suffix}"))
    return torch.stack(outputs), state


def _gates(module: nn.RNNBase | nn.RNNCellBase, x: Tensor, suffix: str) -> tuple[Tensor, Tensor]:
    """The input's part of the gates for all steps, [b, t, gates], and what the hidden part is to be added to."""
    weight = getattr(module, f"weight_ih{suffix}")
    into, out_of = (None if name is None else getattr(module, name) for name in _names(module, suffix))
    if not isinstance(module, nn.GRU | nn.GRUCell):  # the hidden part of the gates is just added to the input's
        gates = tapped(F.linear(x, weight, None if into is None else into + out_of))
        return gates, gates
    offset = weight.new_zeros(()) if out_of is None else out_of
    return tapped(F.linear(x, weight, into)), tapped(offset.expand(*x.shape[:2], len(weight)))


def _narrowing(module: nn.Module, x: Tensor, suffix: str) -> tuple[Tensor, tuple[Tensor, ...], Tensor] | None:
    """An LSTM's map to a smaller h: zeros [b, t, small] to add to, whose gradient is h's; one a step; the weight."""
    small = getattr(module, "proj_size", 0)
    if not small:
        return None
    zeros = tapped(x.new_zeros(()).expand(*x.shape[:2], small))
    return zeros, zeros.unbind(1), getattr(module, f"weight_hr{suffix}").mT


def _names(module: nn.RNNBase | nn.RNNCellBase, suffix: str) -> tuple[str | None, str | None]:
    return (f"bias_ih{suffix}", f"bias_hh{suffix}") if module.bias else (None, None)


def _starts(module: nn.RNNBase, hx: Any, x: Tensor) -> list[State]:
    """The state before the first step for each layer and direction."""
    passes = module.num_layers * (2 if module.bidirectional else 1)
    if hx is None:
        return [_zeros(module, x, module.proj_size or module.hidden_size)] * passes
    given = hx if isinstance(module, nn.LSTM) else (hx,)
    return list(zip(*(each.unbind(0) for each in given), strict=True))


def _zeros(module: nn.RNNBase | nn.RNNCellBase, x: Tensor, size: int) -> State:
    h = x.new_zeros(len(x), size)
    return (h, x.new_zeros(len(x), module.hidden_size)) if isinstance(module, nn.LSTM | nn.LSTMCell) else (h,)


def _refuse_shape(module: nn.Module, x: Any, dimensions: int, shape: str) -> None:
    if not isinstance(x, Tensor):
        kind, given = type(module).__name__, type(x).__name__
        raise ModelError(f"{kind}: takes a {given}; give it a padded tensor {shape}, and mask what is padding")
    if x.dim() != dimensions:
        raise ModelError(f"{type(module).__name__}: takes an input of shape {tuple(x.shape)}; give it {shape}")

"""Finds modules that mix records: the output for one record must not depend on the others in its batch.

Per-sample clipping bounds a record's influence only if g_i depends on record i alone; a batch statistic breaks that.
One record of a public example is replaced, and the first module whose output for the *others* moves is named.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from adadpigu.core.gradients.losses import Objective, is_plain
from adadpigu.core.gradients.norms import train_mode
from adadpigu.core.gradients.probing import agree, forward, padding_ids, quiet_mode, removing, seed
from adadpigu.core.gradients.state import describe
from adadpigu.core.trees import Tree, count_rows, map_tensors, select
from adadpigu.errors import ModelError

_SEEDS = 16  # for a forward that draws at random: a mixup of three batches in ten is then missed in one run of 300
_LARGE = 256
_ORDINARY = 3  # the first alternatives of a record, which every forward has to take


Passage = tuple[str, list[Tensor], list[Tensor]]  # of one module call: the module's path, its input and its output


def refuse_mixing(model: nn.Module, inputs: Tree) -> None:
    """Raises `ModelError` if records influence each other's output, or if the forward before does.

    Independence is probed, not proved: with ordinary, extreme, non-finite and repeated records, and in a larger batch.
    """
    rows = count_rows(inputs)
    for record in (0, rows - 1):
        _replace(model, inputs, [{record: value} for value in _alternatives(model, inputs, record)])
    for number in range(1, _SEEDS) if _draws_randomness(model, inputs) else ():  # what happens now and then
        _replace(model, inputs, [{0: _alternatives(model, inputs, 0)[0]}], number)
    _refuse_trimming(model, inputs)
    if isinstance(model, Objective) and hasattr(model.losses, "why_alone"):
        return  # called with one record at a time, so a larger batch shows nothing new

    def repeated(leaf: Tensor) -> Tensor:
        many = leaf.repeat(_LARGE // rows + 1, *[1] * (leaf.dim() - 1))
        if not leaf.is_floating_point():
            return many
        return many + torch.randn_like(many) if is_plain(model, inputs) else torch.rand_like(many)

    with torch.no_grad():  # a graph of so many records would take more memory than training does
        large = map_tensors(repeated, inputs)
        change = {}
        for number in range(_ORDINARY):  # far apart, so that no two are neighbours
            record = number * (_LARGE // _ORDINARY)
            values = _alternatives(model, large, record)
            change[record] = values[min(number, len(values) - 1)]
        _replace(model, large, [change])


def _replace(model: nn.Module, inputs: Tree, changes: list[dict[int, Tree]], number: int = 0) -> None:
    """Replaces records, in one forward for each of `changes`: the output of all others must stay.

    All forwards have one seed. The first is repeated at the end: another output means that the model keeps state.
    """
    output, batches, moved = forward(model, inputs, number).detach(), [inputs], []
    everyone = torch.ones(count_rows(inputs), dtype=torch.bool)
    for tried, values in enumerate(changes):
        replaced = _with(inputs, values)
        try:
            altered = forward(model, replaced, number).detach()
        except ModelError:
            if tried < _ORDINARY:
                raise
            continue  # a forward that refuses extreme values by itself mixes nothing by them
        batches.append(replaced)
        others = everyone.index_fill(0, torch.tensor([*values]), False)
        if not agree(altered[others], output[others]):
            moved.append((replaced, others))
    if (moved or len(changes) > 1) and not agree(forward(model, inputs, number).detach(), output):
        where, _ = _blame(model, [*batches, inputs], everyone, number)
        told = f"{where}: the same input and seed give another output the second time"
        raise ModelError(f"{told}; keep no state from one forward to the next, and draw randomness from torch only")
    for replaced, others in moved:
        where, blamed = _blame(model, [inputs, replaced], others, number)
        raise ModelError(f"{where}: mixes records, one record's output depends on the others; {_remedy(blamed)}")


def _refuse_trimming(model: nn.Module, inputs: Tree) -> None:
    """Of whole numbers: records that end in padding, beside one that does not, which could make them longer."""
    leaves, spec = tree_flatten(inputs)
    ids = padding_ids(model)
    pairs = [(number, next(each for each in ids if each != number)) for number in ids if len(ids) > 1]
    sequences = [n for n, x in enumerate(leaves) if not (x.is_floating_point() or x.is_complex() or x.dim() < 2)]
    for place, (number, other) in itertools.product(sequences, pairs):
        padded = torch.where(leaves[place] == number, other, leaves[place])
        padded[..., (padded.shape[-1] + 1) // 2 :] = number
        batch, longest = leaves.copy(), [leaf[0] for leaf in leaves]
        batch[place], longest[place] = padded, torch.full_like(padded[0], other)
        shorter, value = (tree_unflatten(parts, spec) for parts in (batch, longest))
        # Of a tree it is not known which leaf holds ids: one that refuses them holds none.
        if is_plain(model, inputs) or all(_takes(model, each) for each in (shorter, _with(shorter, {0: value}))):
            _replace(model, shorter, [{0: value}])


def _takes(model: nn.Module, inputs: Tree) -> bool:
    try:
        forward(model, inputs)
    except ModelError:
        return False
    return True


def _draws_randomness(model: nn.Module, inputs: Tree) -> bool:
    """Whether a forward takes numbers from torch's generators, whatever it does with them."""
    seed()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call, unused-ignore]
    before = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
    forward(model, inputs)
    return not all(map(torch.equal, before, [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]))


def refuse_counting(model: nn.Module, inputs: Tree) -> None:
    """Raises `ModelError` if a record's output depends on how many others came with it."""
    if quiet_mode(model, inputs) is None:
        return
    together, alone = forward(model, inputs)[:1], forward(model, select(inputs, slice(1)))
    train_mode(model)
    if not agree(alone, together, factor=1 / math.sqrt(torch.finfo(together.dtype).eps)):
        told = f"{describe('', model)}: a record's output depends on the batch it comes in"
        raise ModelError(f"{told}; make the forward independent of the batch size")


def _traced(model: nn.Module, inputs: Tree, number: int) -> list[Passage]:
    """Every call of a module in one forward, in the order in which they end."""
    done: list[Passage] = []
    entered: list[list[Tensor]] = []

    def entering(module: nn.Module, args: Any, kwargs: Any) -> None:
        entered.append(_copies((args, kwargs)))

    def leaving(path: str) -> Any:
        return lambda module, _, output: done.append((path, entered.pop(), _copies(output)))

    handles = [module.register_forward_pre_hook(entering, with_kwargs=True) for module in model.modules()]
    handles += [module.register_forward_hook(leaving(path)) for path, module in model.named_modules()]
    with removing(handles):
        forward(model, inputs, number)
    return done


def _copies(tree: Any) -> list[Tensor]:
    return [leaf.detach().clone() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _alternatives(model: nn.Module, inputs: Tree, record: int) -> list[Tree]:
    """Records that are very different from one, ordinary ones first. Of a tree, all leaves are replaced together."""
    leaves, spec = tree_flatten(inputs)
    columns = [_values(leaf, record, plain=is_plain(model, inputs)) for leaf in leaves]
    most = max(map(len, columns))
    return [tree_unflatten([values[min(n, len(values) - 1)] for values in columns], spec) for n in range(most)]


def _values(inputs: Tensor, record: int, *, plain: bool) -> list[Tensor]:
    """Values for one record of a leaf: `plain` floats may be any, whole numbers stay in the range of the example."""
    old = inputs[record]
    if inputs.dtype == torch.bool:
        return [~old]
    if inputs.is_floating_point() or inputs.is_complex():
        far, other = 10 * torch.randn_like(old) + 3, inputs[1 - min(record, 1)]
        values = [far, -far, other] if plain else [torch.rand_like(old), 1 - old, other, far, -far]
        extreme = (0.0, torch.finfo(inputs.dtype).max, float("inf"), float("nan"))
        return values + [torch.full_like(old, value) for value in extreme]
    mirrored = inputs.min() + inputs.max() - old
    return [torch.where(mirrored == old, (old == 0).to(old.dtype), mirrored)]


def _with(inputs: Tree, values: dict[int, Tree]) -> Tree:

    def put(leaf: Tensor, *given: Tensor) -> Tensor:
        replaced = leaf.clone()
        for record, value in zip(values, given, strict=True):
            replaced[record] = value
        return replaced

    return tree_map(put, inputs, *values.values())


def _blame(model: nn.Module, batches: list[Tree], rows: Tensor, number: int) -> tuple[str, nn.Module]:
    """The innermost module that got the same for these records in the first forward and the last, and gave another.

    Keeps every layer's output, which takes many times the memory of a forward: only called to word a refusal.
    """
    before = _traced(model, batches[0], number)
    for batch in batches[1:-1]:
        forward(model, batch, number)
    after = _traced(model, batches[-1], number)
    for (path, entered, left), (other_path, entered_now, left_now) in zip(before, after, strict=False):
        if path != other_path:
            break
        if _same(entered, entered_now, rows, whole=True) and not _same(left, left_now, rows, whole=False):
            return describe(path, model.get_submodule(path)), model.get_submodule(path)
    return describe("", model), model


def _same(old: list[Tensor], new: list[Tensor], rows: Tensor, *, whole: bool) -> bool:
    """Whether tensors agree in these rows; those without a row a record count `whole`, or not at all."""
    for a, b in zip(old, new, strict=False):
        by_record = all(tensor.dim() > 0 and len(tensor) == len(rows) for tensor in (a, b))
        if (by_record or whole) and not agree(*((b[rows], a[rows]) if by_record else (b, a))):
            return False
    return True


def _remedy(module: nn.Module) -> str:
    if isinstance(module, Objective):
        return "return one loss a record, of that record alone: no mean over the batch, no term of other records"
    if getattr(module, "batch_first", True) is False:
        return "build it with batch_first=True, or give it inputs of [sequence, batch, features]"
    return "use a layer that treats each record on its own, such as nn.GroupNorm or nn.LayerNorm"

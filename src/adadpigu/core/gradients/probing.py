"""Running a model on a public, synthetic example to see how it behaves, before any private record is touched.

Nothing here sees private data. Callers hold the model in `untouched`, so seeding and nudging leave no trace.
"""

import itertools
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.hooks import RemovableHandle

from adadpigu.core.bounding import MappedSum
from adadpigu.core.gradients.norms import train_mode
from adadpigu.core.gradients.state import describe
from adadpigu.core.randomness import preserve_rng_state
from adadpigu.core.trees import Tree, describe_tree
from adadpigu.errors import ModelError, PrivacyLineError, first_line


@contextmanager
def exact_products() -> Iterator[None]:
    """Full float32 products: coarse ones (TF32, bf16) vary with the batch size, so a sound model would look unsound."""
    backends = torch.backends
    kinds = itertools.product((backends.mkldnn, backends.cudnn), ("matmul", "conv", "rnn"))
    places: list[Any] = [backends.cuda.matmul, *(getattr(kind, part, None) for kind, part in kinds)]
    before = [(place, place.fp32_precision) for place in places if hasattr(place, "fp32_precision")]
    try:
        for place, _ in before:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, value in before:
            place.fp32_precision = value


def seed(number: int = 0) -> None:
    """Seeds the generators that `untouched` restores; CUDA only if it is already initialised."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call, unused-ignore]
        torch.cuda.manual_seed_all(number)


def varied(model: nn.Module, inputs: Tensor) -> Tensor:
    """The example with distinct records: a constant one (all zeros, say) would hide what the model does to records."""
    if inputs.numel() == 0 or bool((inputs != inputs.flatten()[0]).any()):
        return inputs
    if inputs.is_floating_point():
        return torch.randn_like(inputs)
    if known_ids(model) > 1 and inputs.dtype not in (torch.bool, torch.uint8):
        return torch.randint_like(inputs, known_ids(model))
    return inputs


def fitting(model: nn.Module, tree: Tree) -> Tree:
    """A tree of synthetic records that a model or an `Objective` takes, as varied as it takes them.

    Which leaf is an image, a mask or a label is not known, so values are tried: floats in [0, 1), whole numbers as
    given, all zero or all one, then each leaf at random, kept where the result is finite.
    """
    leaves, spec = tree_flatten(tree)
    leaves = [torch.rand_like(leaf) if leaf.is_floating_point() else leaf for leaf in leaves]
    whole = [number for number, leaf in enumerate(leaves) if not leaf.is_floating_point()]

    def replaced(made: dict[int, Tensor]) -> list[Tensor]:
        return [made.get(number, leaf) for number, leaf in enumerate(leaves)]

    def taken(trial: list[Tensor]) -> bool:
        try:
            return bool(torch.isfinite(forward(model, tree_unflatten(trial, spec))).all())
        except (ModelError, TypeError):
            return False

    starts = [{}, *({number: torch.full_like(leaves[number], value) for number in whole} for value in (0, 1))]
    leaves = next((trial for trial in map(replaced, starts) if taken(trial)), leaves)
    for number in whole:
        kind, most = leaves[number].dtype, known_ids(model)
        highs = (2,) if kind == torch.bool else (256, 2) if kind == torch.uint8 else (most, 2) if most > 1 else (2,)
        trials = (replaced({number: torch.randint_like(leaves[number], high)}) for high in highs)
        leaves = next((trial for trial in trials if taken(trial)), leaves)
    return tree_unflatten(leaves, spec)


@torch.no_grad()
def refuse_mixing(query: MappedSum, like: Tensor, tried: set[object]) -> None:
    """Refuses a map of gradients (as `like`, [0, d]) of which a row depends on others: no bound covers one record then.

    It is tried on three synthetic rows: one alone, all, and all turned round beside a loud one. Once for each function
    and shapes of what it has learned, which a method may renew at every step; these are noted in `tried`.
    """
    of = query.of.func if isinstance(query.of, partial) else query.of
    code = getattr(of, "__code__", type(of))  # a bound method has its function's
    kind = query.name, code, query.coin, tuple((name, tuple(each.shape)) for name, each in query.learned.items())
    if kind in tried:
        return
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, like.shape[1], generator=generator).to(like)
    coins = torch.rand(3, query.tosses, generator=generator, dtype=torch.float64).to(like.device)
    loud = rows * rows.new_tensor([[1.0], [1.0], [1e6]])

    def made(values: Tensor, places: list[int]) -> Tensor:
        return query.rows(values[places], coins[places])

    with exact_products(), preserve_rng_state(like.device):
        all_rows, alone, turned = made(rows, [0, 1, 2]), made(rows, [0]), made(loud, [2, 1, 0])
    pairs = (all_rows[:1], alone), (all_rows[0], turned[2]), (all_rows[1], turned[1])
    if not all(agree(one.to(like), other.to(like), factor=1e4) for one, other in pairs):
        told = f"{query.name!r}: what its map makes of a gradient changes with the gradients beside it"
        raise PrivacyLineError(f"{told}, so no bound covers one record; allowed: a map of each row by itself")
    tried.add(kind)


def known_ids(model: nn.Module) -> int:
    """How many ids all embeddings of a model know, from 0: what an example of whole numbers may hold; 0 without any."""
    return min((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)), default=0)


def padding_ids(model: nn.Module) -> list[int]:
    """Ids with which records may be filled up to a length: what embeddings declare, the first ones and the last."""
    count = known_ids(model)
    declared = [getattr(module, "padding_idx", None) for module in model.modules()]
    likely = [*(each for each in declared if each is not None), *range(4), count - 1, count - 2]
    return [number for number in dict.fromkeys(likely) if 0 <= number < count]


@torch.no_grad()
def nudge(model: nn.Module) -> None:
    """Moves trained parameters away from zero: a zero-initialised gate or last layer would hide what lies behind."""
    for parameter in model.parameters():
        if parameter.requires_grad and not parameter.any():
            parameter.normal_(std=0.05)


@contextmanager
def removing(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Removes hooks at the end."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def innermost(model: nn.Module, error: Exception, otherwise: str) -> str:
    """The module in whose forward an error was raised, by its traceback; `otherwise` where it was in none."""
    paths = {module: path for path, module in model.named_modules()}
    frames = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    failed = [module for module in frames if isinstance(module, nn.Module) and module in paths]
    return describe(paths[failed[-1]], failed[-1]) if failed else otherwise


def forward(model: nn.Module, inputs: Tree, number: int = 0) -> Tensor:
    """One seeded forward; a failure is reported with the module it happened in."""
    seed(number)
    try:
        output: Tensor = model(inputs)
        return output
    except Exception as error:
        where = innermost(model, error, describe("", model))
        plain = isinstance(inputs, Tensor)
        what = f"shape {tuple(inputs.shape)} and {inputs.dtype}" if plain else f"records {describe_tree(inputs)}"
        told = f"{where}: forward fails on an example of {what}: {first_line(error)}"
        raise ModelError(f"{told}; match the model to the data") from error


def quiet_mode(model: nn.Module, inputs: Tree) -> bool | None:
    """The training flag under which two seeds give the same output (train first), or None; leaves that flag set."""
    for training in (True, False):
        train_mode(model, training)
        if agree(forward(model, inputs, number=0), forward(model, inputs, number=1)):
            return training
    train_mode(model)
    return None


def agree(found: Tensor, expected: Tensor, factor: float = 100.0) -> bool:
    """Whether two tensors are equal up to `factor` roundings of the largest entry."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not (found.is_floating_point() or found.is_complex()):
        return torch.equal(found, expected)
    tolerance = min(factor * torch.finfo(found.dtype).eps, 0.02)
    sizes = expected.detach().abs().nan_to_num(0.0, 0.0, 0.0)
    scale = float(sizes.max()) if sizes.numel() else 0.0
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)

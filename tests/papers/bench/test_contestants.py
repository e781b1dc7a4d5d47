"""Who takes part: every contestant that can be built trains, and one that cannot says why."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import pytest
import torch
from torch.nn import functional as F

from adadpigu.core.gradients import choose_engine
from adadpigu.errors import InputError
from adadpigu_bench.contestants import (
    BASELINE,
    CHANNELS_LAST,
    CUDA_GRAPH,
    METHODS,
    PEERS,
    Contestant,
    Task,
    Unavailable,
    contestants,
    flat,
    refuse_oversize,
)
from adadpigu_bench.nets import NETS, find_net, size, transformer

ENTERED = contestants(METHODS, ("ghost", "materialised", "functional"), PEERS, "cpu")
MODULES = {"opacus": "opacus", "backpack": "backpack", "jax": "jax", "fastdp": "fastDP"}


class Scripted:
    """Orders that are known beforehand."""

    def __init__(self, *steps: int) -> None:
        self._steps = list(steps)
        self.laps: list[float] = []

    def wanted(self) -> int:
        return self._steps.pop(0) if self._steps else 0

    def taken(self, seconds: float) -> None:
        self.laps.append(seconds)


def tiny(steps: int = 3, net: str = "mnist-cnn") -> Task:
    return Task(net=net, batch=4, device="cpu", steps=steps)


@pytest.mark.parametrize("contestant", ENTERED, ids=lambda contestant: contestant.label)
@pytest.mark.filterwarnings("ignore")
def test_every_contestant_that_can_be_built_takes_steps_that_change_its_weights(contestant: Contestant) -> None:
    module = MODULES.get(contestant.peer or "")
    found = None if module is None else importlib.util.find_spec(module)
    if module is not None and (found is None or found.origin is None):  # a folder of that name is no package
        pytest.skip(f"{module} is not installed")
    trainer = contestant.build(tiny())
    start, orders = flat(tiny().card.model()), Scripted(2, 1)
    end = trainer(orders)
    assert len(orders.laps) == 2
    assert all(seconds > 0 for seconds in orders.laps)
    assert start.shape == end.shape == (26010,)
    assert bool(torch.isfinite(end).all())
    assert not torch.equal(start, end)


@pytest.mark.parametrize("contestant", [BASELINE, Contestant(method="adadpigu", engine="ghost", peer=None)])
def test_an_order_for_no_step_ends_a_run_at_the_weights_that_all_start_from(contestant: Contestant) -> None:
    assert torch.equal(contestant.build(tiny())(Scripted()), flat(tiny().card.model()))


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_that_is_not_installed_says_so_and_how_to_get_it(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> ModuleType:
        root = name.split(".")[0]
        if root == MODULES[peer]:
            raise ModuleNotFoundError(f"No module named {root!r}", name=root)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    entered = [contestant for contestant in contestants((), (), (peer,), "cpu") if contestant.peer == peer]
    assert entered
    for contestant in entered:
        with pytest.raises(Unavailable, match=r"not installed .*install"):
            contestant.build(tiny())


def test_a_peer_that_is_broken_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def broken(name: str, package: str | None = None) -> ModuleType:
        if name.startswith("backpack"):
            raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(Unavailable, match=r"does not import: .*torchvision"):
        Contestant(method="dpsgd", engine="batch-grad", peer="backpack").build(tiny())


def test_an_engine_that_cannot_be_had_for_a_net_is_unavailable_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("engine='ghost' cannot be used: for the test")

    monkeypatch.setattr("adadpigu.training.preparation.choose_engine", refuse)
    with pytest.raises(Unavailable, match="cannot be used: for the test"):
        Contestant(method="dpsgd", engine="ghost", peer=None).build(tiny())


def test_per_sample_gradients_that_do_not_fit_are_refused_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adadpigu_bench.contestants.free_memory", lambda device: 4.0 * 4 * 26010)
    with pytest.raises(Unavailable, match="GiB are free"):
        refuse_oversize(tiny(), 1.0)
    refuse_oversize(tiny(), 0.7)


def test_the_cuda_graph_takes_part_on_cuda_only() -> None:
    assert CUDA_GRAPH in {contestant.peer for contestant in contestants((), (), (), "cuda:0")}
    assert [contestant.peer for contestant in contestants((), (), (), "cpu")] == [BASELINE.peer, CHANNELS_LAST]


def test_channels_last_is_for_images_only() -> None:
    with pytest.raises(Unavailable, match="not images"):
        Contestant(method="sgd", engine=None, peer=CHANNELS_LAST).build(tiny(net="transformer"))


@pytest.mark.parametrize("name", ["mnist-cnn", "mnist-cnn-padded", "cifar-small", "cifar-big", "scatter-linear"])
def test_a_net_rewritten_in_jax_computes_what_the_torch_net_computes(name: str) -> None:
    pytest.importorskip("jax")
    import numpy as np

    from adadpigu_bench.jax_peer import translated

    model, (inputs, _) = NETS[name].model(), NETS[name].records(2)
    forward, weights = translated(model, name)
    for record, expected in zip(inputs, model(inputs).detach(), strict=True):
        found = torch.from_numpy(np.array(forward(weights, record.numpy())))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["wrn-16-4", "transformer"])
def test_jax_says_which_nets_it_does_not_have(name: str) -> None:
    pytest.importorskip("jax")
    with pytest.raises(Unavailable, match="not available for this net"):
        Contestant(method="dpsgd", engine="jit+vmap", peer="jax").build(tiny(net=name))


@pytest.mark.parametrize("name", NETS)
def test_every_net_takes_its_records_and_gives_ten_classes(name: str) -> None:
    net = find_net(name)
    inputs, targets = net.records(2)
    assert net.model()(inputs).shape == (2, 10)
    assert torch.equal(inputs, net.records(2)[0])
    assert targets.max() < 10


def test_the_transformer_has_ten_million_parameters_all_under_layer_rules() -> None:
    assert size(find_net("transformer").model()) >= 10_000_000
    small = transformer(length=3, features=4, width=8, blocks=1, heads=2)
    example = torch.randn(3, 3, 4), torch.arange(3)
    assert choose_engine(small, F.cross_entropy, example, engine="ghost").name == "ghost"

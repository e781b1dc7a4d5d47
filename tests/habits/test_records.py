"""Habits of data: any tree of tensors is a record, and models with several inputs and outputs are trained on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas
import pytest
import torch
from record_oracle import N, assert_gradients, prepared
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.data import TensorRecords
from trials import small_digits, small_net


class Items(Dataset[Any]):
    """A user's data set: items are made by a function of their position."""

    def __init__(self, item: Callable[[int], Any]) -> None:
        self.item = item

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(3, 5), nn.Linear(2, 5), nn.Linear(5, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.out(torch.tanh(self.left(left) + self.right(right)))  # type: ignore[no-any-return]


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.size = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.body(x))
        return {"kind": self.kind(h), "size": self.size(h).squeeze(1)}


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(2, 6)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, logvar = self.encoder(x).chunk(2, dim=1)
        return mean, logvar


def vae_losses(model: Any, x: Tensor) -> Tensor:
    """Through methods of the model; without chance, so that an oracle can follow."""
    mean, logvar = model.encode(x)
    again = torch.sigmoid(model.decoder(mean + torch.exp(0.5 * logvar)))
    fit = F.binary_cross_entropy(again, x, reduction="none").sum(1)
    loss: Tensor = fit - 0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1)
    return loss


def parts() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"left": torch.randn(N, 3), "right": torch.randn(N, 2), "label": torch.arange(N) % 4}


def two_inputs(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["left"], batch["right"]), batch["label"], reduction="none")


@pytest.mark.parametrize("engine", ["auto", "ghost", "functional", "loop"])
def test_two_inputs_in_a_dict_batch(engine: str) -> None:
    torch.manual_seed(0)
    ready = prepared(TwoInputs(), parts(), losses=two_inputs, engine=engine)
    assert_gradients(ready, two_inputs, parts())
    assert ready.engine.reason.startswith("layer rules" if engine == "ghost" else "one record at a time")


def test_two_inputs_with_the_short_form_of_a_loss() -> None:
    data = parts()
    sources = [
        Items(lambda i: ((data["left"][i], data["right"][i]), int(data["label"][i]))),
        Items(lambda i: ({"left": data["left"][i], "right": data["right"][i]}, int(data["label"][i]))),
        ((data["left"], data["right"]), data["label"]),
    ]
    for source in sources:
        torch.manual_seed(0)
        assert_gradients(prepared(TwoInputs(), source), two_inputs, data)


def test_two_heads() -> None:
    data = parts()
    x, targets = data["left"], {"kind": data["label"], "size": data["right"][:, 0]}

    def loss(outputs: Any, targets: Any) -> Tensor:
        return F.cross_entropy(outputs["kind"], targets["kind"]) + F.mse_loss(outputs["size"], targets["size"])

    torch.manual_seed(0)
    ready = prepared(TwoHeads(), (x, targets), loss=loss)
    assert_gradients(ready, lambda model, batch: loss(model(batch[0]), batch[1]), (x, targets))
    assert ready.engine.reason.startswith("layer rules")


@pytest.mark.parametrize("engine", ["ghost", "functional"])
def test_a_vae_on_records_of_one_tensor(engine: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(N, 6)
    ready = prepared(VAE(), x, losses=vae_losses, engine=engine)
    assert_gradients(ready, vae_losses, x)


def test_a_vae_that_draws_at_random() -> None:
    def losses(model: Any, x: Tensor) -> Tensor:
        mean, logvar = model.encode(x)
        again = model.decoder(mean + torch.exp(0.5 * logvar) * torch.randn_like(mean))
        loss: Tensor = F.mse_loss(again, x, reduction="none").sum(1) - 0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(
            1
        )
        return loss

    run = ad.train(VAE(), torch.rand(N, 6), losses=losses, records=N, batch_size=8, steps=3, device="cpu")
    assert run.steps_done == 3
    assert run.gradients.startswith("one record at a time under vmap")


def test_three_part_records() -> None:
    data = parts()
    weights = torch.rand(N)

    def losses(model: nn.Module, batch: Any) -> Tensor:
        x, label, weight = batch
        loss: Tensor = weight * F.cross_entropy(model(x), label, reduction="none")
        return loss

    batch = data["left"], data["label"], weights
    for source in (batch, Items(lambda i: (data["left"][i], int(data["label"][i]), weights[i]))):
        torch.manual_seed(0)
        assert_gradients(prepared(nn.Linear(3, 4), source, losses=losses), losses, batch)


class Tagger(nn.Module):
    """Token ids and a mask: whole numbers of two meanings, and a label."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        vectors = self.embed(ids) * mask.unsqueeze(2)
        return self.out(vectors.sum(1) / mask.sum(1, keepdim=True))  # type: ignore[no-any-return]


def test_ids_a_mask_and_a_label_in_one_dict() -> None:
    torch.manual_seed(0)
    batch = {"ids": torch.randint(11, (N, 5)), "mask": torch.ones(N, 5), "label": torch.randint(3, (N,))}
    batch["mask"][:, 3:] = 0
    whole = {**batch, "mask": batch["mask"].long()}

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch["ids"], batch["mask"]), batch["label"], reduction="none")

    ready = prepared(Tagger(), whole, losses=losses)
    assert_gradients(ready, losses, whole)
    assert ready.engine.reason.startswith("one record at a time under vmap")


def digits() -> tuple[Tensor, Tensor]:
    train = small_digits().train
    assert isinstance(train, TensorRecords)
    return train.inputs[:N], train.targets[:N]


def trained_on(source: Any, **how: Any) -> list[Tensor]:
    net = small_net()
    settings: dict[str, Any] = {
        "records": N,
        "batch_size": 8,
        "steps": 3,
        "noise_multiplier": 1.0,
        "seed": 1,
        "device": "cpu",
    }
    ad.train(net, source, randomness=ReproducibleRandomness(3), **settings, **how)
    return [parameter.detach().clone() for parameter in net.parameters()]


@pytest.mark.parametrize(
    "habit",
    [
        *("numpy", "numpy float64", "int32 labels", "uint8 labels", "list of pairs", "Dataset", "lists", "data frame"),
        *("pairs of lists", "float64", "TensorDataset of float64", "Dataset of float64"),
    ],
)
def test_records_of_another_kind_train_the_same_weights(habit: str) -> None:
    inputs, targets = digits()
    sources: dict[str, Any] = {
        "numpy": (inputs.numpy(), targets.numpy()),
        "numpy float64": (inputs.double().numpy(), targets.numpy()),
        "int32 labels": (inputs, targets.int()),
        "uint8 labels": (inputs, targets.byte()),
        "list of pairs": list(zip(inputs, targets, strict=True)),
        "lists": (inputs.tolist(), targets.tolist()),
        "pairs of lists": list(zip(inputs.tolist(), targets.tolist(), strict=True)),
        "float64": (inputs.double(), targets),
        "TensorDataset of float64": TensorDataset(inputs.double(), targets),
        "Dataset of float64": Items(lambda i: (inputs[i].double().numpy(), int(targets[i]))),
        "data frame": (inputs.numpy(), pandas.Series(targets)),
        "Dataset": Items(lambda i: (inputs[i].numpy(), int(targets[i]))),
    }
    for one, other in zip(trained_on((inputs, targets)), trained_on(sources[habit]), strict=True):
        assert torch.equal(one, other)


def test_int32_labels_and_lists_of_numbers_are_parts_of_dicts() -> None:
    inputs, targets = digits()

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    expected = trained_on(digits())
    rows = [{"x": x, "y": y} for x, y in zip(inputs.tolist(), targets.tolist(), strict=True)]
    for source in ({"x": inputs.double(), "y": targets.int()}, rows):
        for one, other in zip(expected, trained_on(source, losses=losses), strict=True):
            assert torch.allclose(one, other, atol=1e-6)


def test_uint8_images_are_divided_by_255_and_the_run_says_so() -> None:
    _, targets = digits()
    images = torch.randint(256, (N, 1, 8, 8), dtype=torch.uint8)
    with pytest.warns(UserWarning, match="divided by 255"):
        found = trained_on((images, targets))
    for one, other in zip(trained_on((images.float() / 255, targets)), found, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_the_two_forms_of_a_loss_train_the_same_weights() -> None:
    def losses(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    for one, other in zip(trained_on(digits()), trained_on(digits(), losses=losses), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_loop_of_ones_own_takes_dict_records_and_ends_at_the_weights_of_train() -> None:
    torch.manual_seed(0)
    ours, theirs = TwoInputs(), TwoInputs()
    theirs.load_state_dict(ours.state_dict())
    settings: dict[str, Any] = {
        "losses": two_inputs, "records": N, "batch_size": 8, "steps": 4, "noise_multiplier": 1.0, "seed": 1,
        "method": "dpsgd", "device": "cpu",
    }  # fmt: skip
    ad.train(ours, parts(), lr=0.1, momentum=0.0, randomness=ReproducibleRandomness(3), **settings)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    loop = ad.PrivateLoop(theirs, optimizer, parts(), randomness=ReproducibleRandomness(3), **settings)
    assert loop.gradients.startswith("one record at a time under vmap")
    for batch in loop:
        batch.backward()
        optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_pairs_given_to_losses_keep_their_accuracy() -> None:
    data = small_digits()

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    run = ad.train(small_net(), data, losses=losses, batch_size=40, steps=2, device="cpu")
    assert isinstance(data.test, TensorRecords)
    right = (run.model(data.test.inputs).argmax(1) == data.test.targets).double().mean()
    assert run.accuracy == pytest.approx(float(right))


class Padded(nn.Module):
    """A transformer of torch's own tutorial, with the padding told by id 0, by a column or by its opposite."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by, self.embed, self.out = by, nn.Embedding(20, 8), nn.Linear(8, 3)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 1)

    def forward(self, ids: Tensor, column: Tensor | None = None) -> Tensor:
        padding = ids == 0 if column is None else column if self.by == "padding" else ~column
        hidden = self.encoder(self.embed(ids), src_key_padding_mask=padding)
        found: Tensor = self.out((hidden * ~padding[..., None]).sum(1) / (~padding).sum(1, keepdim=True))
        return found


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("by", ["ids", "kept", "padding"])
def test_a_transformer_with_padding_is_trained_by_the_layer_rules(by: str) -> None:
    torch.manual_seed(0)
    ids = torch.randint(1, 20, (N, 6))
    ids[:, 4:] = 0
    column = ids == 0 if by == "padding" else ids != 0
    inputs, targets = ids if by == "ids" else (ids, column), torch.arange(N) % 3
    ready = prepared(Padded(by), (inputs, targets))
    assert ready.engine.reason.startswith("layer rules")

    def losses(model: nn.Module, batch: Any) -> Tensor:
        outputs = model(batch[0]) if by == "ids" else model(*batch[0])
        return F.cross_entropy(outputs, batch[1], reduction="none")

    assert_gradients(ready, losses, (inputs, targets))


def test_a_model_that_takes_neither_zeros_nor_ones_is_refused_with_what_was_tried() -> None:
    class Late(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(input + 30)

    told = "does not take records of shape .*int64 .tried: whole numbers 0, then 1.: index out of range"
    with pytest.raises(ad.InputError, match=told):
        prepared(
            nn.Sequential(Late(20, 8), nn.Flatten(), nn.Linear(24, 3)), (torch.ones(N, 3).long(), torch.arange(N) % 3)
        )

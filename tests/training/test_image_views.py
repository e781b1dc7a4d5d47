"""Views of an image that a model averages its outputs over: which there are, and that every way to score has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import adadpigu as ad
from adadpigu.data import DataSet, TensorRecords
from adadpigu.data.augmentation import Augmentation, parse_views
from adadpigu.errors import InputError
from adadpigu.features.front import Fronted, make_front
from adadpigu.models import make_model
from adadpigu.runs.loading import load_run
from adadpigu.training import placement
from trials import prepare_small

Call = tuple[int, str, str]
CPU = torch.device("cpu")


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def moved(x: np.ndarray, down: int, across: int) -> np.ndarray:
    """What NumPy makes of a shift with reflected edges."""
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect")
    return padded[:, :, 2 + down : 10 + down, 2 + across : 10 + across]


def test_the_views_are_the_image_and_its_mirror_image_or_shifts() -> None:
    x = images(3)
    for text, count in (("none", 1), ("mirror", 2), ("shift:2", 9), ("mirror+shift:2", 18)):
        views = parse_views(text)
        seen = [views.show_one(x, view).numpy() for view in range(views.variants)]
        steps = (0,) if views.shift == 0 else (-2, 0, 2)
        wanted = [moved(x.numpy(), down, across) for across in steps for down in steps]
        if views.flip:
            wanted += [one[..., ::-1] for one in wanted]
        assert len(seen) == len(wanted) == count
        assert all(np.array_equal(one, other) for one, other in zip(seen, wanted, strict=True))
        assert np.array_equal(seen[views.plain], x.numpy())


@pytest.mark.parametrize("looks", [Augmentation(flip=True), Augmentation(shift=2, shift_step=2, flip=True)])
def test_one_variant_for_all_is_what_each_would_be_shown(looks: Augmentation) -> None:
    x = images(4)
    for variant in range(looks.variants):
        assert torch.equal(looks.show_one(x, variant), looks.show(x, torch.full((4,), variant)))


def test_as_many_copies_as_variants_are_each_of_them_once() -> None:
    for copies in (2, 4):
        drawn = Augmentation(copies=copies, flip=True).draw(5, CPU).reshape(5, copies)
        assert (torch.bincount(drawn.flatten(), minlength=2) == 5 * copies // 2).all()
        assert (drawn.sum(1) == copies // 2).all()
    three = Augmentation(copies=3, flip=True).draw(2000, CPU)
    assert 0 < int(three.sum()) < 6000  # by chance, where they cannot be even


@pytest.mark.parametrize(
    "text", ["", "flip", "mirror+", "+shift:1", "shift:0", "shift", "mirrorshift:1", "shift:1+mirror"]
)
def test_other_views_are_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(InputError, match="allowed: none, mirror, shift:PIXELS, mirror"):
        parse_views(text)


def logits(run: ad.Run, x: Tensor, views: Augmentation) -> Tensor:
    """The mean over views, one after the other, of the model without views."""
    model = run.model
    assert isinstance(model, Fronted)
    plain = Fronted(model.front, model.body)
    with torch.no_grad():
        return torch.stack([plain(views.show_one(x, view)) for view in range(views.variants)]).mean(0)


@pytest.mark.parametrize("memory", [1e12, 0.0])
@pytest.mark.parametrize("features", ["none", "scattering"])
@pytest.mark.parametrize("options", [{}, {"copies": 2, "flip": True}], ids=["plain", "augmented"])
def test_the_score_is_that_of_the_mean_over_views_however_features_are_kept(
    features: str, options: dict[str, Any], memory: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "free_memory", lambda _: memory)
    views = parse_views("mirror")
    front, shape = make_front(features, "record", (1, 8, 8))
    x, y = images(60, 1), torch.randint(10, (60,), generator=torch.Generator().manual_seed(3))
    data = DataSet(
        name="rand",
        train=TensorRecords(images(40), torch.arange(40) % 10),
        test=TensorRecords(x, y),
        records=40,
        classes=10,
        shape=(1, 8, 8),
    )
    run = ad.train(
        make_model("linear", shape=shape, seed=0),
        data,
        front=front,
        method="sgd",
        batch_size=20,
        steps=3,
        lr=0.001,
        views="mirror",
        quiet=True,
        **options,
    )
    expected = logits(run, x, views)
    assert torch.allclose(run.model(x), expected, atol=1e-5)
    assert run.accuracy == float((expected.argmax(1) == y).double().mean())
    assert not torch.allclose(logits(run, x, Augmentation()), expected, atol=1e-2)


def test_features_of_both_mirror_images_are_kept_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADADPIGU_DATA", str(tmp_path))
    front, _ = make_front("scattering", "record", (1, 8, 8))
    published = TensorRecords(images(30), torch.arange(30) % 10, published=True)
    test = TensorRecords(images(20, 1), torch.arange(20) % 10, published=True)
    data = DataSet(name="rand", train=published, test=test, records=30, classes=10, shape=(1, 8, 8))
    both = Augmentation(copies=2, flip=True)

    def settled() -> tuple[Tensor, Tensor]:
        placed, view = placement.settle(data, front, CPU, augmentation=both, views=parse_views("mirror"))
        assert view.variants is not None
        assert isinstance(placed.test, TensorRecords)
        return view.variants, placed.test.inputs

    train, tested = settled()
    assert sorted(len(load_file(file)["features"]) for file in tmp_path.rglob("*.safetensors")) == [20, 20, 30, 30]
    assert front is not None
    assert front.features is not None
    assert torch.allclose(train[:, 1], front.features(images(30).flip(3)), atol=1e-5)
    assert torch.allclose(tested[:, 0], front.features(images(20, 1)), atol=1e-5)
    monkeypatch.setattr(
        type(front.features), "forward", lambda self, x: torch.full((len(x), *self.features), torch.nan)
    )
    again = settled()
    assert torch.equal(again[0], train)
    assert torch.equal(again[1], tested)


@pytest.mark.parametrize("views", ["mirror", "shift:1", "mirror+shift:1"])
def test_features_are_averaged_over_views_each_record_alone(views: str) -> None:
    """By hand: the mean over NumPy's views; the same for an image and its mirror image."""
    front, shape = make_front("scattering", "none", (1, 8, 8), views=views)
    plain, same = make_front("scattering", "none", (1, 8, 8))
    assert front is not None
    assert plain is not None
    assert shape == same
    x = images(5)
    steps = (0,) if "shift" not in views else (-1, 0, 1)
    seen = [moved(x.numpy(), down, across) for across in steps for down in steps]
    if "mirror" in views:
        seen += [one[..., ::-1] for one in seen]
        assert torch.allclose(front(x.flip(3)), front(x), atol=1e-5)
    expected = torch.stack([plain(torch.from_numpy(one.copy())) for one in seen]).mean(0)
    assert torch.allclose(front(x), expected, atol=1e-5)
    assert torch.allclose(front(x[3:4]), front(x)[3:4], atol=1e-5)
    assert front.is_known
    assert front.features is not None
    assert plain.features is not None
    assert front.features.signature != plain.features.signature


def test_averaged_features_of_a_prior_are_declared_as_the_priors() -> None:
    front, _ = make_front("prior", "record", (3, 16, 16), views="mirror")
    assert front is not None
    assert any("no photograph and no record" in fact for fact in front.declared())


@pytest.mark.parametrize(("features", "shape"), [("none", (1, 8, 8)), ("scattering", (1, 8, 8))])
def test_features_without_such_views_are_refused(features: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="feature_views='shift:9'") as refusal:
        make_front(features, "none", shape, views="shift:9")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("views", ["mirror", "shift:9"])
def test_records_without_such_views_are_refused(views: str) -> None:
    x = torch.rand(20, 12) if views == "mirror" else images(20)
    with pytest.raises(InputError, match=f"views='{views}'") as refusal:
        ad.train(
            make_model("linear", shape=tuple(x.shape[1:]), seed=0),
            (x, torch.arange(20) % 10),
            records=20,
            method="dpsgd",
            views=views,
            steps=1,
            batch_size=5,
        )
    assert "\n" not in str(refusal.value)


def test_a_run_folder_is_evaluated_with_the_views_that_it_was_trained_with(
    call: Callable[..., Call], tmp_path: Path
) -> None:
    common = ["--dataset", "digits", "--method", "sgd", "--preset", "none", "--model", "linear", "--steps", "20"]
    code, out, _ = call("train", *common, "--views", "shift:1", "--out", str(tmp_path / "run"), "--json")
    assert code == 0
    assert 'views = "shift:1"' in (tmp_path / "run" / "config.toml").read_text()
    model = load_run(tmp_path / "run").model
    assert isinstance(model, Fronted)
    assert model.views.variants == 9
    trained, evaluated = (json.loads(text) for text in (out, call("evaluate", str(tmp_path / "run"), "--json")[1]))
    assert evaluated["test_accuracy"] == trained["test_accuracy"]
    plain = make_model("linear", shape=(1, 8, 8), seed=1)
    again = ad.load(tmp_path / "run", plain)
    assert torch.equal(again(images(4)), model(images(4)))
    code, out, error = call("train", *common, "--views", "flip", "--out", str(tmp_path / "other"))
    assert (code, error.count("\n"), out) == (2, 1, "")
    assert not (tmp_path / "other").exists()


def test_small_runs_have_no_views_unless_asked() -> None:
    assert prepare_small(ad.DPSGD()).options.views == "none"

"""Habits of people who come from scikit-learn: class weights, also "balanced", and a scaler before the estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.integrations.sklearn import AdaDPIGUClassifier, AdaDPIGURegressor, estimator

N = 40
X = np.random.default_rng(0).uniform(-1, 1, (N, 3))
Y = np.where(X[:, 0] > 0.5, "rare", "common")
FACTS: dict[str, Any] = {"classes": ["rare", "common"], "bounds": (-1, 1), "records": N, "random_state": 0}
FACTS["model"] = "linear"
HOW: dict[str, Any] = {"method": "dpsgd", "lr": 0.5, "batch_size": 10, "epochs": 1}


def fitted(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> AdaDPIGUClassifier:
    """With known noise."""
    monkeypatch.setattr(
        estimator, "train", lambda *args, **how: ad.train(*args, randomness=ReproducibleRandomness(5), **how)
    )
    return AdaDPIGUClassifier(**FACTS, **HOW, **changes).fit(X, Y)


def test_class_weights_in_a_dict_multiply_the_loss_of_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle: the same net and noise, with `losses=` written by hand. A class that is left out weighs 1."""
    found = fitted(monkeypatch, class_weight={"rare": 0.1})
    plain = fitted(monkeypatch)
    weights = torch.tensor([1.0, 0.1])  # classes are sorted

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return weights[batch[1]] * F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    budget = ad.Budget(epsilon=4.0, delta=1e-5)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    net = estimator.made_model("linear", 3, 2, seed)
    records = torch.tensor(X, dtype=torch.float32), torch.tensor(Y == "rare").long()
    ad.train(
        net, records, losses=losses, records=N, privacy=budget, seed=seed, randomness=ReproducibleRandomness(5), **HOW
    )
    for one, other, unweighted in zip(
        found.run_.model.parameters(), net.parameters(), plain.run_.model.parameters(), strict=True
    ):
        torch.testing.assert_close(one, other)
        assert not torch.equal(one, unweighted)
    assert any("weight of CrossEntropyLoss" in fact for fact in found.privacy_.not_covered)


def test_a_loss_of_ones_own_is_taken_of_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle: the same net and noise in `train`. So do regressors, whose targets are scaled."""
    smooth, margin = nn.CrossEntropyLoss(label_smoothing=0.3), nn.HuberLoss(delta=0.1)
    seed, how = int(np.random.RandomState(0).randint(2**31 - 1)), {"records": N, **HOW}
    x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y == "rare").long()
    known: dict[str, Any] = {"privacy": ad.Budget(epsilon=4.0, delta=1e-5), "seed": seed}
    classifier = fitted(monkeypatch, loss=smooth)
    facts = {name: FACTS[name] for name in ("bounds", "records", "random_state", "model")}
    regressor = AdaDPIGURegressor(**facts, **HOW, target_bounds=(0, 1), loss=margin).fit(X, y.numpy())
    for found, outputs, targets, loss in (
        (classifier, 2, y, smooth),
        (regressor, 1, 2 * y.float()[:, None] - 1, margin),
    ):
        net = estimator.made_model("linear", 3, outputs, seed)
        ad.train(net, (x, targets), loss=loss, randomness=ReproducibleRandomness(5), **known, **how)
        for one, other in zip(found.run_.model.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(one, other)
    with pytest.raises(ad.InputError, match="loss and class_weight are both given"):
        fitted(monkeypatch, loss=smooth, class_weight={"rare": 2.0})


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ("balanced", r"class_weight='balanced'; allowed: .*class_weight=\{'common': 1, 'rare': 10\}.*private"),
        ({"raer": 2.0}, "class_weight: unknown class 'raer'; did you mean 'rare'"),
        ({"rare": -1.0}, r"class_weight=\{'rare': -1.0\}; allowed"),
    ],
)
def test_weights_that_are_counted_from_records_or_fit_no_class_are_refused_with_what_to_write(
    weights: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ad.InputError, match=told):
        fitted(monkeypatch, class_weight=weights)


@pytest.mark.parametrize("verbose", [0, 1])
def test_an_estimator_says_which_path_runs_where_it_is_verbose(
    verbose: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """scikit-learn's estimators are silent by default: a search fits many."""
    AdaDPIGUClassifier(**FACTS, **HOW, verbose=verbose).fit(X, Y)
    out, err = capsys.readouterr()
    assert err.startswith("per-record gradients: layer rules" if verbose else "")
    assert bool(out or err) == bool(verbose)


def test_a_scaler_fitted_on_the_same_records_is_warned_of_and_named_in_the_statement() -> None:
    pipeline = make_pipeline(StandardScaler(), AdaDPIGUClassifier(**FACTS, **HOW))
    with pytest.warns(UserWarning, match="a scaler that was fitted on these records .*bounds="):
        pipeline.fit(X, Y)
    assert "a scaler" in pipeline[-1].privacy_.statement()


@pytest.mark.filterwarnings("error::UserWarning")
def test_one_scaled_column_among_others_is_warned_of_and_public_scaling_is_not() -> None:
    """A `ColumnTransformer` scales some. Pixels, one-hot, balanced ±1 and what only nears 0 and 1 pass in silence."""
    columns = ColumnTransformer([("scaled", StandardScaler(), [0]), ("as they are", "passthrough", [1, 2])])
    with pytest.warns(UserWarning, match="columns of mean 0 and deviation 1, to five places"):
        make_pipeline(columns, AdaDPIGUClassifier(**FACTS, **HOW)).fit(X, Y)
    signs = np.where(np.arange(N) % 2, 1.0, -1.0)
    near = StandardScaler().fit_transform(X)[:, 0] * 1.001
    for honest in (X, np.stack([signs, signs > 0, near], axis=1), np.round((X + 1) * 127.5) / 255):
        AdaDPIGUClassifier(**FACTS, **HOW).fit(honest, Y)

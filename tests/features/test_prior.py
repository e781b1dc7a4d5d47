"""Features of a prior: each record alone, decorrelated over process images, named in the privacy statement."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adadpigu as ad
from adadpigu.errors import InputError
from adadpigu.features.front import Front, make_front
from adadpigu.features.prior import Parts, Prior
from adadpigu.priors.encoder import EncoderShape, Weights
from adadpigu.priors.named import named_weights
from adadpigu_paper.encoder import Encoder, encoder_constants, projection

SHAPE = (3, 16, 16)
PLAN = EncoderShape(widths=(3, 4, 5), blocks=(1, 1, 1))


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def parts() -> Parts:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        constants = encoder_constants(Encoder(PLAN), [images(16, 1)])
    return Parts(PLAN, constants, SHAPE)


@pytest.fixture(scope="module")
def prior() -> Prior:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        constants = encoder_constants(Encoder(PLAN), [images(16, 1)])
    found = projection(Parts(PLAN, constants, SHAPE), [images(16, 1)], keep=7, power=0.5)
    return Prior(Weights(plan=PLAN, tensors={**constants, **found}, metadata={}), SHAPE)


def test_every_kind_of_feature_has_mean_0_and_variance_1_within_a_record(parts: Parts) -> None:
    made = parts(images(4)).split((3, 4, 5, 243), 1)
    for kind in made[:3]:
        assert kind.mean((1, 2, 3)).abs().max() < 1e-4
        assert (kind.var((1, 2, 3), correction=0) - 1).abs().max() < 1e-2
    assert torch.equal(made[3], parts.orders(parts.scattering(images(4))))


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_projected_channels_do_not_correlate_and_vary_as_told(parts: Parts, power: float) -> None:
    """P Cov Pᵀ = diag(variance^(1 − power)), largest first: numpy in float64 from the parts themselves."""
    seen = [images(24, 2), images(8, 3)]
    found = projection(parts, seen, keep=6, power=power)
    values = torch.cat([parts(part) for part in seen]).permute(0, 2, 3, 1).flatten(0, 2).double().numpy()
    covariance = np.cov(values.T, bias=True)
    largest = np.sort(np.linalg.eigvalsh(covariance))[::-1][:6]
    weight, bias = found["projection.weight"][:, :, 0, 0].double().numpy(), found["projection.bias"].double().numpy()
    assert np.allclose(weight @ covariance @ weight.T, np.diag(largest ** (1 - power)), rtol=1e-3, atol=1e-4)
    assert np.allclose(weight @ values.mean(0) + bias, 0, atol=1e-4)


def test_features_are_the_projected_parts_averaged_over_four_positions(prior: Prior) -> None:
    x = images(3)
    seen = torch.einsum("kc,nchw->nkhw", prior.direction[:, :, 0, 0], prior.parts(x)) + prior.origin[:, None, None]
    expected = seen.reshape(3, 7, 2, 2, 2, 2).mean((3, 5))
    assert torch.allclose(prior(x), expected, atol=1e-4)


def test_each_record_is_treated_alone(prior: Prior) -> None:
    x = images(6)
    together = prior(x)
    for i in range(6):
        assert torch.allclose(prior(x[i : i + 1])[0], together[i], atol=1e-4)
    changed = x.clone()
    changed[0] = 1 - changed[0]
    assert torch.allclose(prior(changed)[1:], together[1:], atol=1e-5)
    assert not torch.allclose(prior(changed)[0], together[0], atol=1e-1)


def test_it_has_no_parameters_keeps_no_state_and_lets_no_gradient_through(prior: Prior) -> None:
    assert not list(prior.parameters())
    assert not prior.state_dict()
    assert not prior(images(2).requires_grad_()).requires_grad
    assert prior(images(2)[:0]).shape == (0, 7, 2, 2)


@pytest.mark.parametrize("shape", [(2, 32, 32), (3, 15, 32), (3, 97, 32), (3, 32), (48,)])
def test_records_that_it_cannot_see_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="prior"):
        make_front("prior", "record", shape)


def test_a_gray_image_is_seen_as_three_equal_colours(prior: Prior) -> None:
    gray = Prior(Weights(plan=PLAN, tensors=dict(prior_tensors(prior)), metadata={}), (1, *SHAPE[1:]))
    x = images(3)[:, :1]
    assert torch.allclose(gray(x), prior(x.repeat(1, 3, 1, 1)), atol=1e-5)


@pytest.mark.parametrize(("side", "whole"), [(28, 32), (17, 24), (94, 96)])
def test_sides_are_mirrored_up_to_a_multiple_of_eight(prior: Prior, side: int, whole: int) -> None:
    """NumPy's reflection of the image, seen by a prior of the whole size."""
    weights = Weights(plan=PLAN, tensors=dict(prior_tensors(prior)), metadata={})
    x = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(2))
    before = (whole - side) // 2
    mirrored = np.pad(x.numpy(), ((0, 0), (0, 0), *[(before, whole - side - before)] * 2), mode="reflect")
    found = Prior(weights, (3, side, side))(x)
    assert found.shape == (1, 7, whole // 8, whole // 8)
    assert torch.allclose(found, Prior(weights, (3, whole, whole))(torch.from_numpy(mirrored)), atol=1e-5)


def prior_tensors(prior: Prior) -> dict[str, Tensor]:
    """The constants that a prior of another shape is made of."""
    encoder = prior.parts.encoder
    names = [f"{unit}.{part}" for unit in encoder.strides for part in ("weight", "bias")]
    names += [f"stage{stage}.{part}" for stage in range(3) for part in ("mean", "std")]
    held = {name: encoder.get_buffer(name.replace(".", "_")) for name in names}
    return {**held, "projection.weight": prior.direction, "projection.bias": prior.origin}


def test_fewer_directions_are_the_first_of_them() -> None:
    whole, few = (make_front(name, "none", SHAPE)[0] for name in ("prior", "prior@20"))
    assert whole is not None
    assert few is not None
    x = images(2)
    assert few(x).shape == (2, 20, 2, 2)
    assert torch.allclose(few(x), whole(x)[:, :20], atol=1e-4)
    assert whole.features is not None
    assert few.features is not None
    assert few.features.signature != whole.features.signature
    assert few.declared() == whole.declared()


@pytest.mark.parametrize("features", ["prior@0", "prior@484", "prior@many", "prior@", "scattering@3", "priors"])
def test_other_numbers_of_directions_are_refused(features: str) -> None:
    with pytest.raises(InputError, match=r"allowed: from 1 to 483|did you mean") as refusal:
        make_front(features, "none", SHAPE)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("bad", [images(2)[:, :2], images(2)[..., :8], images(2)[0], images(2).long()])
def test_other_inputs_are_refused(prior: Prior, bad: Tensor) -> None:
    with pytest.raises(InputError, match="allowed: "):
        prior(bad)


@pytest.mark.parametrize(("keep", "power"), [(0, 0.5), (256, 0.5), (4, -0.1), (4, 1.5)])
def test_a_projection_out_of_range_is_named(parts: Parts, keep: int, power: float) -> None:
    with pytest.raises(InputError, match=f"keep={keep}, power={power}"):
        projection(parts, [images(2)], keep=keep, power=power)


def test_the_packaged_prior_by_name_makes_its_features_and_is_declared() -> None:
    front, shape = make_front("prior", "record", (3, 32, 32))
    assert front is not None
    made = front(torch.rand(2, 3, 32, 32))
    assert made.shape == (2, *shape)
    assert shape[1:] == (4, 4)
    assert made.mean((1, 2, 3)).abs().max() < 1e-4
    assert any("random processes" in fact for fact in front.declared())


def test_a_prior_whose_constants_were_changed_is_not_vouched_for(prior: Prior) -> None:
    changed = copy.deepcopy(prior)
    changed.direction.mul_(2)
    with pytest.raises(InputError, match="its constants were changed"):
        changed.declared()


def test_the_statement_of_a_run_names_the_prior_as_public(prior: Prior) -> None:
    run = ad.train(
        nn.Sequential(nn.Flatten(), nn.Linear(28, 2)),
        (images(30), torch.arange(30) % 2),
        records=30,
        front=Front(prior, None),
        method="dpsgd",
        privacy=ad.Budget(epsilon=4, delta=1e-3),
        batch_size=10,
        steps=2,
    )
    told = " ".join(run.privacy.statement().split())
    assert f"a feature extractor (weights of SHA-256 {prior.sha256[:16]}" in told
    assert "no photograph" not in told  # that is known of the packaged weights alone


def test_the_packaged_prior_says_where_it_comes_from() -> None:
    told = Prior(named_weights("prior"), SHAPE).declared()
    assert "no photograph and no record" in told
    assert "projection was chosen by scores on training records of CIFAR-10" in told

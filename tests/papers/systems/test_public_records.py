"""Public records: private ones are refused however they come, and files that do not fit, before anything is charged."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.config import RunConfig
from adadpigu.data import DataSet, TensorRecords, load_dataset
from adadpigu.data.checking import digests, refuse_known
from adadpigu.data.description import ArrayFacts, NumericColumn, TableFacts
from adadpigu.data.own import npz_dataset
from adadpigu.data.public import PublicRecords, process_records
from adadpigu.data.tabular import read_table
from adadpigu.training import Preparation, TrainingOptions, prepare
from adadpigu.training.configured import configured
from adadpigu.training.resuming import ledger_settings
from adadpigu_systems.projection import GEP
from trials import arrays, prepare_small, small_digits, small_net

X, Y = arrays()
OTHERS = process_records(80, X[:1], 10, 3)


def saved(path: Path, x: Any = X, y: Any = Y) -> str:
    np.savez(path, x=np.asarray(x), y=np.asarray(y))
    return str(path)


def run_on(public: str, dataset: str = "digits", **more: Any) -> Preparation:
    own = {"records": 240, "classes": 10} if dataset != "digits" else {}
    chosen: dict[str, Any] = {"batch_size": 40, "steps": 2, "noise_multiplier": 1.5} | own | more
    return configured(RunConfig(dataset=dataset, method="gep", method_options={"rank": 2}, public=public, **chosen))


def symlink(own: Path) -> str:
    (own.parent / "link.npz").symlink_to(own)
    return str(own.parent / "link.npz")


def shuffled(own: Path) -> str:
    """Some of them, in another order and under other labels."""
    order = torch.randperm(240, generator=torch.Generator().manual_seed(0))[:30]
    return saved(own.parent / "some.npz", X[order], 9 - Y[order])


def among_others(own: Path) -> str:
    return saved(own.parent / "few.npz", torch.cat([OTHERS.inputs, X[:3]]), torch.cat([OTHERS.targets, Y[:3]]))


@pytest.mark.parametrize(
    "make", [str, symlink, lambda own: saved(own.parent / "copy.npz"), shuffled, among_others], ids=lambda m: m.__name__
)
def test_the_private_file_is_not_taken_as_public(make: Callable[[Path], str], tmp_path: Path) -> None:
    own = tmp_path / "own.npz"
    saved(own)
    with pytest.raises(ad.InputError, match=r"private data set itself|by their values.*allowed: records") as caught:
        run_on(make(own), str(own))
    assert "\n" not in str(caught.value)


def test_a_copy_is_found_after_the_conversion_that_the_private_file_declares(tmp_path: Path) -> None:
    """Whole numbers from 0 to 16 in one file, floats in the other; the model takes both scaled."""
    saved(tmp_path / "own.npz", (16 * X).to(torch.uint8))
    copy, facts = saved(tmp_path / "copy.npz", 16 * X), ArrayFacts(range=(0.0, 16.0))
    data = npz_dataset(tmp_path / "own.npz", records=240, classes=10, facts=facts)
    with pytest.raises(ad.InputError, match="training records among its records, by their values"):
        prepare_small(GEP(rank=2), data=data, public=copy)


def test_an_exported_named_set_and_its_test_set_are_refused(tmp_path: Path) -> None:
    data = load_dataset("digits")
    assert isinstance(data.train, TensorRecords)
    assert isinstance(data.test, TensorRecords)
    for part, said in ((data.train, "training"), (data.test, "test")):
        with pytest.raises(ad.InputError, match=f"there are {said} records among its records, by their values"):
            run_on(saved(tmp_path / "out.npz", part.inputs, part.targets))


def test_a_table_exported_as_arrays_is_refused(tmp_path: Path) -> None:
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    table = ["a,b,c,y", *(f"{a},{b},{c},{'ab'[n % 2]}" for n, (a, b, c) in enumerate(rows.tolist()))]
    (tmp_path / "own.csv").write_text("\n".join(table) + "\n")
    facts = TableFacts(label="y", columns=tuple(NumericColumn(name=name, low=-4, high=4) for name in "abc"))
    train = read_table(tmp_path / "own.csv", facts, ("a", "b"))
    data = DataSet(name="own", train=train, records=60, classes=2)
    public = saved(tmp_path / "copy.npz", train.inputs, train.targets)
    with pytest.raises(ad.InputError, match="by their values"):
        prepare_small(GEP(rank=2), data=data, net=lambda: nn.Linear(3, 2), public=public)


def test_a_clone_of_private_tensors_is_refused() -> None:
    public = PublicRecords(inputs=X[:9].clone(), targets=Y[:9].clone(), origin="web")
    with pytest.raises(ad.InputError, match="by their values, and nothing would protect them"):
        prepare_small(GEP(rank=2), public=public)


def test_records_without_labels_are_refused_in_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X.numpy())
    with pytest.raises(ad.InputError, match="holds x; allowed: x and y"):
        run_on(str(tmp_path / "x.npz"))


def test_whether_one_record_is_private_decides_nothing() -> None:
    """Nor do blank ones, or one that stands there several times."""
    blank = torch.zeros(50, *X.shape[1:])
    known = digests(TensorRecords(torch.cat([X, blank[:1], blank[:1] + 1]), torch.zeros(242)))
    refuse_known(torch.cat([OTHERS.inputs, X[:1], X[:1], blank, blank + 1]), known, "training", "")
    with pytest.raises(ad.InputError, match="training records"):
        refuse_known(torch.cat([OTHERS.inputs, X[:2]]), known, "training", "")


def test_honest_public_rows_of_a_table_of_few_categories_are_taken() -> None:
    """All of them are known, by chance; only all in their order are the file itself. False alarm: at most 1e-6."""
    rng = torch.Generator().manual_seed(0)
    own, public = (torch.randint(3, (500, 4), generator=rng).float() for _ in range(2))
    known = digests(TensorRecords(own, torch.zeros(500)))
    refuse_known(public, known, "training", "")
    with pytest.raises(ad.InputError, match="training records"):
        refuse_known(own.clone(), known, "training", "")


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (OTHERS.inputs, OTHERS.targets.float(), r"public labels of torch.float32 \[\]; allowed: .* torch.int64 \[\]"),
        (OTHERS.inputs, OTHERS.targets[:, None], r"public labels of torch.int64 \[1\]; allowed:"),
        (OTHERS.inputs * float("nan"), OTHERS.targets, "public records hold NaN or infinite values"),
        ((255 * OTHERS.inputs).to(torch.uint8), OTHERS.targets, r"holds x of torch.uint8; allowed: .* torch.float32"),
    ],
)
def test_a_file_that_the_model_does_not_take_is_refused(x: Tensor, y: Tensor, said: str, tmp_path: Path) -> None:
    with pytest.raises(ad.InputError, match=said) as caught:
        run_on(saved(tmp_path / "public.npz", x, y))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("count", ["99999999999", "9" * 5000, "0"])
def test_so_many_process_images_as_no_memory_holds_are_refused(count: str) -> None:
    with pytest.raises(ad.InputError, match="allowed: processes:COUNT with 1 to 262144 such images"):
        run_on(f"processes:{count}")


@pytest.mark.parametrize("public", [small_digits(), (X, Y), Path("public.npz")], ids=["data set", "tuple", "path"])
def test_what_is_no_public_record_is_refused_in_one_line(public: Any) -> None:
    with pytest.raises(ad.InputError, match=r"public is a \w+; allowed: processes:COUNT, .*PublicRecords\("):
        TrainingOptions(steps=2, public=public)


def test_a_run_goes_on_with_the_public_file_it_began_with() -> None:
    def prepared(inputs: Tensor) -> Preparation:
        public = PublicRecords(inputs=inputs, targets=OTHERS.targets, origin="public.npz")
        data = replace(small_digits(), test=None)
        options = TrainingOptions(batch_size=40, steps=2, noise_multiplier=1.5, public=public)
        given: dict[str, Any] = {"budget": None, "delta": 1e-5, "loss": F.cross_entropy, "seed": 0}
        return prepare(small_net(), data, method=GEP(rank=2), options=options, **given)

    one, other = prepared(OTHERS.inputs), prepared(OTHERS.inputs + 1e-3)
    assert one.public is not None
    before, after = ledger_settings(one), ledger_settings(other)
    assert {key for key in before if before[key] != after[key]} == {"public_sha256"}
    assert str(before["public_sha256"]).startswith(one.public.declared().split("sha256 ")[1][:16])
    assert len(str(before["public_sha256"])) == 64


def test_the_statement_names_the_seed_of_process_images() -> None:
    run = ad.train(
        small_net(),
        small_digits(),
        method=GEP(rank=2),
        privacy=ad.Budget(epsilon=4),
        batch_size=40,
        steps=1,
        public="processes:20",
        seed=77,
    )
    assert "20 images of random processes, labels at random, by the run's public seed 77" in " ".join(
        run.privacy.statement().split()
    )

"""A small run to be logged, and what the real libraries find in its logs, as {step: {name: value}} and as texts."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import adadpigu as ad
from adadpigu.extras import import_extra

Series = dict[int, dict[str, float]]


CANARY = 1234567.875


def records() -> tuple[Tensor, Tensor]:
    """24 records, one of which is unlike all others."""
    chance = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(24, 4, generator=chance), torch.randint(3, (24,), generator=chance)
    inputs[3] = CANARY
    return inputs, targets


def held_out() -> tuple[Tensor, Tensor]:
    return torch.randn(12, 4, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def trained(*observers: Any, out: Path | None = None, **options: Any) -> ad.Run:
    options = {"method": ad.DPSGD(), "noise_multiplier": 1.0, "steps": 6, **options}
    return ad.train(
        net(),
        records(),
        records=24,
        test=held_out(),
        batch_size=12,
        lr=0.01,
        out=out,
        observers=observers,
        **options,
    )


def tensorboard_series(folder: Path) -> tuple[Series, dict[str, str]]:
    accumulators = import_extra("tensorboard.backend.event_processing.event_accumulator", group="", purpose="")
    arrays = import_extra("tensorboard.util.tensor_util", group="", purpose="")
    found = accumulators.EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    series: Series = defaultdict(dict)
    texts: dict[str, str] = {}
    for tag in found.Tags()["tensors"]:
        for event in found.Tensors(tag):
            value = arrays.make_ndarray(event.tensor_proto).item()
            if isinstance(value, bytes):
                texts[tag.removesuffix("/text_summary")] = value.decode()
            else:
                series[event.step][tag] = value
    return dict(series), texts


def mlflow_client(folder: Path, monkeypatch: Any) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return import_extra("mlflow.tracking", group="", purpose="").MlflowClient(tracking_uri=folder.resolve().as_uri())


def mlflow_series(client: Any, run: str) -> Series:
    series: Series = defaultdict(dict)
    for key in client.get_run(run).data.metrics:
        for metric in client.get_metric_history(run, key):
            series[metric.step][key] = metric.value
    return dict(series)


def wandb_records(folder: Path) -> Iterator[Any]:
    """The records of an offline run: LevelDB's log format, after a header of seven bytes."""
    messages = import_extra("wandb.proto.wandb_internal_pb2", group="", purpose="")
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, place, whole, block = path.read_bytes(), 7, b"", 32768
    while place < len(data):
        left = block - place % block
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # the whole of a record, or its last part
            record = messages.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def wandb_series(folder: Path) -> Series:
    series: Series = {}
    for record in wandb_records(folder):
        if record.WhichOneof("record_type") == "history":
            row = {item.nested_key[0] if item.nested_key else item.key: item.value_json for item in record.history.item}
            series[record.history.step.num] = {key: json.loads(value) for key, value in row.items()}
    return series


def wandb_summary(folder: Path) -> dict[str, Any]:
    updates = [u for r in wandb_records(folder) if r.WhichOneof("record_type") == "summary" for u in r.summary.update]
    return {u.nested_key[0] if u.nested_key else u.key: json.loads(u.value_json) for u in updates}

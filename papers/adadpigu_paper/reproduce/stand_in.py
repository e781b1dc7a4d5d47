"""What a quick version trains on: the data set that is meant where it is cached, else the embedded digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def at_hand(dataset: str) -> bool:
    """Whether a published data set can be read without fetching it."""
    from adadpigu.data.fetching import read_cache
    from adadpigu.data.published import find_published

    return dataset == "digits" or read_cache(find_published(dataset)).state == "ready"


def quick_config(dataset: str, model: str) -> dict[str, Any]:
    """Data set, net and batch size of a run of seconds: the paper's net where its data is at hand, else the digits'."""
    if at_hand(dataset):
        return {"dataset": dataset, "model": model, "batch_size": 256}
    return {"dataset": "digits", "model": "digits-mlp", "batch_size": 128}


def told(config: Mapping[str, Any], meant: str) -> str | None:
    """What is to be said where another data set stands in for the one that is meant."""
    if config["dataset"] == meant:
        return None
    return f"{meant} is not cached: {config['dataset']} stand in for it (`adadpigu data get {meant}` fetches it)"

"""A data set of a user's own around another one."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset


class Wrapped(Dataset[Any]):
    """Records of another set, one by one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]

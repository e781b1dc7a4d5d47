"""Work in shares, each in a thread of its own: the same results in the same order, and torch's threads as before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from adadpigu.core.threads import in_threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_item_is_worked_on_once_in_order_with_one_thread_a_share(count: int) -> None:
    shares = in_threads(lambda share: (list(share), torch.get_num_threads()), range(count))
    assert [item for share, _ in shares for item in share] == list(range(count))
    assert len(shares) == max(1, min(2, count))
    assert count < 2 or {threads for _, threads in shares} == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_of_a_share_is_raised_and_the_threads_are_put_back() -> None:
    def work(share: Sequence[int]) -> None:
        if 5 in share:
            raise ValueError("five")

    with pytest.raises(ValueError, match="five"):
        in_threads(work, range(6))
    assert torch.get_num_threads() == 2

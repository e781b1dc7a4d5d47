"""ChaCha20 by Triton: the block function in plain Python, numpy's reading of its words, and `core.exact` as oracles."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from adadpigu.core.exact import nearest_multiple, normal_pairs
from adadpigu.core.kernels.chacha import Stream

CPU = torch.device("cpu")


def chacha_block(key: bytes, counter: int) -> list[int]:
    """RFC 8439's block function; the counter's 128 bits take the place of counter and nonce."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key)]
    start += struct.unpack("<4I", counter.to_bytes(16, "little"))
    state = list(start)
    columns = [(a, a + 4, a + 8, a + 12) for a in range(4)]
    diagonals = [(a, 4 + (a + 1) % 4, 8 + (a + 2) % 4, 12 + (a + 3) % 4) for a in range(4)]
    for a, b, c, d in 10 * (columns + diagonals):
        for into, add, mix, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[into] = (state[into] + state[add]) % 2**32
            mixed = state[mix] ^ state[into]
            state[mix] = (mixed << by | mixed >> 32 - by) % 2**32
    return [(end + begin) % 2**32 for end, begin in zip(state, start, strict=True)]


def stream(key: bytes, first: int = 0) -> Stream:
    made = Stream(key, CPU)
    made._next += first
    return made


def words_of(key: bytes, blocks: int) -> np.ndarray:
    return np.array([word for counter in range(blocks) for word in chacha_block(key, counter)], dtype="<u4")


@pytest.mark.parametrize("counter", [0, 1, 2**32 - 1, 2**32, 2**40 + 7])
def test_words_are_the_blocks_of_chacha20(counter: int) -> None:
    key = os.urandom(32)
    expected = [word for number in range(3) for word in chacha_block(key, counter + number)]
    assert stream(key, counter).words(48).tolist() == expected


def test_words_are_those_that_rfc_8439_prints() -> None:
    """Appendix A.1: keys and counters of its first three vectors, whose nonce is zero."""
    vectors = (
        (bytes(32), 0, "ade0b876 903df1a0 e56a5d40 28bd8653 b819d2bd 1aed8da0 ccef36a8 c70d778b"),
        (bytes(32), 1, "bee7079f 7a385155 7c97ba98 0d082d73 a0290fcb 6965e348 3e53c612 ed7aee32"),
        (bytes(31) + b"\x01", 1, "2452eb3a 9249f8ec 8d829d9b ddd4ceb1 e8252083 60818b01 f38422b8 5aaa49c9"),
    )
    for key, counter, expected in vectors:
        assert stream(key, counter).words(8).tolist() == [int(word, 16) for word in expected.split()]


def test_uniform_numbers_are_those_of_the_same_key_on_a_cpu() -> None:
    key = os.urandom(32)
    pairs = words_of(key, 13).view("<u8")
    ours = stream(key)
    assert ours.uniform(99).tolist() == [int(pair >> 11) / 2**53 for pair in pairs[:99]]
    assert ours.words(1).tolist() == chacha_block(key, 13)[:1]


def test_normal_numbers_are_those_of_box_and_muller() -> None:
    key = os.urandom(32)
    u, v = ((words_of(key, 50).view("<u8") >> np.uint64(11)).astype(float) / 2**53).reshape(-1, 2).T
    radius, angle = np.sqrt(-2 * np.log1p(-u)), 2 * np.pi * v
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()
    np.testing.assert_allclose(stream(key).normal(399), expected[:399], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 3.7, 2.0**21 * 0.937, 2.0**24 * 12.5])
def test_rounded_numbers_are_those_of_the_tier_exact_bit_for_bit(scale: float) -> None:
    key = os.urandom(32)
    words = torch.from_numpy(words_of(key, 300).view("<i8").reshape(-1, 4))
    high, low = (words[:, 0::2] >> 11) & (2**53 - 1), (words[:, 1::2] >> 12) & (2**52 - 1)
    expected = nearest_multiple(normal_pairs(high.mT, low.mT, words[:, 0] & 7), scale).view(2, -1).mT.flatten()
    assert torch.equal(stream(key).rounded(1200, scale), expected)


def test_numbers_go_on_where_those_before_them_ended() -> None:
    key = os.urandom(32)
    ours, whole = stream(key), stream(key)
    parts = [ours.words(5), ours.uniform(9), ours.normal(3), ours.rounded(2, 1.0), ours.words(16)]
    assert torch.equal(parts[-1], whole.words(16 * 6)[-16:])
    assert ours.words(0).shape == (0,)
    assert not torch.equal(Stream(os.urandom(32), CPU).words(16), Stream(os.urandom(32), CPU).words(16))


def test_many_numbers_have_their_law() -> None:
    """√n·D of Kolmogorov and Smirnov passes 3.15 with probability 5e-9."""
    ours, count = stream(os.urandom(32)), 100_000
    for drawn, law in ((ours.normal(count), norm.cdf), (ours.uniform(count), lambda x: x)):
        assert kstest(drawn.numpy(), law, method="asymp").statistic * count**0.5 < 3.15
    pairs = ours.normal(count).view(-1, 2)
    assert abs(float((pairs[:, 0] * pairs[:, 1]).mean())) < 6 / (count / 2) ** 0.5

"""Privacy noise and coins of both tiers: the stated distribution, independent, and repeated by nobody.

No seed is fixed. Each of about a hundred statistics is held to a bound that it passes by chance with probability
`ALPHA`, so less than one run of this file in 10⁶ raises a false alarm.
"""

from __future__ import annotations

import copy
import math
import os
import pickle
import random
import struct
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from typing import cast, get_args

import numpy as np
import pytest
import torch
from scipy.stats import binom, kstest, norm
from torch import Tensor

from adadpigu.core import exact
from adadpigu.core import randomness as module
from adadpigu.core.randomness import (
    MT19937_WORDS,
    DeviceRandomness,
    Randomness,
    ReproducibleRandomness,
    SystemRandomness,
    Tier,
    choose_randomness,
    seed_generator,
)
from adadpigu.errors import InputError

CPU = torch.device("cpu")
DRAWS = 1_000_000
ALPHA = 5e-9
both_tiers = pytest.mark.parametrize("tier", get_args(Tier))


# --- the cipher -------------------------------------------------------------------------------------------------------


def chacha_block(key: bytes, counter: int, rounds: int = 20) -> list[int]:
    """RFC 8439's block function in plain Python; the counter's 128 bits take the place of counter and nonce."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key)]
    start += struct.unpack("<4I", counter.to_bytes(16, "little"))
    state = list(start)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for into, add, mix, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[into] = (state[into] + state[add]) % 2**32
            mixed = state[mix] ^ state[into]
            state[mix] = (mixed << by | mixed >> 32 - by) % 2**32

    for _ in range(rounds // 2):
        for column in range(4):
            quarter(column, 4 + column, 8 + column, 12 + column)
        for diagonal in range(4):
            quarter(diagonal, 4 + (diagonal + 1) % 4, 8 + (diagonal + 2) % 4, 12 + (diagonal + 3) % 4)
    return [(end + begin) % 2**32 for end, begin in zip(state, start, strict=True)]


def keyed(monkeypatch: pytest.MonkeyPatch, key: bytes) -> SystemRandomness:
    """The secure tier on an operating system that is asked for 32 bytes and gives these."""

    def given(count: int) -> bytes:
        assert count == 32
        return key

    with monkeypatch.context() as patch:
        patch.setattr(os, "urandom", given)
        return SystemRandomness()


def test_the_oracle_computes_the_block_of_rfc_8439() -> None:
    """Section 2.3.2: key 00 01 … 1f, counter 1, nonce 00 00 00 09 00 00 00 4a 00 00 00 00."""
    counter = int.from_bytes(bytes.fromhex("01000000000000090000004a00000000"), "little")
    expected = """e4e7f110 15593bd1 1fdd0f50 c47120a3 c7f4d1c7 0368c033 9aaa2204 4e6cd4c3
                  466482d2 09aa9f07 05d7c214 a2028bd9 d19c12b5 b94e16de e883d0cb 4e3c50a2"""
    assert chacha_block(bytes(range(32)), counter) == [int(word, 16) for word in expected.split()]


def test_secure_words_are_the_blocks_of_chacha20_under_the_given_key(monkeypatch: pytest.MonkeyPatch) -> None:
    key = os.urandom(32)
    stream = [word for counter in range(100) for word in chacha_block(key, counter)]
    assert keyed(monkeypatch, key).words(1600).tolist() == stream
    assert stream[:16] not in (chacha_block(key, 0, rounds=8), chacha_block(key, 0, rounds=12))
    ours = keyed(monkeypatch, key)
    pairs = np.array(stream, dtype="<u4").view("<u8")
    assert ours.uniform(799).tolist() == [int(pair >> 11) / 2**53 for pair in pairs[:799]]
    assert ours.words(2).tolist() == stream[1598:]


def test_each_of_256_key_bits_has_its_place_in_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    for bit in range(256):
        key = (1 << bit).to_bytes(32, "little")
        assert keyed(monkeypatch, key).words(16).tolist() == chacha_block(key, 0)


# --- distribution -----------------------------------------------------------------------------------------------------


def distance(draws: Tensor, sigma: float) -> float:
    """√n·D of Kolmogorov and Smirnov between draws and N(0, σ²)."""
    statistic = kstest(draws.numpy(), norm(scale=sigma).cdf, method="asymp").statistic
    return float(statistic) * math.sqrt(len(draws))


KS_BOUND = float(np.sqrt(np.log(2 / ALPHA) / 2))
"""3.15: P[√n·D > x] ≤ 2·exp(−2x²) (Dvoretzky, Kiefer, Wolfowitz; Massart)"""


@both_tiers
def test_noise_is_normal_with_the_stated_deviation_and_not_with_one_5_percent_off(tier: Tier) -> None:
    """A deviation 5 % off moves the distribution function by 0.0115 at least, so √n·D is 11.5 up to chance.

    To fall to twice the bound, 6.3, it would have to be 5.2 off: P ≤ 2·exp(−2·5.2²) = 6e-24.
    """
    for sigma in (1.0, 1.7):
        draws = sigma * choose_randomness(tier, CPU).normal(DRAWS)
        assert draws.dtype == torch.float64
        assert distance(draws, sigma) < KS_BOUND
        assert distance(draws, 0.95 * sigma) > 2 * KS_BOUND
        assert distance(draws, 1.05 * sigma) > 2 * KS_BOUND


@both_tiers
def test_as_many_draws_lie_in_the_tails_as_should(tier: Tier) -> None:
    draws = choose_randomness(tier, CPU).normal(DRAWS)
    for beyond in (2.0, 3.0, 4.0, 4.5):
        for side in (draws, -draws):
            low, high = binom(DRAWS, norm.sf(beyond)).ppf([ALPHA / 2, 1 - ALPHA / 2])
            assert low <= int((side > beyond).sum()) <= high


@both_tiers
def test_coins_are_uniform_in_the_half_open_interval_with_all_53_bits(tier: Tier) -> None:
    coins = choose_randomness(tier, CPU).uniform(DRAWS)
    assert coins.dtype == torch.float64
    assert (coins >= 0).all()
    assert (coins < 1).all()
    assert kstest(coins.numpy(), "uniform", method="asymp").statistic * DRAWS**0.5 < KS_BOUND
    whole = (coins * 2**53).long()
    assert (whole.double() == coins * 2**53).all()
    for bit in range(53):  # float32 would leave the last 29 at zero
        low, high = binom(DRAWS, 0.5).ppf([ALPHA / 106, 1 - ALPHA / 106])
        assert low <= int((whole >> bit & 1).sum()) <= high


@both_tiers
def test_noise_has_more_digits_than_float32(tier: Tier) -> None:
    draws = choose_randomness(tier, CPU).normal(1000)
    assert (draws != draws.float().double()).sum() > 990


def test_fast_noise_reaches_beyond_what_float32_can() -> None:
    """Box and Muller: r = √(−2·ln(1 − u)) of a coin u with 53 bits, so r ≤ √(106·ln 2) = 8.57; with 24 bits, 5.77."""
    ours = DeviceRandomness(CPU)
    before = ours.noise.get_state()
    noise = ours.normal(16)
    ours.coins.set_state(before)
    coins, turns = ours.uniform(16).view(2, 8)
    radius, angle = (-2 * torch.log1p(-coins)).sqrt(), 2 * torch.pi * turns
    torch.testing.assert_close(noise, torch.cat([radius * angle.cos(), radius * angle.sin()]), rtol=1e-9, atol=1e-12)


def test_secure_noise_reaches_beyond_what_float32_can() -> None:
    """numpy's ziggurat, given words that send it into its tail: 3.654 − 0.2737·ln(1 − u) for a coin u."""
    ours = SystemRandomness()
    ours.words(2)  # a block is made when its first word is asked for
    bits = ours._generator.bit_generator
    state = cast("dict[str, dict[str, np.ndarray]]", bits.state)
    outermost = (2**52 - 1) << 9  # the outermost of 256 layers (low eight bits), at its far end
    coin, accept = 2**64 - 2**48, 2**64 - 2**56  # coins of 1 − 2⁻¹⁶ and 1 − 2⁻⁸
    state["state"]["block"][2:8] = np.array([outermost, coin, accept], dtype="<u8").view("<u4")
    bits.state = state
    assert abs(ours.normal(1).item()) == pytest.approx(3.6541528853610088 + 16 * np.log(2) / 3.6541528853610088)


# --- independence -----------------------------------------------------------------------------------------------------


def largest_correlation(first: Tensor, second: Tensor) -> float:
    """Of the values and of their squares, in standard deviations of what independent standard normals would show."""
    pairs = [(first, second), ((first**2 - 1) / 2**0.5, (second**2 - 1) / 2**0.5)]
    return max(abs(float((a * b).sum())) / math.sqrt(a.numel()) for a, b in pairs)


CORRELATION_BOUND = float(norm.isf(ALPHA / 2))
"""5.85; the products of squares are skewed, which makes their false alarms a quarter more frequent"""


def shifted(draws: Tensor, steps: int, coordinates: int) -> float:
    """Correlation of step t, coordinate j with step t + `steps`, coordinate j + `coordinates`."""
    rows, columns = draws.shape
    return largest_correlation(draws[: rows - steps, : columns - coordinates], draws[steps:, coordinates:])


def noise_of_steps(tier: Tier) -> Tensor:
    ours = choose_randomness(tier, CPU)
    return torch.stack([ours.normal(1000) for _ in range(1000)])


@both_tiers
def test_coordinates_and_steps_are_independent(tier: Tier) -> None:
    draws = noise_of_steps(tier)
    for lag in (1, 2, 3, 4, 8, 16):
        assert shifted(draws, 0, lag) < CORRELATION_BOUND
        assert shifted(draws, lag, 0) < CORRELATION_BOUND
    assert shifted(draws, 1, 1) < CORRELATION_BOUND
    assert largest_correlation(draws[:, :500], draws[:, 500:]) < CORRELATION_BOUND
    assert largest_correlation(draws[:500], draws[500:]) < CORRELATION_BOUND


@both_tiers
def test_coins_and_noise_of_one_generator_are_independent(tier: Tier) -> None:
    ours = choose_randomness(tier, CPU)
    coins = ours.uniform(DRAWS)
    as_normals = torch.special.ndtri(coins.clamp(min=2**-54))
    assert largest_correlation(as_normals, ours.normal(DRAWS)) < CORRELATION_BOUND


def repeated_pairs(draws: Tensor) -> int:
    """How many neighbouring pairs of values occur again, at any offset; a repeated block of eight would repeat seven.

    Two values agree by chance with probability 2⁻⁵⁰ at most, two pairs with 2⁻¹⁰⁰; 10¹² comparisons, 1e-18.
    """
    first, second = draws[:-1].numpy(), draws[1:].numpy()
    _, which, counts = np.unique(first, return_inverse=True, return_counts=True)
    again = counts[which] > 1
    pairs = list(zip(first[again].tolist(), second[again].tolist(), strict=True))
    return len(pairs) - len(set(pairs))


@both_tiers
def test_no_block_of_values_comes_again_within_a_key_or_under_the_next(tier: Tier) -> None:
    ours = choose_randomness(tier, CPU)
    assert repeated_pairs(ours.normal(DRAWS)) == 0
    assert repeated_pairs(ours.uniform(DRAWS)) == 0
    blocks = [ours.normal(DRAWS // 10)]
    for _ in range(9):
        cast(SystemRandomness, ours)._rekey()
        blocks.append(ours.normal(DRAWS // 10))
    assert repeated_pairs(torch.cat(blocks)) == 0
    assert repeated_pairs(torch.cat([choose_randomness(tier, CPU).normal(8) for _ in range(1000)])) == 0


def test_these_checks_see_planted_faults() -> None:
    draws = noise_of_steps("secure")
    echo = draws.clone()
    echo[:, 3:] += 0.02 * draws[:, :-3]
    assert shifted(echo, 0, 3) > 2 * CORRELATION_BOUND
    same_size = draws.clone()
    same_size[1::50] = draws[::50].abs() * draws[1::50].sign()
    assert shifted(same_size, 1, 0) > 2 * CORRELATION_BOUND
    again = draws.flatten().clone()
    again[700_003:700_011] = again[5:13]
    assert repeated_pairs(again) == 7


# --- whose numbers they are -------------------------------------------------------------------------------------------


FORK, SPAWN = get_context("fork"), get_context("spawn")


def send(draw: Callable[[], Tensor], writer: Connection) -> None:
    writer.send_bytes(draw().numpy().tobytes())


def drawn_by_children(
    context: ForkContext | SpawnContext, draw: Callable[[], Tensor], count: int = 2
) -> list[set[float]]:
    """What processes draw first, which know nothing of each other."""
    children = []
    for _ in range(count):
        reader, writer = context.Pipe(duplex=False)
        child = context.Process(target=send, args=(draw, writer))
        child.start()
        writer.close()
        children.append((child, reader))
    try:
        return [set(np.frombuffer(reader.recv_bytes()).tolist()) for _, reader in children]
    finally:
        for child, _ in children:
            child.join()


def draw_by_both_tiers() -> Tensor:
    return torch.cat([choose_randomness(tier, CPU).normal(1000) for tier in get_args(Tier)])


def share_nothing(*draws: set[float]) -> bool:
    """Of 10⁶ pairs of values two agree by chance with probability 10⁶·2⁻⁵⁰ = 1e-9."""
    return len(set.union(*draws)) == sum(map(len, draws))


@both_tiers
def test_forked_children_and_their_parent_draw_different_numbers(tier: Tier) -> None:
    ours = choose_randomness(tier, CPU)
    children = drawn_by_children(FORK, lambda: ours.normal(1000))
    assert share_nothing(*children, set(ours.normal(1000).tolist()))


@pytest.mark.slow
def test_spawned_children_draw_different_numbers() -> None:
    assert share_nothing(*drawn_by_children(SPAWN, draw_by_both_tiers))


def test_a_generator_that_cannot_be_keyed_again_in_a_fork_is_of_no_use_there_and_hinders_no_other() -> None:
    parent = os.getpid()

    class NoKey(SystemRandomness):
        def _rekey(self) -> None:
            if os.getpid() != parent:
                raise OSError("no entropy")
            super()._rekey()

    before, stuck, after = SystemRandomness(), NoKey(), SystemRandomness()
    children = drawn_by_children(FORK, lambda: torch.cat([before.normal(1000), after.normal(1000)]))
    assert share_nothing(*children, set(before.normal(1000).tolist()), set(after.normal(1000).tolist()))
    with pytest.raises(EOFError):  # the child ended without a number
        drawn_by_children(FORK, lambda: stuck.normal(1000), count=1)
    assert len(stuck.normal(3)) == 3


@pytest.mark.parametrize("make", [SystemRandomness, partial(DeviceRandomness, CPU), partial(ReproducibleRandomness, 0)])
@pytest.mark.parametrize("store", [pickle.dumps, copy.copy, copy.deepcopy, lambda it: copy.deepcopy({"in": [it]})])
def test_no_generator_can_be_stored_or_copied(
    make: Callable[[], Randomness], store: Callable[[Randomness], object]
) -> None:
    with pytest.raises(TypeError, match="re-keyed, not restored"):
        store(make())


@both_tiers
def test_seeds_of_the_user_change_nothing_and_their_streams_do_not_move(tier: Tier) -> None:
    def seed() -> None:
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)

    state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        seed()
        ours, draws = choose_randomness(tier, CPU), []
        for again in (True, True, False):
            seed()
            used = ours if again else choose_randomness(tier, CPU)
            draws.append({*used.normal(1000).tolist(), *used.uniform(1000).tolist(), *used.words(3).tolist()})
        theirs = torch.rand(1).item(), np.random.rand(), random.random()
        seed()
        assert theirs == (torch.rand(1).item(), np.random.rand(), random.random())
    finally:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])
        random.setstate(state[2])
    assert share_nothing(*draws)


# --- tiers ------------------------------------------------------------------------------------------------------------


def test_every_device_is_secure_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, made = torch.device("cuda"), list[tuple[str, torch.device]]()

    def make(tier: str) -> Callable[[torch.device], DeviceRandomness]:
        return lambda device: (made.append((tier, device)), DeviceRandomness(CPU))[1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(module, "DeviceRandomness", make("fast"))
    monkeypatch.setattr(module, "DeviceChaCha", make("secure"))
    monkeypatch.setattr(exact, "DeviceExact", make("exact"))
    monkeypatch.setattr(module, "installed", lambda: True)
    assert choose_randomness(None, CPU).tier == "secure"
    for tier in (None, "secure", "fast", "exact"):
        choose_randomness(tier, gpu)
    assert choose_randomness("fast", CPU).tier == "fast"
    assert made == [("secure", gpu), ("secure", gpu), ("fast", gpu), ("exact", gpu), ("fast", CPU)]
    monkeypatch.setattr(module, "installed", lambda: False)
    assert type(choose_randomness(None, gpu)) is SystemRandomness
    with pytest.raises(InputError, match="secure"):
        choose_randomness("secur", CPU)  # type: ignore[arg-type]


def test_each_generator_says_what_it_is() -> None:
    secure, fast, fixed = SystemRandomness(), DeviceRandomness(CPU), ReproducibleRandomness(0)
    assert (secure.tier, fast.tier, fixed.tier) == ("secure", "fast", "reproducible")
    assert (secure.private, fast.private, fixed.private) == (True, True, False)
    assert "ChaCha20, 256-bit key from the operating system, float64" in secure.description
    assert "no protection against someone who can guess or recover" in fast.description
    assert not isinstance(fast, SystemRandomness)


def test_the_whole_state_of_a_fast_generator_on_the_cpu_is_filled() -> None:
    """numpy's Mersenne Twister with the same 624 words draws the same: none of them comes from a 32-bit seed."""
    words = SystemRandomness().words(MT19937_WORDS)
    generator = torch.Generator()
    seed_generator(generator, words)
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words.numpy().astype(np.uint32), "pos": 624}}
    high, low = twister.random_raw(2000).reshape(1000, 2).T
    expected = [(a << 32 | b) % 2**53 / 2**53 for a, b in zip(high.tolist(), low.tolist(), strict=True)]
    assert torch.rand(1000, dtype=torch.float64, generator=generator).tolist() == expected


def test_coins_and_noise_of_the_fast_tier_have_generators_of_their_own() -> None:
    ours = DeviceRandomness(CPU)
    assert not torch.equal(ours.coins.get_state(), ours.noise.get_state())
    before = ours.coins.get_state()
    ours.normal(100)
    assert torch.equal(ours.coins.get_state(), before)

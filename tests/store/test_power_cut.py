"""Any order of sends, flushes, restarts, kills, power cuts and expiry agrees with a simple model.

The disk forgets what was not synced (support/forgetful.py). That the tests would notice a missing sync is shown by
leaving out one kind at a time. Two kinds may be left out without losing anything:

checkpoint  An older one only makes recovery start earlier, and a missing one at the first file of the log.
abort       Only that it exists counts, and that is an entry of the root directory, whose sync does matter.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.errors import StoreError
from support.store_world import STEPS, StoreWorld, take

MANY = ["send"] * 6 + ["flush"] * 3 + ["cut"] * 2 + list(STEPS)
SEEDS_MAX = 150
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""The forgetful disk keeps its own account of syncs: the device need not wait for them."""


@contextmanager
def world_of(seed: int, skip: Callable[[Path], bool] | None = None) -> Iterator[StoreWorld]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield StoreWorld(Path(folder), random.Random(seed), skip)


def steps_of(seed: int, kinds: list[str], count: int) -> list[str]:
    return random.Random(-1 - seed).choices(kinds, k=count)


@given(seed=st.integers(0, 1 << 32), steps=st.lists(st.sampled_from(MANY), max_size=25))
@settings(deadline=None, max_examples=20)
def test_whatever_happens_acknowledged_messages_stay_and_offsets_have_no_gap(seed: int, steps: list[str]) -> None:
    """Steps and seed come from Hypothesis, which prints those that fail; the model is compared after each step."""
    with world_of(seed) as world:
        take(world, steps)


@pytest.mark.parametrize("seed", range(10))
def test_long_histories_agree_too(seed: int) -> None:
    """Forty steps over many files; the seed is the test's parameter."""
    with world_of(seed) as world:
        take(world, steps_of(seed, MANY, 40))


def is_log_file(path: Path) -> bool:
    return path.parts[:1] == ("commitlog",) and len(path.parts) == 2


def is_log_directory(path: Path) -> bool:
    return path.parts == ("commitlog",)


def is_root(path: Path) -> bool:
    return path == Path()


def is_queue_file(path: Path) -> bool:
    return path.parts[:1] == ("consumequeue",) and len(path.parts) == 4


def is_queue_directory(path: Path) -> bool:
    return path.parts[:1] == ("consumequeue",) and len(path.parts) < 4


def is_abort(path: Path) -> bool:
    return path.parts == ("abort",)


def is_checkpoint(path: Path) -> bool:
    return path.parts == ("checkpoint",)


def is_index(path: Path) -> bool:
    return path.parts[:1] == ("index",)


@pytest.mark.parametrize(
    "skip",
    [is_log_file, is_log_directory, is_root, is_queue_file, is_queue_directory],
    ids=lambda skip: skip.__name__,
)
def test_a_store_that_leaves_out_a_sync_is_caught(skip: Callable[[Path], bool]) -> None:
    """Leaves out every sync of one kind, in one history after the other, until the model disagrees."""
    kinds = [*MANY, "send", "send", "keep", "keep", "expire"]
    for seed in range(SEEDS_MAX):
        with world_of(seed, skip) as world:
            try:
                take(world, steps_of(seed, kinds, 40))
            except (AssertionError, StoreError):
                return
    pytest.fail(f"{SEEDS_MAX} histories did not need this sync")


@pytest.mark.parametrize("skip", [is_checkpoint, is_abort], ids=lambda skip: skip.__name__)
def test_what_is_not_needed_after_a_cut_needs_no_sync(skip: Callable[[Path], bool]) -> None:
    """The two kinds that are named above: no history finds them missing."""
    for seed in range(4):
        with world_of(seed, skip) as world:
            take(world, steps_of(seed, MANY, 40))

"""Appending to a message store against the least that encodes a message into a file; batches against singles.

Ours is complete: write, queue entries, index, all in one thread, so that nothing is left out of the count. Both are
measured by processor time.
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.baseline.append import HOST, BareLog
from bench.measure import Ratio, in_turn
from rmq_core.config import StoreSettings
from rmq_core.store.message_store import MessageStore

COUNT = 64_000
PER_PASS = 64
TOPIC, QUEUES = "TopicTest", 4
BODY = b"x" * 128
BORN_MS = 1_700_000_000_000
_BATCH_FIXED = struct.Struct(">iiiii")


def properties(number: int) -> bytes:
    """Four properties, the client's id among them as clients count it up."""
    return b"UNIQ_KEY\x017F000001123418B4AAC2%012X\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01k%d\x02" % (
        number,
        number,
    )


def batch(parts: list[bytes]) -> bytes:
    """Messages as clients put them together."""
    return b"".join(
        _BATCH_FIXED.pack(22 + len(BODY) + len(each), 0, 0, 0, len(BODY))
        + BODY
        + struct.pack(">h", len(each))
        + each
        for each in parts
    )


def open_store(root: Path) -> MessageStore:
    settings = StoreSettings(store_path_root_dir=str(root), mapped_file_size_commit_log=256 << 20)
    store = MessageStore(settings, store_host=HOST)
    store.open()
    return store


def singles(store: MessageStore, messages: list[bytes], per_pass: int = PER_PASS) -> Callable[[], float]:
    def measure() -> float:
        start = time.process_time()
        for low in range(0, COUNT, per_pass):
            for number in range(low, low + per_pass):
                store.put(
                    TOPIC, number % QUEUES, BODY, messages[number], born_time_ms=BORN_MS, born_host=HOST
                )  # fmt: skip
            store.end_pass()
        finish(store)
        return COUNT / (time.process_time() - start)

    return measure


def batches(store: MessageStore, messages: list[bytes]) -> Callable[[], float]:
    encoded = [batch(messages[low : low + PER_PASS]) for low in range(0, COUNT, PER_PASS)]

    def measure() -> float:
        start = time.process_time()
        for number, each in enumerate(encoded):
            store.put_batch(TOPIC, number % QUEUES, each, born_time_ms=BORN_MS, born_host=HOST)
            store.end_pass()
        finish(store)
        return COUNT / (time.process_time() - start)

    return measure


def finish(store: MessageStore) -> None:
    """What the keeper does behind the sends, without making it durable."""
    store.queues.write_out()
    assert store.index is not None
    store.index.build()
    store.index.index.write_out()


def bare(log: BareLog, messages: list[bytes]) -> Callable[[], float]:
    def measure() -> float:
        log.rewind()
        start = time.process_time()
        for number in range(COUNT):
            log.put(TOPIC, number % QUEUES, BODY, messages[number], BORN_MS)
        return COUNT / (time.process_time() - start)

    return measure


def run() -> list[Ratio]:
    messages = [properties(number) for number in range(COUNT)]
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder:
        root = Path(folder)
        store = open_store(root / "singles")
        log = BareLog(root / "bare", COUNT * 400)
        one = singles(store, messages)
        pair = in_turn(one, bare(log, messages))
        many = in_turn(batches(store, messages), one)
        alone = in_turn(batches(store, messages), singles(store, messages, 1))
        store.close()
    return [
        Ratio("append with queues and index, against bare encode and copy", *pair, "messages/s", goal=0.5),
        Ratio("batch of 64 against 64 singles in one pass", *many, "messages/s"),
        Ratio("batch of 64 against singles that are alone in their pass", *alone, "messages/s", goal=3),
    ]

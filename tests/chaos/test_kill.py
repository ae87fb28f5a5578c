"""kill -9 while messages are written, again and again in one directory."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from chaos.writing_process import GONE, QUEUES, SAID, STARTED, STORED, settings
from rmq_core.protocol.record import decode_pull_body
from rmq_core.store.message_store import MessageStore
from rmq_core.store.queue_reader import GetStatus
from rmq_core.store.verify import verify

LONGEST_RUN_S = 0.5
"""From before the store is opened: some are killed while they recover."""
LOOK_BACK = 300
"""So many messages of each queue are read again after most kills."""
KEYS_LOOKED_UP = 30


@dataclass
class History:
    """What the killed processes acknowledged: for each queue and queue offset, the run that wrote the message."""

    acknowledged: list[dict[int, int]] = field(default_factory=lambda: [{} for _ in QUEUES])
    seen: list[list[int]] = field(default_factory=lambda: [[] for _ in QUEUES])
    """The runs of the messages that the last look found, by queue offset."""

    def add(self, queue: int, run: int, queue_offset: int) -> None:
        assert queue_offset not in self.acknowledged[queue], f"queue offset {queue_offset} was given twice"
        self.acknowledged[queue][queue_offset] = run


class WritingProcess:
    """The program that forks writers, and what they say."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[bytes] = process.stdin
        self._output: IO[bytes] = process.stdout

    def run_and_kill(self, root: Path, run: int, delay_s: float, history: History) -> None:
        """Let a process write for a while, and kill it."""
        self._input.write(b"%d %s\n" % (run, str(root).encode()))
        self._input.flush()
        said = self._output.read(SAID.size)
        started, pid, _, _ = SAID.unpack(said)
        assert started == STARTED
        kill_at = time.monotonic() + delay_s
        heard = bytearray()
        while select.select([self._output], [], [], max(kill_at - time.monotonic(), 0))[0]:
            heard += os.read(self._output.fileno(), 1 << 16)
            if time.monotonic() >= kill_at:
                break
        os.kill(pid, signal.SIGKILL)
        while not heard.endswith(SAID.pack(GONE, pid, run, 0)):
            more = os.read(self._output.fileno(), 1 << 16)
            assert more, "the program that forks writers has ended"
            heard += more
        for what, queue, of_run, queue_offset in SAID.iter_unpack(heard[: -SAID.size]):
            assert (what, of_run) == (STORED, run)
            history.add(queue, run, queue_offset)


@contextmanager
def writing_process() -> Iterator[WritingProcess]:
    command = [sys.executable, str(Path(__file__).with_name("writing_process.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield WritingProcess(process)
        finally:
            process.kill()


def check(root: Path, history: History, *, whole: bool) -> None:
    """Open the directory: every acknowledged message is there, queues have no gaps, keys are found."""
    store = MessageStore(settings(root))
    store.open()
    store.rebuild_index()
    for number, (topic, queue_id) in enumerate(QUEUES):
        seen = history.seen[number]
        first = 0 if whole else max(len(seen) - LOOK_BACK, 0)
        del seen[first:]
        while True:
            got = store.get(topic, queue_id, len(seen), 1000, may_wait=True)
            if got.status is not GetStatus.FOUND:
                break
            for record in decode_pull_body(b"".join(got.parts), verify_crc=True):
                run, own_number, queue_offset = map(int, record.body.split(b" ", 3)[:3])
                assert (record.topic, record.queue_id, own_number) == (topic, queue_id, number)
                assert record.queue_offset == queue_offset == len(seen), f"{topic}/{queue_id}: {record}"
                seen.append(run)
        assert store.max_offset(topic, queue_id, is_committed=False) == len(seen)
        for queue_offset, run in history.acknowledged[number].items():
            assert queue_offset < len(seen), f"{topic}/{queue_id}: the message at {queue_offset} is lost"
            assert seen[queue_offset] == run, f"{topic}/{queue_id}: another message is at {queue_offset}"
        for queue_offset in range(first, len(seen), max((len(seen) - first) // KEYS_LOOKED_UP, 1)):
            key = f"{seen[queue_offset]}-{number}-{queue_offset}"
            offsets = store.query(topic, key, 64, 0, 1 << 62)
            assert any(is_at(store, offset, number, queue_offset) for offset in offsets), f"no key {key}"
    store.close()


def is_at(store: MessageStore, log_offset: int, number: int, queue_offset: int) -> bool:
    """Whether the message of this queue offset stands at a log offset."""
    view = store.record(log_offset)
    assert view is not None
    return decode_pull_body(view)[0].body.split(b" ", 3)[1:3] == [b"%d" % number, b"%d" % queue_offset]


def test_acknowledged_messages_survive_kills(tmp_path: Path, seed: int, rounds: int) -> None:
    """A process writes with SYNC_FLUSH and is killed at a random moment, sometimes twice before anyone looks.

    Each look at the directory must find what was acknowledged, at its queue offset, in queues without gaps.
    """
    chance = random.Random(seed)
    history = History()
    with writing_process() as writers:
        for number in range(rounds):
            writers.run_and_kill(tmp_path, number, chance.random() * LONGEST_RUN_S, history)
            if chance.random() < 0.7:
                check(tmp_path, history, whole=False)
    check(tmp_path, history, whole=True)
    assert len(list((tmp_path / "commitlog").iterdir())) > 1 + rounds // 10, "too little was written"
    assert all(history.acknowledged)
    found = verify(tmp_path)
    assert found.is_clean, found.problems

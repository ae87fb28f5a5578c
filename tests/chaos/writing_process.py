"""Processes that store messages until they are killed, and say of each message when it was acknowledged.

For each line `RUN ROOT` of its input this program forks a process (which saves it the imports) that opens the store
with its threads and SYNC_FLUSH. The output is one SAID record when that starts, one for each message after the log
was synced for it, and one when the process is gone.
"""

from __future__ import annotations

import os
import random
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rmq_core.config import StoreSettings
from rmq_core.store.message_store import MessageStore, Put, PutStatus

SAID: Final = struct.Struct(">8siiq")
"""What, number of the queue (or the process id), number of the run, queue offset."""
STARTED, STORED, GONE = b"started ", b"stored  ", b"gone    "
QUEUES: Final = [("Orders", 0), ("Orders", 1), ("Payments", 0), ("%RETRY%Group", 0), ("Audit", 7)]
HOST: Final = b"\x7f\0\0\x01\0\0\xc3\x50"
IN_FLIGHT_MAX: Final = 20


def settings(root: Path) -> StoreSettings:
    """Small files, so that each run rolls over several of them, and a keeper that is always at work."""
    return StoreSettings(
        store_path_root_dir=str(root),
        flush_disk_type="SYNC_FLUSH",
        mapped_file_size_commit_log=512 << 10,
        mapped_file_size_consume_queue=6000,
        max_hash_slot_num=5000,
        max_index_num=20_000,
        flush_interval_consume_queue=1,
        flush_consume_queue_thorough_interval=200,
        disk_max_used_space_ratio=95,
    )


def body(run: int, queue: int, queue_offset: int, chance: random.Random) -> bytes:
    """A body that says where its message must stand."""
    return b"%d %d %d " % (run, queue, queue_offset) + b"." * chance.choice((0, 10, 100, 1000, 4000))


def properties(run: int, queue: int, queue_offset: int) -> bytes:
    """A key that says the same."""
    return b"UNIQ_KEY\x01%d-%d-%d\x02TAGS\x01tag%d\x02" % (run, queue, queue_offset, queue_offset % 3)


class Writer:
    """Puts and acknowledges, in one thread."""

    def __init__(self, root: Path, run: int) -> None:
        self._run = run
        self._chance = random.Random(run)
        self._wake = threading.Event()
        self._store = MessageStore(settings(root), notify=self._wake.set)
        self._in_flight = 0

    def work(self) -> None:
        """Never ends by itself."""
        os.write(1, SAID.pack(STARTED, os.getpid(), self._run, 0))
        self._store.open()
        self._store.start()
        while True:
            waiting = [self._put() for _ in range(self._chance.randrange(1, 30))]
            self._store.end_pass()
            for end, acknowledge in waiting:
                self._in_flight += 1
                self._store.when_durable(end, acknowledge)
            self._store.poll()
            while self._in_flight > IN_FLIGHT_MAX:
                self._wake.wait()
                self._wake.clear()
                self._store.poll()

    def _put(self) -> tuple[int, Callable[[PutStatus], None]]:
        number = self._chance.randrange(len(QUEUES))
        topic, queue_id = QUEUES[number]
        first = self._store.max_offset(topic, queue_id, is_committed=False)
        count = self._chance.choice((1, 1, 1, 5, 20))
        if count == 1:
            put = self._store.put(
                topic,
                queue_id,
                body(self._run, number, first, self._chance),
                properties(self._run, number, first),
                born_time_ms=1,
                born_host=HOST,
            )
        else:
            put = self._store.put_batch(
                topic,
                queue_id,
                b"".join(self._batched(number, first + each) for each in range(count)),
                born_time_ms=1,
                born_host=HOST,
            )
        if put.status is not PutStatus.PUT_OK or put.queue_offset != first:
            raise AssertionError(f"put at {first} of {topic}/{queue_id} gave {put}")
        return put.end, self._acknowledge(put, number, count)

    def _batched(self, number: int, queue_offset: int) -> bytes:
        own_body = body(self._run, number, queue_offset, self._chance)
        own_properties = properties(self._run, number, queue_offset)
        size = 22 + len(own_body) + len(own_properties)
        head = struct.pack(">iiiii", size, 0, 0, 0, len(own_body))
        return head + own_body + struct.pack(">h", len(own_properties)) + own_properties

    def _acknowledge(self, put: Put, number: int, count: int) -> Callable[[PutStatus], None]:
        def acknowledge(status: PutStatus) -> None:
            if status is not PutStatus.PUT_OK:
                raise AssertionError(f"the log could not be synced: {status}")
            self._in_flight -= 1
            # One write, so that a kill cuts no record: pipes take up to 4096 bytes at once.
            said = [SAID.pack(STORED, number, self._run, put.queue_offset + each) for each in range(count)]
            os.write(1, b"".join(said))

        return acknowledge


def main() -> None:
    for line in sys.stdin:
        run, root = line.split(maxsplit=1)
        child = os.fork()
        if not child:
            try:
                Writer(Path(root.strip()), int(run)).work()
            finally:
                traceback.print_exc()
                os._exit(1)
        os.waitpid(child, 0)
        os.write(1, SAID.pack(GONE, child, int(run), 0))


if __name__ == "__main__":
    main()

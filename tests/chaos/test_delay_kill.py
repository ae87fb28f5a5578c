"""Delayed messages in a broker that is killed again and again while it takes and delivers them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from pathlib import Path

from chaos.broker_process import BrokerProcess
from rmq_core.config import StoreSettings
from rmq_core.errors import ClientError
from rmq_core.net.channel import Channel
from rmq_core.protocol.bodies import DelayOffsetSerializeWrapper
from rmq_core.protocol.message import SCHEDULE_TOPIC
from rmq_core.protocol.requests import GetMaxOffset
from rmq_core.store.message_store import MessageStore
from support.brokers import Client, run
from support.stores import records_of

SETTINGS = (
    "flushDiskType=SYNC_FLUSH",
    "messageDelayLevel=1s 2s",
    "mappedFileSizeCommitLog=4194304",
    "diskSpaceWarningLevelRatio=100",
    "diskSpaceCleanForciblyRatio=100",
)
QUEUES = 4


async def load(address: str, name: str, acknowledged: list[bytes]) -> None:
    """Send delayed messages, eight at a time, until the broker is gone."""
    client = Client(Channel(address))

    async def send(worker: int) -> None:
        for number in range(1_000_000):
            body = f"{name}-{worker}-{number}".encode()
            properties = {"UNIQ_KEY": body.decode(), "DELAY": str(1 + number % 2)}
            await client.send("Orders", body, queue_id=number % QUEUES, properties=properties)
            acknowledged.append(body)

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.channel.close)
        await asyncio.gather(*(send(worker) for worker in range(8)), return_exceptions=True)


async def rest(address: str) -> None:
    """Return when nothing waits any more: the ends of the queues have not moved for longer than any delay."""
    async with contextlib.AsyncExitStack() as stack:
        client = Client(Channel(address))
        stack.push_async_callback(client.channel.close)
        ends, quiet = [0], 0
        while quiet < 6:
            answers = [await client.call(GetMaxOffset("Orders", queue_id)) for queue_id in range(QUEUES)]
            now = [answer.header.queue_offset for answer in answers]
            quiet = quiet + 1 if now == ends else 0
            ends = now
            await asyncio.sleep(0.5)


def test_a_killed_broker_delivers_every_delayed_message_and_none_early(
    tmp_path: Path, seed: int, rounds: int
) -> None:
    """Kills under load at random moments, a quarter of --rounds times; reads the store when all are delivered."""
    chance = random.Random(seed)
    store_path = tmp_path / "store"
    acknowledged: list[bytes] = []
    kills = max(rounds // 4, 1)

    async def kill_under_load(number: int) -> None:
        program = BrokerProcess(store_path, SETTINGS)
        sending = asyncio.ensure_future(load(program.wait_until_ready(), f"r{number}", acknowledged))
        try:
            with contextlib.suppress(ClientError):
                await asyncio.wait([sending], timeout=0.3 + chance.random() * 2)
        finally:
            program.end(signal.SIGKILL)
            await sending

    for number in range(kills):
        run(kill_under_load(number))
    program = BrokerProcess(store_path, SETTINGS)
    try:
        run(rest(program.wait_until_ready()))
    finally:
        code = program.end(signal.SIGTERM)
    assert code == 0

    settings = {"message_delay_level": "1s 2s", "mapped_file_size_commit_log": 4 << 20}
    store = MessageStore(StoreSettings(store_path_root_dir=str(store_path), **settings))  # type: ignore[arg-type]
    store.open()
    delivered = [record for queue_id in range(QUEUES) for record in records_of(store, "Orders", queue_id)]
    found = Counter(record.body for record in delivered)
    assert acknowledged
    assert not set(acknowledged) - set(found)
    sent_ms = {
        record.body: record.store_time_ms + 1000 * (1 + queue_id)
        for queue_id in range(2)
        for record in records_of(store, SCHEDULE_TOPIC, queue_id)
    }
    assert [record.body for record in delivered if record.store_time_ms < sent_ms[record.body]] == []
    saved = DelayOffsetSerializeWrapper.decode((store_path / "config" / "delayOffset.json").read_bytes())
    assert saved.offset_table == {level: store.max_offset(SCHEDULE_TOPIC, level - 1) for level in (1, 2)}
    # A kill repeats what was delivered since the offsets were saved, and no message more than once.
    assert max(found.values()) <= 1 + kills
    store.close()

"""kill -9 of a broker that is sent to, pulled from and told offsets, again and again on one store."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson

from chaos.broker_load import (
    DELAY_LEVELS,
    DELAYED_TOPIC,
    GROUP,
    QUEUES,
    TOPIC,
    History,
    Load,
    committed_offset,
)
from chaos.broker_process import BrokerProcess
from rmq_core.config import StoreSettings
from rmq_core.net.channel import Channel
from rmq_core.protocol.bodies import DelayOffsetSerializeWrapper, TopicConfigSerializeWrapper
from rmq_core.protocol.message import SCHEDULE_TOPIC
from rmq_core.protocol.record import decode_pull_body
from rmq_core.protocol.requests import GetAllDelayOffset, GetAllTopicConfig, GetMaxOffset
from rmq_core.store.message_store import MessageStore
from rmq_core.store.verify import verify
from support.brokers import Client, run
from support.stores import records_of

DELAYS_MS = (1000, 2000)
STORE = {
    "messageDelayLevel": "1s 2s",
    "mappedFileSizeCommitLog": "4194304",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "diskSpaceWarningLevelRatio": "100",
    "diskSpaceCleanForciblyRatio": "100",
}
SETTINGS = [
    *(f"{key}={value}" for key, value in STORE.items()),
    "flushDiskType=SYNC_FLUSH",
    "flushConsumerOffsetInterval=30",
]
LONGEST_LOAD_S = 0.8
LONGEST_START_S = 1.2
LOOK_BACK = 200
"""So many messages of each queue are read again after each kill."""


class Look:
    """What consumers find after each start, compared with what was answered before."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._seen: list[list[bytes]] = [[] for _ in range(QUEUES)]
        self._topics_checked = 0
        self.floors: dict[int, int] = {}
        """The least that the group has read, by queue."""
        self.floors_raised = 0

    def raise_floors(self) -> None:
        """The broker is dead: what had reached the file before must be there."""
        for queue_id, offset in self._history.persisted().items():
            if offset > self.floors.get(queue_id, -1):
                self.floors[queue_id] = offset
                self.floors_raised += 1

    async def check(self, client: Client) -> None:
        for queue_id in range(QUEUES):
            await self._check_queue(client, queue_id)
        await self._check_offsets(client)
        await self._check_topics(client)

    async def _check_queue(self, client: Client, queue_id: int) -> None:
        """No gap, no message at another place than was answered, nothing else where a consumer saw one."""
        seen = self._seen[queue_id]
        first = max(len(seen) - LOOK_BACK, 0)
        del seen[first:]
        while (answer := await client.pull(TOPIC, queue_id, len(seen), group="Look")).code == 0:
            for record in decode_pull_body(answer.body, verify_crc=True):
                assert (record.topic, record.queue_id, record.queue_offset) == (TOPIC, queue_id, len(seen))
                seen.append(record.body)
        assert answer.code == 19, answer
        assert answer.header.max_offset == len(seen)
        for answered in (self._history.acknowledged, self._history.pulled):
            for offset, body in reversed(answered[TOPIC, queue_id].items()):
                assert offset < len(seen), f"the message at {offset} of queue {queue_id} is lost"
                assert seen[offset] == body, f"another message is at {offset} of queue {queue_id}"

    async def _check_offsets(self, client: Client) -> None:
        for queue_id in range(QUEUES):
            committed = await committed_offset(client, queue_id)
            assert committed <= len(self._seen[queue_id]), "more was committed than there is"
            floor = self.floors.get(queue_id, -1)
            assert committed >= floor, f"the offset {floor} of queue {queue_id} was in the file before the kill"
            self.floors[queue_id] = committed

    async def _check_topics(self, client: Client) -> None:
        table = TopicConfigSerializeWrapper.decode((await client.call(GetAllTopicConfig())).body).topic_config_table
        assert not {*self._history.topics, TOPIC, DELAYED_TOPIC} - set(table)
        for topic in self._history.topics[self._topics_checked :]:
            answer = await client.pull(topic, 1, group="Look")
            assert [each.body for each in decode_pull_body(answer.body)] == [
                self._history.acknowledged[topic, 1][0]
            ]
        self._topics_checked = len(self._history.topics)

    @property
    def count(self) -> int:
        return sum(map(len, self._seen))


async def with_client(address: str, work: Callable[[Client], Awaitable[None]]) -> None:
    client = Client(Channel(address))
    try:
        await work(client)
    finally:
        await client.channel.close()


async def make_topics(client: Client) -> None:
    """So that consumers may begin at once."""
    for topic in (TOPIC, DELAYED_TOPIC):
        await client.send(topic, b"first", queue_id=QUEUES - 1)


async def until_delivered(client: Client) -> None:
    """Return when no delayed message waits any more."""
    while True:
        answer = await client.call(GetAllDelayOffset())
        offsets = DelayOffsetSerializeWrapper.decode(answer.body).offset_table
        ends = {
            level: (await client.call(GetMaxOffset(SCHEDULE_TOPIC, level - 1))).header.queue_offset
            for level in range(1, DELAY_LEVELS + 1)
        }
        if all(offsets.get(level, 0) == end for level, end in ends.items()):
            return
        await asyncio.sleep(0.1)


async def load_and_kill(process: BrokerProcess, look: Look, history: History, name: str, seed: int) -> None:
    """Look at what the last kill left, load for a random time, kill."""
    chance = random.Random(f"{seed} {name}")
    address = process.wait_until_ready()
    await with_client(address, look.check)
    working = asyncio.ensure_future(Load(address, name, history, chance).run())
    try:
        await asyncio.wait([working], timeout=0.1 + chance.random() * (LONGEST_LOAD_S - 0.1))
        assert not working.done(), f"the load ended by itself: {working!r}"
    finally:
        process.end(signal.SIGKILL)
        await working
    look.raise_floors()


def check_store(root: Path, history: History) -> None:
    """With the broker stopped: each message once at its place, delayed ones at least once and none early."""
    store = MessageStore(StoreSettings.from_properties({**STORE, "storePathRootDir": str(root)}))
    assert store.open().damages == []
    for (topic, queue_id), answered in history.acknowledged.items():
        bodies = [record.body for record in records_of(store, topic, queue_id)]
        assert max(Counter(bodies).values()) == 1
        assert [offset for offset, body in answered.items() if bodies[offset] != body] == []
    delivered = [record for queue_id in range(QUEUES) for record in records_of(store, DELAYED_TOPIC, queue_id)]
    assert not history.delayed - {record.body for record in delivered}
    due_ms = {
        record.body: record.store_time_ms + delay_ms
        for queue_id, delay_ms in enumerate(DELAYS_MS)
        for record in records_of(store, SCHEDULE_TOPIC, queue_id)
    }
    early = [record.body for record in delivered if record.store_time_ms < due_ms.get(record.body, 0)]
    assert early == []
    store.close()
    assert verify(root).problems == []


def test_what_a_killed_broker_answered_is_kept(tmp_path: Path, seed: int, rounds: int) -> None:
    """Half of --rounds kills at random moments, under load of every kind, and now and then during the start.

    After each start consumers must find every acknowledged message where it was answered to be, in queues without
    gaps, offsets that are neither above the queues' ends nor older than what had been stored, and all topics.
    """
    chance = random.Random(seed)
    root = tmp_path / "store"
    history = History(root / "config" / "consumerOffset.json")
    look = Look(history)
    process = BrokerProcess(root, SETTINGS)
    try:
        run(with_client(process.wait_until_ready(), make_topics))
    finally:
        process.end(signal.SIGKILL)
    for number in range(max(rounds // 2, 1)):
        if chance.random() < 0.15:
            process = BrokerProcess(root, SETTINGS)
            process.wait(chance.random() * LONGEST_START_S)
            process.end(signal.SIGKILL)
        process = BrokerProcess(root, SETTINGS)
        try:
            run(load_and_kill(process, look, history, f"r{number}", seed))
        except BaseException:
            process.end(signal.SIGKILL)
            raise
    process = BrokerProcess(root, SETTINGS)
    try:
        address = process.wait_until_ready()
        run(with_client(address, look.check))
        run(with_client(address, until_delivered))
    finally:
        code = process.end(signal.SIGTERM)
    assert code == 0, process.said
    assert orjson.loads(history.offsets_file.read_bytes())["offsetTable"][f"{TOPIC}@{GROUP}"]
    assert history.delayed
    assert history.topics
    assert look.floors_raised, "no commit had to survive"
    check_store(root, history)

"""Load on a broker that will be killed, and what the broker answered while it lived.

Everything that is answered is promised: where a message stands, that its topic is there, how far a group has read.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rmq_core.errors import BrokerError, ClientError
from rmq_core.net.channel import Channel
from rmq_core.protocol.message import encode_properties
from rmq_core.protocol.record import decode_pull_body
from rmq_core.protocol.requests import QueryConsumerOffset, SendBatchMessage, UpdateConsumerOffset
from support.brokers import Client

TOPIC: Final = "Orders"
DELAYED_TOPIC: Final = "Later"
GROUP: Final = "CG"
QUEUES: Final = 4
DELAY_LEVELS: Final = 2
BUSY: Final = 2
NO_OFFSET: Final = 22

Queue = tuple[str, int]


@dataclass
class History:
    """What was answered, over all lives of the broker."""

    offsets_file: Path
    acknowledged: dict[Queue, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    pulled: dict[Queue, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    delayed: set[bytes] = field(default_factory=set)
    topics: list[str] = field(default_factory=list)
    refused: int = 0
    commits: list[tuple[int, int, int]] = field(default_factory=list)
    """Of this life: queue, offset, and which version of the file was there once it was answered."""
    version: int = 0
    """Counts the versions of the offset file that were seen."""
    _identity: tuple[int, int] = (0, 0)

    def add(self, queue: Queue, offset: int, body: bytes) -> None:
        known = self.acknowledged[queue].setdefault(offset, body)
        assert known == body, f"the place {offset} of {queue} was given to {known!r} and to {body!r}"

    def committed(self, queue_id: int, offset: int) -> None:
        self.look_at_file()
        self.commits.append((queue_id, offset, self.version))

    def look_at_file(self) -> None:
        """Count another version of the offset file if there is one."""
        try:
            stat = self.offsets_file.stat()
        except FileNotFoundError:
            return
        identity = (stat.st_ino, stat.st_mtime_ns)
        if identity != self._identity:
            self._identity = identity
            self.version += 1

    def persisted(self) -> dict[int, int]:
        """The offsets that must have reached the file, by queue, once the broker is dead.

        A version is taken from the table only after the one before has replaced the file. So what was answered
        before version n came is in version n + 1, however late that was and however long its write took.
        """
        self.look_at_file()
        floors: dict[int, int] = {}
        for queue_id, offset, version in self.commits:
            if version + 2 <= self.version:
                floors[queue_id] = max(offset, floors.get(queue_id, 0))
        self.commits.clear()
        return floors


def batch_of(bodies: list[bytes]) -> bytes:
    """The body of a batch."""
    parts = []
    for body in bodies:
        properties = encode_properties({"UNIQ_KEY": body.decode().partition(" ")[0]})
        parts.append(
            (22 + len(body) + len(properties)).to_bytes(4, "big") + bytes(12) + len(body).to_bytes(4, "big")
        )
        parts.append(body + len(properties).to_bytes(2, "big") + properties)
    return b"".join(parts)


class Load:
    """Producers and a consumer at work on one broker until it is gone."""

    def __init__(self, address: str, name: str, history: History, chance: random.Random) -> None:
        """name makes the bodies of this load different from all others."""
        self._clients = [Client(Channel(address)) for _ in range(4)]
        self._name = name
        self._history = history
        self._chance = chance
        self._count = 0

    async def run(self) -> None:
        """Return when the broker is dead. Raises what went wrong before that."""
        workers: list[Callable[[Client], Awaitable[None]]] = [
            *[self._send_plain] * 6,
            *[self._send_without_id] * 2,
            *[self._send_batches] * 3,
            *[self._send_delayed] * 4,
            self._make_topics,
            self._consume,
        ]
        tasks = [
            asyncio.ensure_future(self._until_gone(worker, self._clients[number % len(self._clients)]))
            for number, worker in enumerate(workers)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in self._clients:
                await client.channel.close()

    async def _until_gone(self, work: Callable[[Client], Awaitable[None]], client: Client) -> None:
        while True:
            try:
                await work(client)
            except ClientError:
                return
            except BrokerError as error:
                # Refused for the moment, as a broker may: nothing was promised.
                if error.code != BUSY:
                    raise
                self._history.refused += 1
                await asyncio.sleep(0.01)

    def _body(self) -> bytes:
        self._count += 1
        return b"%b-%d " % (self._name.encode(), self._count) + b"." * self._chance.choice((0, 10, 100, 3000))

    async def _send_plain(self, client: Client) -> None:
        body, queue_id = self._body(), self._chance.randrange(QUEUES)
        properties = {"UNIQ_KEY": body.decode().partition(" ")[0], "TAGS": "t"}
        answer = await client.send(TOPIC, body, queue_id=queue_id, properties=properties)
        assert answer.header.queue_id == queue_id
        self._history.add((TOPIC, queue_id), answer.header.queue_offset, body)

    async def _send_without_id(self, client: Client) -> None:
        body = self._body()
        answer = await client.send(TOPIC, body, queue_id=-1)
        self._history.add((TOPIC, answer.header.queue_id), answer.header.queue_offset, body)

    async def _send_batches(self, client: Client) -> None:
        bodies = [self._body() for _ in range(self._chance.randrange(1, 20))]
        queue_id = self._chance.randrange(QUEUES)
        request = SendBatchMessage("PG", TOPIC, "TBW102", QUEUES, queue_id, 0, 1, 0, "", batch=True)
        answer = await client.call(request, batch_of(bodies))
        assert len(answer.header.msg_id.split(",")) == len(bodies)
        for number, body in enumerate(bodies):
            self._history.add((TOPIC, queue_id), answer.header.queue_offset + number, body)

    async def _send_delayed(self, client: Client) -> None:
        body = self._body()
        properties = {"UNIQ_KEY": body.decode().partition(" ")[0]}
        properties["DELAY"] = str(self._chance.randrange(1, DELAY_LEVELS + 1))
        queue_id = self._chance.randrange(QUEUES)
        await client.send(DELAYED_TOPIC, body, queue_id=queue_id, properties=properties)
        self._history.delayed.add(body)

    async def _make_topics(self, client: Client) -> None:
        body = self._body()
        topic = f"New-{body.decode().partition(' ')[0]}"
        answer = await client.send(topic, body, queue_id=1)
        self._history.topics.append(topic)
        self._history.add((topic, 1), answer.header.queue_offset, body)
        await asyncio.sleep(0.02)

    async def _consume(self, client: Client) -> None:
        for queue_id in range(QUEUES):
            offset = max(await committed_offset(client, queue_id), 0)
            for _ in range(20):
                offset = await self._consume_some(client, queue_id, offset)

    async def _consume_some(self, client: Client, queue_id: int, offset: int) -> int:
        """Pull and commit, now in one request with the pull, now in one of its own."""
        is_with_pull = self._chance.random() < 0.5
        more: dict[str, Any] = {"sys_flag": 5, "commit_offset": offset} if is_with_pull else {}
        answer = await client.pull(TOPIC, queue_id, offset, group=GROUP, **more)
        if is_with_pull:
            self._history.committed(queue_id, offset)
        if answer.code != 0:
            await asyncio.sleep(0.005)
            return offset
        for record in decode_pull_body(answer.body, verify_crc=True):
            self._history.pulled[TOPIC, queue_id][record.queue_offset] = record.body
        following: int = answer.header.next_begin_offset
        if not is_with_pull:
            await client.call(UpdateConsumerOffset(GROUP, TOPIC, queue_id, following))
            self._history.committed(queue_id, following)
        return following


async def committed_offset(client: Client, queue_id: int) -> int:
    """How far the group has read a queue; -1 where it has not."""
    try:
        answer = await client.call(QueryConsumerOffset(GROUP, TOPIC, queue_id, set_zero_if_not_found=False))
    except BrokerError as error:
        if error.code != NO_OFFSET:
            raise
        return -1
    offset: int = answer.header.queue_offset
    return offset

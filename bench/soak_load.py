"""Clients of a soak: they send messages of every kind, consume them, and know at any time what is still to come."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from rmq_core.errors import BrokerError
from rmq_core.net.calls import Call
from rmq_core.net.channel import Channel
from rmq_core.net.dispatch import Dispatcher
from rmq_core.protocol import bodies
from rmq_core.protocol import requests as r
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import encode_properties, retry_topic
from rmq_core.protocol.message_id import decode_offset_message_id
from rmq_core.protocol.record import StoredRecord, decode_pull_body

TOPIC: Final = "Soak"
QUIET_TOPIC: Final = "Quiet"
GROUP: Final = "SoakGroup"
PRODUCERS: Final = "SoakProducers"
QUEUES: Final = 8
BODY_SIZE: Final = 256
SENDERS: Final = 64
CONNECTIONS: Final = 8
DELAY_MS: Final = 1000
"""Of delay level 1."""
KINDS: Final = {"plain": 90, "delayed": 4, "retried": 3, "committed": 1, "rolled back": 1, "checked": 1}
"""How many of a hundred messages are of each kind."""
COMMIT, ROLLBACK = 8, 12
LATENCIES_MAX: Final = 20_000
PULLS: Final = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})


@dataclass
class Books:
    """What was sent and what came: each acknowledged message must come once, whichever is heard of first."""

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    errors: list[str] = field(default_factory=list)
    outstanding: dict[int, str] = field(default_factory=dict)
    unexpected: dict[int, str] = field(default_factory=dict)
    """Came before they were acknowledged, or too often, or were never to come."""
    latencies_ms: list[float] = field(default_factory=list)

    def acknowledged(self, number: int, kind: str) -> None:
        self.sent[kind] += 1
        if kind != "rolled back" and self.unexpected.pop(number, None) is None:
            self.outstanding[number] = kind

    def came(self, number: int, kind: str) -> None:
        self.received[kind] += 1
        if self.outstanding.pop(number, None) is None:
            self.unexpected[number] = kind

    def took(self, latency_ms: float) -> None:
        if len(self.latencies_ms) < LATENCIES_MAX:
            self.latencies_ms.append(latency_ms)
        else:
            self.latencies_ms[random.randrange(LATENCIES_MAX)] = latency_ms


class Clients:
    """Producers that send at a given rate, and a consumer for each queue."""

    def __init__(self, address: str) -> None:
        self.books = Books()
        self._address = address
        dispatcher = Dispatcher(
            self, {r.CheckTransactionState.code: _check, r.NotifyConsumerIdsChanged.code: _note}
        )
        self._channels = [Channel(address, dispatcher=dispatcher) for _ in range(CONNECTIONS)]
        self._idle: list[Channel] = []
        self._number = 0
        self._sending = 0
        self._tokens: asyncio.Queue[None] = asyncio.Queue(SENDERS)
        self._tasks: list[asyncio.Task[None]] = []
        self._producing: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Make the topics, join the groups and begin to consume."""
        for topic in (TOPIC, QUIET_TOPIC, retry_topic(GROUP)):
            queues = 1 if topic.startswith("%") else QUEUES
            await self._channels[0].call(
                r.UpdateAndCreateTopic(topic, queues, queues, 6, "SINGLE_TAG", "TBW102", 0, order=False)
            )
        for channel in self._channels:
            await self._heartbeat(channel)
        queues_of = [(TOPIC, queue_id) for queue_id in range(QUEUES)] + [(retry_topic(GROUP), 0)]
        for number, (topic, queue_id) in enumerate(queues_of):
            self._begin(self._consume(self._channels[number % CONNECTIONS], topic, queue_id))
        self._begin(self._beat())

    async def idle(self, count: int) -> None:
        """Have so many more connections that wait for a message which never comes."""
        for first in range(0, count, 200):
            channels = [Channel(self._address) for _ in range(min(200, count - first))]
            await asyncio.gather(*(channel.connect() for channel in channels))
            for number, channel in enumerate(channels, first):
                self._begin(self._wait_in_vain(channel, number))
            self._idle += channels

    def produce(self, rate: float | None) -> None:
        """Send so many messages a second from now on; None: as many as are answered."""
        if not self._producing:
            for number in range(SENDERS):
                self._producing.append(self._task(self._send_always(self._channels[number % CONNECTIONS])))
        else:
            self._producing.pop().cancel()
        self._producing.append(self._task(self._pace(rate)))

    async def rest(self, seconds: float) -> None:
        """Send no more, and return when all that was sent has come, something went wrong, or time is over."""
        self._producing.pop().cancel()
        deadline, books = time.monotonic() + seconds, self.books
        while (self._sending or books.outstanding) and time.monotonic() < deadline and not books.errors:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        tasks = self._tasks + self._producing
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in self._channels + self._idle:
            await channel.close()

    def _begin(self, work: Any) -> None:
        self._tasks.append(self._task(work))

    def _task(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.books.errors.append(repr(error))

    # Being there

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(10)
            await asyncio.gather(*(self._heartbeat(channel) for channel in self._channels))

    async def _heartbeat(self, channel: Channel) -> None:
        data = bodies.HeartbeatData(
            f"soak-{self._channels.index(channel)}",
            (bodies.ProducerData(PRODUCERS),),
            (
                bodies.ConsumerData(
                    GROUP,
                    subscription_data_set=(
                        bodies.SubscriptionData(TOPIC, "*", sub_version=1, expression_type="TAG"),
                        bodies.SubscriptionData(retry_topic(GROUP), "*", sub_version=1, expression_type="TAG"),
                    ),
                ),
            ),
        )
        await channel.call(r.HeartBeat(), data.encode(), timeout_ms=10_000)

    async def _wait_in_vain(self, channel: Channel, number: int) -> None:
        while True:
            await self._pull(channel, QUIET_TOPIC, number % QUEUES, 0)

    # Sending

    async def _pace(self, rate: float | None) -> None:
        due, last = 0.0, time.monotonic()
        while True:
            if rate is None:
                await self._tokens.put(None)
                continue
            await asyncio.sleep(0.005)
            now = time.monotonic()
            due, last = due + (now - last) * rate, now
            while due >= 1:
                due -= 1
                await self._tokens.put(None)

    async def _send_always(self, channel: Channel) -> None:
        while True:
            await self._tokens.get()
            self._number += 1
            self._sending += 1
            (kind,) = random.choices(list(KINDS), list(KINDS.values()))
            try:
                await self._send(channel, self._number, kind)
            except BrokerError as error:
                if error.code != ResponseCode.SYSTEM_BUSY:
                    raise
                self.books.refused += 1
            finally:
                self._sending -= 1

    async def _send(self, channel: Channel, number: int, kind: str) -> None:
        is_half = kind in ("committed", "rolled back", "checked")
        properties = {"UNIQ_KEY": f"id-{number}", "KEYS": f"k{number}", "TAGS": "t"}
        if kind == "delayed":
            properties["DELAY"] = "1"
        if is_half:
            properties |= {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
        now_ms = int(time.time() * 1000)
        body = f"{number} {kind.replace(' ', '-')} {now_ms} ".encode().ljust(BODY_SIZE, b".")
        request = r.SendMessageV2(
            PRODUCERS, TOPIC, "TBW102", QUEUES, number % QUEUES, 4 if is_half else 0, now_ms, 0,
            encode_properties(properties).decode(), 0, unit_mode=False, batch=False,
        )  # fmt: skip
        started = time.monotonic()
        answer = await channel.call(request, body, timeout_ms=10_000)
        self.books.took((time.monotonic() - started) * 1000)
        self.books.acknowledged(number, kind)
        if kind in ("committed", "rolled back"):
            decision = COMMIT if kind == "committed" else ROLLBACK
            log_offset = decode_offset_message_id(answer.header.msg_id).log_offset
            await self.end_transaction(channel, answer.header.queue_offset, log_offset, decision, f"id-{number}")

    @staticmethod
    async def end_transaction(
        channel: Channel,
        queue_offset: int,
        log_offset: int,
        decision: int,
        key: str | None,
        *,
        is_check: bool = False,
    ) -> None:
        """Say what became of a transaction."""
        request = r.EndTransaction(
            PRODUCERS,
            queue_offset,
            log_offset,
            decision,
            from_transaction_check=is_check,
            msg_id=key,
            transaction_id=key,
        )
        await channel.call(request, timeout_ms=10_000)

    async def answer_check(self, header: r.CheckTransactionState) -> None:
        """The broker asks about a transaction that was left open: it is committed now."""
        await self.end_transaction(
            self._channels[0],
            header.tran_state_table_offset,
            header.commit_log_offset,
            COMMIT,
            header.transaction_id,
            is_check=True,
        )

    # Consuming

    async def _pull(self, channel: Channel, topic: str, queue_id: int, offset: int) -> Any:
        request = r.PullMessage(GROUP, topic, queue_id, offset, 32, 6, 0, 30_000, 1, "*", "TAG")
        return await channel.call(request, timeout_ms=60_000)

    async def _consume(self, channel: Channel, topic: str, queue_id: int) -> None:
        offset = 0
        while True:
            answer = await self._pull(channel, topic, queue_id, offset)
            if answer.code in PULLS:
                continue
            if answer.code != 0:
                raise RuntimeError(f"{topic}/{queue_id} at {offset}: {answer}")
            for record in decode_pull_body(answer.body, verify_crc=True):
                if record.queue_offset != offset:
                    raise RuntimeError(f"{topic}/{queue_id}: {record.queue_offset} came instead of {offset}")
                offset += 1
                await self._take(channel, record)
            await channel.call(r.UpdateConsumerOffset(GROUP, topic, queue_id, offset), timeout_ms=10_000)

    async def _take(self, channel: Channel, record: StoredRecord) -> None:
        number, kind, sent_ms = record.body.decode().split(" ", 3)[:3]
        if kind == "retried" and not record.reconsume_times:
            back = r.ConsumerSendMsgBack(record.log_offset, GROUP, 1, f"id-{number}", TOPIC, False, 16)
            await channel.call(back, timeout_ms=10_000)
            return
        if kind == "delayed" and record.store_time_ms < int(sent_ms) + DELAY_MS:
            self.books.errors.append(
                f"message {number} came {int(sent_ms) + DELAY_MS - record.store_time_ms} ms early"
            )
        self.books.came(int(number), kind)


async def _check(clients: Clients, call: Call[r.CheckTransactionState]) -> None:
    await clients.answer_check(call.header)


async def _note(clients: Clients, call: Call[Any]) -> None:
    """Members of the group have come; each keeps its queues all the same."""

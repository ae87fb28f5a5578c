"""Asks producers what became of half messages that they left undecided.

Round     Every transactionCheckInterval the half messages behind the group's position are looked at, oldest first.
Asked     What is undecided for longer than transactionTimeOut (or its own immunity) is put again at the end of the
          half queue, so that the position can pass it, and a producer of its group, any live one, is asked about
          the copy. An answer about an old copy counts as well.
Given up  After transactionCheckMax questions, or when it would soon be deleted by age, a half message goes to
          TRANS_CHECK_MAX_TIME_TOPIC, which rolls it back until an administrator has it asked about again.
Step      So many half messages between two passes; others are served between them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmq_core.broker.admission import with_property
from rmq_core.broker.halves import CHECK_TIMES, FIRST_OFFSET, check_times, first_offset, immunity_of
from rmq_core.broker.records import place_of, record_at
from rmq_core.protocol.command import ONEWAY_FLAG, Command, encode_command
from rmq_core.protocol.message import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, find_property
from rmq_core.protocol.message_id import encode_offset_message_id
from rmq_core.protocol.record import StoredRecord, encode_record
from rmq_core.protocol.requests import CheckTransactionState
from rmq_core.store.message_store import Put, PutStatus

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker
    from rmq_core.broker.transactions import Transactions

log = logging.getLogger(__name__)

STEP_COUNT: Final = 64
STEP_SIZE: Final = 1 << 20
SKIP_COUNT: Final = 10_000
"""Decided half messages that are passed without letting others in."""
_HOUR_MS: Final = 3_600_000
_opaques = itertools.count(1)


class CheckBacks:
    """The rounds of questions of a broker."""

    def __init__(self, broker: Broker, transactions: Transactions) -> None:
        self._broker = broker
        self._transactions = transactions
        self._running = asyncio.Lock()
        self._is_stopping = False
        self._has_failed = False
        self._unasked: Counter[str] = Counter()
        self._given_up: list[str] = []

    async def stop(self) -> None:
        """End the round that is under way after its step."""
        self._is_stopping = True
        async with self._running:
            pass

    async def round(self) -> None:
        """Look at every half message that may be undecided and was there when the round began."""
        async with self._running:
            broker, decisions = self._broker, self._transactions.decisions
            offset, end = decisions.done, broker.store.max_offset(HALF_TOPIC, 0)
            self._has_failed = False
            while offset < end and not self._is_stopping and not self._has_failed:
                asked: list[StoredRecord] = []
                offset = await self._step(offset, end, asked)
                if not await broker.written():
                    break
                for half in asked:
                    self._ask(half)
            self._transactions.advance()
            self._report()

    def _report(self) -> None:
        """Say once for the whole round what nobody answered for."""
        unasked, self._unasked = self._unasked, Counter()
        for group, count in unasked.items():
            log.warning("no producer of %s is there to be asked about %d half messages", group, count)
        given_up, self._given_up = self._given_up, []
        if given_up:
            log.warning("%d half messages that nobody decided are given up, %s first", len(given_up), given_up[0])

    async def _step(self, offset: int, end: int, asked: list[StoredRecord]) -> int:
        """Deal with some half messages from an offset on; those to be asked about are added to asked."""
        decisions = self._transactions.decisions
        limit, size = min(offset + SKIP_COUNT, end), 0
        for _ in range(STEP_COUNT):
            while offset < limit and decisions.is_decided(offset):
                offset += 1
            if offset >= limit:
                break
            entry = self._broker.store.queues.get(HALF_TOPIC, 0).entry(offset)
            half = None if entry is None or entry.is_blank else await record_at(self._broker, entry.log_offset)
            if not decisions.is_decided(offset):  # it was not decided while it was read
                await self._judge(offset, half, asked)
            if self._has_failed:
                break
            offset += 1
            size += 0 if half is None else half.size
            if size >= STEP_SIZE:
                break
        return offset

    async def _judge(self, offset: int, half: StoredRecord | None, asked: list[StoredRecord]) -> None:
        broker, decisions = self._broker, self._transactions.decisions
        settings = broker.settings
        if half is None or place_of(half.property_bytes) is None:
            log.error("the half message at %d of %s is lost or damaged", offset, HALF_TOPIC)
            decisions.decide(offset)
            return
        if decisions.newest(first_offset(half, offset), offset) > offset:
            decisions.decide(offset)
            return
        age_ms = broker.now_ms() - half.born_time_ms
        is_old = age_ms > broker.store_settings.file_reserved_time * _HOUR_MS
        if is_old or check_times(half) >= settings.transaction_check_max:
            await self._give_up(offset, half)
            return
        immunity_ms = immunity_of(half, settings.transaction_time_out)
        if immunity_ms is not None and age_ms <= immunity_ms:
            # Nobody is asked, but it must not hold up the position for hours either.
            self._put_again(offset, half, check_times(half))
        elif not 0 <= age_ms <= settings.transaction_time_out:
            copy = self._put_again(offset, half, check_times(half) + 1)
            if copy is not None:
                asked.append(copy)

    async def _give_up(self, offset: int, half: StoredRecord) -> None:
        broker, decisions = self._broker, self._transactions.decisions
        await broker.topics.create_internal(CHECK_MAX_TIME_TOPIC)
        if decisions.is_decided(offset):
            return
        put = broker.put(
            CHECK_MAX_TIME_TOPIC,
            0,
            half.body,
            half.property_bytes,
            born_time_ms=half.born_time_ms,
            born_host=half.born_host.pack(),
            flag=half.flag,
            sys_flag=half.sys_flag,
            reconsume_times=half.reconsume_times,
        )
        if self._is_put(put):
            decisions.decide(offset, put.end)
            self._given_up.append(_key(half))

    def _put_again(self, offset: int, half: StoredRecord, times: int) -> StoredRecord | None:
        """Put a half message at the end of its queue. Returns the copy; None where that failed."""
        first = first_offset(half, offset)
        properties = with_property(half.property_bytes, FIRST_OFFSET, str(first).encode())
        if times:
            properties = with_property(properties, CHECK_TIMES, str(times).encode())
        put = self._transactions.put_half(half, properties)
        if not self._is_put(put):
            return None
        decisions = self._transactions.decisions
        decisions.renew(first, put.queue_offset)
        decisions.decide(offset, put.end)
        return replace(
            half,
            property_bytes=properties,
            queue_offset=put.queue_offset,
            log_offset=put.log_offset,
            store_time_ms=put.store_time_ms,
        )

    def _is_put(self, put: Put) -> bool:
        if put.status is PutStatus.PUT_OK:
            return True
        log.error("half messages cannot be put: %s", put.reason)
        self._has_failed = True
        return False

    def _ask(self, half: StoredRecord) -> None:
        """Ask one producer of the group. If none is there, the next round asks again."""
        broker, place = self._broker, place_of(half.property_bytes)
        assert place is not None
        group = (find_property(half.property_bytes, b"PGROUP") or b"").decode("utf-8", "replace")
        connection = broker.clients.pick_producer(group)
        if connection is None:
            self._unasked[group] += 1
            return
        request = CheckTransactionState(
            half.queue_offset,
            half.log_offset,
            msg_id=_key(half),
            transaction_id=_key(half),
            offset_msg_id=encode_offset_message_id(broker.store_host, half.log_offset),
            topic=HALF_TOPIC,
        )
        command = Command(
            request.code,
            opaque=next(_opaques) & 0x7FFFFFFF,
            flag=ONEWAY_FLAG,
            # Clients of 5.x give the broker's name back with their answer.
            ext=request.to_ext() | {"bname": broker.settings.broker_name},
            body=encode_record(replace(half, topic=place.topic, queue_id=place.queue_id)),
        )
        connection.send(encode_command(command))


def _key(half: StoredRecord) -> str:
    return (find_property(half.property_bytes, b"UNIQ_KEY") or b"").decode("utf-8", "replace")

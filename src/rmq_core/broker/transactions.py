"""Transactions: half messages that nobody sees, and what becomes of them.

Half      Stored in RMQ_SYS_TRANS_HALF_TOPIC with the topic and queue where it belongs in its properties.
Decided   A commit puts the real message and then the op message that names the half, in one pass and so in one
          write; a rollback puts the op message alone. A second decision finds the first one and writes nothing.
Progress  Positions of the group CID_RMQ_SYS_TRANS in both topics; ConsumerOffsetManager keeps them. What lies
          behind them is read again at start.
Crash     A decision counts if its op message is in the log. Where the power went between real message and op
          message, the producer is asked again, and the message may be there twice; it is never lost. Ops of
          Apache's brokers are understood in both forms, and ours (one half each) is understood by both.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from rmq_core.broker.admission import PUT_CODES, STORED, Place, delayed, put_remark, remember, with_property
from rmq_core.broker.check_backs import CheckBacks
from rmq_core.broker.decisions import Decisions
from rmq_core.broker.halves import CHECK_TIMES, FIRST_OFFSET, first_offset, immunity_of, read_decisions
from rmq_core.broker.records import place_of, record_at
from rmq_core.errors import BrokerError
from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_GROUP,
    find_property,
    remove_property,
)
from rmq_core.protocol.record import StoredRecord
from rmq_core.protocol.requests import EndTransaction
from rmq_core.store.message_store import Put, PutStatus

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

COMMIT: Final = flags.TRANSACTION_COMMIT
ROLLBACK: Final = flags.TRANSACTION_ROLLBACK
ADVANCE_MS: Final = 1000
CONFIRM_WAIT_MS: Final = 10
CONFIRM_WAITS_MAX: Final = 300
_OP_PROPERTIES: Final = b"TAGS\x01d\x02WAIT\x01true\x02"
_UNWRITTEN: Final = 1 << 62


class Transactions:
    """The half messages of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.decisions = Decisions()
        self._is_loaded = asyncio.Event()
        self._late_ops: list[int] = []
        self._check_backs = CheckBacks(broker, self)

    # Start and stop

    async def start(self) -> None:
        """Read what was decided before, then ask about what is undecided from time to time. The store is open."""
        broker = self._broker
        offsets = broker.offsets
        self.decisions = await broker.run(
            read_decisions,
            broker.store,
            offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0),
            offsets.query(TRANSACTION_GROUP, OP_HALF_TOPIC, 0),
        )
        self._is_loaded.set()
        if broker.is_master:
            broker.every(ADVANCE_MS, self.advance)
            broker.every(lambda: broker.settings.transaction_check_interval, self._check_backs.round)

    async def stop(self) -> None:
        """Say for the last time how far everything is decided."""
        await self._check_backs.stop()
        if self._is_loaded.is_set() and self._broker.is_master:
            self.advance()

    def advance(self) -> None:
        """Move the group's positions over what is decided and confirmed."""
        # A real message whose op message could not be put: a decision none the less, made good as soon as possible.
        self._late_ops = [
            offset for offset in self._late_ops if self._put_op(offset).status is not PutStatus.PUT_OK
        ]
        decisions, offsets = self.decisions, self._broker.offsets
        if decisions.advance(self._broker.store.confirmed_offset):
            offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, decisions.done)
            offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, decisions.op_done)

    # Half messages

    def half_place(self, place: Place, sys_flag: int) -> tuple[Place, int]:
        """Where a half message waits, and its system flag: without the bits that would hide it from its queue.

        Raises BrokerError where the message could not be put at its commit.
        """
        delayed(self._broker, place)
        properties = remember(place)
        for name in (FIRST_OFFSET, CHECK_TIMES):
            properties = remove_property(properties, name)
        key = find_property(properties, b"UNIQ_KEY")
        if key:
            properties = with_property(properties, b"__transactionId__", key)
        return Place(HALF_TOPIC, 0, properties), sys_flag & ~flags.TRANSACTION_MASK

    async def end(self, header: EndTransaction) -> None:
        """Commit or roll back a half message. Raises BrokerError where that cannot be."""
        await self._is_loaded.wait()
        half = await self._half(header)
        self._check(half, header)
        decisions = self.decisions
        offset = decisions.newest(first_offset(half, half.queue_offset), half.queue_offset)
        if decisions.is_decided(offset):
            return
        if header.commit_or_rollback == ROLLBACK:
            put = self._put_op(offset)
            if put.status is not PutStatus.PUT_OK:
                raise BrokerError(PUT_CODES[put.status], put_remark(put.status, put.reason))
            return
        # Nothing waits between the look at the decisions and these two: another end of it comes before or after.
        put = self._put_real(half)
        if put.status is not PutStatus.PUT_OK:
            raise BrokerError(PUT_CODES[put.status], put_remark(put.status, put.reason))
        op = self._put_op(offset)
        if op.status is not PutStatus.PUT_OK:
            self._late_ops.append(offset)
            decisions.decide(offset, _UNWRITTEN)
        status = await self._broker.stored(put, half.property_bytes)
        if status not in STORED:
            raise BrokerError(PUT_CODES[status], put_remark(status, put.reason))

    async def _half(self, header: EndTransaction) -> StoredRecord:
        broker, log_offset = self._broker, header.commit_log_offset
        store = broker.store
        # A producer may be faster than the disk: it was asked about a copy that readers cannot see yet, or its half
        # message was stored with WAIT=false.
        for _ in range(CONFIRM_WAITS_MAX):
            if not store.confirmed_offset <= log_offset < store.log.end or store.failure is not None:
                break
            await broker.clock.sleep(CONFIRM_WAIT_MS)
        half = await record_at(broker, log_offset)
        if half is None or half.topic != HALF_TOPIC or place_of(half.property_bytes) is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        return half

    def _check(self, half: StoredRecord, header: EndTransaction) -> None:
        settings = self._broker.settings
        immunity_ms = immunity_of(half, settings.transaction_time_out)
        if immunity_ms is not None and not header.from_transaction_check:
            age_ms = self._broker.now_ms() - half.born_time_ms
            if age_ms > max(immunity_ms, settings.transaction_time_out):
                remark = "the time in which only the producer decides this message is over: it will be asked"
                raise BrokerError(ResponseCode.ILLEGAL_OPERATION, remark)
        group = find_property(half.property_bytes, b"PGROUP")
        if group is None or group.decode("utf-8", "replace") != header.producer_group:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")

    def _put_real(self, half: StoredRecord) -> Put:
        """Put the message that a half message stands for, with the same properties."""
        broker, real = self._broker, place_of(half.property_bytes)
        assert real is not None
        place = delayed(broker, real)
        put = broker.put(
            place.topic,
            place.queue_id,
            half.body,
            remove_property(place.properties, b"__CRC32#"),
            born_time_ms=half.born_time_ms,
            born_host=half.born_host.pack(),
            flag=half.flag,
            sys_flag=flags.with_transaction_type(half.sys_flag, COMMIT),
            reconsume_times=half.reconsume_times,
            prepared_transaction_offset=half.log_offset,
        )
        if put.status is PutStatus.PUT_OK:
            broker.stats.sent(place.topic, place.queue_id, put.size)
        return put

    def _put_op(self, offset: int) -> Put:
        """Put the op message that names a half message, and count that as decided."""
        broker = self._broker
        put = broker.put(
            OP_HALF_TOPIC,
            0,
            str(offset).encode(),
            _OP_PROPERTIES,
            born_time_ms=broker.now_ms(),
            born_host=broker.store_host,
        )
        if put.status is PutStatus.PUT_OK:
            self.decisions.decide(offset, put.end)
            self.decisions.note_op(put.queue_offset, [offset])
        return put

    def put_half(self, record: StoredRecord, properties: bytes) -> Put:
        """Put a half message once more."""
        return self._broker.put(
            HALF_TOPIC,
            0,
            record.body,
            remove_property(properties, b"__CRC32#"),
            born_time_ms=record.born_time_ms,
            born_host=record.born_host.pack(),
            flag=record.flag,
            sys_flag=flags.with_transaction_type(record.sys_flag, flags.TRANSACTION_NONE),
            reconsume_times=record.reconsume_times,
        )

    async def resume(self, log_offset: int) -> None:
        """Ask again about a half message that was given up. Raises BrokerError where there is none."""
        await self._is_loaded.wait()
        record = await record_at(self._broker, log_offset)
        # A committed message has the same properties: the topic tells that this one was given up.
        if record is None or record.topic != CHECK_MAX_TIME_TOPIC or place_of(record.property_bytes) is None:
            remark = f"no half message that was given up is at {log_offset} of the log"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        put = self.put_half(record, with_property(record.property_bytes, CHECK_TIMES, b"0"))
        if put.status is PutStatus.PUT_OK:
            self.decisions.renew(first_offset(record, put.queue_offset), put.queue_offset)
        status = await self._broker.stored(put, record.property_bytes)
        if status is not PutStatus.PUT_OK:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"Put message back to {HALF_TOPIC} failed: {put.reason}")

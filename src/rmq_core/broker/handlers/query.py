"""Looking messages up: by key, by their offset in the log, and entry by entry of a consume queue.

All of it reads what may be cold, so threads of the pool do it, within bounds: a body never outgrows what clients
accept, and an answer about a queue has so many entries at most.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import orjson

from rmq_core.broker.records import read_cold
from rmq_core.errors import BrokerError, RemoteProtocolError
from rmq_core.net.calls import Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import ConsumeQueueData, QueryConsumeQueueResponseBody, SubscriptionData
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import KEY_SEPARATOR
from rmq_core.protocol.record import StoredRecord, decode_record
from rmq_core.protocol.request import NoFields
from rmq_core.store.message_store import MessageStore
from rmq_core.store.queue_ext import ExtUnit, is_address

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

UNIQUE_KEY_COUNT_MAX: Final = 32
BODY_SIZE_MAX: Final = 15 << 20
"""Clients refuse frames of more than 16 MiB."""
ENTRIES_MAX: Final = 10_000

Found = tuple[list[memoryview | bytes], tuple[int, int]]
"""Records, and time and log offset of what was indexed last."""


@handles(r.QueryMessage)
async def query_message(broker: Broker, call: Call[r.QueryMessage]) -> Answer[r.Indexed] | None:
    header = call.header
    is_unique = header.unique_key_query is True
    count_max = UNIQUE_KEY_COUNT_MAX if is_unique else header.max_num
    records, (time_ms, log_offset) = await broker.run(
        functools.partial(
            _find,
            broker.store,
            header.topic,
            header.key,
            count_max,
            header.begin_timestamp,
            header.end_timestamp,
            is_unique=is_unique,
        )
    )
    if not call.connection.is_open:
        return None
    if not records:
        remark = "can not find message, maybe time range not correct"
        return Answer(r.Indexed(0, 0), code=ResponseCode.QUERY_NOT_FOUND, remark=remark)
    return Answer(r.Indexed(time_ms, log_offset), b"".join(records))


def _find(
    store: MessageStore, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, *, is_unique: bool
) -> Found:
    """The messages with a key, oldest first; what only has the same hash is left out."""
    if count_max < 1 or store.index is None:
        return [], (0, 0)
    records: list[memoryview | bytes] = []
    size = 0
    for log_offset in store.query(topic, key, count_max, begin_ms, end_ms):
        data = read_cold(store, log_offset)
        record = _decoded(data, log_offset)
        if data is None or record is None or record.topic != topic or not _has_key(record, key, is_unique):
            continue
        size += len(data)
        if records and size > BODY_SIZE_MAX:
            break
        records.append(data)
    return records, store.index.index.last_end()


def _decoded(data: memoryview | bytes | None, log_offset: int) -> StoredRecord | None:
    """The record, if the bytes are one, and the one of this offset: bytes of a body may look like a record."""
    if data is None:
        return None
    try:
        record = decode_record(data)
    except RemoteProtocolError:
        return None
    return record if record.log_offset == log_offset else None


def _has_key(record: StoredRecord, key: str, is_unique: bool) -> bool:
    properties = record.properties
    if properties.get("UNIQ_KEY") == key:
        return True
    return not is_unique and key in properties.get("KEYS", "").split(KEY_SEPARATOR)


@handles(r.ViewMessageById)
async def view_message_by_id(broker: Broker, call: Call[r.ViewMessageById]) -> Answer[NoFields] | None:
    log_offset = call.header.log_offset
    data = None
    if 0 <= log_offset < broker.store.confirmed_offset:
        data = await broker.run(read_cold, broker.store, log_offset)
    if not call.connection.is_open:
        return None
    if data is None or _decoded(data, log_offset) is None:
        remark = f"can not find message by the offset, {log_offset}"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
    return Answer(NoFields(), data)


# Entries of a queue


Evaluate = Callable[[int, ExtUnit | None], bool]


@handles(r.QueryConsumeQueue)
async def query_consume_queue(broker: Broker, call: Call[r.QueryConsumeQueue]) -> Answer[NoFields] | None:
    """Entries as they are, and whether the filter of a group that is online would let them through."""
    header = call.header
    if (header.topic, header.queue_id) not in broker.store.queues.table:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic} is not exist!")
    subscription, filter_data, evaluate = _filter_of(broker, header.topic, header.consumer_group)
    count = min(max(header.count, 0), ENTRIES_MAX)
    entries = await broker.run(_entries, broker.store, header.topic, header.queue_id, header.index, count, evaluate)
    if not call.connection.is_open:
        return None
    body = QueryConsumeQueueResponseBody(
        subscription,
        filter_data,
        entries,
        broker.store.max_offset(header.topic, header.queue_id),
        broker.store.min_offset(header.topic, header.queue_id),
    )
    return Answer(NoFields(), body.encode())


def _filter_of(
    broker: Broker, topic: str, group: str | None
) -> tuple[SubscriptionData | None, str | None, Evaluate | None]:
    if not group:
        return None, None, None
    members = broker.clients.consumer_group(group)
    subscription = None if members is None else members.subscriptions.get(topic)
    if subscription is None:
        return None, f"{group}@{topic} is not online!", None
    data = broker.filters.get(topic, group)
    if data is not None:
        shown = {
            "topic": topic,
            "consumerGroup": group,
            "expression": data.expression,
            "expressionType": data.expression_type,
            "clientVersion": data.client_version,
        }
        return subscription, orjson.dumps(shown).decode(), broker.filters.wish_of(data).filter.by_entry
    codes = frozenset(int(code) for code in subscription.code_set)
    if not codes or subscription.sub_string == "*":
        return subscription, None, lambda code, unit: True
    return subscription, None, lambda code, unit: code in codes


def _entries(
    store: MessageStore, topic: str, queue_id: int, index: int, count: int, evaluate: Evaluate | None
) -> tuple[ConsumeQueueData, ...] | None:
    """None where the queue has no such entry."""
    queue = store.queues.table.get((topic, queue_id))
    if queue is None or not queue.min_offset <= index < queue.max_offset:
        return None
    ext = store.queues.ext.get((topic, queue_id))
    found = []
    for offset in range(index, min(index + count, queue.max_offset)):
        entry = queue.entry(offset)
        if entry is None:
            break
        unit = ext.get(entry.tags_code) if ext is not None and is_address(entry.tags_code) else None
        code = entry.tags_code if unit is None else unit.tags_code
        found.append(
            ConsumeQueueData(
                entry.log_offset,
                entry.size,
                entry.tags_code,
                extend_data_json=None if unit is None else _shown(unit),
                bit_map=None if unit is None or not unit.filter_bits else unit.filter_bits.hex(),
                eval=evaluate is not None and evaluate(code, unit),
            )
        )
    return tuple(found)


def _shown(unit: ExtUnit) -> str:
    return orjson.dumps({"tagsCode": unit.tags_code, "msgStoreTime": unit.store_time_ms}).decode()

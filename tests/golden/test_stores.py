"""Store directories that Apache's brokers wrote: opened, read, continued and closed by our store."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import pytest

from rmq_core.protocol import sys_flag as flags
from rmq_core.protocol.compression import decompress_body
from rmq_core.protocol.message_id import encode_offset_message_id
from rmq_core.protocol.record import Host, StoredRecord, decode_record
from rmq_core.store.message_store import MessageStore
from rmq_core.store.verify import verify
from support.stores import GOLDEN_NAMES, GoldenStore, numbers, put, records_of, unpack_golden

FOREVER_MS = (1 << 63) - 1
BY_MODIFIED_TIME = "apache-4.9.7"
"""Answers questions about times by the times of files: not worth copying."""


def open_golden(golden: GoldenStore, **changes: Any) -> MessageStore:
    store = MessageStore(golden.settings(**changes))
    store.open()
    store.rebuild_index()
    return store


@pytest.fixture(params=GOLDEN_NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return unpack_golden(request.param, tmp_path)


def fields_of(record: StoredRecord) -> dict[str, Any]:
    """A record as the answers tell it."""
    body = record.body
    if record.sys_flag & flags.COMPRESSED:
        body = decompress_body(body, record.sys_flag)
    properties = record.properties
    offset_message_id = encode_offset_message_id(record.store_host.pack(), record.log_offset)
    return {
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.log_offset,
        "storeSize": record.size,
        "offsetMsgId": offset_message_id,
        "msgId": properties.get("UNIQ_KEY", offset_message_id),
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_time_ms,
        "storeTimestamp": record.store_time_ms,
        "bornHost": java_text(record.born_host),
        "storeHost": java_text(record.store_host),
        "bodyCRC": record.body_crc,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "rawBodySize": len(record.body),
        "bodySize": len(body),
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "properties": properties,
    }


def java_text(host: Host) -> str:
    """A host as Java prints it, which shortens no address."""
    if len(host.ip) == 4:
        return str(host)
    return "[" + ":".join(f"{group:x}" for group in struct.unpack(">8H", host.ip)) + f"]:{host.port}"


def queues_of(golden: GoldenStore) -> list[tuple[str, int, dict[str, Any]]]:
    answers = golden.answers["queues"]
    return [(topic, int(number), queue) for topic, queues in answers.items() for number, queue in queues.items()]


def test_every_queue_has_the_messages_that_apache_finds_in_it(golden: GoldenStore) -> None:
    """Reads each queue to its end, and compares offsets and every field of every message."""
    store = open_golden(golden)
    names = golden.answers["messageFields"]
    assert len(queues_of(golden)) >= 10
    for topic, queue_id, queue in queues_of(golden):
        assert (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)) == (
            queue["min"],
            queue["max"],
        )
        rows = golden.answers["messages"].get(topic, {}).get(str(queue_id), [])
        expected = [dict(zip(names, row, strict=False)) for row in rows]
        assert [fields_of(record) for record in records_of(store, topic, queue_id)] == expected, topic
    store.close()


def test_no_acknowledged_message_is_missing(golden: GoldenStore) -> None:
    """Of the directories of killed brokers: every send that was answered, but for what the torn log lost."""
    names = golden.answers.get("acknowledgedFields")
    if names is None:
        pytest.skip("the broker was stopped cleanly: the test above compares everything")
    store = open_golden(golden)
    rows = [dict(zip(names, row, strict=False)) for row in golden.answers["acknowledged"]]
    found = 0
    for row in rows:
        if row["status"] == "NOT_ACKNOWLEDGED" or row["offsetMsgId"] == "null":  # the latter: transactions
            continue
        for message_id in row["offsetMsgId"].split(","):
            log_offset = int(message_id[-16:], 16)
            if log_offset < store.log.end or "torn" not in golden.name:
                record = store.record(log_offset)
                assert record is not None, row
                assert encode_offset_message_id(decode_record(record).store_host.pack(), log_offset) == message_id
                found += 1
    assert found > 100
    store.close()


def test_keys_find_what_apache_finds(golden: GoldenStore) -> None:
    """Every key that Apache's broker was asked for; after a crash its index may lack some that ours has."""
    store = open_golden(golden)
    assert len(golden.answers["keys"]) >= 40
    for asked in golden.answers["keys"]:
        found = store.query(asked["topic"], asked["key"], 64, 0, FOREVER_MS)
        matching = [each for each in found if has_key(store, each, asked["topic"], asked["key"])]
        if golden.is_clean:
            assert found == sorted(asked["answer"]), asked
        assert set(matching) >= set(asked["matching"]), asked
        everywhere = [
            row[1]
            for queues in golden.answers["messages"].get(asked["topic"], {}).values()
            for row in queues
            if asked["key"] in (row[4], *(row[6] or "").split(" "))
        ]
        assert matching == sorted(everywhere), asked
    store.close()


def has_key(store: MessageStore, log_offset: int, topic: str, key: str) -> bool:
    record = store.record(log_offset)
    assert record is not None
    stored = decode_record(record)
    keys = stored.properties.get("KEYS", "").split(" ")
    return stored.topic == topic and key in (stored.properties.get("UNIQ_KEY"), *keys)


def test_times_lead_to_the_offsets_that_apache_gives(golden: GoldenStore) -> None:
    """Before, at, between and after the messages of each queue, from both sides."""
    if golden.name.startswith(BY_MODIFIED_TIME):
        pytest.skip("4.9.7 answers by the times of files")
    store = open_golden(golden)
    asked_count = 0
    for topic, queue_id, queue in queues_of(golden):
        is_batch = (topic, queue_id) in store.queues.batch
        for asked in queue["search"]:
            found = store.offset_by_time(topic, queue_id, asked["timestamp"])
            assert found == asked["offset"], (topic, queue_id, asked)
            upper = store.offset_by_time(topic, queue_id, asked["timestamp"], is_upper=True)
            if not is_batch:  # where Apache's own answers are wrong
                assert upper == asked["upper"], (topic, queue_id, asked)
            asked_count += 1
    assert asked_count > 100
    store.close()


def test_a_directory_of_apache_is_continued(golden: GoldenStore) -> None:
    """Appends to old and new queues, over several files; after two more starts all of it is there."""
    before = {(topic, queue_id): queue["max"] for topic, queue_id, queue in queues_of(golden)}
    store = open_golden(golden)
    log_end = store.log.end
    for number in range(300):
        put(store, number, topic="Orders" if number % 2 else "Continued", size=1000)
        if number % 7 == 0:
            store.end_pass()
    store.end_pass()
    store.close()
    assert not (golden.root / "abort").exists()
    store = open_golden(golden)
    assert store.max_offset("Orders", 0) == before["Orders", 0] + 150
    assert numbers(store, "Continued") == list(range(0, 300, 2))
    continued = records_of(store, "Orders", 0)
    assert [record.queue_offset for record in continued] == list(range(before["Orders", 0] + 150))
    assert [int(record.body[:8]) for record in continued[-150:]] == list(range(1, 300, 2))
    assert [record.log_offset >= log_end for record in continued[-150:]] == [True] * 150
    found = store.query("Orders", "k299", 64, 0, FOREVER_MS)
    assert found == [continued[-1].log_offset]
    for key, queue_max in before.items():
        if key != ("Orders", 0):
            assert store.max_offset(*key) == queue_max
    store.close()


def test_what_our_store_leaves_is_found_whole(golden: GoldenStore) -> None:
    """Judged by the tool that checks every record, entry and index slot, after messages were appended."""
    store = open_golden(golden)
    for number in range(20):
        put(store, number, topic="Continued")
    store.end_pass()
    store.close()
    assert verify(golden.root).problems == []

"""Looking messages up over real sockets: by key, by unique id, by place in the log, and entry by entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import QueryConsumeQueueResponseBody
from rmq_core.protocol.filter import tags_code
from rmq_core.protocol.message_id import decode_offset_message_id
from rmq_core.protocol.record import StoredRecord, decode_pull_body, decode_record
from rmq_core.store.index_file import key_hash
from support.brokers import Client, broker_cluster, run

LONG_MAX = (1 << 63) - 1


async def code_of(call: Any) -> int:
    try:
        await call
    except BrokerError as error:
        assert error.remark
        return error.code
    return 0


async def query(
    client: Client, key: str, topic: str = "T", count: int = 64, begin: int = 0, end: int = LONG_MAX, **more: bool
) -> list[StoredRecord]:
    answer = await client.call(r.QueryMessage(topic, key, count, begin, end, **more))
    assert answer.header.index_last_update_phyoffset >= 0
    return decode_pull_body(answer.body, verify_crc=True)


def test_messages_are_found_by_each_of_their_keys(tmp_path: Path) -> None:
    """Several keys of one message, one key of several messages, limits, times, and another topic."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.send("T", b"0", properties={"KEYS": "a b", "UNIQ_KEY": "id-0"})
            await client.send("T", b"1", properties={"KEYS": "b", "UNIQ_KEY": "id-1"})
            await client.send("U", b"2", properties={"KEYS": "b", "UNIQ_KEY": "id-0"})
            assert [each.body for each in await query(client, "a")] == [b"0"]
            assert [each.body for each in await query(client, "b")] == [b"0", b"1"]
            assert len(await query(client, "b", count=1)) == 1
            assert [each.body for each in await query(client, "id-1", unique_key_query=True, count=1)] == [b"1"]
            assert await code_of(query(client, "a", unique_key_query=True)) == 22
            assert [each.body for each in await query(client, "id-0", topic="U")] == [b"2"]
            for count, begin, end in ((0, 0, LONG_MAX), (-1, 0, LONG_MAX), (9, 0, 1), (9, LONG_MAX, LONG_MAX)):
                assert await code_of(query(client, "a", "T", count, begin, end)) == 22
            for key in ("A", "a b", "", "id-2"):
                assert await code_of(query(client, key)) == 22

    run(main())


def test_what_only_has_the_same_hash_is_not_found(tmp_path: Path) -> None:
    """Aa and BB have one hash in Java: each finds its own message."""

    async def main() -> None:
        assert key_hash("T", "Aa") == key_hash("T", "BB")
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.send("T", b"first", properties={"KEYS": "Aa"})
            assert await code_of(query(client, "BB")) == 22
            await client.send("T", b"second", properties={"KEYS": "BB"})
            assert [each.body for each in await query(client, "Aa")] == [b"first"]
            assert [each.body for each in await query(client, "BB")] == [b"second"]

    run(main())


def test_an_answer_stays_below_what_clients_accept(tmp_path: Path) -> None:
    """Thirty messages of a megabyte under one key: as many as fit, the oldest first."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            for number in range(20):
                await client.send("T", b"%02d" % number + bytes(1 << 20), properties={"KEYS": "k"})
            found = await query(client, "k")
            assert [each.body[:2] for each in found] == [b"%02d" % number for number in range(len(found))]
            assert 10 < len(found) < 16

    run(main())


def test_a_message_is_found_by_its_place_in_the_log(tmp_path: Path) -> None:
    """Its own place; places within it, behind the end, before the start, and where a body imitates a record."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            first = await client.send("T", b"body")
            offset = decode_offset_message_id(first.header.msg_id).log_offset
            answer = await client.call(r.ViewMessageById(offset))
            assert decode_record(answer.body, verify_crc=True).body == b"body"
            second = await client.send("T", b"x" * 100 + answer.body)
            inside = decode_offset_message_id(second.header.msg_id).log_offset + 100 + 84
            log_end = cluster.broker.store.log.end
            for bad in (offset + 1, offset + 4, inside, log_end, log_end - 1, -1, -LONG_MAX, LONG_MAX):
                assert await code_of(client.call(r.ViewMessageById(bad))) == 1

    run(main())


async def entries(
    client: Client, *, index: int = 0, count: int = 10, **header: Any
) -> QueryConsumeQueueResponseBody:
    answer = await client.call(r.QueryConsumeQueue("T", 0, index, count, **header))
    return QueryConsumeQueueResponseBody.decode(answer.body)


def test_the_entries_of_a_queue_are_shown(tmp_path: Path) -> None:
    """Some of them, more than there are, none, and of a queue that is not there."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            for number in range(5):
                await client.send("T", b"%d" % number, properties={"TAGS": "ab"[number % 2]})
            body = await entries(client, index=1, count=2)
            assert (body.min_queue_index, body.max_queue_index) == (0, 5)
            data = body.queue_data or ()
            assert [each.tags_code for each in data] == [tags_code("b"), tags_code("a")]
            record = cluster.broker.store.record(data[0].physic_offset)
            assert record is not None
            assert (len(record), decode_record(record).body) == (data[0].physic_size, b"1")
            assert len((await entries(client, count=1 << 30)).queue_data or ()) == 5
            for index in (-1, 5, LONG_MAX):
                assert (await entries(client, index=index)).queue_data is None
            assert (await entries(client, count=-1)).queue_data == ()
            assert await code_of(client.call(r.QueryConsumeQueue("T", 9, 0, 1))) == 1

    run(main())


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_entries_are_shown_as_the_filter_of_a_group_sees_them(tmp_path: Path, kind: str) -> None:
    """A group that subscribes to one tag of two, one that takes all, and one that is not online."""

    async def main() -> None:
        async with broker_cluster(tmp_path, enable_property_filter=True) as cluster:
            client = cluster.client()
            for tag in "aab":
                await client.send("T", properties={"TAGS": tag})
            text = {"TAG": "a", "SQL92": "TAGS = 'a'"}[kind]
            await cluster.client().heartbeat(consumers={"G": {"T": text}}, expression_type=kind)
            body = await entries(client, consumer_group="G")
            assert body.subscription_data is not None
            assert body.subscription_data.sub_string == text
            if kind == "TAG":
                assert [each.eval for each in body.queue_data or ()] == [True, True, False]
            else:
                assert orjson.loads(body.filter_data or "")["expression"] == text
            assert "not online" in ((await entries(client, consumer_group="H")).filter_data or "")
            await cluster.client().heartbeat("other", consumers={"All": {"T": "*"}})
            assert all(each.eval for each in (await entries(client, consumer_group="All")).queue_data or ())

    run(main())

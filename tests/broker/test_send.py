"""Sends over real sockets: what is stored, what is answered, what is refused and how."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError, ConnectError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import TopicRouteData
from rmq_core.protocol.command import Command, HeaderEncoding, decode_command, encode_command
from rmq_core.protocol.message import encode_properties
from rmq_core.protocol.message_id import decode_offset_message_id
from rmq_core.protocol.record import StoredRecord, decode_record
from support.brokers import Client, Cluster, broker_cluster, run

OWN = {"MSG_REGION": "DefaultRegion", "CLUSTER": "DefaultCluster", "TRACE_ON": "true"}


async def code_of(call: Any) -> int:
    try:
        await call
    except BrokerError as error:
        assert error.remark
        return error.code
    return 0


async def topic(cluster: Cluster, name: str, *, queues: int = 4, perm: int = 6) -> None:
    request = r.UpdateAndCreateTopic(
        name, queues, queues, perm, "SINGLE_TAG", default_topic="TBW102", topic_sys_flag=0, order=False
    )
    await cluster.client().call(request)


def stored(cluster: Cluster, msg_id: str) -> StoredRecord:
    record = cluster.broker.store.record(decode_offset_message_id(msg_id).log_offset)
    assert record is not None
    return decode_record(record, 0)


@pytest.mark.parametrize("encoding", HeaderEncoding)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_message_is_stored_as_it_was_sent(
    tmp_path: Path, version: int, encoding: HeaderEncoding, is_plain: bool
) -> None:
    """Both header versions in both encodings, by the plain path and by the long one (a POP_CK makes it so)."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await topic(cluster, "Orders")
            properties = {
                "UNIQ_KEY": "7F0000011BE75FFD2B275A74C96C0000",
                "TAGS": "paid",
                "KEYS": "a b",
                "WAIT": "true",
            }
            sent = properties if is_plain else {**properties, "POP_CK": "x"}
            fields: dict[str, Any] = {
                "producer_group": "PG",
                "topic": "Orders",
                "default_topic": "TBW102",
                "default_topic_queue_nums": 4,
                "queue_id": 2,
                "sys_flag": 0,
                "born_timestamp": 1_700_000_000_123,
                "flag": 77,
                "properties": encode_properties(sent).decode(),
                "reconsume_times": 3,
                "unit_mode": False,
            }
            request = r.SendMessage(**fields) if version == 1 else r.SendMessageV2(**fields)
            connection = await cluster.client().channel.connect()
            command = Command(request.code, opaque=9, ext=request.to_ext(), body=b"hello", encoding=encoding)
            response = await connection.exchange(command, timeout_ms=60_000)
            assert (response.code, response.encoding, response.version) == (0, encoding, 479)
            ext = response.ext or {}
            assert ext == {
                "msgId": ext["msgId"],
                "queueId": "2",
                "queueOffset": "0",
                "transactionId": properties["UNIQ_KEY"],
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
            }
            record = stored(cluster, ext["msgId"])
            assert (record.topic, record.queue_id, record.queue_offset) == ("Orders", 2, 0)
            assert (record.body, record.flag, record.reconsume_times) == (b"hello", 77, 3)
            assert (record.born_time_ms, record.sys_flag) == (1_700_000_000_123, 0)
            assert record.properties == {**properties, **OWN}
            assert str(record.store_host) == cluster.broker.address

    run(main())


def test_a_message_without_an_id_gets_one(tmp_path: Path) -> None:
    """Sends without UNIQ_KEY; ids must differ and be told as transaction ids."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            ids = set()
            for _ in range(3):
                answer = await client.send("Orders")
                record = stored(cluster, answer.header.msg_id)
                assert record.properties["UNIQ_KEY"] == answer.header.transaction_id
                ids.add(answer.header.transaction_id)
            assert len(ids) == 3

    run(main())


def test_an_unknown_topic_is_made_after_the_default_one(tmp_path: Path) -> None:
    """Fifty sends to a new topic share one creation; name server and file know it before the answers."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await asyncio.gather(*(client.send("New", b"%d" % each, queue_id=each % 4) for each in range(50)))
            route = TopicRouteData.decode((await cluster.name_client().call(r.GetRouteinfoByTopic("New"))).body)
            assert [
                (each.read_queue_nums, each.write_queue_nums, each.perm) for each in route.queue_datas or ()
            ] == [(4, 4, 6)]
            saved = orjson.loads((tmp_path / "broker-a" / "config" / "topics.json").read_bytes())
            assert saved["topicConfigTable"]["New"]["writeQueueNums"] == 4
            assert sum([len(await client.messages("New", queue)) for queue in range(4)]) == 50

    run(main())


def test_topics_are_not_made_where_that_is_off(tmp_path: Path) -> None:
    """autoCreateTopicEnable=false, and a default topic that does not exist or does not hand on its queues."""

    async def main() -> None:
        async with broker_cluster(tmp_path, auto_create_topic_enable=False) as cluster:
            assert await code_of(cluster.client().send("Orders")) == 17
        async with broker_cluster(tmp_path / "second") as cluster:
            assert await code_of(cluster.client().send("Orders", default_topic="Nobody")) == 17
            assert await code_of(cluster.client().send("Orders", default_topic="BenchmarkTest")) == 17

    run(main())


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("bad topic", 29),
        ("a/b", 29),
        ("x" * 128, 29),
        ("SCHEDULE_TOPIC_XXXX", 16),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 16),
        ("%RETRY%nobody", 26),
    ],
)
def test_topics_that_cannot_be_sent_to_are_refused(tmp_path: Path, name: str, code: int) -> None:
    """Bad names, system topics, and the retry topic of an unknown group."""

    async def main() -> None:
        async with broker_cluster(tmp_path, auto_create_subscription_group=False) as cluster:
            assert await code_of(cluster.client().send(name)) == code

    run(main())


def test_refusals_carry_region_and_trace(tmp_path: Path) -> None:
    """A queue that the topic does not have, and a message without a body."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await topic(cluster, "Orders")
            connection = await cluster.client().channel.connect()
            for queue_id, body, code in ((77, b"x", 29), (0, b"", 13)):
                request = r.SendMessageV2("PG", "Orders", "TBW102", 4, queue_id, 0, 0, 0, "UNIQ_KEY\x01k\x02")
                command = Command(310, opaque=1, ext=request.to_ext(), body=body)
                response = await connection.exchange(command, timeout_ms=60_000)
                assert response.code == code
                assert response.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}

    run(main())


def test_the_refusal_of_a_queue_describes_the_topic(tmp_path: Path) -> None:
    """People read it in Apache's tools, which write a topic so."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await topic(cluster, "Orders", queues=1)
            with pytest.raises(BrokerError) as refused:
                await cluster.client().send("Orders", queue_id=9)
            assert refused.value.code == 29
            assert refused.value.remark.startswith(
                "request queueId[9] is illegal, TopicConfig [topicName=Orders, readQueueNums=1, writeQueueNums=1, "
                "perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}] Producer: 127."
            )

    run(main())


def test_a_queue_is_chosen_where_none_is_named(tmp_path: Path) -> None:
    """Queue -1 means any; over many sends it must not always be the same."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            queues = {(await client.send("Orders", queue_id=-1)).header.queue_id for _ in range(60)}
            assert queues <= {0, 1, 2, 3}
            assert len(queues) > 1

    run(main())


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    """A body over maxMessageSize and properties over 32767 bytes, on the plain path too."""

    async def main() -> None:
        async with broker_cluster(tmp_path, max_message_size=1000) as cluster:
            client = cluster.client()
            await client.send("Orders", b"x" * 1000)
            assert await code_of(client.send("Orders", b"x" * 1001, properties={"UNIQ_KEY": "k"})) == 13
            long = {"UNIQ_KEY": "k", "long": "p" * 32740}
            assert await code_of(client.send("Orders", properties=long)) == 13
            assert len(await client.messages("Orders")) == 1

    run(main())


def batch_of(*messages: tuple[bytes, dict[str, str]]) -> bytes:
    parts = []
    for body, properties in messages:
        text = encode_properties(properties)
        size = 22 + len(body) + len(text)
        head = size.to_bytes(4, "big") + bytes(12) + len(body).to_bytes(4, "big")
        parts.append(head + body + len(text).to_bytes(2, "big") + text)
    return b"".join(parts)


def test_a_batch_is_stored_message_by_message(tmp_path: Path) -> None:
    """Each keeps its own id, tags and keys, and gets a queue offset of its own; the answer lists all ids."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.send("Orders")
            body = batch_of(*((b"m%d" % each, {"UNIQ_KEY": f"k{each}", "TAGS": f"t{each}"}) for each in range(5)))
            request = r.SendBatchMessage(
                "PG", "Orders", "TBW102", 4, 0, 0, 1, 0, "UNIQ_KEY\x01all\x02WAIT\x01true\x02", batch=True
            )
            answer = await client.call(request, body)
            ids = answer.header.msg_id.split(",")
            assert (len(ids), answer.header.queue_offset) == (5, 1)
            records = await client.messages("Orders")
            assert [record.body for record in records[1:]] == [b"m%d" % each for each in range(5)]
            for number, (record, msg_id) in enumerate(zip(records[1:], ids, strict=True)):
                assert record.log_offset == decode_offset_message_id(msg_id).log_offset
                assert record.properties["UNIQ_KEY"] == f"k{number}"
                assert record.properties["TAGS"] == f"t{number}"
                assert record.properties["CLUSTER"] == "DefaultCluster"
            assert await code_of(client.call(request, body[:-1])) == 1
            assert await code_of(client.call(request, b"")) != 0
            assert len(await client.messages("Orders")) == 6

    run(main())


def test_a_one_way_send_is_stored_and_not_answered(tmp_path: Path) -> None:
    """A good and a bad one-way send, then a call on the same connection: its answer must be the first bytes."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await topic(cluster, "Orders")
            reader, writer = await asyncio.open_connection(*cluster.broker.address.split(":"))
            for queue_id in (1, 99):
                request = r.SendMessageV2("PG", "Orders", "TBW102", 4, queue_id, 0, 1, 0, "UNIQ_KEY\x01k\x02")
                writer.write(encode_command(Command(310, opaque=5, flag=2, ext=request.to_ext(), body=b"one-way")))
            ask = r.GetMaxOffset(topic="Orders", queue_id=1)
            writer.write(encode_command(Command(30, opaque=6, ext=ask.to_ext())))
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = decode_command(size.to_bytes(4, "big") + await reader.readexactly(size))
            assert answer.opaque == 6
            writer.close()
            assert [each.body for each in await cluster.client().messages("Orders", 1)] == [b"one-way"]

    run(main())


def test_sync_flush_answers_when_it_is_on_disk(tmp_path: Path) -> None:
    """With SYNC_FLUSH every acknowledged message lies below the flushed offset; WAIT=false does not wait."""

    async def main() -> None:
        async with broker_cluster(tmp_path, flush_disk_type="SYNC_FLUSH") as cluster:
            client = cluster.client()
            await client.send("Orders")
            for _ in range(20):
                answer = await client.send("Orders", properties={"UNIQ_KEY": "k", "WAIT": "true"})
                assert decode_offset_message_id(answer.header.msg_id).log_offset < cluster.broker.store.log.flushed
            await client.send("Orders", properties={"UNIQ_KEY": "k", "WAIT": "false"})
            await client.send("Orders", properties={"UNIQ_KEY": "k", "WAIT": "true"})
            assert len(await client.messages("Orders")) == 23

    run(main())


def test_a_failed_write_is_never_acknowledged(tmp_path: Path) -> None:
    """The log cannot be written: the sender is cut off, not told success; then code 14, and reads go on."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.send("Orders", b"kept", properties={"UNIQ_KEY": "k"})

            def fail() -> None:
                raise OSError(28, "No space left on device")

            cluster.broker.store.log.write = fail  # type: ignore[method-assign]
            with pytest.raises(ConnectError):
                await client.send("Orders", b"lost", properties={"UNIQ_KEY": "k"})
            second = cluster.client()
            assert await code_of(second.send("Orders", b"lost", properties={"UNIQ_KEY": "k"})) == 14
            assert [each.body for each in await second.messages("Orders")] == [b"kept"]

    run(main())


def test_sends_are_refused_while_the_broker_is_busy(tmp_path: Path) -> None:
    """Busy means code 2 with the remark that clients know, on both paths; then sends go on."""

    async def main() -> None:
        # The clock stands still, so that the broker does not find out that it is not busy at all.
        async with broker_cluster(tmp_path, clock=ManualClock()) as cluster:
            client = cluster.client()
            await client.send("Orders")
            cluster.broker.busy = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"
            for properties in ({"UNIQ_KEY": "k"}, {}):
                with pytest.raises(BrokerError, match="TIMEOUT_CLEAN_QUEUE") as raised:
                    await client.send("Orders", properties=properties)
                assert raised.value.code == 2
            cluster.broker.busy = None
            await client.send("Orders")

    run(main())


def test_timed_messages_are_refused_and_never_early(tmp_path: Path) -> None:
    """Each of the three properties; nothing of them may be stored."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            for name in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"):
                assert await code_of(client.send("Orders", properties={"UNIQ_KEY": "k", name: "5000"})) == 1
            assert await client.messages("Orders") == []

    run(main())


async def _reply(client: Client, to: str | None, body: bytes) -> Any:
    properties = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "TTL": "3000"} | (
        {"REPLY_TO_CLIENT": to} if to else {}
    )
    text = encode_properties(properties).decode()
    return await client.call(
        r.SendReplyMessageV2("PG", "DefaultCluster_REPLY_TOPIC", "TBW102", 4, 0, 0, 1, 0, text), body
    )


def test_a_reply_reaches_the_client_that_asked(tmp_path: Path) -> None:
    """The push carries the body and the time; a client that is gone means code 1; the reply is stored anyway."""

    async def main() -> None:
        from rmq_core.net.calls import DONE, Call
        from rmq_core.net.channel import Channel
        from rmq_core.net.dispatch import Dispatcher, handles

        heard: list[Call[Any]] = []

        @handles(r.PushReplyMessageToClient)
        async def hear(context: Any, call: Call[Any]) -> Any:
            heard.append(call)
            return DONE

        async with broker_cluster(tmp_path) as cluster:
            dispatcher = Dispatcher(handlers={r.PushReplyMessageToClient.code: hear})
            asking = Client(Channel(cluster.broker.address, dispatcher=dispatcher))
            await asking.heartbeat("asker", producers=("PG",))
            answer = await _reply(cluster.client(), "asker", b"42")
            assert answer.header.queue_offset == 0
            assert [call.body for call in heard] == [b"42"]
            assert "CORRELATION_ID\x01c-1" in (heard[0].header.properties or "")
            await asking.channel.close()
            with pytest.raises(BrokerError, match="channel of <gone> not found"):
                await _reply(cluster.client(), "gone", b"43")
            with pytest.raises(BrokerError, match="REPLY_TO_CLIENT"):
                await _reply(cluster.client(), None, b"44")
            bodies = [each.body for each in await cluster.client().messages("DefaultCluster_REPLY_TOPIC")]
            assert bodies == [b"42", b"43", b"44"]

    run(main())

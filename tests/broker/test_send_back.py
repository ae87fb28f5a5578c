"""Messages that a consumer could not deal with: how long they wait, where they end, and who may send them back."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.groups import group_config
from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.command import Command
from rmq_core.protocol.message import SCHEDULE_TOPIC, dlq_topic, retry_topic
from rmq_core.protocol.message_id import decode_offset_message_id
from rmq_core.protocol.record import CRC_MASK, StoredRecord, encode_record
from rmq_core.protocol.requests import ConsumerSendMsgBack
from rmq_core.store.message_store import PutStatus
from support.brokers import Client, Cluster, broker_cluster, run
from support.stores import records_of

LEVELS = "1s 2s 3s 4s 5s 6s"
RETRY, DEAD = retry_topic("CG"), dlq_topic("CG")


def stored(cluster: Cluster, topic: str, queue_id: int = 0) -> list[StoredRecord]:
    return records_of(cluster.broker.store, topic, queue_id)


async def send_back(client: Client, log_offset: int, level: int = 0, *, group: str = "CG", **header: Any) -> int:
    return (await client.call(ConsumerSendMsgBack(log_offset, group, level, **header))).code


def refused_with(refused: pytest.ExceptionInfo[BrokerError], code: ResponseCode, remark: str) -> None:
    assert refused.value.code == code
    assert remark in refused.value.remark


async def sent(client: Client, **properties: str) -> tuple[str, int]:
    """The id and the log offset of a new message."""
    header = (await client.send("Orders", b"hard", queue_id=1, properties={"UNIQ_KEY": "id", **properties})).header
    return header.msg_id, decode_offset_message_id(header.msg_id).log_offset


def test_each_retry_waits_longer_until_the_message_is_dead(tmp_path: Path) -> None:
    """Sends back what the retry topic delivers, again and again, with three attempts allowed."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            id_, offset = await sent(client, TAGS="red", KEYS="k")
            (original,) = stored(cluster, "Orders", 1)
            for attempt in range(3):
                assert await send_back(client, offset, max_reconsume_times=3) == 0
                await clock.advance((3 + attempt) * 1000 - 1)
                assert len(stored(cluster, RETRY)) == attempt
                await clock.advance(1)
                record = stored(cluster, RETRY)[attempt]
                assert record.reconsume_times == attempt + 1
                assert record.properties["RETRY_TOPIC"] == "Orders"
                assert record.properties["ORIGIN_MESSAGE_ID"] == id_
                assert record.properties["DELAY"] == str(3 + attempt)
                assert record.properties["WAIT"] == "false"
                for field in ("body", "born_time_ms", "born_host", "flag", "sys_flag"):
                    assert getattr(record, field) == getattr(original, field), field
                offset = record.log_offset
            assert await send_back(client, offset, max_reconsume_times=3) == 0
            (dead,) = stored(cluster, DEAD)
            assert (dead.body, dead.reconsume_times, dead.properties["DELAY"]) == (b"hard", 4, "0")
            assert dead.properties["ORIGIN_MESSAGE_ID"] == id_
            names = ["TAGS", "KEYS", "UNIQ_KEY", "RETRY_TOPIC", "WAIT", "REAL_TOPIC", "REAL_QID", "DELAY"]
            assert all(dead.property_bytes.count(f"{name}\x01".encode()) == 1 for name in names)
            config = cluster.broker.topics.get(DEAD)
            assert config is not None
            assert (config.perm, config.read_queue_nums, config.write_queue_nums) == (6, 1, 1)
            assert len(stored(cluster, RETRY)) == 3

    run(main())


def test_the_consumer_may_choose_the_level_or_give_up(tmp_path: Path) -> None:
    """Level 1, a level above the table, and one below 0, which means the dead letters."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            _, offset = await sent(client)
            await send_back(client, offset, 1)
            await send_back(client, offset, 99)
            await send_back(client, offset, -1)
            assert len(stored(cluster, DEAD)) == 1
            await clock.advance(1000)
            assert len(stored(cluster, RETRY)) == 1
            await clock.advance(4999)
            assert len(stored(cluster, RETRY)) == 1
            await clock.advance(1)
            assert len(stored(cluster, RETRY)) == 2

    run(main())


@pytest.mark.parametrize(("version", "is_dead"), [(120, True), (121, False)])
def test_the_groups_own_limit_counts_for_clients_that_cannot_say(
    tmp_path: Path, version: int, is_dead: bool
) -> None:
    """The group allows none, the request five: clients before 3.4.9 do not mean it."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await cluster.broker.groups.update(replace(group_config("CG"), retry_max_times=0))
            client = cluster.client()
            _, offset = await sent(client)
            request = ConsumerSendMsgBack(offset, "CG", 0, max_reconsume_times=5)
            connection = await client.channel.connect()
            command = Command(request.code, opaque=1, version=version, ext=request.to_ext())
            assert (await connection.exchange(command, timeout_ms=60_000)).code == 0
            assert bool(stored(cluster, DEAD)) is is_dead
            assert bool(stored(cluster, SCHEDULE_TOPIC, 2)) is not is_dead

    run(main())


def test_a_group_without_retry_queues_drops_its_failures(tmp_path: Path) -> None:
    """The answer is success, and nothing is stored."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await cluster.broker.groups.update(replace(group_config("CG"), retry_queue_nums=0))
            client = cluster.client()
            _, offset = await sent(client)
            end = cluster.broker.store.log.end
            assert await send_back(client, offset) == 0
            assert cluster.broker.store.log.end == end

    run(main())


def test_the_retry_topic_has_as_many_queues_as_its_group_asks_for(tmp_path: Path) -> None:
    """Raises the number: the topic grows and all its queues are used. Lowering it takes none away."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            _, offset = await sent(client)
            await send_back(client, offset, 1)
            for wanted, expected in ((3, 3), (2, 3)):
                await cluster.broker.groups.update(replace(group_config("CG"), retry_queue_nums=wanted))
                for _ in range(40):
                    await send_back(client, offset, 1)
                config = cluster.broker.topics.get(RETRY)
                assert config is not None
                assert (config.read_queue_nums, config.write_queue_nums) == (expected, expected)
            await clock.advance(1000)
            await clock.settle()
            found = [len(stored(cluster, RETRY, queue_id)) for queue_id in range(3)]
            assert sum(found) == 81
            assert all(found)

    run(main())


def test_who_may_not_send_back_is_told_why(tmp_path: Path) -> None:
    """Unknown groups, a broker and a topic that may not be written, offsets where no message begins."""

    async def main() -> None:
        async with broker_cluster(tmp_path, auto_create_subscription_group=False) as cluster:
            broker, client = cluster.broker, cluster.client()
            _, offset = await sent(client)
            with pytest.raises(BrokerError) as refused:
                await send_back(client, offset)
            refused_with(refused, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group not exist, CG")
            await broker.groups.update(group_config("CG"))
            for wrong in (99_999_999, offset + 4, -1):
                with pytest.raises(BrokerError) as refused:
                    await send_back(client, wrong)
                refused_with(refused, ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {wrong}")
            config = broker.topics.get(RETRY)
            assert config is not None
            await broker.topics.create(replace(config, perm=4))
            with pytest.raises(BrokerError) as refused:
                await send_back(client, offset)
            refused_with(refused, ResponseCode.NO_PERMISSION, f"the topic[{RETRY}] sending message is forbidden")
            broker.settings.broker_permission = 4
            with pytest.raises(BrokerError) as refused:
                await send_back(client, offset)
            refused_with(refused, ResponseCode.NO_PERMISSION, "the broker[127.0.0.1] sending message is forbidden")
            assert broker.store.max_offset(SCHEDULE_TOPIC, 2) == 0

    run(main())


@pytest.mark.parametrize("hot_size", [-1, 1 << 20])
def test_bytes_in_a_body_that_look_like_a_message_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hot_size: int
) -> None:
    """A producer sends a record as a body; a consumer names the offset where it begins."""
    monkeypatch.setattr("rmq_core.broker.records.HOT_SIZE", hot_size)

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await sent(client)
            (record,) = stored(cluster, "Orders", 1)
            crafted = encode_record(replace(record, body=b"crafted", body_crc=zlib.crc32(b"crafted") & CRC_MASK))
            answer = await client.send("Orders", crafted, queue_id=1, properties={"UNIQ_KEY": "id"})
            offset = decode_offset_message_id(answer.header.msg_id).log_offset
            outer = cluster.broker.store.record(offset)
            assert outer is not None
            inside = offset + bytes(outer).index(crafted)
            with pytest.raises(BrokerError) as refused:
                await send_back(client, inside)
            refused_with(refused, ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {inside}")

    run(main())


def test_a_message_that_is_not_in_memory_any_more_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes nothing to be in memory, and names good offsets and bad ones."""
    monkeypatch.setattr("rmq_core.broker.records.HOT_SIZE", -1)

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            _, offset = await sent(client)
            await send_back(client, offset, -1)
            assert [record.body for record in stored(cluster, DEAD)] == [b"hard"]
            for wrong in (offset + 1, cluster.broker.store.log.end - 4, cluster.broker.store.log.end):
                with pytest.raises(BrokerError) as refused:
                    await send_back(client, wrong)
                refused_with(refused, ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {wrong}")

    run(main())


def test_a_message_that_had_a_time_of_delivery_can_be_retried(tmp_path: Path) -> None:
    """A store of Apache's holds delivered timer messages: their time is over and must not be waited for again."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            broker, client = cluster.broker, cluster.client()
            put = broker.put(
                "Orders",
                0,
                b"timed",
                b"TIMER_DELIVER_MS\x019999999999999\x02TIMER_OUT_MS\x011\x02",
                born_time_ms=1,
                born_host=broker.store_host,
            )
            assert put.status is PutStatus.PUT_OK
            await broker.written()
            await send_back(client, put.log_offset, 1)
            await send_back(client, put.log_offset, -1)
            await clock.advance(1000)
            assert [record.body for record in stored(cluster, RETRY)] == [b"timed"]
            assert [record.body for record in stored(cluster, DEAD)] == [b"timed"]

    run(main())


def test_what_is_sent_back_is_durable_before_the_consumer_hears_of_it(tmp_path: Path) -> None:
    """With SYNC_FLUSH the log is flushed behind the copy when the answer comes, although it says WAIT=false."""

    async def main() -> None:
        async with broker_cluster(tmp_path, flush_disk_type="SYNC_FLUSH") as cluster:
            client = cluster.client()
            _, offset = await sent(client)
            for _ in range(5):
                await send_back(client, offset)
                assert cluster.broker.store.log.flushed == cluster.broker.store.log.end

    run(main())


def test_a_slave_takes_nothing_back(tmp_path: Path) -> None:
    """A broker that is no master answers as Apache's 5.3.3 does."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            _, offset = await sent(client)
            cluster.broker.settings.broker_id = 1
            with pytest.raises(BrokerError) as refused:
                await send_back(client, offset)
            refused_with(refused, ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]")

    run(main())

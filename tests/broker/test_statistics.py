"""Statistics over real sockets: what was sent and pulled shows under the names that Apache's tools ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_core.broker.stats import Stats
from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import BrokerStatsData
from support.brokers import Client, broker_cluster, run


async def minute_sum(client: Client, name: str, key: str) -> int | None:
    try:
        answer = await client.call(r.ViewBrokerStatsData(name, key))
    except BrokerError as error:
        assert (error.code, error.remark) == (1, f"The stats <{name}> <{key}> not exist")
        return None
    item = BrokerStatsData.decode(answer.body).stats_minute
    assert item is not None
    return item.sum


def test_sends_and_pulls_are_counted_where_tools_look(tmp_path: Path) -> None:
    """Plain sends, a batch, pulls of two groups; before and after a sample, and after the topic is gone."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            client = cluster.client()
            for _ in range(3):
                await client.send("T", b"x")
            assert await minute_sum(client, "TOPIC_PUT_NUMS", "T") == 0
            assert [each.body for each in await client.messages("T", group="G")] == [b"x"] * 3
            await clock.advance(10_000)
            stats = cluster.broker.stats
            for name, key, expected in (
                ("TOPIC_PUT_NUMS", "T", 3),
                ("QUEUE_PUT_NUMS", "T@0", 3),
                ("BROKER_PUT_NUMS", "DefaultCluster", 3),
                ("GROUP_GET_NUMS", "T@G", 3),
                ("QUEUE_GET_NUMS", "T@0@G", 3),
                ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", "DefaultCluster", 3),
                ("GROUP_GET_NUMS", "T@H", None),
                ("NO_SUCH", "T", None),
            ):
                assert await minute_sum(client, name, key) == expected, name
            size = await minute_sum(client, "TOPIC_PUT_SIZE", "T")
            assert size == stats.put_size_total == cluster.broker.store.log.end
            assert stats.misses == 1
            await client.call(r.DeleteTopicInBroker("T"))
            assert await minute_sum(client, "TOPIC_PUT_NUMS", "T") is None
            assert await minute_sum(client, "BROKER_PUT_NUMS", "DefaultCluster") == 3

    run(main())


def test_a_message_that_waits_elsewhere_counts_there_first(tmp_path: Path) -> None:
    """A delayed one counts when it is stored and again when it is delivered; a half one under its own topic."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            client, stats = cluster.client(), cluster.broker.stats
            await client.send("T", properties={"DELAY": "1"})
            assert [(topic, count) for topic, count, _ in stats.puts()] == [("SCHEDULE_TOPIC_XXXX", 1)]
            for _ in range(3):
                await clock.advance(1_000)
            assert sorted((topic, count) for topic, count, _ in stats.puts()) == [
                ("SCHEDULE_TOPIC_XXXX", 1),
                ("T", 1),
            ]
            await client.send("T", properties={"TRAN_MSG": "true", "PGROUP": "PG"}, sys_flag=4)
            assert ("RMQ_SYS_TRANS_HALF_TOPIC", 1) in [(topic, count) for topic, count, _ in stats.puts()]

    run(main())


def test_a_day_is_forgotten_after_a_day() -> None:
    """A burst, and then all the samples of a day."""
    stats = Stats(ManualClock(), cluster="C")
    stats.sample()
    stats.sent("T", 0, 1, 9)
    for number in range(8_641):
        if number == 8_000:
            data = stats.view("TOPIC_PUT_NUMS", "T")
            assert data is not None
            assert data.stats_day is not None
            assert data.stats_day.sum == 9
        stats.sample()
    data = stats.view("TOPIC_PUT_NUMS", "T")
    assert data is not None
    assert data.stats_day is not None
    assert data.stats_day.sum == 0


def test_a_message_that_the_store_does_not_take_is_a_failure(tmp_path: Path) -> None:
    """Too large a body: counted as failed, and not as sent."""

    async def main() -> None:
        async with broker_cluster(tmp_path, max_message_size=100) as cluster:
            client = cluster.client()
            await client.send("T", b"small")
            with pytest.raises(BrokerError, match="illegal"):
                await client.send("T", bytes(101))
            assert (cluster.broker.stats.put_total, cluster.broker.stats.failures) == (1, 1)

    run(main())


def test_how_far_a_group_reads_behind_is_told(tmp_path: Path) -> None:
    """In bytes and in time: halfway, at the end, and for a group that has read nothing."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            client, store = cluster.client(), cluster.broker.store
            await client.send("T", b"first")
            place = store.log.end
            await client.send("T", b"second")
            await clock.advance(5_000)
            await client.pull("T", 0, 0, group="G", max_msg_nums=1)
            assert await minute_sum(client, "GROUP_GET_FALL_SIZE", "0@T@G") == store.log.end - place
            assert await minute_sum(client, "GROUP_GET_FALL_TIME", "0@T@G") == 5_000
            await client.messages("T", group="G")
            assert await minute_sum(client, "GROUP_GET_FALL_SIZE", "0@T@G") == 0
            for key in ("0@T@H", "0@Nothing@G", "x@T@G", "T@G"):
                assert await minute_sum(client, "GROUP_GET_FALL_TIME", key) is None

    run(main())


def test_sends_that_wait_for_the_disk_are_told_apart(tmp_path: Path) -> None:
    """With SYNC_FLUSH each answer comes behind a flush, and so counts with its time."""

    async def main() -> None:
        async with broker_cluster(tmp_path, flush_disk_type="SYNC_FLUSH") as cluster:
            client = cluster.client()
            properties = {"UNIQ_KEY": "7F0000011BE75FFD2B275A74C96C0000", "TAGS": "a"}
            for _ in range(3):
                await client.send("T", properties=properties)
            durations = dict(cluster.broker.stats.put_durations())
            assert sum(durations.values()) == 3
            assert cluster.broker.stats.view("TOPIC_PUT_LATENCY", "0@T") is not None

    run(main())

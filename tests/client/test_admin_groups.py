"""Administration of groups and their offsets over real brokers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

import pytest

from rmq_core.client.admin_results import GroupSettings
from rmq_core.errors import BrokerError, UnsupportedError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import ResetOffsetBody
from rmq_core.protocol.message import MessageQueue
from support.admins import admin_of
from support.brokers import Client, Cluster, broker_cluster, run
from support.members import member


async def commit(client: Client, group: str, topic: str, queue_id: int, offset: int) -> None:
    await client.call(r.UpdateConsumerOffset(group, topic, queue_id, offset))


async def fill(cluster: Cluster, topic: str, count: int, *, queue_id: int = 0, number: int = 0) -> None:
    client = cluster.client(number)
    for _ in range(count):
        await client.send(topic, queue_id=queue_id)


def test_a_group_is_made_changed_listed_and_deleted_with_its_topics(tmp_path: Path) -> None:
    """Follows a group through its life on two brokers, with the topics that its retries need."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, admin_of(cluster) as admin:
            await admin.create_group("billing", retries_max=3, retry_queues=2, consume_timeout_minutes=5)
            assert await admin.groups() == ("billing",)
            assert "TOOLS_CONSUMER" in await admin.groups(internal=True)
            found = await admin.group_settings("billing")
            assert set(found) == {"broker-a", "broker-b"}
            assert (found["broker-b"].retries_max, found["broker-b"].consume_timeout_minutes) == (3, 5)
            await admin.create_group("billing", consume_enabled=False, broker="broker-a")
            found = await admin.group_settings("billing")
            assert (found["broker-a"].consume_enabled, found["broker-b"].consume_enabled) == (False, True)
            assert (await admin.all_group_settings("broker-a"))["billing"] == found["broker-a"]

            for topic in ("%RETRY%billing", "%DLQ%billing"):
                await admin.create_topic(topic, 1)
            await admin.delete_group("billing", with_offsets=True)
            assert await admin.groups() == ()
            assert not {"%RETRY%billing", "%DLQ%billing"} & set(await admin.topics(internal=True))
            with pytest.raises(BrokerError) as missing:
                await admin.group_settings("billing")
            assert missing.value.code == 26

    run(main())


def test_dead_letters_stay_where_the_topics_are_kept(tmp_path: Path) -> None:
    """Deletes a group that has dead letters, and reads them afterwards."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_group("billing")
            await admin.create_topic("%DLQ%billing", 1)
            await fill(cluster, "%DLQ%billing", 2)
            await admin.delete_group("billing", keep_topics=True)
            assert (await admin.topic_status("%DLQ%billing")).count == 2

    run(main())


def test_many_groups_are_made_at_once_or_none_of_them(tmp_path: Path) -> None:
    """More than a page of them, and then a list with one bad name in it."""

    async def main() -> None:
        async with broker_cluster(tmp_path, split_metadata_size=5) as cluster, admin_of(cluster) as admin:
            await admin.create_groups([GroupSettings(name=f"G{number:02}", retries_max=1) for number in range(17)])
            found = await admin.all_group_settings("broker-a")
            assert set(found) == set(cluster.broker.groups.table)
            assert found["G16"].retries_max == 1
            with pytest.raises(ValueError, match="characters other"):
                await admin.create_groups([GroupSettings(name="Fine"), GroupSettings(name="not fine")])
            with pytest.raises(ValueError, match="retry_queues"):
                await admin.create_group("Fine", retry_queues=-1)
            assert "Fine" not in cluster.broker.groups.table

    run(main())


def test_the_lag_of_a_group_says_how_long_its_oldest_message_waits(tmp_path: Path) -> None:
    """Commits half of one queue, all of another and nothing of a third, on two brokers."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 2)
            await admin.create_group("billing")
            await fill(cluster, "Orders", 4)
            await fill(cluster, "Orders", 2, queue_id=1)
            await fill(cluster, "Orders", 3, number=1)
            await commit(cluster.client(), "billing", "Orders", 0, 1)
            await commit(cluster.client(), "billing", "Orders", 1, 2)
            await commit(cluster.client(1), "billing", "Orders", 1, 0)
            await asyncio.sleep(0.02)  # so that there is an age to see
            lag = await admin.lag("billing")
            by_queue = {(each.queue.broker_name, each.queue.queue_id): each for each in lag}
            assert {place: each.count for place, each in by_queue.items()} == {
                ("broker-a", 0): 3,
                ("broker-a", 1): 0,
                ("broker-b", 0): 3,
                ("broker-b", 1): 0,
            }
            assert lag.count == 6
            behind = by_queue["broker-a", 0]
            assert (behind.end, behind.committed, behind.in_flight) == (4, 1, 0)
            assert behind.last_consumed_at is not None
            assert behind.oldest_unread_age is not None
            assert behind.oldest_unread_age > timedelta(milliseconds=10)
            assert by_queue["broker-a", 1].oldest_unread_age is None
            assert lag.oldest_unread_age == max(
                each.oldest_unread_age for each in lag if each.oldest_unread_age is not None
            )
            assert (await admin.lag("billing", topic="Orders")).count == 6
            assert [each.group for each in await admin.broker_lag("broker-a")].count("billing") == 1
            (line,) = await admin.progress()
            assert (line.group, line.member_count, line.version, line.lag) == ("billing", 0, None, 6)
            spans = await admin.time_spans("billing", "Orders")
            assert len(spans) == 4
            assert spans[0].waiting > timedelta(milliseconds=10)
            assert spans[0].first_at is not None
            assert spans[0].consumed_at == spans[0].first_at

    run(main())


def test_offsets_are_looked_up_stored_and_cloned(tmp_path: Path) -> None:
    """Sets a group's offset, gives it to another group, and asks whose is lowest."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 2)
            await admin.create_group("a")
            await admin.create_group("b")
            await fill(cluster, "Orders", 5)
            first, second = (MessageQueue("Orders", "broker-a", number) for number in (0, 1))
            assert (await admin.min_offset(first), await admin.max_offset(first)) == (0, 5)
            earliest = await admin.earliest_stored_at(first)
            assert earliest is not None
            assert abs(datetime.now(UTC) - earliest) < timedelta(minutes=5)
            assert await admin.earliest_stored_at(second) is None
            assert await admin.offset_by_time(first, earliest) == 0
            assert await admin.offset_by_time(first, earliest.astimezone(timezone(timedelta(hours=8)))) == 0
            assert await admin.offsets("a", "Orders") == {first: None, second: None}
            await admin.set_offset("a", first, 3)
            assert await admin.offsets("a", "Orders") == {first: 3, second: None}
            await admin.clone_offsets("a", "b")
            assert (await admin.offsets("b", "Orders"))[first] == 3
            await admin.set_offset("a", first, 4)
            await admin.clone_offsets("a", "b", topic="Orders")
            assert (await admin.offsets("b", "Orders"))[first] == 4
            await admin.set_offset("b", first, 1)
            assert await admin.corrections("a", "Orders") == {first: 1}
            assert await admin.corrections("a", "Orders", without=["b"]) == {first: 4}
            await admin.set_offset("b", first, 5)
            assert await admin.corrections("a", "Orders", without=["a"]) == {}
            assert await admin.topics_of("a") == ("Orders",)
            assert set(await admin.consumers_of("Orders")) == {"a", "b"}
            for wrong, kind in ((-1, ValueError), (True, TypeError), ("5", TypeError)):
                with pytest.raises(kind, match="offset"):
                    await admin.set_offset("a", first, wrong)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="time zone"):
                await admin.offset_by_time(first, datetime(2026, 1, 1))
            with pytest.raises(TypeError, match="MessageQueue"):
                await admin.max_offset("Orders")  # type: ignore[arg-type]

    run(main())


@pytest.mark.parametrize("to", ["earliest", "latest", "time", 2])
@pytest.mark.parametrize("keeps", [True, False], ids=["broker keeps resets", "broker tells members"])
def test_a_group_that_is_offline_moves_on_every_kind_of_broker(
    tmp_path: Path, to: Literal["earliest", "latest", "time"] | int, keeps: bool
) -> None:
    """Moves it in each way that there is, and reads its offset on both kinds of broker."""

    async def main() -> None:
        async with (
            broker_cluster(tmp_path, use_server_side_reset_offset=keeps) as cluster,
            admin_of(cluster) as admin,
        ):
            await admin.create_topic("Orders", 1)
            await admin.create_group("billing")
            await fill(cluster, "Orders", 5)
            queue = MessageQueue("Orders", "broker-a", 0)
            await admin.set_offset("billing", queue, 4)
            place = datetime.now(UTC) - timedelta(days=1) if to == "time" else to
            wanted = {"earliest": 0, "latest": 5, "time": 0, 2: 2}[to]
            assert await admin.reset_offsets("billing", "Orders", place) == {queue: wanted}
            assert await pulled_from(cluster, "billing", queue) == wanted

    run(main())


async def pulled_from(cluster: Cluster, group: str, queue: MessageQueue) -> int:
    """Where the group goes on: what the broker says at the next pull, and else what it has stored."""
    client = cluster.client()
    answer = await client.pull(queue.topic, queue.queue_id, 1, group=group)
    if answer.code == 21:
        return int(answer.header.next_begin_offset)
    return int((await client.call(r.QueryConsumerOffset(group, queue.topic, queue.queue_id))).header.queue_offset)


def test_without_force_a_group_only_moves_back(tmp_path: Path) -> None:
    """Two queues, one read less far than the target and one further: only the second may move."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 2)
            await admin.create_group("billing")
            first, second = (MessageQueue("Orders", "broker-a", number) for number in (0, 1))
            for queue, committed in ((first, 1), (second, 4)):
                await fill(cluster, "Orders", 5, queue_id=queue.queue_id)
                await admin.set_offset("billing", queue, committed)
            assert await admin.reset_offsets("billing", "Orders", 3, force=False) == {second: 3}
            assert await pulled_from(cluster, "billing", second) == 3
            assert (await admin.offsets("billing", "Orders"))[first] == 1

    run(main())


def test_an_offset_outside_a_queue_moves_nothing(tmp_path: Path) -> None:
    """One queue holds the offset and the other does not: the first must not move either, unless it is named."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 2)
            await admin.create_group("billing")
            await fill(cluster, "Orders", 5)
            first, second = (MessageQueue("Orders", "broker-a", number) for number in (0, 1))
            await admin.set_offset("billing", first, 5)
            with pytest.raises(ValueError, match=r"to: offset 3 is not within 0 to 0 of .*queue_id=1"):
                await admin.reset_offsets("billing", "Orders", 3)
            assert await admin.offsets("billing", "Orders") == {first: 5, second: None}
            assert await admin.reset_offsets("billing", "Orders", 3, queue=first) == {first: 3}
            for wrong, match in (
                ("middle", "earliest"),
                (datetime(2026, 1, 1), "time zone"),
                (-1, "0 or more"),
            ):
                with pytest.raises(ValueError, match=match):
                    await admin.reset_offsets("billing", "Orders", wrong)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="none of the topic's queues"):
                await admin.reset_offsets("billing", "Orders", 3, queue=MessageQueue("Other", "broker-a", 0))
            with pytest.raises(ValueError, match="none of the topic's queues"):
                await admin.reset_offsets("billing", "Orders", 3, queue=MessageQueue("Orders", "broker-a", 9))

    run(main())


def test_members_that_are_online_are_told_by_brokers_that_keep_no_resets(tmp_path: Path) -> None:
    """Joins the group, moves it by time, and reads what the member was told; an offset cannot be told so."""

    async def main() -> None:
        async with (
            broker_cluster(tmp_path, use_server_side_reset_offset=False) as cluster,
            admin_of(cluster) as admin,
        ):
            await admin.create_topic("Orders", 1)
            await fill(cluster, "Orders", 5)
            client = member(cluster)
            await client.heartbeat(consumers={"billing": {"Orders": "*"}})
            queue = MessageQueue("Orders", "broker-a", 0)
            await admin.set_offset("billing", queue, 4)
            assert await admin.reset_offsets("billing", "Orders", "earliest") == {queue: 0}
            told = await client.until_told(220)
            assert ResetOffsetBody.decode(told.body).offset_table == {queue: 0}
            assert await admin.reset_offsets("billing", "Orders", "latest") == {queue: 5}
            with pytest.raises(UnsupportedError, match="stop its members first"):
                await admin.reset_offsets("billing", "Orders", 2)

    run(main())


def test_a_group_can_be_kept_from_a_topic(tmp_path: Path) -> None:
    """Forbids reading, pulls as a member, allows it again, and pulls again."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 1)
            await admin.create_group("billing")
            await fill(cluster, "Orders", 1)
            client = member(cluster)
            await client.heartbeat(consumers={"billing": {"Orders": "*"}})
            assert await admin.may_read("billing", "Orders") == {"broker-a": True}
            assert await admin.set_may_read("billing", "Orders", False) == {"broker-a": False}
            with pytest.raises(BrokerError) as refused:
                await client.pull("Orders", group="billing", sys_flag=0)
            assert refused.value.code == 16
            assert await admin.set_may_read("billing", "Orders", True) == {"broker-a": True}
            assert (await client.pull("Orders", group="billing", sys_flag=0)).code == 0

    run(main())


def test_a_topic_with_many_queues_is_moved_as_a_whole(tmp_path: Path) -> None:
    """Each queue takes several calls, and the broker takes no more than a hundred at once from a connection."""

    async def main() -> None:
        async with broker_cluster(tmp_path, calls_in_flight_max=100) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 600)
            await admin.create_group("billing")
            await fill(cluster, "Orders", 2, queue_id=599)
            moved = await admin.reset_offsets("billing", "Orders", "latest")
            assert len(moved) == 600
            assert moved[MessageQueue("Orders", "broker-a", 599)] == 2
            assert len(await admin.offsets("billing", "Orders")) == 600

    run(main())

"""Offsets over real sockets: commits, queries, resets here and by telling members, files across restarts."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError, RocketMQError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    ConsumerOffsetSerializeWrapper,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    SubscriptionGroupConfig,
)
from rmq_core.protocol.codes import Language
from rmq_core.protocol.command import Command, HeaderEncoding
from rmq_core.protocol.message import MessageQueue
from support.brokers import Client, Cluster, broker_app, broker_cluster, run
from support.members import member

NOTHING_TO_CORRECT = (1 << 63) - 1
RESET_NOTICE = 220


async def refusal(call: Any) -> tuple[int, str]:
    with pytest.raises(BrokerError) as raised:
        await call
    return raised.value.code, raised.value.remark


async def query(client: Client, queue_id: int = 0, *, topic: str = "Orders", group: str = "CG", **more: Any) -> int:
    answer = await client.call(r.QueryConsumerOffset(group, topic, queue_id, **more))
    return int(answer.header.queue_offset)


async def commit(client: Client, offset: int, queue_id: int = 0, *, group: str = "CG") -> str | None:
    return (await client.call(r.UpdateConsumerOffset(group, "Orders", queue_id, offset))).remark


async def reset(client: Client, *, group: str = "CG", topic: str = "Orders", **header: Any) -> dict[int, int]:
    fields = {"timestamp": -1, "is_force": True, **header}
    answer = await client.call(r.InvokeBrokerToResetOffset(topic, group, **fields))
    table = ResetOffsetBody.decode(answer.body).offset_table
    assert {(queue.topic, queue.broker_name) for queue in table} == {(topic, "broker-a")}
    return {queue.queue_id: offset for queue, offset in table.items()}


async def fill(cluster: Cluster, count: int = 5, *, queues: int = 4) -> Client:
    """A client, and so many messages in each queue of Orders; the group CG exists."""
    client = cluster.client()
    for number in range(count):
        for queue_id in range(queues):
            await client.send("Orders", b"%d" % number, queue_id=queue_id)
    await cluster.broker.groups.update(SubscriptionGroupConfig("CG"))
    return client


def test_commits_are_checked_and_stored(tmp_path: Path) -> None:
    """Unknown group, topic, missing fields: each with Apache's code; both encodings; one-way as clients do it."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = await fill(cluster)
            connection = await client.channel.connect()
            whole = {"consumerGroup": "CG", "topic": "Orders", "queueId": "1", "commitOffset": "3"}
            cases = [
                (whole | {"consumerGroup": "CG-unknown"}, 26, "Group CG-unknown not exist!"),
                (whole | {"topic": "Unknown"}, 17, "Topic Unknown not exist!"),
                (_without(whole, "queueId"), 29, "QueueId is null, topic is Orders"),
                (_without(whole, "commitOffset"), 29, "Offset is null, topic is Orders"),
                (_without(whole, "topic"), 1, None),
                (whole | {"commitOffset": "x"}, 1, None),
                (whole | {"commitOffset": "9223372036854775808"}, 1, None),
                (whole, 0, None),
            ]
            for encoding in HeaderEncoding:
                for ext, code, remark in cases:
                    answer = await connection.exchange(
                        Command(15, 9, ext=ext, encoding=encoding), timeout_ms=60_000
                    )
                    assert (answer.code, answer.encoding) == (code, encoding), ext
                    assert remark is None or answer.remark == remark
                assert await query(client, 1) == 3
                await client.call(r.UpdateConsumerOffset("CG", "Orders", 1, 0))
            await client.channel.oneway(r.UpdateConsumerOffset("CG", "Orders", 1, 77))
            assert await query(client, 1) == 77
            await commit(client, 2, 1)
            assert await query(client, 1) == 2

    run(main())


def _without(ext: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in ext.items() if key != name}


def test_a_new_group_begins_at_0_only_where_the_first_message_is_in_memory(tmp_path: Path) -> None:
    """A young queue, an empty one, one the client has its own rule for, and a topic that nobody knows."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = await fill(cluster, queues=1)
            assert await query(client, 0) == 0
            not_found = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            assert await refusal(query(client, 1)) == (22, not_found)
            assert await refusal(query(client, 0, topic="Unknown")) == (22, not_found)
            code, remark = await refusal(query(client, 0, set_zero_if_not_found=False))
            assert (code, remark) == (22, "Not found, do not set to zero, maybe this group boot first")
            assert await query(client, 0, set_zero_if_not_found=True) == 0
            await commit(client, -5)
            assert await query(client, 0) == 0
            # Retention takes the first message away.
            queue = cluster.broker.store.queues.table["Orders", 0]
            second = queue.entry(1)
            assert second is not None
            queue.raise_min_offset(second.log_offset)
            assert (await client.call(r.GetMinOffset("Orders", 0))).header.queue_offset == 1
            assert await refusal(query(client, 0)) == (22, not_found)

    run(main())


def test_the_ends_of_queues_and_their_times(tmp_path: Path) -> None:
    """30, 31, 32 and 29 with both boundaries, inside, before and behind the messages, and of no queue at all."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            client = cluster.client()
            start_ms = clock.now_ms()
            for _ in range(5):
                await client.send("Orders")
                await clock.advance(1000)

            async def at(time_ms: int, boundary: str | None = None, topic: str = "Orders") -> int:
                answer = await client.call(r.SearchOffsetByTimestamp(topic, 0, time_ms, boundary))
                return int(answer.header.queue_offset)

            assert (await client.call(r.GetMaxOffset("Orders", 0))).header.queue_offset == 5
            assert (await client.call(r.GetMaxOffset("Orders", 0, committed=False))).header.queue_offset == 5
            assert (await client.call(r.GetMinOffset("Orders", 0))).header.queue_offset == 0
            assert (await client.call(r.GetEarliestMsgStoretime("Orders", 0))).header.timestamp == start_ms
            assert [await at(start_ms + each) for each in (-9, 0, 1, 1000, 4000)] == [0, 0, 1, 1, 4]
            assert await at(start_ms + 9000) == 5
            assert [await at(start_ms + each, "UPPER") for each in (0, 999, 1000, 9000)] == [0, 0, 1, 4]
            assert await at(start_ms + 1, "LOWER") == 1
            for topic in ("Orders-2", "Unknown"):
                assert (await client.call(r.GetMaxOffset(topic, 0))).header.queue_offset == 0
                assert (await client.call(r.GetMinOffset(topic, 0))).header.queue_offset == 0
                assert (await client.call(r.GetEarliestMsgStoretime(topic, 0))).header.timestamp == -1
                assert await at(start_ms, topic=topic) == 0

    run(main())


def test_a_reset_waits_for_the_next_pull_of_a_group_that_may_be_offline(tmp_path: Path) -> None:
    """Commits of old positions are dropped meanwhile; one pull is told, and the next one reads on."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = await fill(cluster)
            for queue_id in range(4):
                await commit(client, 5, queue_id)
            assert await reset(client, timestamp=0) == {0: 0, 1: 0, 2: 0, 3: 0}
            assert await commit(client, 5) == "Offset has been previously reset"
            assert await query(client) == 0
            moved = await client.pull("Orders", 0, 5, sys_flag=5, commit_offset=5)
            assert (moved.code, moved.remark, moved.header.next_begin_offset) == (21, "OFFSET_RESET", 0)
            assert await query(client) == 0
            found = await client.pull("Orders", 0, 0)
            assert (found.code, found.header.next_begin_offset) == (0, 5)
            assert await commit(client, 3) is None
            assert await query(client) == 3
            assert await query(client, 1) == 0

    run(main())


def test_a_held_pull_hears_of_a_reset_at_once(tmp_path: Path) -> None:
    """It waits at the end of a queue; the clock stands still all the time."""

    async def main() -> None:
        async with broker_cluster(tmp_path, clock=ManualClock()) as cluster:
            client, admin = await fill(cluster), cluster.client()
            pulling = asyncio.ensure_future(client.pull("Orders", 2, 5, sys_flag=6, suspend_timeout_millis=15_000))
            while not cluster.broker.long_polls.count:
                await asyncio.sleep(0)
            assert await reset(admin, queue_id=2, offset=1) == {2: 1}
            answer = await pulling
            assert (answer.code, answer.header.next_begin_offset) == (21, 1)

    run(main())


def test_resets_by_time_by_value_and_their_limits(tmp_path: Path) -> None:
    """To a time, to the end, one queue to an offset; out of range, unknown topic, unknown group."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            client = cluster.client()
            times = []
            for _ in range(5):
                times.append(clock.now_ms())
                for queue_id in range(4):
                    await client.send("Orders", queue_id=queue_id)
                await clock.advance(1000)
            await cluster.broker.groups.update(SubscriptionGroupConfig("CG"))
            assert await reset(client, timestamp=times[3]) == {0: 3, 1: 3, 2: 3, 3: 3}
            assert await reset(client, timestamp=-1, queue_id=-1, offset=-1) == {0: 5, 1: 5, 2: 5, 3: 5}
            assert await reset(client, timestamp=times[2], queue_id=1) == {1: 2}
            assert await reset(client, timestamp=times[2], queue_id=1, offset=-1) == {1: 2}
            for offset in (0, 5, 6):
                assert await reset(client, queue_id=3, offset=offset) == {3: offset}
            code, remark = await refusal(reset(client, queue_id=3, offset=7))
            assert (code, remark) == (1, "Target offset 7 not in consume queue range [0-5]")
            assert await query(client, 3) == 6
            assert await refusal(reset(client, topic="Unknown")) == (17, "Topic Unknown does not exist")
            code, remark = await refusal(reset(client, group="CG-unknown"))
            assert (code, remark) == (26, "Group CG-unknown does not exist")
            assert cluster.broker.groups.find("CG-unknown") is None

    run(main())


@pytest.mark.parametrize("language", [Language.JAVA, Language.CPP])
def test_members_are_told_of_a_reset_where_the_settings_say_so(tmp_path: Path, language: Language) -> None:
    """As 4.9: both members hear of it, in the form of the asker's language; nothing changes in the broker."""

    async def main() -> None:
        async with broker_cluster(tmp_path, use_server_side_reset_offset=False) as cluster:
            client = await fill(cluster)
            members = [member(cluster), member(cluster)]
            for queue_id in range(4):
                await commit(client, 4, queue_id)
            code, remark = await refusal(reset(client))
            assert code == 206
            assert remark.startswith("Consumer not online, so can not reset offset, Group: CG Topic: Orders")
            for number, each in enumerate(members):
                await each.heartbeat(f"c{number}", consumers={"CG": {"Orders": "*"}})
            connection = await client.channel.connect()
            request = r.InvokeBrokerToResetOffset("Orders", "CG", -1, is_force=True)
            answer = await connection.exchange(
                Command(222, 3, ext=request.to_ext(), language=language), timeout_ms=60_000
            )
            table = {MessageQueue("Orders", "broker-a", queue_id): 5 for queue_id in range(4)}
            assert ResetOffsetBody.decode(answer.body).offset_table == table
            for each in members:
                told = await each.until_told(RESET_NOTICE)
                assert told.is_oneway
                assert told.ext == {"topic": "Orders", "group": "CG", "timestamp": "-1", "isForce": "true"}
                if language is Language.CPP:
                    rows = ResetOffsetBodyForC.decode(told.body).offset_table
                    assert {row.queue_id: row.offset for row in rows} == dict.fromkeys(range(4), 5)
                else:
                    assert ResetOffsetBody.decode(told.body).offset_table == table
            assert await query(client) == 4
            # Not forced, a group never moves forwards.
            assert await reset(client, is_force=False) == dict.fromkeys(range(4), 4)
            assert await reset(client, is_force=False, timestamp=0) == dict.fromkeys(range(4), 0)
            code, remark = await refusal(reset(client, group="CG-unknown"))
            assert (code, remark) == (1, "THe consumer group <CG-unknown> not exist")
            assert (await refusal(reset(client, topic="Unknown")))[0] == 17

    run(main())


def test_corrections_are_the_lowest_offsets_of_other_groups(tmp_path: Path) -> None:
    """Two groups beside the compared one, one of them left out by name."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = await fill(cluster)
            for group, offset in (("CG", 4), ("slow", 2), ("slower", 1)):
                cluster.broker.groups.find_or_begin(group)
                await commit(client, offset, group=group)
            await commit(client, 1, 1)

            async def corrections(group: str, left_out: str | None = None) -> dict[int, int]:
                answer = await client.call(r.QueryCorrectionOffset(group, "Orders", left_out))
                return QueryCorrectionOffsetBody.decode(answer.body).correction_offsets

            assert await corrections("CG") == {0: 1, 1: 1}
            assert await corrections("CG", "slower,other") == {0: 2, 1: 1}
            assert await corrections("slower", "slower") == {0: NOTHING_TO_CORRECT, 1: 1}
            assert await corrections("CG", "CG,slow,slower") == {0: NOTHING_TO_CORRECT, 1: NOTHING_TO_CORRECT}

    run(main())


def test_a_clone_follows_the_sources_subscriptions(tmp_path: Path) -> None:
    """An online source's topics count only while it subscribes to them, unknown topics never."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = await fill(cluster)
            await client.send("Events")
            await commit(client, 3)
            await client.call(r.UpdateConsumerOffset("CG", "Events", 0, 1))
            cluster.broker.offsets.commit("CG", "Gone", 0, 9)
            await client.heartbeat(consumers={"CG": {"Orders": "*"}})
            offsets = cluster.broker.offsets
            await client.call(r.CloneGroupOffset("CG", "one", "Orders", offline=False))
            assert offsets.topics_of("one") == ["Orders"]
            await client.call(r.CloneGroupOffset("CG", "online", offline=False))
            assert offsets.topics_of("online") == ["Orders"]
            await client.call(r.CloneGroupOffset("CG", "all", offline=True))
            assert offsets.topics_of("all") == ["Orders", "Events"]
            assert await query(client, group="all") == 3

    run(main())


def test_offsets_survive_a_restart_and_are_told_to_replicas(tmp_path: Path) -> None:
    """Committed, given as a whole table, saved at the stop, and there again."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = await fill(cluster)
            await commit(client, 4, 2)
            answer = await client.call(r.GetAllConsumerOffset())
            told = ConsumerOffsetSerializeWrapper.decode(answer.body)
            assert told.offset_table == {"Orders@CG": {2: 4}}
            assert told.group_topic_map == {"CG": ("Orders",)}
            assert told.data_version is not None
        async with broker_cluster(tmp_path) as cluster:
            assert await query(cluster.client(), 2) == 4

    run(main())


def test_offsets_are_saved_every_few_seconds(tmp_path: Path) -> None:
    """A copy of the directory, taken while the broker runs, has what was committed before the last save."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            client = await fill(cluster)
            await commit(client, 4)
            path = tmp_path / "broker-a" / "config" / "consumerOffset.json"
            await clock.advance(5_000)
            while not path.exists():
                await asyncio.sleep(0.001)
            assert orjson.loads(path.read_bytes())["offsetTable"] == {"Orders@CG": {"0": 4}}

    run(main())


def test_after_a_crash_offsets_above_the_end_are_lowered(tmp_path: Path) -> None:
    """The copy of a running broker's directory is started with offsets of messages that it does not have."""

    async def main() -> None:
        async with broker_cluster(tmp_path / "one") as cluster:
            await fill(cluster, 3, queues=1)
            cluster.broker.store.keep_all()
            shutil.copytree(tmp_path / "one" / "broker-a", tmp_path / "two" / "broker-a")
        config = tmp_path / "two" / "broker-a" / "config"
        table = {"Orders@CG": {"0": 50, "1": 2}, "Orders@CG-2": {"0": 1}}
        (config / "consumerOffset.json").write_bytes(orjson.dumps({"offsetTable": table}))
        async with broker_cluster(tmp_path / "two") as cluster:
            offsets = cluster.broker.offsets
            assert offsets.of("CG", "Orders") == {0: 3, 1: 0}
            assert offsets.of("CG-2", "Orders") == {0: 1}

    run(main())


def test_a_broker_that_cannot_read_its_offsets_does_not_start(tmp_path: Path) -> None:
    """It would let every group begin anew; the sentence names the file."""

    async def main() -> None:
        app = broker_app(tmp_path, "127.0.0.1:1")
        config = tmp_path / "broker-a" / "config"
        config.mkdir(parents=True)
        (config / "consumerOffset.json").write_bytes(b'{"offsetTable":')
        with pytest.raises(RocketMQError, match="consumerOffset"):
            await app.start()

    run(main())

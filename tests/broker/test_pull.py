"""Pulls over real sockets: every check with its code, every status, long polling, filters by tag."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import MessageModel, SubscriptionGroupConfig
from rmq_core.protocol.command import Command, HeaderEncoding
from rmq_core.protocol.record import decode_pull_body
from support.brokers import Client, Cluster, broker_cluster, run


async def refusal(call: Any) -> tuple[int, str]:
    with pytest.raises(BrokerError) as raised:
        await call
    return raised.value.code, raised.value.remark


async def set_group(client: Client, name: str, **switches: Any) -> None:
    await client.call(r.UpdateAndCreateSubscriptiongroup(), SubscriptionGroupConfig(name, **switches).encode())


async def set_topic(client: Client, name: str, *, queues: int = 4, perm: int = 6) -> None:
    await client.call(
        r.UpdateAndCreateTopic(
            name, queues, queues, perm, "SINGLE_TAG", default_topic="TBW102", topic_sys_flag=0, order=False
        )
    )


def pull_of(topic: str = "Orders", **header: Any) -> r.PullMessage:
    fields: dict[str, Any] = {
        "consumer_group": "CG",
        "topic": topic,
        "queue_id": 0,
        "queue_offset": 0,
        "max_msg_nums": 32,
        "sys_flag": 0,
        "commit_offset": 0,
        "suspend_timeout_millis": 0,
        "sub_version": 0,
        **header,
    }
    return r.PullMessage(**fields)


def test_the_checks_come_in_their_order(tmp_path: Path) -> None:
    """Everything is wrong at first; each repair must uncover the next refusal."""

    async def main() -> None:
        async with broker_cluster(tmp_path, auto_create_subscription_group=False, broker_permission=2) as cluster:
            client = cluster.client()
            bad = pull_of(queue_id=9, sub_version=5)
            code, remark = await refusal(client.call(bad))
            assert (code, "broker[" in remark) == (16, True)
            cluster.broker.settings.broker_permission = 6
            assert (await refusal(client.call(bad)))[0] == 26
            await set_group(client, "CG", consume_enable=False)
            assert (await refusal(client.call(bad)))[0] == 16
            await set_group(client, "CG", consume_broadcast_enable=False)
            assert (await refusal(client.call(bad)))[0] == 17
            await set_topic(client, "Orders", perm=2)
            assert (await refusal(client.call(bad)))[0] == 16
            await set_topic(client, "Orders", perm=6)
            assert (await refusal(client.call(bad)))[0] == 29
            bad = pull_of(queue_id=3, sub_version=5)
            assert (await refusal(client.call(bad)))[0] == 24
            member = cluster.client()
            await member.heartbeat(consumers={"CG": {"Orders": "*"}}, message_model=MessageModel.BROADCASTING)
            assert (await refusal(client.call(bad)))[0] == 16
            await member.heartbeat(consumers={"CG": {"Other": "*"}})
            assert (await refusal(client.call(bad)))[0] == 24
            await member.heartbeat(consumers={"CG": {"Orders": "*"}}, sub_version=4)
            assert (await refusal(client.call(bad)))[0] == 25
            await member.heartbeat(consumers={"CG": {"Orders": "*"}}, sub_version=5)
            assert (await client.call(bad)).code == 19
            bad = pull_of(sys_flag=4, subscription="||", expression_type="TAG")
            assert (await refusal(client.call(bad)))[0] == 23
            bad = pull_of(sys_flag=4, subscription="a > 1", expression_type="SQL92")
            assert (await refusal(client.call(bad)))[0] == 1

    run(main())


def test_a_refusal_says_who_forbids(tmp_path: Path) -> None:
    """forbiddenType is in the answer of a forbidden pull, in both encodings."""

    async def main() -> None:
        async with broker_cluster(tmp_path, broker_permission=2) as cluster:
            connection = await cluster.client().channel.connect()
            for encoding in HeaderEncoding:
                command = Command(11, opaque=3, ext=pull_of().to_ext(), encoding=encoding)
                response = await connection.exchange(command, timeout_ms=60_000)
                assert (response.code, response.encoding) == (16, encoding)
                assert (response.ext or {}).get("forbiddenType") == "1"

    run(main())


@pytest.mark.parametrize("encoding", HeaderEncoding)
def test_offsets_are_answered_and_corrected(tmp_path: Path, encoding: HeaderEncoding) -> None:
    """An empty queue, the whole queue, its end, beyond it and before it."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await set_topic(client, "Orders")
            connection = await client.channel.connect()

            async def ask(offset: int) -> tuple[int, str, str, int]:
                request = pull_of(queue_offset=offset, sys_flag=4, subscription="*")
                command = Command(11, opaque=3, ext=request.to_ext(), encoding=encoding)
                response = await connection.exchange(command, timeout_ms=60_000)
                ext = response.ext or {}
                assert set(ext) == {
                    "suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset", "topicSysFlag",
                    "groupSysFlag",
                }  # fmt: skip
                found = len(decode_pull_body(response.body)) if response.body else 0
                return response.code, response.remark or "", ext["nextBeginOffset"], found

            assert await ask(0) == (19, "NO_MESSAGE_IN_QUEUE", "0", 0)
            assert await ask(7) == (21, "NO_MESSAGE_IN_QUEUE", "0", 0)
            for number in range(3):
                await client.send("Orders", b"%d" % number)
            assert await ask(0) == (0, "FOUND", "3", 3)
            assert await ask(2) == (0, "FOUND", "3", 1)
            assert await ask(3) == (19, "OFFSET_OVERFLOW_ONE", "3", 0)
            assert await ask(9) == (21, "OFFSET_OVERFLOW_BADLY", "3", 0)
            assert await ask(-1) == (21, "OFFSET_TOO_SMALL", "0", 0)

    run(main())


def test_counts_and_sizes_are_kept(tmp_path: Path) -> None:
    """maxMsgNums and maxMsgBytes; one message always comes, however large."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            for _ in range(40):
                await client.send("Orders", b"x" * 1000)
            assert (await client.pull("Orders", max_msg_nums=5)).header.next_begin_offset == 5
            assert (await client.pull("Orders", max_msg_nums=32)).header.next_begin_offset == 32
            assert (await client.pull("Orders", max_msg_nums=32, max_msg_bytes=3500)).header.next_begin_offset < 4
            assert (await client.pull("Orders", max_msg_nums=32, max_msg_bytes=10)).header.next_begin_offset == 1

    run(main())


def test_odd_numbers_are_answered(tmp_path: Path) -> None:
    """Counts and sizes of nothing, below it and beyond 32 bits, offsets at both ends of 64 bits and beyond, times
    that are over or never will be: each pull is answered, and the connection goes on."""
    least, most = -(1 << 63), (1 << 63) - 1

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            for _ in range(5):
                await client.send("Orders", b"x")
            connection = await client.channel.connect()

            async def ask(**changed: Any) -> tuple[int, int, int]:
                ext = pull_of(sys_flag=4, subscription="*").to_ext()
                ext |= {name: str(value) for name, value in changed.items()}
                response = await connection.exchange(Command(11, opaque=3, ext=ext), timeout_ms=60_000)
                found = len(decode_pull_body(response.body)) if response.body else 0
                return response.code, int((response.ext or {}).get("nextBeginOffset", -1)), found

            for count, found in ((0, 1), (-1, 1), (-(1 << 31), 1), (33, 5), ((1 << 31) - 1, 5), (most, 5)):
                assert await ask(maxMsgNums=count) == (0, found, found)
            for size, found in ((0, 5), (-1, 5), (1, 1), ((1 << 31) - 1, 5)):
                assert await ask(maxMsgBytes=size) == (0, found, found)
            assert await ask(queueOffset=least) == (21, 0, 0)
            assert await ask(queueOffset=most) == (21, 5, 0)
            assert await ask(queueOffset=1 << 80) == (21, 5, 0)
            for queue_id in (-1, 4, 1 << 40):
                assert (await ask(queueId=queue_id))[0] == 29
            for wait_ms in (0, -1, least):
                assert await ask(queueOffset=5, sysFlag=6, suspendTimeoutMillis=wait_ms) == (19, 5, 0)
            assert await ask(sysFlag=5, commitOffset=-1) == (0, 5, 5)
            assert (await ask(sysFlag=5, commitOffset=1 << 80))[0] == 1
            assert cluster.broker.offsets.query("CG", "Orders", 0) == -1
            for text in ("", "1.5", "1e3", "many", "0x1"):
                assert (await ask(queueOffset=text))[0] == 1
            never = asyncio.ensure_future(ask(queueOffset=5, sysFlag=6, suspendTimeoutMillis=most))
            await until_held(cluster, 1)
            await client.send("Orders", b"x")
            assert await never == (0, 6, 1)

    run(main())


def test_a_bulk_reader_gets_megabytes(tmp_path: Path) -> None:
    """Asking for more than 32 messages lifts the limits that protect small readers."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            for _ in range(3):
                await asyncio.gather(*(client.send("Orders", b"x" * 1000) for _ in range(700)))
            answer = await client.pull("Orders", max_msg_nums=100_000, max_msg_bytes=64 << 20)
            assert answer.header.next_begin_offset == 2100
            assert len(answer.body) > 2_100_000

    run(main())


def test_tags_are_filtered_on_the_broker(tmp_path: Path) -> None:
    """By the tag's hash: one tag, two tags, all, none that exists; from the heartbeat and from the request."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            for number in range(9):
                await client.send("Orders", b"%d" % number, properties={"TAGS": "abc"[number % 3]})

            async def bodies(text: str) -> list[int]:
                answer = await client.pull("Orders", subscription=text)
                assert answer.header.next_begin_offset == 9
                return [int(each.body) for each in decode_pull_body(answer.body)] if answer.code == 0 else []

            assert await bodies("a") == [0, 3, 6]
            assert await bodies(" a || c ") == [0, 2, 3, 5, 6, 8]
            assert await bodies("*") == await bodies("") == list(range(9))
            assert await bodies("nothing") == []
            await client.heartbeat(consumers={"CG": {"Orders": "b"}})
            answer = await client.call(pull_of(sub_version=1))
            assert [int(each.body) for each in decode_pull_body(answer.body)] == [1, 4, 7]

    run(main())


def held(cluster: Cluster) -> int:
    return cluster.broker.long_polls.count


async def until_held(cluster: Cluster, count: int) -> None:
    while held(cluster) != count:
        await asyncio.sleep(0.001)


def test_a_waiting_pull_is_answered_by_an_arrival_that_it_wants(tmp_path: Path) -> None:
    """Another queue, another topic and another tag must not wake it; the wanted message must."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client, other = cluster.client(), cluster.client()
            await set_topic(client, "Orders")
            waiting = asyncio.create_task(
                client.pull("Orders", subscription="paid", sys_flag=6, suspend_timeout_millis=20_000)
            )
            await until_held(cluster, 1)
            await other.send("Orders", b"1", queue_id=1, properties={"TAGS": "paid"})
            await other.send("Else", b"2", properties={"TAGS": "paid"})
            await other.send("Orders", b"3", properties={"TAGS": "open"})
            assert held(cluster) == 1
            await other.send("Orders", b"4", properties={"TAGS": "paid"})
            answer = await waiting
            assert [each.body for each in decode_pull_body(answer.body)] == [b"4"]
            assert (answer.header.next_begin_offset, held(cluster)) == (2, 0)

    run(main())


@pytest.mark.parametrize("is_long", [True, False])
def test_a_waiting_pull_is_answered_when_its_time_is_over(tmp_path: Path, is_long: bool) -> None:
    """After its own time, or after shortPollingTimeMills where long polling is off."""

    async def main() -> None:
        settings: dict[str, Any] = {"long_polling_enable": is_long, "short_polling_time_mills": 50}
        async with broker_cluster(tmp_path, **settings) as cluster:
            client = cluster.client()
            await set_topic(client, "Orders")
            timeout_ms = 50 if is_long else 60_000
            answer = await client.pull("Orders", sys_flag=6, suspend_timeout_millis=timeout_ms)
            assert (answer.code, answer.header.next_begin_offset, held(cluster)) == (19, 0, 0)

    run(main())


def test_waiting_pulls_are_bounded_and_end_with_their_connection(tmp_path: Path) -> None:
    """The third of two is answered at once; the places of a closed connection are free again, while the clock
    stands still: nobody has to look for them first."""

    async def main() -> None:
        async with broker_cluster(tmp_path, long_polls_max=2, clock=ManualClock()) as cluster:
            client, other = cluster.client(), cluster.client()
            await set_topic(client, "Orders")
            tasks = [
                asyncio.create_task(client.pull("Orders", sys_flag=6, suspend_timeout_millis=60_000))
                for _ in range(2)
            ]
            await until_held(cluster, 2)
            assert (await other.pull("Orders", sys_flag=6, suspend_timeout_millis=60_000)).code == 19
            await client.channel.close()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until_held(cluster, 0)

    run(main())


def test_offsets_are_committed_on_the_way(tmp_path: Path) -> None:
    """The commit flag of a pull stores its commitOffset; without the flag nothing is stored."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.send("Orders")
            await client.pull("Orders", sys_flag=4, commit_offset=7)
            assert cluster.broker.offsets.query("CG", "Orders", 0) == -1
            await client.pull("Orders", sys_flag=5, commit_offset=1)
            assert cluster.broker.offsets.query("CG", "Orders", 0) == 1

    run(main())


def test_a_consumer_that_stops_reading_does_not_cost_memory(tmp_path: Path) -> None:
    """It asks for 64 MB and reads nothing: its pulls wait, others are served, and it gets all once it reads."""

    async def main() -> None:
        settings: dict[str, Any] = {"output_soft_limit_bytes": 1 << 20, "output_hard_limit_bytes": 2 << 20}
        async with broker_cluster(tmp_path, **settings) as cluster:
            client = cluster.client()
            for _ in range(4):
                await client.send("Orders", b"x" * 1_000_000)
            host, port = cluster.broker.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
            for opaque in range(64):
                from rmq_core.protocol.command import encode_command

                request = pull_of(max_msg_nums=1, sys_flag=4, subscription="*")
                writer.write(encode_command(Command(11, opaque=opaque, ext=request.to_ext())))
            await writer.drain()
            for _ in range(5):
                assert (await client.pull("Orders", max_msg_nums=1)).code == 0
            waiting = [each for each in cluster.apps[0]._server.connections if each.is_congested]
            assert len(waiting) == 1
            total = 0
            for _ in range(64):
                size = int.from_bytes(await reader.readexactly(4), "big")
                total += len(await reader.readexactly(size))
            assert total > 64_000_000
            writer.close()

    run(main())

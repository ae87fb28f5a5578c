"""Administration beside running consumers, from many threads, in forked children, and with name servers away."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pickle
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

import rmq_core
from rmq_core.aio import LitePullConsumer, PushConsumer
from rmq_core.client.admin import Admin
from rmq_core.client.admin_base import SomeBrokersFailedError
from rmq_core.client.admin_results import TrackStatus
from rmq_core.client.listen_results import RetryLater
from rmq_core.client.received import ReceivedMessage
from rmq_core.errors import BrokerError, ConnectError
from rmq_core.protocol.bodies import ConsumeResult
from rmq_core.protocol.message import MessageQueue
from support.admins import admin_of
from support.brokers import Cluster, broker_cluster, run
from support.cluster import address_of


def names_of(cluster: Cluster) -> list[str]:
    return [address_of(each) for each in cluster.name_servers]


async def until(condition: Any) -> None:
    """Wait for something that consumers bring about."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("to", "keeps"),
    [("earliest", True), ("time", True), (3, True), ("earliest", False), ("time", False)],
)
def test_a_group_moves_while_its_consumer_runs(
    tmp_path: Path, to: Literal["earliest", "latest", "time"] | int, keeps: bool
) -> None:
    """Lets ten messages be consumed, moves the group back, and counts which come again.

    On brokers that keep resets, and on those that tell the members, which cannot be moved to an offset.
    """

    async def main() -> None:
        async with (
            broker_cluster(tmp_path, use_server_side_reset_offset=keeps) as cluster,
            admin_of(cluster) as admin,
        ):
            await admin.create_topic("Orders", 1)
            client = cluster.client()
            for number in range(10):
                await client.send("Orders", b"%d" % number)
            got: Counter[int] = Counter()

            async def handle(message: ReceivedMessage) -> None:
                got[int(message.body)] += 1

            consumer = PushConsumer("billing", start_from="earliest", name_server=names_of(cluster))
            consumer.subscribe("Orders", handle)
            queue = MessageQueue("Orders", "broker-a", 0)
            async with consumer:
                await until(lambda: got.total() == 10)
                while (await admin.offsets("billing", "Orders"))[queue] != 10:
                    await consumer.persist_offsets()
                assert (await admin.lag("billing")).count == 0
                place = datetime.now(UTC) - timedelta(days=1) if to == "time" else to
                first = 3 if to == 3 else 0
                assert await admin.reset_offsets("billing", "Orders", place) == {queue: first}
                await until(lambda: got.total() >= 20 - first)
            assert all(got[number] == (2 if number >= first else 1) for number in range(10)), got

    run(main())


def test_a_running_consumer_shows_itself_and_takes_a_message_directly(tmp_path: Path) -> None:
    """A real consumer of each answer: consumed, to be tried again, and failed."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 2)
            got: list[bytes] = []

            async def handle(message: ReceivedMessage) -> None:
                got.append(message.body)
                if message.body == b"later":
                    raise RetryLater
                if message.body == b"fail":
                    raise ValueError("on purpose")

            consumer = PushConsumer("billing", name_server=names_of(cluster))
            consumer.subscribe("Orders", handle, tags="paid")
            async with consumer:
                (member,) = (await admin.consumer_connections("billing")).members
                await until(lambda: len(consumer.queues) >= 2)
                info = await admin.running_info("billing", member.client_id, stacks=True)
                assert info.subscriptions["Orders"].tags == ("paid",)
                assert MessageQueue("Orders", "broker-a", 0) in info.queues
                assert info.stacks is not None
                assert "MainThread" in info.stacks
                positions = await admin.member_positions("billing", "Orders")
                assert set(positions) == {member.client_id}
                client = cluster.client()
                for body, result in (
                    (b"fine", ConsumeResult.CR_SUCCESS),
                    (b"later", ConsumeResult.CR_LATER),
                    (b"fail", ConsumeResult.CR_THROW_EXCEPTION),
                ):
                    sent = await client.send("Orders", body, properties={"TAGS": "created"})
                    found = await admin.consume_directly("billing", member.client_id, sent.header.msg_id)
                    assert found.result is result, body
                assert got == [b"fine", b"later", b"fail"]
            with pytest.raises(BrokerError):
                await admin.running_info("billing", member.client_id)

    run(main())


def test_a_message_is_tracked_to_consumers_that_really_had_it(tmp_path: Path) -> None:
    """A push consumer that consumed it, one whose filter left it out, and a pull consumer."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 1)
            sent = await cluster.client().send("Orders", properties={"TAGS": "paid"})
            names = names_of(cluster)
            consumers = [
                PushConsumer("all", start_from="earliest", name_server=names),
                PushConsumer("others", start_from="earliest", name_server=names),
            ]
            for consumer, tags in zip(consumers, ("paid", "shipped"), strict=True):
                consumer.subscribe("Orders", lambda message: None, tags=tags)
            message = await admin.view_message(sent.header.msg_id)
            async with consumers[0], consumers[1], LitePullConsumer("pulls", name_server=names) as puller:
                await puller.subscribe("Orders")
                wanted = {
                    "all": TrackStatus.CONSUMED,
                    "others": TrackStatus.CONSUMED_BUT_FILTERED,
                    "pulls": TrackStatus.PULL,
                }
                async with asyncio.timeout(60):
                    while {each.group: each.status for each in await admin.message_track(message)} != wanted:
                        for consumer in consumers:
                            await consumer.persist_offsets()
                        await asyncio.sleep(0.01)

    run(main())


def test_one_living_name_server_is_enough_to_look(tmp_path: Path) -> None:
    """The first of the list does not exist. What must reach all of them fails, and says which is away."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            names = ["127.0.0.1:1", *names_of(cluster)]
            async with Admin(name_server=names) as admin:
                await admin.create_topic("Orders", 1)
                for _ in range(10):
                    assert "Orders" in await admin.topics()
                with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
                    await admin.put_kv("N", "k", "v")
                assert cluster.name_servers[0].kv.get("N", "k") == "v"

    run(main())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux shows them")
def test_nothing_is_left_open(tmp_path: Path) -> None:
    """Opens, uses and closes twenty administrators, and counts this process's open files."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster:

            async def use() -> None:
                async with admin_of(cluster) as admin:
                    await admin.stats("TOPIC_PUT_NUMS", "Nothing")

            await use()
            await asyncio.sleep(0)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                await use()
            # The brokers are in this process too: they see the ends a moment later.
            await until(lambda: len(os.listdir("/proc/self/fd")) <= before)

    run(main())


def test_many_threads_share_the_blocking_form() -> None:
    """Eight threads make and delete topics; the first use of all of them comes at the same time."""
    with rmq_core.embedded() as mq, rmq_core.Admin(name_server=mq.name_server) as admin:

        def work(number: int) -> int:
            for step in range(5):
                admin.create_topic(f"T-{number}-{step}", 1)
            admin.delete_topic(f"T-{number}-0")
            return len(admin.topic_settings(f"T-{number}-1"))

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [1] * 8
        assert len(admin.topics()) == 32


FORKING = """
import os, sys
import rmq_core

admin = rmq_core.Admin(name_server=sys.argv[1])
admin.create_topic("Parent", 1)
pid = os.fork()
if pid == 0:
    admin.create_topic("Child", 1)
    os._exit(0 if "Parent" in admin.topics() else 1)
_, status = os.waitpid(pid, 0)
admin.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_opens_again() -> None:
    """Uses the parent's administrator in the child, and the parent's own connections afterwards."""
    with rmq_core.embedded() as mq, rmq_core.Admin(name_server=mq.name_server) as admin:
        subprocess.run([sys.executable, "-c", FORKING, mq.name_server], check=True, timeout=60)
        assert admin.topics() == ("Child", "Parent")


def test_the_error_of_some_brokers_survives_a_pickle() -> None:
    """As it must where processes hand exceptions on."""
    error = SomeBrokersFailedError({"broker-b": ConnectError("away")}, {"broker-a": 5})
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "1 of 2 brokers failed (broker-b: away)"
    assert (list(again.failed), again.done) == (["broker-b"], {"broker-a": 5})

"""GroupMember against real brokers: seen by tools as a member, told of resets and changes, gone when it leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client.group_member import GroupMember
from rmq_core.client.options import Intervals
from rmq_core.client.queue_client import QueueClient
from rmq_core.client.subscriptions import subscription
from rmq_core.errors import BrokerError, ClientError, ConnectError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeType,
    GetConsumerStatusBody,
    MessageModel,
)
from rmq_core.protocol.message import MessageQueue
from support.threaded import Threaded, threaded_cluster, until

TOPIC, GROUP = "Orders", "spark-orders"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Threaded]:
    with threaded_cluster(tmp_path, masters=2) as cluster:
        for number in (0, 1):
            cluster.create_topic(TOPIC, number=number)
        yield cluster


def connection(running: Threaded, number: int = 0) -> ConsumerConnection:
    """What consumerConnection of mqadmin shows; the group is offline where it raises."""
    answer = running.do(running.client(number).call(r.GetConsumerConnectionList(GROUP)))
    return ConsumerConnection.decode(answer.body)


def client_ids(running: Threaded, number: int = 0) -> list[str | None]:
    try:
        return [each.client_id for each in connection(running, number).connection_set]
    except BrokerError:
        return []


def member_of(client: QueueClient, **arguments: Any) -> GroupMember:
    return GroupMember(client, GROUP, [subscription(TOPIC, tags="paid")], **arguments)


def test_tools_see_the_member_on_every_broker_until_it_leaves(running: Threaded) -> None:
    """Looks before, during and after with another client's eyes; leaving twice is one leaving."""
    with QueueClient(running.options()) as client:
        member = member_of(client, client_id="10.0.0.1@query-7")
        assert member.members() == []
        assert client_ids(running) == []
        member.join()
        member.join()
        for number in (0, 1):
            seen = connection(running, number)
            assert [each.client_id for each in seen.connection_set] == ["10.0.0.1@query-7"]
            assert seen.consume_type is ConsumeType.CONSUME_ACTIVELY
            assert seen.message_model is MessageModel.CLUSTERING
            assert seen.subscription_table[TOPIC].sub_string == "paid"
        assert member.members() == ["10.0.0.1@query-7"]
        other = member_of(client, client_id="other")
        assert other.members() == ["10.0.0.1@query-7"]
        other.leave()
        member.leave()
        member.leave()
        assert client_ids(running, 0) == client_ids(running, 1) == []
        with pytest.raises(ClientError, match="left"):
            member.join()
    assert not [each for each in threading.enumerate() if each.name.startswith(("member", "heartbeats"))]


def test_a_group_that_joined_may_store_progress_at_once(running: Threaded) -> None:
    """Nothing was pulled: the heartbeat alone makes the group known."""
    with QueueClient(running.options(), group=GROUP) as client, member_of(client):
        client.commit(dict.fromkeys(client.queues(TOPIC), 0))
        assert client.group_offsets([QUEUE]) == {QUEUE: 0}


def test_it_hears_of_others_that_come_and_go(running: Threaded) -> None:
    """A second member joins and leaves; the first is told each time."""
    told = threading.Semaphore(0)
    with QueueClient(running.options()) as client, member_of(client, on_members_changed=told.release) as member:
        # Its own joining is told too, by each of the two brokers.
        while told.acquire(timeout=1):
            pass
        with member_of(client, client_id="second"):
            assert told.acquire(timeout=10)
            assert member.members() == sorted([member.client_id, "second"])
            while told.acquire(timeout=1):
                pass
        assert told.acquire(timeout=10)
        assert member.members() == [member.client_id]


def test_it_comes_back_by_itself(running: Threaded) -> None:
    """The connection is cut, then the broker is restarted: the member is back without the help of a timer."""
    with running.proxy() as proxy:
        mapping = {running.broker.address: proxy.address}
        with QueueClient(running.options(broker_address_map=mapping)) as client, member_of(client) as member:
            assert client_ids(running) == [member.client_id]
            made = proxy.connections_made
            proxy.cut()
            until(lambda: proxy.connections_made > made, "it connects again")
            until(lambda: client_ids(running) == [member.client_id], "it is a member again")
            running.restart()
            until(lambda: client_ids(running) == [member.client_id], "it is a member after the restart")


def test_a_broker_that_is_away_does_not_keep_it_from_joining(running: Threaded) -> None:
    """One of two brokers is stopped when it joins, and told as soon as it is back."""
    with QueueClient(running.options()) as client:
        client.queues(TOPIC)
        start_again = running.stop(1)
        with member_of(client) as member:
            assert client_ids(running, 0) == [member.client_id]
            assert member.members() == [member.client_id]
            start_again()
            until(lambda: client_ids(running, 1) == [member.client_id], "the second broker knows it")


def test_heartbeats_go_on(tmp_path: Path) -> None:
    """With an interval of 50 ms, five of them arrive on one connection."""
    import dataclasses

    with threaded_cluster(tmp_path) as running:
        running.create_topic(TOPIC)
        options = dataclasses.replace(running.options(), intervals=Intervals(heartbeat_ms=50))
        beats = threading.Semaphore(0)
        with QueueClient(options) as client:
            member = member_of(client)
            beat = member._beat_to

            def counted(address: str) -> bool:
                beats.release()
                return beat(address)

            member._beat_to = counted  # type: ignore[method-assign]
            with member:
                for _ in range(5):
                    assert beats.acquire(timeout=10)
            until(lambda: client_ids(running) == [], "it is gone")


@pytest.mark.parametrize("is_namespaced", [False, True])
def test_a_reset_told_by_the_broker_arrives(tmp_path: Path, is_namespaced: bool) -> None:
    """As brokers of 4.9 reset: they tell the members. Other groups' resets are not ours."""
    prefix = "shop%" if is_namespaced else ""
    with threaded_cluster(tmp_path, use_server_side_reset_offset=False) as running:
        running.create_topic(prefix + TOPIC, queues=2)
        running.send(prefix + TOPIC, [b"x"] * 30)
        resets: list[tuple[str, Mapping[MessageQueue, int]]] = []
        told = threading.Event()

        def on_reset(topic: str, offsets: Mapping[MessageQueue, int]) -> None:
            resets.append((topic, offsets))
            told.set()

        options = running.options(namespace="shop" if is_namespaced else "")
        with QueueClient(options, group=GROUP) as client, member_of(client, on_reset=on_reset):
            client.commit({QUEUE: 20, MessageQueue(TOPIC, "broker-a", 1): 0})
            reset = r.InvokeBrokerToResetOffset(prefix + TOPIC, prefix + GROUP, 0, is_force=True)
            running.do(running.client().call(reset))
            assert told.wait(10)
        assert resets == [(TOPIC, {QUEUE: 0, MessageQueue(TOPIC, "broker-a", 1): 0})]


def test_administrators_may_ask_how_far_it_is(running: Threaded) -> None:
    """consumerStatus and the running information come through the broker from the member itself."""
    positions = {QUEUE: 17, MessageQueue("Other", "broker-a", 1): 3}
    with QueueClient(running.options()) as client, member_of(client, positions=lambda: positions) as member:
        status = running.do(running.client().call(r.InvokeBrokerToGetConsumerStatus(TOPIC, GROUP)))
        table = GetConsumerStatusBody.decode(status.body).consumer_table
        assert table == {member.client_id: {QUEUE: 17}}
        info = running.do(running.client().call(r.GetConsumerRunningInfo(GROUP, member.client_id, True)))
        running_info = ConsumerRunningInfo.decode(info.body)
        assert {queue: each.commit_offset for queue, each in running_info.mq_table.items()} == positions
        assert [each.topic for each in running_info.subscription_set] == [TOPIC]


def test_nobody_answers(tmp_path: Path) -> None:
    """All brokers are away: asking for members says so instead of saying that there are none."""
    with threaded_cluster(tmp_path) as running:
        running.create_topic(TOPIC)
        with QueueClient(running.options(), fetch_retries=1) as client:
            client.queues(TOPIC)
            running.stop()
            member = member_of(client)
            with pytest.raises(ConnectError):
                member.members()
            member.leave()


def test_topics_may_be_named_later(running: Threaded) -> None:
    """A member of no topic is nowhere; with the first topic it is seen, with others its subscription changes."""
    running.create_topic("Later", number=0)
    with QueueClient(running.options()) as client, GroupMember(client, GROUP, []) as member:
        assert member.members() == []
        member.subscribe([subscription("Later")])
        assert client_ids(running) == [member.client_id]
        member.subscribe([subscription("Later"), subscription(TOPIC)])
        assert set(connection(running).subscription_table) == {"Later", TOPIC}
        assert client_ids(running, 1) == [member.client_id]

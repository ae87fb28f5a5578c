"""Our name server with Apache's broker, Apache's name server with our broker, and both brokers in one cluster."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import rmq_core
from interop.apache import apache_broker, apache_names, mqadmin
from interop.artifacts import ROCKETMQ
from interop.clients import CLIENTS
from interop.driver import Driver
from interop.servers import wait_until
from rmq_core import Message, MessageQueue, Producer
from rmq_core.errors import RocketMQError

OURS, APACHE = "ours", "apache"
QUEUES = 2
SETTINGS: Final[dict[str, Any]] = {
    "messageDelayLevel": "1s 1s 1s 1s 1s",
    # A busy machine would make a broker refuse what a test sends.
    "brokerFastFailureEnable": "false",
}


@dataclass(frozen=True, slots=True)
class MixedCluster:
    """A broker of ours and one of Apache's, registered with one name server."""

    version: str
    name_server: str
    home: Path
    brokers: dict[str, str]
    """Addresses by broker name."""

    def mqadmin(self, *arguments: str) -> str:
        """What Apache's tool prints."""
        done = mqadmin(self.version, *arguments, "-n", self.name_server, home=self.home)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def create_topic(self, topic: str, *brokers: str) -> None:
        """Make a topic with two queues on each broker named, and wait until the name server gives all of them."""
        with rmq_core.Admin(name_server=self.name_server) as admin:
            for broker in brokers:
                admin.create_topic(topic, queues=QUEUES, broker=broker)
            wait_until(
                lambda: _brokers_of(admin, topic) == {*brokers}, f"{topic} is not on {brokers} for the name server"
            )


def _brokers_of(admin: rmq_core.Admin, topic: str) -> set[str]:
    try:
        return {queue.broker_name for queue in admin.topic_route(topic).write_queues}
    except RocketMQError:
        return set()


def _registered(admin: rmq_core.Admin) -> set[str]:
    return {*admin.cluster_info().brokers}


@pytest.fixture(scope="module", params=ROCKETMQ)
def version(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module", params=[OURS, APACHE])
def cluster(
    request: pytest.FixtureRequest, version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MixedCluster]:
    """Both brokers, with the name server of either side."""
    home = tmp_path_factory.mktemp(f"mixed-{request.param}-{version}")
    ours = {"brokerName": OURS, "brokerClusterName": "DefaultCluster", **SETTINGS}
    with contextlib.ExitStack() as stack:
        if request.param == APACHE:
            name_server = stack.enter_context(apache_names(version, home / "names"))
            our_broker = stack.enter_context(
                rmq_core.embedded(home / OURS / "store", namesrvAddr=name_server, **ours)
            )
        else:
            our_broker = stack.enter_context(rmq_core.embedded(home / OURS / "store", **ours))
            name_server = our_broker.name_server
        theirs = stack.enter_context(
            apache_broker(version, home / APACHE, name_server, brokerName=APACHE, **SETTINGS)
        )
        brokers = {OURS: our_broker.address, APACHE: theirs.broker}
        with rmq_core.Admin(name_server=name_server) as admin:
            # Apache's broker says that it serves before it has registered, and tries again every half minute.
            wait_until(lambda: _registered(admin) == {*brokers}, "a broker is not registered", timeout_s=90)
        yield MixedCluster(version, name_server, home, brokers)


@pytest.fixture(params=["ours", "java"])
def member(request: pytest.FixtureRequest, cluster: MixedCluster) -> Iterator[Driver]:
    name = request.param if request.param == "ours" else f"java-{cluster.version}-json"
    with CLIENTS[name].start(cluster.name_server) as driver:
        yield driver


def _send_to_each_queue(cluster: MixedCluster, topic: str, *brokers: str) -> set[str]:
    """Ten messages of our producer for each queue."""
    sent = set()
    with Producer("Ours", name_server=cluster.name_server) as producer:
        for broker, queue, number in itertools.product(brokers, range(QUEUES), range(10)):
            body = f"{broker} {queue} {number}"
            result = producer.send(
                Message(topic, body.encode(), tags="a"), queue=MessageQueue(topic, broker, queue)
            )
            assert result.queue == MessageQueue(topic, broker, queue)
            sent.add(body)
    return sent


def _bodies(driver: Driver) -> list[str]:
    return [event["body"] for event in driver.messages()]


def _lag_is_zero(cluster: MixedCluster, group: str, topic: str) -> bool:
    with rmq_core.Admin(name_server=cluster.name_server) as admin:
        try:
            return admin.lag(group, topic=topic).count == 0
        except RocketMQError:
            return False


@pytest.mark.parametrize("place", [OURS, APACHE])
def test_a_topic_of_one_broker(cluster: MixedCluster, member: Driver, place: str) -> None:
    """Each client sends, receives what both producers sent, and once more what it put back, on either broker."""
    topic = f"On_{place}_{id(member)}"
    cluster.create_topic(topic, place)
    member.ask("producer", name="P")
    member.ask("send_many", name="P", topic=topic, body="mine ", count=20, tags="a")
    member.ask("send", name="P", topic=topic, body="delayed", tags="a", delayLevel=1)
    sent = _send_to_each_queue(cluster, topic, place) | {"delayed", *(f"mine {number}" for number in range(20))}
    member.ask("push", name=topic, topic=topic, tags="a", failures=1)
    member.wait(lambda events: len(events) >= 2 * len(sent))
    assert Counter(_bodies(member)) == dict.fromkeys(sent, 2)
    wait_until(lambda: _lag_is_zero(cluster, topic, topic), "the group never stored its progress")


def test_one_topic_across_both_brokers(cluster: MixedCluster, member: Driver) -> None:
    """Every queue of either broker is written and read once; the group's progress is whole."""
    topic = f"Across_{id(member)}"
    cluster.create_topic(topic, OURS, APACHE)
    member.ask("producer", name="P")
    results = member.ask("send_many", name="P", topic=topic, body="mine ", count=40, tags="a")
    assert len({result["offsetMsgId"] for result in results}) == 40
    sent = _send_to_each_queue(cluster, topic, OURS, APACHE) | {f"mine {number}" for number in range(40)}
    member.ask("push", name=topic, topic=topic)
    member.wait(lambda events: {each["body"] for each in events} >= sent)
    assert sorted(_bodies(member)) == sorted(sent)
    with rmq_core.Admin(name_server=cluster.name_server) as admin:
        held = dict.fromkeys(cluster.brokers, 0)
        for queue in admin.topic_route(topic).write_queues:
            held[queue.broker_name] += admin.max_offset(queue)
    assert sum(held.values()) == len(sent)
    assert all(count > QUEUES * 10 for count in held.values()), "its producer left one broker out"
    wait_until(lambda: _lag_is_zero(cluster, topic, topic), "the group never stored its progress")


def test_members_in_two_languages_share_both_brokers(cluster: MixedCluster) -> None:
    """A Java member and one of ours divide the queues of both brokers, and no message comes twice or not at all."""
    topic = "Shared"
    cluster.create_topic(topic, OURS, APACHE)
    java = CLIENTS[f"java-{cluster.version}-json"]
    with java.start(cluster.name_server) as theirs, CLIENTS["ours"].start(cluster.name_server) as ours:
        for member in (theirs, ours):
            member.ask("push", name=topic, topic=topic)
        with rmq_core.Admin(name_server=cluster.name_server) as admin:
            wait_until(lambda: _owners(admin, topic) == [QUEUES, QUEUES], "the members never shared the queues")
        sent = _send_to_each_queue(cluster, topic, OURS, APACHE)
        wait_until(lambda: len(theirs.messages()) + len(ours.messages()) >= len(sent), "messages are missing")
        assert sorted(_bodies(theirs) + _bodies(ours)) == sorted(sent)
        assert len(_bodies(theirs)) == len(_bodies(ours)) == len(sent) // 2


def _owners(admin: rmq_core.Admin, group: str) -> list[int]:
    """How many queues each member reads."""
    try:
        connections = admin.consumer_connections(group)
        running = [admin.running_info(group, member.client_id) for member in connections.members]
    except RocketMQError:
        return []
    return [sum(queue.topic == group for queue in each.queues) for each in running]


def test_mqadmin_sees_one_cluster(cluster: MixedCluster) -> None:
    """Apache's tool lists both brokers, and a topic's queues on both."""
    cluster.create_topic("Seen", OURS, APACHE)
    sent = _send_to_each_queue(cluster, "Seen", OURS, APACHE)
    listed = cluster.mqadmin("clusterList")
    status = cluster.mqadmin("topicStatus", "-t", "Seen")
    for name, address in cluster.brokers.items():
        assert name in listed
        assert address in listed
        for queue in range(QUEUES):
            assert [name, str(queue), "0", "10"] in [line.split()[:4] for line in status.splitlines()]
    assert len(sent) == 2 * QUEUES * 10

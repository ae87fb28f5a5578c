"""The client instance against real name servers and brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from rmq_core.client.instance import ClientInstance, acquire, release
from rmq_core.client.options import ClientArguments, client_options
from rmq_core.client.routes import TopicRoute
from rmq_core.errors import ClientClosedError, ClientError, ConnectError, NoRouteError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    GetConsumerListByGroupResponseBody,
    SubscriptionData,
)
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import StoredRecord
from support.brokers import Cluster, broker_cluster, run
from support.cluster import address_of


class Member:
    """A consumer that only wants to be in its group."""

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.changes: list[TopicRoute] = []
        self.rebalanced = asyncio.Event()
        self.resets: list[tuple[str, dict[MessageQueue, int]]] = []

    def topics(self) -> Collection[str]:
        return (self.topic,)

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(self.group, subscription_data_set=(SubscriptionData(self.topic, "*", sub_version=1),))

    def topic_changed(self, route: TopicRoute) -> None:
        self.changes.append(route)

    async def rebalance(self) -> None:
        self.rebalanced.set()

    async def persist_offsets(self) -> None:
        raise AssertionError("nothing to persist in these tests")

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.resets.append((topic, dict(offsets)))

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        return {MessageQueue(topic, "broker-a", 0): 7}

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(properties={"stacks": str(with_stacks)})

    async def consume_directly(self, record: StoredRecord, broker_name: str | None) -> ConsumeMessageDirectlyResult:
        return ConsumeMessageDirectlyResult(remark=record.body.decode())


def client_of(cluster: Cluster, **arguments: object) -> ClientInstance:
    names = [address_of(each) for each in cluster.name_servers]
    return ClientInstance(client_options(ClientArguments(name_server=names, **arguments)))  # type: ignore[typeddict-item]


async def members_of(client: ClientInstance, group: str) -> tuple[str, ...]:
    answer = await client.call(client.broker("broker-a").address, r.GetConsumerListByGroup(group))
    return GetConsumerListByGroupResponseBody.decode(answer.body).consumer_id_list


def test_a_route_is_fetched_once_for_all_who_wait(tmp_path: Path) -> None:
    """Asks ten times at once and counts the questions that the name server sees."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = client_of(cluster)
            await cluster.client().send("Orders")
            routes = await asyncio.gather(*(client.route("Orders") for _ in range(10)))
            assert all(each is routes[0] for each in routes)
            assert [queue.queue_id for queue in routes[0].write_queues] == [0, 1, 2, 3]
            assert client.broker("broker-a").address == cluster.broker.address
            await client.close()

    run(main())


def test_an_unknown_topic_is_told_apart_from_name_servers_that_are_away(tmp_path: Path) -> None:
    """Asks for a topic that nobody has, then asks name servers that do not exist."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = client_of(cluster)
            with pytest.raises(NoRouteError, match="Nowhere"):
                await client.route("Nowhere")
            lent = await client.route_or_default("Nowhere", queues=2)
            assert lent.is_default
            assert lent.write_queues == (
                MessageQueue("Nowhere", "broker-a", 0),
                MessageQueue("Nowhere", "broker-a", 1),
            )
            await client.close()
        lost = ClientInstance(client_options({"name_server": "127.0.0.1:1;127.0.0.1:2"}))
        with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2|127\.0\.0\.1:2.*127\.0\.0\.1:1"):
            await lost.route("Orders")
        await lost.close()

    run(main())


def test_another_name_server_answers_for_one_that_is_gone(tmp_path: Path) -> None:
    """Stops one of two name servers and asks again."""

    async def main() -> None:
        async with broker_cluster(tmp_path, names=2) as cluster:
            await cluster.client().send("Orders")
            client = client_of(cluster)
            await client.route("Orders")
            await cluster.name_servers[0].close()
            for _ in range(3):
                assert (await client.route("Orders", refresh=True)).write_queues
            await client.close()

    run(main())


def test_a_member_is_known_to_the_broker_until_it_leaves(tmp_path: Path) -> None:
    """Looks at the broker's list of members after the heartbeat, after a reconnect and after leaving."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await cluster.client().send("Orders")
            client = client_of(cluster)
            await client.start()
            member = Member("readers", "Orders")
            client.add_consumer(member)
            await client.route("Orders")
            await client.heartbeat()
            assert await members_of(client, "readers") == (client.client_id,)
            assert client.versions[cluster.broker.address] >= 400
            # The connection is lost; the first call of the new one finds us known.
            (await client.channel(cluster.broker.address).connect()).abort()
            await asyncio.sleep(0)
            assert await members_of(client, "readers") == (client.client_id,)
            await client.remove_consumer(member)
            watcher = client_of(cluster)
            await watcher.route("Orders")
            with pytest.raises(Exception, match="readers"):
                await members_of(watcher, "readers")
            await watcher.close()
            await client.close()

    run(main())


def test_members_are_told_when_one_comes(tmp_path: Path) -> None:
    """A second member joins; the first one rebalances long before its 20 s are over."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await cluster.client().send("Orders")
            first, second = client_of(cluster), client_of(cluster)
            members = []
            for client in (first, second):
                await client.start()
                members.append(Member("readers", "Orders"))
                client.add_consumer(members[-1])
                await client.route("Orders")
                await client.heartbeat()
            members[0].rebalanced.clear()
            async with asyncio.timeout(10):
                await members[0].rebalanced.wait()
            for client in (first, second):
                await client.close()

    run(main())


def test_brokers_can_ask_a_member_about_itself(tmp_path: Path) -> None:
    """Asks through the broker, as administrators do, for running information and for a reset."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await cluster.client().send("Orders")
            client = client_of(cluster)
            await client.start()
            member = Member("readers", "Orders")
            client.add_consumer(member)
            await client.route("Orders")
            await client.heartbeat()
            asker = cluster.client()
            answer = await asker.call(r.GetConsumerRunningInfo("readers", client.client_id, jstack_enable=True))
            assert ConsumerRunningInfo.decode(answer.body).properties == {"stacks": "True"}
            await client.close()

    run(main())


def test_one_group_stands_once_in_a_client_and_a_closed_client_stays_closed(tmp_path: Path) -> None:
    """Adds the group twice, and uses the client after close()."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = client_of(cluster)
            client.add_consumer(Member("readers", "Orders"))
            with pytest.raises(ClientError, match="readers"):
                client.add_consumer(Member("readers", "Orders"))
            await client.close()
            await client.close()
            with pytest.raises(ClientClosedError):
                await client.start()

    run(main())


def test_an_instance_name_shares_one_client_and_the_last_user_closes_it(tmp_path: Path) -> None:
    """Acquires twice, releases twice, and tries other settings in between."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            names = address_of(cluster.name_servers[0])
            options = client_options({"name_server": names, "instance_name": "shared"})
            first = await acquire(options)
            second = await acquire(client_options({"name_server": names, "instance_name": "shared"}))
            assert first is second
            with pytest.raises(ClientError, match="other settings"):
                await acquire(client_options({"name_server": "127.0.0.1:1", "instance_name": "shared"}))
            await release(first)
            await second.route_or_default("Orders", queues=4)
            await release(second)
            with pytest.raises(ClientClosedError):
                second.channel("127.0.0.1:1")
            third = await acquire(options)
            assert third is not first
            await release(third)

    run(main())

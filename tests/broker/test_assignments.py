"""Queues that the broker shares among the members of a group (request 400)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.broker.assignments import STRATEGIES
from rmq_core.clock import ManualClock
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    MessageModel,
    MessageRequestMode,
    MessageRequestModeSerializeWrapper,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from support.brokers import Client, Cluster, broker_cluster, run


@pytest.mark.parametrize("name", STRATEGIES)
@given(queues=st.integers(0, 40), members=st.integers(1, 15))
def test_every_queue_goes_to_one_member_and_nobody_gets_two_more_than_another(
    name: str, queues: int, members: int
) -> None:
    """Any numbers of both, more members than queues among them."""
    shares = [STRATEGIES[name](queues, members, member) for member in range(members)]
    assert sorted(queue for share in shares for queue in share) == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_queues_are_shared_as_java_does() -> None:
    """Eight queues and three members, by both strategies."""
    assert [list(STRATEGIES["AVG"](8, 3, each)) for each in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [list(STRATEGIES["AVG_BY_CIRCLE"](8, 3, each)) for each in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]


async def assigned(
    client: Client,
    member: str,
    *,
    topic: str = "T",
    strategy: str = "AVG",
    model: MessageModel = MessageModel.CLUSTERING,
) -> list[tuple[str, int]] | None:
    body = QueryAssignmentRequestBody(topic, "G", member, strategy, model).encode()
    found = QueryAssignmentResponseBody.decode((await client.call(r.QueryAssignment(), body)).body)
    if found.message_queue_assignments is None:
        return None
    assert all(each.mode is MessageRequestMode.PULL for each in found.message_queue_assignments)
    queues = [each.message_queue for each in found.message_queue_assignments]
    return [(queue.broker_name, queue.queue_id) for queue in queues if queue is not None]


async def topic(cluster: Cluster, number: int) -> None:
    request = r.UpdateAndCreateTopic("T", 2, 2, 6, "SINGLE_TAG")
    await cluster.client(number).call(request)


def test_members_share_the_queues_of_all_brokers(tmp_path: Path) -> None:
    """Two brokers, two members; one who is not a member; broadcasting; unknown strategies and topics."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster:
            await topic(cluster, 0)
            await topic(cluster, 1)
            client = cluster.client()
            assert await assigned(client, "m-1") is None  # nobody is there yet
            for name in ("m-2", "m-1"):
                await cluster.client().heartbeat(name, consumers={"G": {"T": "*"}})
            everything = [("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1)]
            assert await assigned(client, "m-1") == everything[:2]
            assert await assigned(client, "m-2") == everything[2:]
            assert await assigned(client, "m-2", strategy="AVG_BY_CIRCLE") == everything[1::2]
            assert await assigned(client, "nobody") == []
            assert await assigned(client, "m-1", model=MessageModel.BROADCASTING) == everything
            assert await assigned(client, "m-1", strategy="CONSISTENT_HASH") is None
            assert await assigned(client, "m-1", topic="Nothing") is None
            cluster.broker.settings.server_load_balancer_enable = False
            assert await assigned(client, "m-1") == everything
            modes = MessageRequestModeSerializeWrapper.decode(
                (await client.call(r.GetAllMessageRequestMode())).body
            )
            assert modes.message_request_mode_map == {}

    run(main())


def test_a_broker_without_name_servers_shares_its_own_queues(tmp_path: Path) -> None:
    """The name server dies: the last route counts, and for a topic that was never asked for its own queues."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, masters=1, clock=clock) as cluster:
            await topic(cluster, 0)
            client = cluster.client()
            await client.heartbeat("m-1", consumers={"G": {"T": "*"}})
            assert await assigned(client, "m-1") == [("broker-a", 0), ("broker-a", 1)]
            await cluster.name_servers[0].close(drain_ms=0)
            await clock.advance(31_000)
            own = [("broker-a", 0), ("broker-a", 1)]
            assert await asyncio.wait_for(assigned(client, "m-1"), 60) == own
            for _ in range(2):  # asked, and kept
                assert await asyncio.wait_for(assigned(client, "m-1", topic="%RETRY%G"), 60) == [("broker-a", 0)]

    run(main())

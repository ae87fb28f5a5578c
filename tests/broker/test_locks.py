"""Orderly locks over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from rmq_core.protocol.message import MessageQueue
from support.brokers import Client, broker_cluster, run

QUEUES = tuple(MessageQueue("Orders", "broker-a", number) for number in range(3))


async def lock(
    client: Client, client_id: str, *queues: MessageQueue, group: str = "CG"
) -> tuple[MessageQueue, ...]:
    answer = await client.call(r.LockBatchMq(), LockBatchRequestBody(group, client_id, queues).encode())
    assert answer.code == 0
    return LockBatchResponseBody.decode(answer.body).locked


async def unlock(client: Client, client_id: str, *queues: MessageQueue, group: str = "CG") -> None:
    answer = await client.call(r.UnlockBatchMq(), UnlockBatchRequestBody(group, client_id, queues).encode())
    assert (answer.code, answer.body) == (0, b"")


def test_a_queue_is_held_by_one_client_of_a_group(tmp_path: Path) -> None:
    """Two clients over one connection, and another group: re-entrance, refusal, isolation, giving back."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            assert await lock(client, "one", *QUEUES[:2]) == QUEUES[:2]
            assert await lock(client, "one", *QUEUES[:2]) == QUEUES[:2]
            assert await lock(client, "two", *QUEUES) == QUEUES[2:]
            assert await lock(client, "two", *QUEUES, group="CG-2") == QUEUES
            await unlock(client, "two", *QUEUES)
            assert await lock(client, "two", *QUEUES[:2]) == ()
            await unlock(client, "one", QUEUES[0])
            assert await lock(client, "two", *QUEUES) == (QUEUES[0], QUEUES[2])

    run(main())


def test_the_lock_of_a_dead_client_ends_after_a_minute(tmp_path: Path) -> None:
    """Its connection breaks and nothing is given back; the other client asks every 20 s, as clients do."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            dead, alive = cluster.client(), cluster.client()
            await lock(dead, "dead", QUEUES[0])
            await dead.channel.close()
            granted = []
            for _ in range(4):
                granted.append(await lock(alive, "alive", QUEUES[0]))
                await clock.advance(20_000)
            assert granted == [(), (), (), ()]
            assert await lock(alive, "alive", QUEUES[0]) == QUEUES[:1]

    run(main())


@pytest.mark.parametrize("body", [b"", b"5", b'{"mqSet":[{"topic":"T"}]}', b'{"mqSet":7}'])
def test_what_is_no_list_of_queues_is_refused(tmp_path: Path, body: bytes) -> None:
    """Bad bodies get code 1 and change nothing."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            for request in (r.LockBatchMq(), r.UnlockBatchMq()):
                with pytest.raises(BrokerError) as raised:
                    await client.call(request, body)
                assert raised.value.code == 1
            assert await lock(client, "one", *QUEUES) == QUEUES

    run(main())

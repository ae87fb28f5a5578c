"""Header fields that are numbers and booleans in JSON, as clients in languages without types write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_core.protocol import requests as r
from rmq_core.protocol.command import Command
from rmq_core.protocol.record import BatchRecord, decode_pull_body, encode_batch
from support.brokers import Client, broker_cluster, run

SEND: dict[str, Any] = {
    "producerGroup": "PG",
    "topic": "Orders",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 0,
    "bornTimestamp": 1_700_000_000_000,
    "flag": 0,
    "properties": "UNIQ_KEY\x01k\x02",
    "reconsumeTimes": 0,
    "unitMode": False,
    "maxReconsumeTimes": 16,
    "batch": False,
}
SEND_V2 = dict(zip("abcdefghijklm", SEND.values(), strict=True))
PULL: dict[str, Any] = {
    "consumerGroup": "CG",
    "topic": "Orders",
    "queueId": 0,
    "queueOffset": 0,
    "maxMsgNums": 32,
    "sysFlag": 4,
    "commitOffset": 0,
    "suspendTimeoutMillis": 0,
    "subVersion": 0,
    "subscription": "*",
}


async def exchange(client: Client, code: int, ext: dict[str, Any], body: bytes = b"") -> Command:
    connection = await client.channel.connect()
    return await connection.exchange(Command(code, opaque=9, ext=ext, body=body), timeout_ms=60_000)


def test_sends_pulls_and_commits_with_numbers_are_served(tmp_path: Path) -> None:
    """A message sent with either version, pulled, and committed; queue 0 and offset 0 count as numbers too."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            for code, ext in ((10, SEND), (310, SEND_V2)):
                sent = await exchange(client, code, ext, b"%d" % code)
                assert (sent.code, (sent.ext or {})["queueId"]) == (0, "0")
            pulled = await exchange(client, 11, PULL)
            assert pulled.code == 0
            assert [each.body for each in decode_pull_body(pulled.body)] == [b"10", b"310"]
            for offset in (0, 2):
                commit = {"consumerGroup": "CG", "topic": "Orders", "queueId": 0, "commitOffset": offset}
                done = await exchange(client, 15, commit)
                assert (done.code, done.remark) == (0, None)
                stored = await client.call(r.QueryConsumerOffset("CG", "Orders", 0))
                assert stored.header.queue_offset == offset

    run(main())


@pytest.mark.parametrize("name", ["batch", "m"])
@pytest.mark.parametrize("flag", [True, "true", "True", "TRUE"])
def test_a_batch_is_one_however_its_flag_is_spelled(tmp_path: Path, name: str, flag: object) -> None:
    """The flag as a boolean and in other cases: never one message whose body is the batch."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            code, ext = (10, SEND) if name == "batch" else (310, SEND_V2)
            body = encode_batch(BatchRecord(0, b"%d" % each, b"UNIQ_KEY\x01k\x02") for each in range(3))
            for _ in range(2):  # the first one makes the topic, whatever way it takes
                assert (await exchange(client, code, {**ext, name: flag}, body)).code == 0
            pulled = await exchange(client, 11, PULL)
            assert [each.body for each in decode_pull_body(pulled.body)] == [b"0", b"1", b"2"] * 2

    run(main())

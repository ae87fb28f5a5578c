"""SQL92 subscriptions over real sockets: registration, versions, refusals, held pulls, filter bits, retries."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import CheckClientRequestBody, ConsumerData, HeartbeatData
from rmq_core.protocol.message import retry_topic
from rmq_core.protocol.record import decode_pull_body
from support.brokers import Client, broker_cluster, run, subscription


async def refusal(call: Any) -> tuple[int, str]:
    with pytest.raises(BrokerError) as raised:
        await call
    return raised.value.code, raised.value.remark


async def subscribe(client: Client, text: str, *, version: int = 1, topic: str = "Orders") -> None:
    await client.heartbeat(consumers={"CG": {topic: text}}, sub_version=version, expression_type="SQL92")


async def fill(client: Client, count: int = 10, topic: str = "Orders") -> None:
    """Messages with a property `a` that counts."""
    for number in range(count):
        await client.send(topic, b"%d" % number, properties={"a": str(number), "TAGS": f"T{number % 2}"})


async def read(client: Client, topic: str = "Orders", **header: Any) -> list[int]:
    """The numbers of the messages that the group's subscription lets through."""
    found: list[int] = []
    offset = 0
    while True:
        answer = await client.pull(topic, 0, offset, **{"sys_flag": 0, "subscription": None, **header})
        if answer.code == 19:
            return found
        found += [int(record.body) for record in decode_pull_body(answer.body)]
        offset = answer.header.next_begin_offset


async def check(client: Client, text: str, kind: str = "SQL92") -> int:
    data = CheckClientRequestBody("one", "CG", subscription("Orders", text, expression_type=kind))
    return (await client.call(r.CheckClientConfig(), data.encode())).code


def test_a_group_gets_what_its_expression_matches(tmp_path: Path) -> None:
    """Registered by heartbeat, replaced by a newer one, kept against an older one; tags have their name too."""

    async def main() -> None:
        async with broker_cluster(tmp_path, enable_property_filter=True) as cluster:
            client = cluster.client()
            await fill(client)
            await subscribe(client, "a BETWEEN 3 AND 6")
            assert await read(client) == [3, 4, 5, 6]
            await subscribe(client, "a > 7 OR TAGS = 'T0'", version=2)
            assert await read(client) == [0, 2, 4, 6, 8, 9]
            await subscribe(client, "a = 1", version=1)
            assert await read(client) == [0, 2, 4, 6, 8, 9]
            own: dict[str, Any] = {"sys_flag": 4, "expression_type": "SQL92", "group": "CG-2"}
            assert await read(client, **own, subscription="a < 2") == [0, 1]

    run(main())


def test_what_cannot_be_filtered_is_refused_with_its_code(tmp_path: Path) -> None:
    """Broken expressions, versions that the broker has not heard of, and a topic without a filter."""

    async def main() -> None:
        async with broker_cluster(tmp_path, enable_property_filter=True) as cluster:
            client = cluster.client()
            await fill(client, 1)
            assert await check(client, "a > 5") == 0
            assert await check(client, "a > > 5", "TAG") == 0
            for text in ("a > > 5", "", "a <> NULL"):
                assert (await refusal(check(client, text)))[0] == 23
            assert (await refusal(check(client, "a > 5", "CLASS")))[0] == 23
            assert (await client.call(r.CheckClientConfig(), b"{}")).code == 0
            await subscribe(client, "a > > 5")
            assert (await refusal(read(client)))[0] == 27
            await subscribe(client, "a > 5", version=2)
            assert (await refusal(read(client, sub_version=3)))[0] == 25
            own: dict[str, Any] = {"sys_flag": 4, "expression_type": "SQL92"}
            for bad in ("a > > 5", "", None):
                assert (await refusal(read(client, **own, subscription=bad)))[0] == 23

    run(main())


def test_without_the_setting_nothing_is_filtered_by_properties(tmp_path: Path) -> None:
    """Asked before, subscribed, and brought by a pull: code 1, and the type in the remark."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await fill(client, 1)
            await subscribe(client, "a > 5")
            refused = (1, "The broker does not support consumer to filter message by SQL92")
            assert await refusal(check(client, "a > 5")) == refused
            assert await refusal(read(client)) == refused
            own: dict[str, Any] = {"sys_flag": 4, "expression_type": "SQL92", "subscription": "a > 5"}
            assert await refusal(read(client, **own)) == refused
            assert await check(client, "*", "TAG") == 0

    run(main())


def test_a_held_pull_is_woken_only_by_a_message_that_matches(tmp_path: Path) -> None:
    """Two messages that do not match arrive before the one that does; the clock stands still."""

    async def main() -> None:
        async with broker_cluster(tmp_path, clock=ManualClock(), enable_property_filter=True) as cluster:
            client, sender = cluster.client(), cluster.client()
            await fill(sender, 1)
            await subscribe(client, "a = 7")
            held: dict[str, Any] = {"sys_flag": 2, "suspend_timeout_millis": 15_000, "subscription": None}
            pulling = asyncio.ensure_future(client.pull("Orders", 0, 1, **held))
            while not cluster.broker.long_polls.count:
                await asyncio.sleep(0)
            for number in (5, 6):
                await sender.send("Orders", b"no", properties={"a": str(number)})
                assert cluster.broker.long_polls.count == 1
            await sender.send("Orders", b"7", properties={"a": "7"})
            answer = await pulling
            assert [record.body for record in decode_pull_body(answer.body)] == [b"7"]

    run(main())


def test_filter_bits_change_nothing_but_the_work(tmp_path: Path) -> None:
    """Messages before and after the filter, while it is dead, and after a restart: each is judged rightly."""

    async def main() -> None:
        clock = ManualClock()
        settings: dict[str, Any] = {
            "enable_property_filter": True,
            "enable_calc_filter_bit_map": True,
            "enable_consume_queue_ext": True,
        }
        async with broker_cluster(tmp_path, clock=clock, **settings) as cluster:
            client = cluster.client()
            await fill(client)
            await clock.advance(1000)
            await subscribe(client, "a = 3 OR a = 4")
            await clock.advance(1000)
            await fill(client)
            assert await read(client) == [3, 4, 3, 4]
            await client.call(r.UnregisterClient("client-1", consumer_group="CG"))
            await fill(client)
            await subscribe(client, "a = 3 OR a = 4")
            assert await read(client) == [3, 4, 3, 4, 3, 4]
            units = cluster.broker.store.queues.ext["Orders", 0]
            queue = cluster.broker.store.queues.table["Orders", 0]
            entries = [queue.entry(offset) for offset in range(30)]
            bits = [units.get(entry.tags_code) for entry in entries if entry is not None]
            data = cluster.broker.filters.get("Orders", "CG")
            assert data is not None
            hits = [
                cluster.broker.filters.bloom.is_hit(unit.filter_bits, data.bits)
                for unit in bits
                if unit is not None and unit.filter_bits
            ]
            assert hits == [number in (3, 4) for number in range(10)] * 2
        async with broker_cluster(tmp_path, clock=clock, **settings) as cluster:
            client = cluster.client()
            await subscribe(client, "a = 3 OR a = 4")
            await fill(client)
            assert await read(client) == [3, 4] * 4

    run(main())


def test_retried_messages_are_filtered_where_the_settings_say_so(tmp_path: Path) -> None:
    """The retry topic itself is subscribed to by tag, as clients do."""

    async def main() -> None:
        settings: dict[str, Any] = {"enable_property_filter": True, "filter_support_retry": True}
        async with broker_cluster(tmp_path, **settings) as cluster:
            client = cluster.client()
            topic = retry_topic("CG")
            wanted = (subscription("Orders", "a > 1", expression_type="SQL92"), subscription(topic))
            data = HeartbeatData("one", (), (ConsumerData("CG", subscription_data_set=wanted),))
            await client.call(r.HeartBeat(), data.encode())
            while cluster.broker.topics.get(topic) is None:
                await asyncio.sleep(0.001)
            for number in range(4):
                await client.send(topic, b"%d" % number, properties={"a": str(number), "RETRY_TOPIC": "Orders"})
            assert await read(client, topic) == [2, 3]

    run(main())


def test_filters_are_kept_with_the_broker(tmp_path: Path) -> None:
    """Saved while it runs and at the stop; the next start has them before any heartbeat."""

    async def main() -> None:
        clock = ManualClock()
        path = tmp_path / "broker-a" / "config" / "consumerFilter.json"
        async with broker_cluster(tmp_path, clock=clock, enable_property_filter=True) as cluster:
            await subscribe(cluster.client(), "a = 3")
            await clock.advance(10_000)
            while not path.exists():
                await asyncio.sleep(0.001)
            saved = orjson.loads(path.read_bytes())["filterDataByTopic"]["Orders"]["groupFilterData"]["CG"]
            assert (saved["expression"], saved["dead"], saved["clientVersion"]) == ("a = 3", False, 1)
        async with broker_cluster(tmp_path, clock=clock, enable_property_filter=True) as cluster:
            data = cluster.broker.filters.get("Orders", "CG")
            assert data is not None
            assert data.is_dead
            assert data.expression == "a = 3"

    run(main())

"""Our name server answers the recorded requests as Apache's did.

For each exchange it is brought into the state that the recorded answer describes (the brokers and topics of the
route, the value that was found), then gets the recorded frame over a real socket. Code, header fields and body
must be the recorded ones; remarks are for people and may differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rmq_core.config import NamesrvSettings, ServerSettings
from rmq_core.namesrv.app import NameServer
from rmq_core.namesrv.routes import Registration
from rmq_core.protocol import fastjson
from rmq_core.protocol.bodies import ClusterInfo, DataVersion, KVTable, TopicList, TopicRouteData
from rmq_core.protocol.command import Command, decode_command
from support.cluster import table
from support.golden import Exchange, exchanges

# Sets come in the order of Java's hash tables; a 4.9 name server does not know acting masters.
UNORDERED = {"topicList", "brokerDatas", "queueDatas"}


def recorded() -> Iterator[Exchange]:
    """All answered requests to name servers."""
    for exchange in exchanges():
        if not exchange.server.startswith("namesrv") or exchange.is_to_client or exchange.response is None:
            continue
        yield exchange


RECORDED = list(recorded())


def enter(server: NameServer, name: str, addresses: dict[int, str], cluster: str, topics: Any) -> None:
    for broker_id, address in sorted(addresses.items()):
        registration = Registration(
            cluster, name, broker_id, address, "127.0.0.1:10912", topics, enable_acting_master=False
        )
        assert server.routes.register(registration, 0.0, owner=None) is not None


async def prepare(server: NameServer, exchange: Exchange, answer: Command) -> None:
    """Bring the server into the state in which Apache's gave this answer."""
    code, ext, body = exchange.code, exchange.request.ext or {}, answer.body
    if code == 105 and answer.code == 0:
        route = TopicRouteData.decode(body)
        if route.order_topic_conf is not None:
            server.settings.order_message_enable = True
            await server.kv.put("ORDER_TOPIC_CONFIG", ext["topic"], route.order_topic_conf)
        for data, queues in zip(route.broker_datas or (), route.queue_datas, strict=True):
            mapping = (route.topic_queue_mapping_by_broker or {}).get(data.broker_name)
            topics = table(["other", "another"])
            if mapping is not None:
                topics = replace(topics, topic_queue_mapping_info_map={ext["topic"]: mapping})
            enter(server, data.broker_name, data.broker_addrs, str(data.cluster), topics)
            server.routes.register_topic(ext["topic"], [queues])
    elif code == 106:
        for name, data in (ClusterInfo.decode(body).broker_addr_table or {}).items():
            enter(server, name, data.broker_addrs, str(data.cluster), table(["A", "B"]))
    elif code in (206, 224, 304) and answer.code == 0:
        listed = TopicList.decode(body)
        addresses = {0: listed.broker_addr or "127.0.0.1:10911"}
        enter(server, "broker-a", addresses, "FramesCluster", table(listed.topic_list))
    elif code in (101, 219) and answer.code == 0:
        found = KVTable.decode(body).table if code == 219 else {ext["key"]: (answer.ext or {})["value"]}
        for key, value in found.items():
            await server.kv.put(ext["namespace"], key, value)
    elif code == 103 and answer.code == 0:
        if body:
            await server.kv.put("ORDER_TOPIC_CONFIG", "gone", "")
            await server.kv.delete("ORDER_TOPIC_CONFIG", "gone")
            for key, value in KVTable.decode(body).table.items():
                await server.kv.put("ORDER_TOPIC_CONFIG", key, value)
        if "masterAddr" in (answer.ext or {}):
            master = (answer.ext or {})["masterAddr"]
            enter(server, ext["brokerName"], {0: master}, ext["clusterName"], table(["A", "B"]))
        if exchange.request.body.count(b'"topicName"') == 1:  # one topic alone is for brokers that are known
            addresses = {int(ext["brokerId"]): ext["brokerAddr"]}
            enter(server, ext["brokerName"], addresses, ext["clusterName"], table(["A", "B"]))
    elif code == 322 and body:
        enter(server, ext["brokerName"], {0: ext["brokerAddr"]}, ext["clusterName"], table(["A", "B"]))
        live = server.routes.live(ext["clusterName"], ext["brokerAddr"])
        assert live is not None
        live.data_version = DataVersion.decode(body)
    elif code == 901:
        group = fastjson.loads(body)["brokerMemberGroup"]
        addresses = {int(broker_id): address for broker_id, address in group["brokerAddrs"].items()}
        enter(server, group["brokerName"], addresses, group["cluster"], table(["A", "B"]))


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: sorted(map(repr, map(comparable, item))) if key in UNORDERED else comparable(item)
            for key, item in value.items()
            if key != "enableActingMaster"
        }
    return sorted(value) if isinstance(value, list) else value


def body_of(code: int, body: bytes) -> Any:
    if code == 319:
        return "properties" if b"listenPort=" in body else body
    return comparable(fastjson.loads(body)) if body else None


async def replay(exchange: Exchange, folder: Path) -> None:
    assert exchange.response is not None
    expected = decode_command(exchange.response.frame)
    settings = NamesrvSettings(
        kv_config_path=str(folder / "kv.json"), config_store_path=str(folder / "namesrv.properties")
    )
    server = NameServer(settings, ServerSettings(bind_address="127.0.0.1"))
    await prepare(server, exchange, expected)
    server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(exchange.request.frame)
        prefix = await reader.readexactly(4)
        answer = decode_command(prefix + await reader.readexactly(int.from_bytes(prefix, "big")))
    finally:
        writer.close()
        await server.close(drain_ms=50)
    assert answer.opaque == expected.opaque
    assert answer.code == expected.code, answer.remark
    assert sorted(answer.ext or {}) == sorted(expected.ext or {})
    assert body_of(exchange.code, answer.body) == body_of(exchange.code, expected.body)
    if exchange.code == 105 and answer.code == 0:
        assert (b'"brokerAddrs":{"0"' in answer.body) == (b'"brokerAddrs":{"0"' in expected.body)


@pytest.mark.parametrize("code", sorted({exchange.code for exchange in RECORDED}))
def test_recorded_requests_get_the_recorded_answers(code: int, tmp_path: Path) -> None:
    """Sends every kept frame of one request code, both header encodings among them."""

    async def main() -> None:
        for number, exchange in enumerate(each for each in RECORDED if each.code == code):
            folder = tmp_path / str(number)
            folder.mkdir()
            try:
                await asyncio.wait_for(replay(exchange, folder), 20)
            except AssertionError as error:
                raise AssertionError(f"{exchange}: {error}") from error

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())

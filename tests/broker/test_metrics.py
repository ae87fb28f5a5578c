"""Metrics over HTTP, as Prometheus reads them; and logging as its file says."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rmq_core.broker import logs
from rmq_core.broker.metrics import CONNECTIONS_MAX, Metrics
from rmq_core.errors import ConfigError
from support.brokers import Cluster, broker_cluster, run

CONF = Path(__file__).parents[2] / "conf" / "logging.toml"


async def http(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()
        await writer.wait_closed()


async def scrape(port: int) -> dict[tuple[str, str, str], float]:
    """(metric, topic, group) → value; labels of this node are checked."""
    answer = await http(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = sample.labels
            assert (labels["cluster"], labels["node_type"], labels["node_id"]) == (
                "DefaultCluster",
                "broker",
                "broker-a",
            )
            found[sample.name, labels.get("topic", ""), labels.get("consumer_group", "")] = sample.value
    return found


async def use(cluster: Cluster) -> None:
    """Ten messages, of which G was given eight and has committed five; a producer and a consumer."""
    client = cluster.client()
    for number in range(10):
        await client.send("T", b"%d" % number)
    await client.heartbeat(producers=("PG",), consumers={"G": {"T": "*"}})
    await client.pull("T", 0, 0, group="G", max_msg_nums=8)
    cluster.broker.offsets.commit("G", "T", 0, 5)
    while "%RETRY%G" not in cluster.broker.topics.table:  # made behind the heartbeat
        await asyncio.sleep(0.001)


def test_a_scrape_tells_what_the_broker_has_done(tmp_path: Path) -> None:
    """Counters, lag, connections, storage and tables, by the names of RocketMQ 5."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            metrics, broker = Metrics(cluster.broker), cluster.broker
            port = await metrics.start("127.0.0.1", 0)
            try:
                await use(cluster)
                await cluster.client().send("%RETRY%G", reconsume_times=17)
                found = await scrape(port)
                assert found["rocketmq_send_to_dlq_messages_total", "%DLQ%G", "G"] == 1
                assert found["rocketmq_messages_in_total", "T", ""] == 10
                assert (
                    found["rocketmq_throughput_in_total", "T", ""]
                    == {topic: size for topic, _, size in broker.stats.puts()}["T"]
                )
                assert found["rocketmq_messages_out_total", "T", "G"] == 8
                assert found["rocketmq_throughput_out_total", "T", "G"] > 0
                assert found["rocketmq_consumer_lag_messages", "T", "G"] == 5
                assert found["rocketmq_consumer_inflight_messages", "T", "G"] == 3
                assert found["rocketmq_consumer_ready_messages", "T", "G"] == 2
                assert found["rocketmq_consumer_lag_latency", "T", "G"] >= 0
                assert found["rocketmq_consumer_connections", "", "G"] == 1
                assert found["rocketmq_producer_connections", "", ""] == 1
                assert found["rocketmq_storage_size", "", ""] == broker.store.log.end
                assert found["rocketmq_broker_permission", "", ""] == 6
                assert found["rocketmq_topic_number", "", ""] == len(broker.topics.table)
                assert found["rocketmq_consumer_group_number", "", ""] == len(broker.groups.table)
                for name in ("flush_behind_bytes", "dispatch_behind_bytes", "message_reserve_time"):
                    assert found[f"rocketmq_storage_{name}", "", ""] >= 0
            finally:
                await metrics.stop()

    run(main())


def test_other_requests_and_peers_that_send_anything_do_no_harm(tmp_path: Path) -> None:
    """Other paths and methods, garbage, endless headers, silence, more connections than there may be."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            metrics = Metrics(cluster.broker)
            port = await metrics.start("127.0.0.1", 0)
            try:
                assert b"404" in (await http(port, b"GET / HTTP/1.1\r\n\r\n")).split(b"\r\n")[0]
                assert b"405" in (await http(port, b"POST /metrics HTTP/1.1\r\n\r\n")).split(b"\r\n")[0]
                head = await http(port, b"HEAD /metrics?a=b HTTP/1.1\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                assert head.endswith(b"\r\n\r\n")
                assert await http(port, b"x" * 20_000) == b""
                silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX + 5)]
                refused = [await reader.read() for reader, _ in silent[CONNECTIONS_MAX:]]
                assert refused == [b""] * 5
                for _, writer in silent:
                    writer.close()
                    await writer.wait_closed()
                while len(metrics._tasks):
                    await asyncio.sleep(0.001)
                assert await scrape(port)
                assert (await cluster.client().send("T")).code == 0
            finally:
                await metrics.stop()

    run(main())


def test_nothing_is_served_unless_a_port_is_set(tmp_path: Path) -> None:
    """Off by default; with a port the broker itself starts and stops it."""

    async def main() -> None:
        async with broker_cluster(tmp_path / "off") as cluster:
            assert cluster.apps[0]._metrics._server is None
        probe = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = probe.sockets[0].getsockname()[1]
        probe.close()
        await probe.wait_closed()
        folder = tmp_path / "on"
        async with broker_cluster(folder, metrics_port=port, metrics_bind_address="127.0.0.1"):
            assert await scrape(port)
        with pytest.raises(OSError):
            await http(port, b"GET /metrics HTTP/1.1\r\n\r\n")

    run(main())


def test_logging_follows_its_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The file that is delivered, the same with JSON, and files that cannot be used."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    net = logging.getLogger("rmq_core.net")
    try:
        logs.configure(CONF)
        logging.getLogger("rmq_core.broker").info("a topic was made")
        net.info("not wanted")
        assert capsys.readouterr().err.endswith("INFO rmq_core.broker a topic was made\n")
        as_json = tmp_path / "json.toml"
        as_json.write_text(CONF.read_text().replace('formatter = "text"', 'formatter = "json"'))
        logs.configure(as_json)
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("rmq_core.broker").exception("it failed")
        event = orjson.loads(capsys.readouterr().err)
        assert (event["level"], event["logger"], event["event"]) == ("ERROR", "rmq_core.broker", "it failed")
        assert "ValueError: broken" in event["error"]
        for text in ("[handlers", '[root]\nhandlers = ["none"]', '[handlers.x]\nclass = "no.such"'):
            bad = tmp_path / "bad.toml"
            bad.write_text(text)
            with pytest.raises(ConfigError, match="loggingConfig"):
                logs.configure(bad)
        with pytest.raises(ConfigError):
            logs.configure(tmp_path / "none.toml")
    finally:
        root.handlers[:], root.level = handlers, level
        for name in ("rmq_core.net", "rmq_core.store"):
            logging.getLogger(name).setLevel(logging.NOTSET)

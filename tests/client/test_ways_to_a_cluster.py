"""How clients find a cluster and talk to it: address servers, units, TLS, and the broker's second port."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.server
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq_core
from rmq_core import ConsumeResult, Message, TransactionDecision, aio
from rmq_core.client.instance import ClientInstance
from rmq_core.client.options import ClientOptions, Intervals, client_options
from rmq_core.client.queue_client import QueueClient
from rmq_core.errors import ConnectError, RocketMQError
from support.authority import Authority
from support.threaded import Threaded, threaded_cluster, until

TOPIC = "Ways"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    with threaded_cluster(tmp_path_factory.mktemp("cluster"), names=2) as running:
        running.create_topic(TOPIC)
        yield running


class Addresses(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """An address server: answers each path with what it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.lists: dict[str, bytes | None] = {}
        """None: something that is not HTTP."""
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/rocketmq/nsaddr"


class _Answering(http.server.BaseHTTPRequestHandler):
    server: Addresses

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        known = self.server.lists.get(self.path, b"")
        if known is None:
            self.wfile.write(b"no HTTP at all\r\n\r\n")
        elif not known:
            self.send_error(404)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(known)

    def log_message(self, *_: Any) -> None:
        """Nothing: the test shows what matters."""


@pytest.fixture
def addresses() -> Iterator[Addresses]:
    with Addresses() as server:
        yield server
        server.shutdown()


def test_an_address_server_gives_the_name_servers_also_by_unit(cluster: Threaded, addresses: Addresses) -> None:
    """Blocking and plain-socket clients, with and without a unit, which has a list of its own."""
    listed = f" {cluster.name_server}\n".encode()
    addresses.lists = {"/rocketmq/nsaddr": listed, "/rocketmq/nsaddr-north?nofix=1": listed}
    for unit in ("", "north"):
        with rmq_core.Producer("PG", address_server=addresses.url, unit_name=unit) as producer:
            assert producer.send(Message(TOPIC, b"x")).ok
        with QueueClient(client_options({"address_server": addresses.url, "unit_name": unit})) as client:
            assert len(client.queues(TOPIC)) == 4
    assert set(addresses.asked) == set(addresses.lists)
    with rmq_core.Admin(address_server=addresses.url, unit_name="south") as admin, pytest.raises(ConnectError):
        admin.topics()


def soon(options: ClientOptions) -> ClientOptions:
    return dataclasses.replace(options, intervals=Intervals(address_refresh_ms=20))


def test_the_list_is_asked_for_again_and_a_failure_leaves_it_as_it_was(
    cluster: Threaded, addresses: Addresses
) -> None:
    """The list moves from a dead name server to live ones; then the address server answers nonsense and nothing."""
    addresses.lists["/rocketmq/nsaddr"] = b"127.0.0.1:1"
    options = soon(client_options({"address_server": addresses.url}))

    async def coroutine_form() -> None:
        instance = ClientInstance(options)
        await instance.start()
        with pytest.raises(ConnectError):
            await instance.route(TOPIC)
        addresses.lists["/rocketmq/nsaddr"] = cluster.name_server.encode()
        async with asyncio.timeout(30):
            while instance.name_servers.addresses == ("127.0.0.1:1",):
                await asyncio.sleep(0.01)
        assert len((await instance.route(TOPIC)).read_queues) == 4
        for broken in (None, b"", b"nowhere", b"\xff"):
            addresses.lists["/rocketmq/nsaddr"], asked = broken, len(addresses.asked)
            async with asyncio.timeout(30):
                while len(addresses.asked) < asked + 2:
                    await asyncio.sleep(0.01)
            assert len((await instance.route(TOPIC, refresh=True)).read_queues) == 4
        await instance.close()

    asyncio.run(coroutine_form())

    addresses.lists["/rocketmq/nsaddr"] = b"127.0.0.1:1"
    with QueueClient(options, fetch_retries=1) as client:
        with pytest.raises(ConnectError):
            client.queues(TOPIC)
        addresses.lists["/rocketmq/nsaddr"] = cluster.name_server.encode()
        until(lambda: has_queues(client), "the new list is asked for")
        for broken in (None, b"", b"nowhere", b"\xff"):
            addresses.lists["/rocketmq/nsaddr"] = broken
            until(lambda: has_queues(client, is_fresh=True), "the last list is kept")


def has_queues(client: QueueClient, *, is_fresh: bool = False) -> bool:
    try:
        return len(client.queues(TOPIC, refresh=is_fresh)) == 4
    except ConnectError:
        return False


def test_an_address_server_that_is_away_or_talks_nonsense_is_named(addresses: Addresses) -> None:
    """Before there was any list: the error is ours and says who gave none."""
    for broken in (None, b"", b"nowhere"):
        addresses.lists["/rocketmq/nsaddr"] = broken
        with (
            rmq_core.Admin(address_server=addresses.url) as admin,
            pytest.raises(ConnectError, match=r"address server|rocketmq/nsaddr"),
        ):
            admin.topics()
        with (
            QueueClient(client_options({"address_server": addresses.url}), fetch_retries=1) as client,
            pytest.raises(ConnectError, match="address server"),
        ):
            client.queues(TOPIC)


def test_every_client_talks_tls_and_trusts_only_whom_it_is_told_to(tmp_path: Path) -> None:
    """A cluster that takes nothing but TLS; a context of ours is used, and without it nobody gets through."""
    authority = Authority(tmp_path)
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(tmp_path / "server.pem"),
        "tls.server.keyPath": str(tmp_path / "server.key"),
    }
    arguments: Any
    with rmq_core.embedded(**settings) as mq:
        arguments = {"name_server": mq.name_server, "tls": authority.client()}
        with rmq_core.Admin(**arguments) as admin:
            admin.create_topic(TOPIC, queues=1)
        with rmq_core.Producer("PG", **arguments) as producer:
            assert producer.send(Message(TOPIC, b"1")).ok
            assert producer.send_async(Message(TOPIC, b"2")).result(30).ok
        with rmq_core.TransactionProducer("TX", topics=[TOPIC], check=_rollback, **arguments) as pays:
            pays.send(Message(TOPIC, b"3"), execute=lambda _: TransactionDecision.COMMIT)
        heard: list[bytes] = []
        consumer = rmq_core.PushConsumer("push", start_from="earliest", **arguments)
        consumer.subscribe(TOPIC, lambda message: heard.append(message.body))
        with consumer:
            until(lambda: sorted(heard) == [b"1", b"2", b"3"], "everything is heard")
        with rmq_core.LitePullConsumer("lite", start_from="earliest", **arguments) as lite:
            lite.subscribe(TOPIC)
            assert [next(iter(lite)).body for _ in range(1)] == [b"1"]
        with QueueClient(client_options(arguments)) as client:
            assert len(client.queues(TOPIC)) == 1

        async def coroutine_form() -> None:
            async with aio.Producer("PG", **arguments) as producer:
                assert (await producer.send(Message(TOPIC, b"4"))).ok

        asyncio.run(coroutine_form())
        for wrong in (True, ssl.create_default_context()):
            with (
                rmq_core.Producer("PG", name_server=mq.name_server, tls=wrong) as producer,
                pytest.raises(RocketMQError),
            ):
                producer.send(Message(TOPIC, b"never"))


def _rollback(_: object) -> TransactionDecision:
    return TransactionDecision.ROLLBACK


def free_pair() -> int:
    """A port that nobody listens on now, and nobody two below it."""
    while True:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            with socket.create_server(("127.0.0.1", port - 2)):
                return port


def test_sends_and_administration_take_the_second_port_where_that_is_wished(tmp_path: Path) -> None:
    """The first port is closed to it by an address that leads nowhere; pulls and heartbeats need the first."""
    with threaded_cluster(tmp_path, listen_port=free_pair()) as running:
        running.create_topic(TOPIC, queues=1)
        broker = running.broker.address
        arguments: Any = {"name_server": running.name_server, "vip_channel": True}
        dead = {broker: "127.0.0.1:1"}
        with rmq_core.Producer("PG", **arguments, broker_address_map=dead) as producer:
            assert producer.send(Message(TOPIC, b"x")).ok
            assert producer.send_async(Message(TOPIC, b"y")).result(30).ok
        with rmq_core.Admin(**arguments, broker_address_map=dead) as admin:
            admin.create_topic("More", queues=1)
        heard: list[bytes] = []

        def hear(message: Any) -> ConsumeResult | None:
            heard.append(message.body)
            return None

        consumer = rmq_core.PushConsumer("push", start_from="earliest", **arguments)
        consumer.subscribe(TOPIC, hear)
        with consumer:
            until(lambda: sorted(heard) == [b"x", b"y"], "everything is heard")

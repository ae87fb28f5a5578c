"""What the name servers know of a broker, whatever they do themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.config import NamesrvSettings, ServerSettings
from rmq_core.errors import BrokerError, ConnectError
from rmq_core.namesrv.app import NameServer
from rmq_core.net.channel import Channel
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import ClusterInfo
from support.authority import Authority
from support.brokers import Client, broker_app, broker_cluster, run
from support.ports import steady_port


async def brokers_of(address: str) -> set[str]:
    channel = Channel(address)
    try:
        answer = await channel.call(r.GetBrokerClusterInfo())
        return set(ClusterInfo.decode(answer.body).broker_addr_table or {})
    finally:
        await channel.close()


def test_all_name_servers_know_the_broker_until_it_goes(tmp_path: Path) -> None:
    """Two name servers: both know broker and topic after the start and a creation, neither after the stop."""

    async def main() -> None:
        async with broker_cluster(tmp_path, names=2) as cluster:
            await cluster.client().send("Orders")
            addresses = [f"127.0.0.1:{each.port}" for each in cluster.name_servers]
            for number, address in enumerate(addresses):
                assert await brokers_of(address) == {"broker-a"}
                assert (await cluster.name_client(number).call(r.GetRouteinfoByTopic("Orders"))).code == 0
            await cluster.apps[0].close(drain_ms=200)
            for address in addresses:
                assert await brokers_of(address) == set()

    run(main())


def test_a_name_server_that_comes_back_empty_knows_everything_soon(tmp_path: Path) -> None:
    """It is stopped and another one started on its port: the full table must come without a restart or a period."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            await cluster.client().send("Orders")
            port = cluster.name_servers[0].port
            await cluster.name_servers[0].close(drain_ms=100)
            await cluster.client().send("Orders")
            await cluster.client().send("WhileItWasAway")
            home = tmp_path / "again"
            settings = NamesrvSettings(kv_config_path=str(home / "kv.json"), config_store_path=str(home / "ns"))
            again = NameServer(settings, ServerSettings(bind_address="127.0.0.1", listen_port=port))
            again.start()
            try:
                client = Client(Channel(f"127.0.0.1:{port}"))
                for topic in ("Orders", "WhileItWasAway"):
                    while True:
                        try:
                            await client.call(r.GetRouteinfoByTopic(topic))
                            break
                        except BrokerError:
                            await asyncio.sleep(0.02)
                await client.channel.close()
            finally:
                await again.close(drain_ms=100)

    run(main(), timeout_s=300)


def test_without_any_name_server_messages_are_taken(tmp_path: Path) -> None:
    """None of the named servers exists: creation waits a second at most, then sends are answered."""

    async def main() -> None:
        async with broker_cluster(tmp_path, namesrv_addr="127.0.0.1:1") as cluster:
            client = cluster.client()
            await client.send("Orders", b"x")
            assert [each.body for each in await client.messages("Orders")] == [b"x"]

    run(main())


@contextlib.asynccontextmanager
async def silent_name_server() -> AsyncIterator[str]:
    """One that takes connections and requests, and answers nothing."""
    taken: list[asyncio.StreamWriter] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        while await reader.read(65_536):
            pass

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in taken:
            writer.close()


@contextlib.asynccontextmanager
async def name_server(home: Path, server: ServerSettings, port: int | None = None) -> AsyncIterator[NameServer]:
    settings = NamesrvSettings(kv_config_path=str(home / "kv.json"), config_store_path=str(home / "ns"))
    started = NameServer(settings, replace(server, bind_address="127.0.0.1", listen_port=port or steady_port()))
    started.start()
    try:
        yield started
    finally:
        await started.close(drain_ms=100)


def test_a_silent_name_server_delays_nobody(tmp_path: Path) -> None:
    """One of two never answers, and would be waited for for days: start, creation, the return of the other one, and
    the stop must not wait for it."""

    async def main() -> None:
        days_ms = 10**9
        async with silent_name_server() as silent:
            async with name_server(tmp_path / "1", ServerSettings()) as other:
                address = f"127.0.0.1:{other.port}"
                app = broker_app(tmp_path, f"{silent};{address}", register_broker_timeout_mills=days_ms)
                await app.start()
                assert await brokers_of(address) == {"broker-a"}
                client = Client(Channel(app.broker.address))
                await client.send("Orders")
                await client.channel.close()
            async with name_server(tmp_path / "2", ServerSettings(), port=other.port):
                while await brokers_of(address) != {"broker-a"}:
                    await asyncio.sleep(0.02)
                await app.close(drain_ms=100)
                assert await brokers_of(address) == set()

    run(main(), timeout_s=120)


@pytest.mark.parametrize("is_said", [True, False])
def test_a_broker_registers_over_tls(tmp_path: Path, is_said: bool) -> None:
    """The name server speaks nothing else, and wants the broker's certificate; a broker that speaks nothing else
    itself need not be told."""

    async def main() -> None:
        authority = Authority(tmp_path)
        files, own = authority.files("server"), authority.files("client")
        enforcing = ServerSettings(
            tls_server_mode="enforcing",
            tls_server_cert_path=files.certificate,
            tls_server_key_path=files.key,
            tls_server_trust_cert_path=files.trusted,
        )
        broker = (
            {"use_tls": True}
            if is_said
            else {name: getattr(enforcing, name) for name in vars(enforcing) if name.startswith("tls_server_")}
        )
        async with name_server(tmp_path, replace(enforcing, tls_server_need_client_auth="require")) as server:
            address = f"127.0.0.1:{server.port}"
            app = broker_app(
                tmp_path,
                address,
                tls_client_auth_server=True,
                tls_client_trust_cert_path=own.trusted,
                tls_client_cert_path=own.certificate,
                tls_client_key_path=own.key,
                **broker,
            )
            await app.start()
            with pytest.raises(ConnectError):
                await brokers_of(address)
            assert set(server.routes.cluster_info().broker_addr_table or {}) == {"broker-a"}
            await app.close(drain_ms=100)
            assert not server.routes.cluster_info().broker_addr_table

    run(main())

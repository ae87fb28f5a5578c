"""Name servers in this process, and brokers made of our own client channel."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmq_core.clock import Clock
from rmq_core.config import NamesrvSettings, ServerSettings
from rmq_core.namesrv.app import NameServer
from rmq_core.net.calls import Answer
from rmq_core.net.channel import Channel
from rmq_core.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from rmq_core.protocol.requests import RegisterBroker, Registered
from support.ports import steady_port


@contextlib.asynccontextmanager
async def name_servers(
    folder: Path, count: int = 1, *, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[list[NameServer]]:
    """Independent name servers on free ports, each with a folder of its own."""
    servers = []
    try:
        for number in range(count):
            home = folder / f"namesrv-{number}"
            own = NamesrvSettings(
                kv_config_path=str(home / "kvConfig.json"),
                config_store_path=str(home / "ns.properties"),
                **settings,
            )
            server = NameServer(
                own, ServerSettings(bind_address="127.0.0.1", listen_port=steady_port()), clock=clock
            )
            server.start()
            servers.append(server)
        yield servers
    finally:
        for server in servers:
            await server.close(drain_ms=200)


def address_of(server: NameServer) -> str:
    return f"127.0.0.1:{server.port}"


def table(topics: Iterable[str], *, counter: int = 0, **config: Any) -> TopicConfigSerializeWrapper:
    """Topics with four queues each."""
    configs = {
        name: TopicConfig(name, **{"read_queue_nums": 4, "write_queue_nums": 4, **config}) for name in topics
    }
    return TopicConfigSerializeWrapper(configs, DataVersion(1_700_000_000_000, counter, 0))


@dataclass
class FakeBroker:
    """Registers like a broker; its connections are its life."""

    name: str
    address: str
    broker_id: int = 0
    cluster: str = "DefaultCluster"

    def __post_init__(self) -> None:
        self.channels: dict[str, Channel] = {}

    async def register(
        self, server: NameServer, topics: TopicConfigSerializeWrapper, **header: Any
    ) -> Answer[Registered]:
        channel = self.channels.setdefault(address_of(server), Channel(address_of(server)))
        fields = {"compressed": False, "body_crc32": 0, "enable_acting_master": False, **header}
        request = RegisterBroker(
            broker_name=self.name,
            broker_addr=self.address,
            cluster_name=self.cluster,
            broker_id=self.broker_id,
            ha_server_addr=self.address + "2",
            **fields,
        )
        return await channel.call(request, RegisterBrokerBody(topics, ()).encode())

    async def die(self) -> None:
        """Lose all connections, as a killed process does."""
        for channel in self.channels.values():
            await channel.close()
        self.channels.clear()

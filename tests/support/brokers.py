"""Brokers in this process, each with its store and all of them with one name server, on free ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from rmq_core.broker.app import BrokerApp
from rmq_core.broker.broker import Broker
from rmq_core.clock import Clock
from rmq_core.config import BrokerSettings, ClientSettings, ServerSettings, StoreSettings
from rmq_core.config.settings import keys_of
from rmq_core.namesrv.app import NameServer
from rmq_core.net.calls import Answer
from rmq_core.net.channel import Channel
from rmq_core.protocol import bodies
from rmq_core.protocol import requests as r
from rmq_core.protocol.message import encode_properties
from rmq_core.protocol.record import StoredRecord, decode_pull_body
from support.cluster import address_of, name_servers
from support.ports import steady_port

SMALL = {
    "mapped_file_size_commit_log": 16 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
    "disk_space_warning_level_ratio": 100,
    "disk_space_clean_forcibly_ratio": 100,
}


def run(main: Coroutine[Any, Any, None], *, timeout_s: float = 300) -> None:
    """Run a test's coroutine on the loop that programs run on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main, timeout_s))


@dataclass
class Client:
    """A raw client of one broker: its channel, and requests in short."""

    channel: Channel
    version: int = 479
    extra: dict[str, Any] = field(default_factory=dict)

    async def call(self, request: Any, body: bytes = b"", *, timeout_ms: float = 60_000) -> Answer[Any]:
        return await self.channel.call(request, body, timeout_ms=timeout_ms)

    async def send(
        self,
        topic: str,
        body: bytes = b"hello",
        *,
        queue_id: int = 0,
        properties: dict[str, str] | None = None,
        default_topic: str = "TBW102",
        **header: Any,
    ) -> Answer[Any]:
        """Send one message as a version 2 client does."""
        fields = {
            "producer_group": "PG",
            "topic": topic,
            "default_topic": default_topic,
            "default_topic_queue_nums": 4,
            "queue_id": queue_id,
            "sys_flag": 0,
            "born_timestamp": 1_700_000_000_000,
            "flag": 0,
            "properties": encode_properties(properties or {}).decode(),
            "reconsume_times": 0,
            "unit_mode": False,
            "batch": False,
            **header,
        }
        return await self.call(r.SendMessageV2(**fields), body)

    async def pull(
        self, topic: str, queue_id: int = 0, offset: int = 0, *, group: str = "CG", **header: Any
    ) -> Answer[Any]:
        """Pull with the subscription in the request, without waiting unless asked to."""
        fields = {
            "consumer_group": group,
            "topic": topic,
            "queue_id": queue_id,
            "queue_offset": offset,
            "max_msg_nums": 32,
            "sys_flag": 4,
            "commit_offset": 0,
            "suspend_timeout_millis": 0,
            "sub_version": 0,
            "subscription": "*",
            "expression_type": "TAG",
            **header,
        }
        return await self.call(r.PullMessage(**fields), timeout_ms=30_000)

    async def messages(self, topic: str, queue_id: int = 0, *, group: str = "CG") -> list[StoredRecord]:
        """Every message of a queue."""
        found: list[StoredRecord] = []
        offset = 0
        while True:
            answer = await self.pull(topic, queue_id, offset, group=group)
            if answer.code == 19:
                return found
            if answer.code == 0:
                found += decode_pull_body(answer.body, verify_crc=True)
            offset = answer.header.next_begin_offset

    async def heartbeat(
        self,
        client_id: str = "client-1",
        *,
        producers: tuple[str, ...] = (),
        consumers: dict[str, dict[str, str]] | None = None,
        sub_version: int = 1,
        expression_type: str = "TAG",
        **group: Any,
    ) -> Answer[Any]:
        """Say who is there: producer groups, and consumer groups with topic → expression."""
        data = bodies.HeartbeatData(
            client_id,
            tuple(bodies.ProducerData(name) for name in producers),
            tuple(
                bodies.ConsumerData(
                    name,
                    subscription_data_set=tuple(
                        subscription(topic, text, sub_version=sub_version, expression_type=expression_type)
                        for topic, text in topics.items()
                    ),
                    **group,
                )
                for name, topics in (consumers or {}).items()
            ),
        )
        return await self.call(r.HeartBeat(), data.encode())


def subscription(
    topic: str, text: str = "*", *, sub_version: int = 1, expression_type: str = "TAG"
) -> bodies.SubscriptionData:
    """What a client says of one topic."""
    from rmq_core.protocol.filter import parse_tags

    if expression_type != "TAG":
        return bodies.SubscriptionData(topic, text, sub_version=sub_version, expression_type=expression_type)
    parsed = parse_tags(text)
    return bodies.SubscriptionData(
        topic, text, tuple(sorted(parsed.tags)), tuple(sorted(parsed.codes)), sub_version, "TAG"
    )


@dataclass
class Cluster:
    """Brokers and what they are registered with."""

    apps: list[BrokerApp]
    name_servers: list[NameServer]
    _channels: list[Channel] = field(default_factory=list)

    @property
    def broker(self) -> Broker:
        return self.apps[0].broker

    def client(self, number: int = 0) -> Client:
        """A new connection to a broker."""
        channel = Channel(self.apps[number].broker.address)
        self._channels.append(channel)
        return Client(channel)

    def name_client(self, number: int = 0) -> Client:
        """A new connection to a name server."""
        channel = Channel(address_of(self.name_servers[number]))
        self._channels.append(channel)
        return Client(channel)

    def add_channel(self, channel: Channel) -> None:
        """Close a channel with the others."""
        self._channels.append(channel)

    async def close_clients(self) -> None:
        for channel in self._channels:
            await channel.close()
        self._channels.clear()


def broker_app(
    folder: Path, names: str, *, name: str = "broker-a", clock: Clock | None = None, **changes: Any
) -> BrokerApp:
    """A broker on a free port; changes are settings of any of its four parts, by attribute."""
    outgoing = {each.attribute for each in keys_of(ClientSettings)}
    own = {each.attribute for each in keys_of(BrokerSettings)}
    store = {each.attribute for each in keys_of(StoreSettings)}
    settings = BrokerSettings(
        **{
            "broker_name": name,
            "broker_ip1": "127.0.0.1",
            "namesrv_addr": names,
            # The clients share the broker's loop: a busy machine would make it refuse what a test sends.
            "broker_fast_failure_enable": False,
            **{key: value for key, value in changes.items() if key in own},
        }
    )
    store_settings = StoreSettings(
        **{
            **SMALL,
            "store_path_root_dir": str(folder / name),
            **{key: value for key, value in changes.items() if key in store},
        }
    )
    server = ServerSettings(
        **{
            "bind_address": "127.0.0.1",
            "listen_port": steady_port(),
            **{key: value for key, value in changes.items() if key not in own | store | outgoing},
        }
    )
    client = ClientSettings(**{key: value for key, value in changes.items() if key in outgoing})
    return BrokerApp(settings, store_settings, server, client_settings=client, clock=clock, memory_size=24 << 30)


@contextlib.asynccontextmanager
async def broker_cluster(
    folder: Path, *, masters: int = 1, names: int = 1, clock: Clock | None = None, **changes: Any
) -> AsyncIterator[Cluster]:
    """So many brokers (broker-a, broker-b, …) and name servers; everything is stopped at the end."""
    async with name_servers(folder, names) as servers:
        addresses = ";".join(address_of(server) for server in servers)
        apps = [
            broker_app(folder, addresses, name=f"broker-{chr(97 + number)}", clock=clock, **changes)
            for number in range(masters)
        ]
        cluster = Cluster(apps, servers)
        try:
            for app in apps:
                await app.start()
            yield cluster
        finally:
            await cluster.close_clients()
            for app in apps:
                await app.close(drain_ms=200)

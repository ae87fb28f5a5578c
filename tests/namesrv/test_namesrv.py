"""Name servers over real sockets: registration, routes, liveness, settings."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rmq_core.clock import ManualClock
from rmq_core.config import NamesrvSettings, ServerSettings, read_properties
from rmq_core.errors import BrokerError, RocketMQError
from rmq_core.namesrv.app import NameServer
from rmq_core.net.channel import Channel
from rmq_core.net.dispatch import Dispatcher
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    BrokerMemberGroup,
    ClusterInfo,
    DataVersion,
    GetBrokerMemberGroupResponseBody,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicList,
    TopicRouteData,
)
from support.cluster import FakeBroker, address_of, name_servers, table


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main, 60))


async def route(server: NameServer, topic: str) -> TopicRouteData | None:
    channel = Channel(address_of(server))
    try:
        answer = await channel.call(r.GetRouteinfoByTopic(topic))
        return TopicRouteData.decode(answer.body)
    except BrokerError as error:
        assert error.code == 17
        assert topic in error.remark
        return None
    finally:
        await channel.close()


async def ask(server: NameServer, request: Any, body: bytes = b"") -> Any:
    channel = Channel(address_of(server))
    try:
        return await channel.call(request, body)
    finally:
        await channel.close()


def brokers_of(found: TopicRouteData | None) -> dict[str, dict[int, str]]:
    return {} if found is None else {data.broker_name: data.broker_addrs for data in found.broker_datas or ()}


def test_two_name_servers_and_three_brokers(tmp_path: Path) -> None:
    """Brokers register with both; one is killed, one falls silent: each node finds out by itself."""

    async def main() -> None:
        clock = ManualClock()
        async with name_servers(tmp_path, 2, clock=clock) as servers:
            brokers = [FakeBroker(f"broker-{name}", f"10.0.0.{i}:10911") for i, name in enumerate("abc")]
            for server in servers:
                for broker in brokers:
                    await broker.register(server, table(["Orders", f"only-{broker.name}"]))
                assert set(brokers_of(await route(server, "Orders"))) == {"broker-a", "broker-b", "broker-c"}
            await brokers[0].die()
            await clock.settle()
            for server in servers:
                assert set(brokers_of(await route(server, "Orders"))) == {"broker-b", "broker-c"}
                assert await route(server, "only-broker-a") is None
            for _ in range(5):
                await clock.advance(30_000)
                for server in servers:
                    await brokers[1].register(server, table(["Orders", "only-broker-b"]))
            for server in servers:
                assert set(brokers_of(await route(server, "Orders"))) == {"broker-b"}
            await servers[0].close()
            assert set(brokers_of(await route(servers[1], "Orders"))) == {"broker-b"}
            await brokers[1].die()

    run(main())


def test_a_broker_may_ask_for_a_shorter_time_limit(tmp_path: Path) -> None:
    """heartbeatTimeoutMillis of 10 s: gone after 15, unless heartbeats or version queries keep it alive."""

    async def main() -> None:
        clock = ManualClock()
        async with name_servers(tmp_path, clock=clock) as (server,):
            broker = FakeBroker("broker-a", "10.0.0.1:10911")
            await broker.register(server, table(["A", "B"]), heartbeat_timeout_millis=10_000)
            for request in (
                r.BrokerHeartbeat("DefaultCluster", "10.0.0.1:10911", "broker-a"),
                r.QueryDataVersion("broker-a", "10.0.0.1:10911", "DefaultCluster", 0),
            ):
                await clock.advance(8_000)
                await ask(server, request, DataVersion().encode() if request.code == 322 else b"")
            assert await route(server, "A") is not None
            await clock.advance(16_000)
            assert await route(server, "A") is None

    run(main())


def test_an_unregistered_broker_is_gone_and_its_master_stays(tmp_path: Path) -> None:
    """A slave learns its master, contributes no topics, and leaves; then the master leaves."""

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            master = FakeBroker("broker-a", "10.0.0.1:10911")
            slave = FakeBroker("broker-a", "10.0.0.2:10911", broker_id=1)
            await master.register(server, table(["A", "B"]))
            answer = await slave.register(server, table(["A", "C"]))
            assert answer.header == r.Registered("10.0.0.1:109112", "10.0.0.1:10911")
            assert brokers_of(await route(server, "A")) == {"broker-a": {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}}
            assert await route(server, "C") is None
            group = await ask(server, r.GetBrokerMemberGroup("DefaultCluster", "broker-a"))
            assert GetBrokerMemberGroupResponseBody.decode(group.body).broker_member_group == BrokerMemberGroup(
                "DefaultCluster", "broker-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
            )
            await ask(server, r.UnregisterBroker("broker-a", "10.0.0.2:10911", "DefaultCluster", 1))
            assert brokers_of(await route(server, "A")) == {"broker-a": {0: "10.0.0.1:10911"}}
            await ask(server, r.UnregisterBroker("broker-a", "10.0.0.1:10911", "DefaultCluster", 0))
            assert await route(server, "A") is None
            info = ClusterInfo.decode((await ask(server, r.GetBrokerClusterInfo())).body)
            assert (info.broker_addr_table, info.cluster_addr_table) == ({}, {})

    run(main())


def test_registrations_update_routes_by_their_version(tmp_path: Path) -> None:
    """A higher version changes queues, the same does not, one topic is added alone, missing ones stay."""

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            broker = FakeBroker("broker-a", "10.0.0.1:10911")
            with pytest.raises(BrokerError, match="register broker failed"):
                await broker.register(server, table(["OnlyOne"]))
            await broker.register(server, table(["A", "B"], counter=1))
            await broker.register(server, table(["A", "B"], counter=1, read_queue_nums=9))
            assert (await route(server, "A")).queue_datas[0].read_queue_nums == 4  # type: ignore[union-attr]
            await broker.register(server, table(["A"], counter=2, read_queue_nums=9))
            assert (await route(server, "A")).queue_datas[0].read_queue_nums == 9  # type: ignore[union-attr]
            assert await route(server, "B") is not None
            await broker.register(server, table(["New"], counter=2))
            assert await route(server, "New") is not None
            answer = await ask(
                server,
                r.QueryDataVersion("broker-a", "10.0.0.1:10911", "DefaultCluster", 0),
                DataVersion(1_700_000_000_000, 2, 0).encode(),
            )
            assert (answer.header.changed, DataVersion.decode(answer.body).counter) == (False, 2)
            unknown = await ask(
                server, r.QueryDataVersion("x", "10.9.9.9:1", "DefaultCluster", 0), DataVersion().encode()
            )
            assert (unknown.header.changed, unknown.body) == (True, b"")

    run(main())


def test_an_equal_registration_repairs_what_administrators_changed(tmp_path: Path) -> None:
    """Write permission is wiped and given back, a topic deleted; an equal registration counts then."""

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            broker = FakeBroker("broker-a", "10.0.0.1:10911")
            topics = table(["A", "B"], counter=1)
            await broker.register(server, topics)
            await broker.register(server, topics)

            async def permission(topic: str) -> int | None:
                found = await route(server, topic)
                return None if found is None else found.queue_datas[0].perm

            assert (await ask(server, r.WipeWritePermOfBroker("broker-a"))).header.wipe_topic_count == 2
            assert await permission("A") == 4
            assert (await ask(server, r.AddWritePermOfBroker("broker-a"))).header.add_topic_count == 2
            assert await permission("A") == 6
            await ask(server, r.DeleteTopicInNamesrv("A"))
            assert await permission("A") is None
            await broker.register(server, topics)
            assert await permission("A") == 6
            await ask(server, r.DeleteTopicInNamesrv("A", "another cluster"))
            assert await permission("A") == 6

    run(main())


def test_a_newer_connection_carries_a_broker(tmp_path: Path) -> None:
    """It registers on a second connection; when the first closes the broker stays."""

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            old, new = FakeBroker("broker-a", "10.0.0.1:10911"), FakeBroker("broker-a", "10.0.0.1:10911")
            await old.register(server, table(["A", "B"]))
            await new.register(server, table(["A", "B"]))
            await old.die()
            await asyncio.sleep(0.05)
            assert await route(server, "A") is not None
            await new.die()
            await asyncio.sleep(0.05)
            assert await route(server, "A") is None

    run(main())


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_goodbye_that_comes_late_does_not_remove_a_broker_that_is_back(tmp_path: Path, is_equal: bool) -> None:
    """The old process says goodbye, and its connection closes, behind the new one's registration, which is equal to
    the old one or not; the new one's own goodbye counts, on whichever of its connections."""
    goodbye = r.UnregisterBroker("broker-a", "10.0.0.1:10911", "DefaultCluster", 0)

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            old, new, other = (FakeBroker("broker-a", "10.0.0.1:10911") for _ in range(3))
            await old.register(server, table(["A", "B"]))
            await new.register(server, table(["A", "B"], counter=not is_equal))
            await old.channels[address_of(server)].call(goodbye)
            assert await route(server, "A") is not None
            await old.die()
            await asyncio.sleep(0.05)
            assert await route(server, "A") is not None
            await other.register(server, table(["A", "B"]))
            await new.register(server, table(["A", "B"]))
            await new.channels[address_of(server)].call(goodbye)
            assert await route(server, "A") is None
            for broker in (new, other):
                await broker.die()

    run(main())


def test_bodies_may_be_compressed_and_are_checked(tmp_path: Path) -> None:
    """zlib with and without the flag, a wrong checksum, a bomb, garbage: the last three are refused."""

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            channel = Channel(address_of(server))
            header: dict[str, Any] = {
                "broker_name": "broker-a",
                "broker_addr": "1.1.1.1:1",
                "cluster_name": "C",
                "broker_id": 0,
                "ha_server_addr": "x",
            }
            body = RegisterBrokerBody(table(["A", "B"]), ()).encode_compressed(version=479)
            crc = zlib.crc32(body) & 0x7FFFFFFF
            for compressed in (True, False):
                request = r.RegisterBroker(**header, compressed=compressed, body_crc32=crc)
                await channel.call(request, body)
                assert await route(server, "B") is not None
            for bad, crc32, remark in (
                (body, crc ^ 1, "crc32 not match"),
                (zlib.compress(bytes(200 << 20)), 0, "inflates to more"),
                (b"garbage", 0, "JSON"),
            ):
                request = r.RegisterBroker(**header, compressed=bad[:1] == b"x", body_crc32=crc32)
                with pytest.raises(BrokerError, match=remark):
                    await channel.call(request, bad)
            await channel.close()

    run(main())


def test_lists_of_topics(tmp_path: Path) -> None:
    """All, by cluster, of the system, and by the three unit kinds; switched off they are refused."""

    async def main() -> None:
        async with name_servers(tmp_path, enable_all_topic_list=True) as (server,):
            first = FakeBroker("broker-a", "10.0.0.1:10911", cluster="East")
            second = FakeBroker("broker-b", "10.0.0.2:10911", cluster="West")
            await first.register(server, table(["A", "Unit"], topic_sys_flag=1))
            await second.register(server, table(["B", "Both"], topic_sys_flag=3))
            await second.register(server, table(["Sub"], counter=1, topic_sys_flag=2))

            async def listed(request: Any) -> set[str]:
                return set(TopicList.decode((await ask(server, request)).body).topic_list)

            assert await listed(r.GetAllTopicListFromNameserver()) == {"A", "Unit", "B", "Both", "Sub"}
            assert await listed(r.GetTopicsByCluster("West")) == {"B", "Both", "Sub"}
            assert await listed(r.GetSystemTopicListFromNs()) == {"East", "West", "broker-a", "broker-b"}
            assert await listed(r.GetUnitTopicList()) == {"A", "Unit", "B", "Both"}
            assert await listed(r.GetHasUnitSubTopicList()) == {"B", "Both", "Sub"}
            assert await listed(r.GetHasUnitSubUnunitTopicList()) == {"Sub"}
            server.settings.enable_all_topic_list = server.settings.enable_topic_list = False
            for request in (r.GetAllTopicListFromNameserver(), r.GetTopicsByCluster("West")):
                with pytest.raises(BrokerError, match="disable"):
                    await ask(server, request)

    run(main())


def test_key_value_settings_survive_a_restart(tmp_path: Path) -> None:
    """Put, delete, restart; then a torn file, which the backup stands in for, and one lost altogether."""
    path = tmp_path / "namesrv-0" / "kvConfig.json"

    async def first() -> None:
        async with name_servers(tmp_path, order_message_enable=True) as (server,):
            broker = FakeBroker("broker-a", "10.0.0.1:10911")
            await ask(server, r.PutKvConfig("ORDER_TOPIC_CONFIG", "A", "broker-a:4"))
            await ask(server, r.PutKvConfig("own", "gone", "1"))
            await ask(server, r.PutKvConfig("own", "stays", "ü"))
            await ask(server, r.DeleteKvConfig("own", "gone"))
            answer = await broker.register(server, table(["A", "B"]))
            assert KVTable.decode(answer.body).table == {"A": "broker-a:4"}
            found = await route(server, "A")
            assert found is not None
            assert found.order_topic_conf == "broker-a:4"

    async def second() -> None:
        async with name_servers(tmp_path) as (server,):
            assert (await ask(server, r.GetKvConfig("own", "stays"))).header.value == "ü"
            table_ = KVTable.decode((await ask(server, r.GetKvlistByNamespace("ORDER_TOPIC_CONFIG"))).body)
            assert table_.table == {"A": "broker-a:4"}
            for request in (r.GetKvConfig("own", "gone"), r.GetKvlistByNamespace("none")):
                with pytest.raises(BrokerError) as caught:
                    await ask(server, request)
                assert caught.value.code == 22

    run(first())
    run(second())
    path.write_bytes(path.read_bytes()[:20])
    server = NameServer(NamesrvSettings(kv_config_path=str(path)))
    assert server.kv.get("ORDER_TOPIC_CONFIG", "A") == "broker-a:4"
    for torn in (path, path.with_name("kvConfig.json.bak")):
        torn.write_bytes(b"")
    with pytest.raises(RocketMQError, match=r"kvConfig.json cannot be read"):
        NameServer(NamesrvSettings(kv_config_path=str(path)))


def test_key_value_settings_that_could_not_be_stored_are_stored_later(tmp_path: Path) -> None:
    """A directory stands where the file is written first: who deletes the same key again must not be told that all
    is well until it is."""
    path = tmp_path / "namesrv-0" / "kvConfig.json"
    blocker = path.with_name("kvConfig.json.tmp")

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            await ask(server, r.PutKvConfig("own", "key", "1"))
            blocker.mkdir()
            for _ in range(2):
                with pytest.raises(BrokerError):
                    await ask(server, r.DeleteKvConfig("own", "key"))
            blocker.rmdir()
            await ask(server, r.DeleteKvConfig("own", "key"))
            assert b"key" not in path.read_bytes()

    run(main())


def test_settings_change_at_run_time_and_are_stored(tmp_path: Path) -> None:
    """A live one changes and is written; forbidden, bad and start-only ones are refused; unknown ones ignored."""

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            await ask(server, r.UpdateNamesrvConfig(), b"orderMessageEnable=true\nnoSuchKey=1\n")
            text = (await ask(server, r.GetNamesrvConfig())).body.decode()
            assert "orderMessageEnable=true\n" in text
            assert "listenPort=" in text
            assert "orderMessageEnable=true" in (tmp_path / "namesrv-0" / "ns.properties").read_text()
            for body, code in (
                (b"kvConfigPath=/x\n", 16),
                (b"orderMessageEnable=maybe\n", 1),
                (b"listenPort=1\n", 1),
            ):
                with pytest.raises(BrokerError) as caught:
                    await ask(server, r.UpdateNamesrvConfig(), body)
                assert caught.value.code == code

    run(main())


def test_settings_that_could_not_be_stored_are_stored_later(tmp_path: Path) -> None:
    """A directory stands where the file is written first: the caller hears of it, and may ask for it again."""
    path = tmp_path / "namesrv-0" / "ns.properties"

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            blocker = path.with_name("ns.properties.tmp")
            blocker.mkdir(parents=True)
            for _ in range(2):
                with pytest.raises(BrokerError):
                    await ask(server, r.UpdateNamesrvConfig(), b"orderMessageEnable=true\n")
            blocker.rmdir()
            await ask(server, r.UpdateNamesrvConfig(), b"orderMessageEnable=true\n")
            assert read_properties(path) == {"orderMessageEnable": "true"}

    run(main())


def test_settings_changed_at_one_time_are_all_stored(tmp_path: Path) -> None:
    """Each is written beside the loop, into the file that the one before left."""
    names = ("orderMessageEnable", "enableTopicList", "enableAllTopicList", "notifyMinBrokerIdChanged")

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            for value in ("false", "true") * 10:
                bodies = [f"{name}={value}\n".encode() for name in names]
                await asyncio.gather(*(ask(server, r.UpdateNamesrvConfig(), body) for body in bodies))
            assert read_properties(tmp_path / "namesrv-0" / "ns.properties") == dict.fromkeys(names, "true")

    run(main())


def test_brokers_hear_when_the_smallest_id_changes(tmp_path: Path) -> None:
    """Master and slave of one name; the master dies and the slave is told, and shown as master for reading."""

    async def main() -> None:
        settings: dict[str, Any] = {"notify_min_broker_id_changed": True, "support_acting_master": True}
        async with name_servers(tmp_path, **settings) as (server,):
            heard: list[r.NotifyMinBrokerIdChange] = []

            async def hear(_: Any, call: Any) -> None:
                heard.append(call.header)

            master = FakeBroker("broker-a", "10.0.0.1:10911")
            slave = FakeBroker("broker-a", "10.0.0.2:10911", broker_id=1)
            slave.channels[address_of(server)] = Channel(
                address_of(server), dispatcher=Dispatcher(None, {r.NotifyMinBrokerIdChange.code: hear})
            )
            topics = table(["A", "B"])
            await master.register(server, topics, enable_acting_master=True)
            await slave.register(server, topics, enable_acting_master=True)
            await master.die()
            while not heard:
                await asyncio.sleep(0.001)
            assert heard == [
                r.NotifyMinBrokerIdChange(1, "broker-a", "10.0.0.2:10911", "10.0.0.1:10911", "10.0.0.2:109112")
            ]
            found = await route(server, "A")
            assert brokers_of(found) == {"broker-a": {0: "10.0.0.2:10911"}}
            assert found is not None
            assert found.queue_datas[0].perm == 4

    run(main())


def test_a_topic_can_be_registered_alone(tmp_path: Path) -> None:
    """217: on a broker that is known, and on one that is not."""

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            await FakeBroker("broker-a", "10.0.0.1:10911").register(server, table(["A", "B"]))
            for name in ("broker-a", "broker-x"):
                body = TopicRouteData(queue_datas=(QueueData(name, 2, 2, 6),)).encode()
                await ask(server, r.RegisterTopicInNamesrv(f"on-{name}"), body)
            assert brokers_of(await route(server, "on-broker-a")) == {"broker-a": {0: "10.0.0.1:10911"}}
            assert await route(server, "on-broker-x") is None

    run(main())


def test_routes_wait_for_brokers_after_the_start(tmp_path: Path) -> None:
    """needWaitForService: an error before the time is up, a route after it."""

    async def main() -> None:
        clock = ManualClock()
        async with name_servers(tmp_path, clock=clock, need_wait_for_service=True) as (server,):
            await FakeBroker("broker-a", "10.0.0.1:10911").register(server, table(["A", "B"]))
            with pytest.raises(BrokerError, match="not ready") as caught:
                await ask(server, r.GetRouteinfoByTopic("A"))
            assert caught.value.code == 1
            await clock.advance(45_001)
            assert await route(server, "A") is not None

    run(main())


def program(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rmq_core.namesrv", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_program_starts_serves_and_stops(tmp_path: Path) -> None:
    """A file, an override, a free port; SIGTERM ends it with 0; a second one on its port ends with -3."""
    file = tmp_path / "ns.conf"
    file.write_text(f"kvConfigPath={tmp_path}/kv.json\nlistenPort=1\nnoSuchKey=1\n")
    with program("-c", str(file), "--listenPort", "0", "bindAddress=127.0.0.1") as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        assert "boot success" in line
        port = line.strip().rpartition(":")[2]
        with program("-c", str(file), "--listenPort", port, "bindAddress=127.0.0.1") as second:
            assert second.wait(20) == 253
            assert "in use" in second.communicate()[1]
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait(20) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["-p"], 0, "listenPort=9876"),
        (["-h"], 0, "usage: mqnamesrv"),
        (["--listenPort", "x"], 255, "listenPort=x: must be a whole number"),
        (["--listenPort", "70000"], 255, "listenPort=70000: must be at most 65535"),
        (["-c", "/no/such/file"], 255, "/no/such/file: cannot be read"),
        (["-x"], 255, "-x"),
        (["tls.server.mode=enforcing"], 255, "tls.server.mode=enforcing: needs tls.server.certPath"),
        (["tls.server.certPath=/no/such.pem", "--listenPort", "0"], 253, "tls.server.certPath=/no/such.pem"),
    ],
)
def test_the_program_says_what_is_wrong(arguments: list[str], code: int, text: str, tmp_path: Path) -> None:
    """Bad arguments end the program before a port opens, with the key, the value and the reason."""
    with program(f"kvConfigPath={tmp_path}/kv.json", *arguments) as running:
        out, err = running.communicate(timeout=20)
    assert running.returncode == code
    assert text in out + err


def test_server_settings_reach_the_server() -> None:
    """A frame above the configured limit closes the connection."""

    async def main() -> None:
        settings = NamesrvSettings(kv_config_path="/nonexistent/kv.json")
        server = NameServer(settings, ServerSettings(bind_address="127.0.0.1", frame_max_length=2048))
        server.start()
        channel = Channel(address_of(server))
        with pytest.raises(RocketMQError, match="ended"):
            await channel.call(r.GetRouteinfoByTopic("x" * 4096))
        await channel.close()
        await server.close()

    run(main())


def test_a_topic_named_after_its_broker_has_a_route(tmp_path: Path) -> None:
    """Some clients ask for the cluster, then for the route of the broker's name before anything else."""

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            broker = FakeBroker("broker-a", "127.0.0.1:10911")
            await broker.register(server, table(["broker-a", "DefaultCluster", "Orders"]))
            info = ClusterInfo.decode((await ask(server, r.GetBrokerClusterInfo())).body)
            assert info.broker_addr_table is not None
            (name,) = info.broker_addr_table
            found = await route(server, name)
            assert found is not None
            assert [data.broker_addrs for data in found.broker_datas or ()] == [{0: "127.0.0.1:10911"}]
            await broker.die()

    run(main())

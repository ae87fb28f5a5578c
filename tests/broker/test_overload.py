"""More than a broker can take: it refuses with the busy code or waits within bounds, and serves the others."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from rmq_core.broker.handlers.pull import WAITING_MAX
from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError
from rmq_core.net.connection import Connection
from rmq_core.protocol import requests as r
from rmq_core.protocol.command import Command, decode_command, encode_command
from rmq_core.protocol.message import encode_properties
from rmq_core.protocol.record import decode_pull_body
from rmq_core.store.disk import Disk
from support.brokers import Client, Cluster, broker_cluster, run
from support.members import member

CONNECTIONS = 3_000
BUSY = 2


PATIENT: dict[str, Any] = {"broker_fast_failure_enable": False}
"""The clients are on the broker's own loop here: what they do makes it late, and that is no reason to refuse."""


async def codes_of(calls: Iterable[Any]) -> Counter[int]:
    """How often each code was answered."""

    async def code_of(call: Any) -> int:
        try:
            answer = await call
        except BrokerError as error:
            assert error.remark
            return error.code
        code: int = answer.code
        return code

    return Counter(await asyncio.gather(*(code_of(call) for call in calls)))


async def until_held(cluster: Cluster, count: int) -> None:
    while cluster.broker.long_polls.count != count:
        await asyncio.sleep(0.001)


def connections_of(cluster: Cluster) -> set[Connection]:
    return cluster.apps[0]._server.connections


@contextlib.contextmanager
def many_files(count: int) -> Iterator[None]:
    """Allow so many open files, or skip where the machine does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"{count} open files are needed, {hard} allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def waiting_pull(client: Client, queue_id: int = 0) -> Any:
    return client.pull("Orders", queue_id, 0, sys_flag=6, suspend_timeout_millis=120_000)


def test_two_thousand_waiting_pulls_are_answered_by_one_message(tmp_path: Path) -> None:
    """All wait at one queue, and as many at another that gets nothing; sends between them are not held up."""

    async def main() -> None:
        async with broker_cluster(tmp_path, **PATIENT) as cluster:
            clients = [cluster.client() for _ in range(20)]
            await clients[0].send("Orders", b"elsewhere", queue_id=2)
            pulls = [asyncio.ensure_future(waiting_pull(clients[each % 20])) for each in range(2000)]
            others = [asyncio.ensure_future(waiting_pull(clients[each % 20], 1)) for each in range(2000)]
            await until_held(cluster, 4000)
            for _ in range(50):
                await clients[0].send("Orders", queue_id=2)
            assert cluster.broker.long_polls.count == 4000
            await clients[0].send("Orders", b"wanted")
            for answer in await asyncio.gather(*pulls):
                assert [record.body for record in decode_pull_body(answer.body)] == [b"wanted"]
            assert cluster.broker.long_polls.count == 2000
            await cluster.close_clients()
            await asyncio.gather(*others, return_exceptions=True)
            await until_held(cluster, 0)

    run(main())


def test_thousands_of_connections_with_waiting_pulls_and_members(tmp_path: Path) -> None:
    """3,000 members of ten groups, each waiting for a message; one more is refused, and all are forgotten."""

    async def main() -> None:
        async with broker_cluster(tmp_path, **PATIENT, connections_max=CONNECTIONS + 1) as cluster:
            sender = cluster.client()
            await sender.send("Orders", b"elsewhere", queue_id=1)
            members = [member(cluster) for _ in range(CONNECTIONS)]
            for first in range(0, CONNECTIONS, 500):
                await asyncio.gather(
                    *(
                        each.heartbeat(f"client-{number}", consumers={f"CG-{number % 10}": {"Orders": "*"}})
                        for number, each in enumerate(members[first : first + 500], first)
                    )
                )
            groups = [cluster.broker.clients.consumer_group(f"CG-{number}") for number in range(10)]
            assert [len(group.members) for group in groups if group is not None] == [CONNECTIONS // 10] * 10
            pulls = [asyncio.ensure_future(waiting_pull(each)) for each in members]
            await until_held(cluster, CONNECTIONS)
            assert len(connections_of(cluster)) == CONNECTIONS + 1
            reader, writer = await asyncio.open_connection(*cluster.broker.address.split(":"))
            assert await reader.read() == b""
            writer.close()
            await sender.send("Orders", b"wanted")
            assert {(await pull).body[-1:] != b"" for pull in pulls} == {True}
            await asyncio.gather(*(each.channel.close() for each in members))
            while len(connections_of(cluster)) != 1:
                await asyncio.sleep(0.001)
            assert cluster.broker.clients.consumer_groups() == []
            assert cluster.broker.long_polls.count == 0

    with many_files(2 * CONNECTIONS + 1000):
        run(main(), timeout_s=120)


def test_thousands_of_topics_at_once(tmp_path: Path) -> None:
    """2,000 sends to 2,000 new topics at the same time: each is stored; file and name server know all of them."""

    async def main() -> None:
        async with broker_cluster(tmp_path, **PATIENT) as cluster:
            clients = [cluster.client() for _ in range(4)]
            names = [f"New-{number}" for number in range(2000)]
            sends = (clients[number % 4].send(name) for number, name in enumerate(names))
            assert await codes_of(sends) == {0: 2000}
            saved = orjson.loads((tmp_path / "broker-a" / "config" / "topics.json").read_bytes())
            assert set(names) <= set(saved["topicConfigTable"])
            listed = await cluster.name_client().call(r.GetAllTopicListFromNameserver())
            assert set(names) <= set(orjson.loads(listed.body)["topicList"])
            assert [len(await clients[0].messages(name)) for name in names[::100]] == [1] * 20

    run(main())


def test_calls_that_are_refused_leave_nothing_half_done(tmp_path: Path) -> None:
    """More new topics on one connection than it may have calls: those refused can be sent to afterwards."""

    async def main() -> None:
        async with broker_cluster(tmp_path, **PATIENT, calls_in_flight_max=4) as cluster:
            client = cluster.client()
            names = [f"New-{number}" for number in range(50)]
            codes = await codes_of([client.send(name) for name in names])
            assert set(codes) == {0, BUSY}
            assert codes[BUSY] >= 40
            for name in names:
                assert (await client.send(name)).code == 0

    run(main())


def batch_of(count: int, body: bytes) -> bytes:
    properties = encode_properties({"UNIQ_KEY": "k"})
    size = 22 + len(body) + len(properties)
    one = size.to_bytes(4, "big") + bytes(12) + len(body).to_bytes(4, "big") + body
    return (one + len(properties).to_bytes(2, "big") + properties) * count


def test_huge_batches_are_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    """Thousands of messages, one of maxMessageSize, one over it, a lie in the middle; other clients go on."""

    async def main() -> None:
        async with broker_cluster(tmp_path, **PATIENT, max_message_size=1 << 20) as cluster:
            client, other = cluster.client(), cluster.client()
            await other.send("Other")
            request = r.SendBatchMessage("PG", "Orders", "TBW102", 4, 0, 0, 1, 0, "", batch=True)
            small = batch_of(20_000, b"x")
            lie = bytearray(small)
            lie[len(lie) // 2 : len(lie) // 2 + 4] = b"\x7f\xff\xff\xff"
            bodies = [
                small,
                bytes(lie),
                small[:-1],
                batch_of(1, b"x" * ((1 << 20) - 40)),
                batch_of(3, b"x" * (1 << 19)),
            ]
            stored = 0
            for body in bodies:
                codes = await codes_of([client.call(request, body), other.send("Other")])
                assert codes[0] in (1, 2)
                end = (await client.call(r.GetMaxOffset("Orders", 0))).header.queue_offset
                if codes[0] == 2:
                    stored += 20_000 if body is small else 1
                assert end == stored
            assert stored == 20_001
            assert len(await other.messages("Other")) == 1 + len(bodies)

    run(main())


async def write_until_stopped(cluster: Cluster, writer: asyncio.StreamWriter, frames: bytes) -> Connection:
    """Write the frames again and again until the broker does not read any more."""
    port = writer.get_extra_info("sockname")[1]
    while True:
        found = [each for each in connections_of(cluster) if each.peer.endswith(f":{port}")]
        if found and not found[0]._transport.is_reading():  # type: ignore[union-attr]
            return found[0]
        if writer.transport.get_write_buffer_size() < 1 << 20:
            writer.write(frames)
        await asyncio.sleep(0)


def test_a_peer_that_asks_and_never_reads_is_stopped(tmp_path: Path) -> None:
    """It asks without end: the broker stops reading at the hard limit, and goes on when its answers are taken."""

    async def main() -> None:
        soft, hard = 64 << 10, 1 << 20
        limits: dict[str, Any] = {"output_soft_limit_bytes": soft, "output_hard_limit_bytes": hard}
        async with broker_cluster(tmp_path, **PATIENT, **limits) as cluster:
            good = cluster.client()
            await good.send("Orders")
            for code, ext in ((30, {"topic": "Orders", "queueId": "0"}), (310, send_fields())):
                reader, writer = await asyncio.open_connection(*cluster.broker.address.split(":"))
                frames = encode_command(Command(code, 7, ext=ext, body=b"x" * 10)) * 100
                connection = await write_until_stopped(cluster, writer, frames)
                transport = connection._transport
                assert transport is not None
                # What one read of the socket brings is answered before it stops.
                assert hard < transport.get_write_buffer_size() <= 2 * hard
                assert (await good.send("Orders")).code == 0
                while not transport.is_reading():
                    prefix = await reader.readexactly(4)
                    frame = prefix + await reader.readexactly(int.from_bytes(prefix, "big"))
                    assert decode_command(frame).opaque == 7
                writer.transport.abort()

    run(main())


def send_fields() -> dict[str, str]:
    request = r.SendMessageV2("PG", "Orders", "TBW102", 4, 0, 0, 1, 0, "UNIQ_KEY\x01k\x02", 0, unit_mode=False)
    return request.to_ext()


def test_pulls_of_a_peer_that_does_not_read_wait_in_bounds(tmp_path: Path) -> None:
    """A thousand pulls of 100 KB each and more, and nothing read: so many wait, the rest is refused as busy."""

    async def main() -> None:
        limits: dict[str, Any] = {"output_soft_limit_bytes": 64 << 10, "output_hard_limit_bytes": 1 << 20}
        async with broker_cluster(tmp_path, **PATIENT, **limits) as cluster:
            good = cluster.client()
            await good.send("Orders", b"x" * 100_000)
            reader, writer = await asyncio.open_connection(*cluster.broker.address.split(":"))
            fields = {
                "consumerGroup": "CG", "topic": "Orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
                "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
                "subscription": "*",
            }  # fmt: skip
            count = WAITING_MAX + 500
            for opaque in range(count):
                writer.write(encode_command(Command(11, opaque, ext=fields)))
            await writer.drain()
            assert (await good.pull("Orders")).code == 0
            codes: Counter[int] = Counter()
            opaques = set()
            for _ in range(count):
                prefix = await reader.readexactly(4)
                answer = decode_command(prefix + await reader.readexactly(int.from_bytes(prefix, "big")))
                codes[answer.code] += 1
                opaques.add(answer.opaque)
            assert len(opaques) == count
            assert set(codes) == {0, BUSY}
            assert codes[0] >= WAITING_MAX
            writer.close()

    run(main())


class Gate:
    """Lets the syncs of a disk through, or holds them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self._open.set()
        sync, sync_many = Disk.sync, Disk.sync_many

        def held_sync(disk: Disk, path: Path) -> None:
            self._open.wait()
            sync(disk, path)

        def held_sync_many(disk: Disk, paths: Iterable[Path]) -> None:
            self._open.wait()
            sync_many(disk, paths)

        monkeypatch.setattr(Disk, "sync", held_sync)
        monkeypatch.setattr(Disk, "sync_many", held_sync_many)
        self.open = self._open.set
        self.shut = self._open.clear


def test_a_slow_disk_makes_sends_busy_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk hangs under 200 sends: later ones are refused as busy until it works; what was answered is kept."""
    gate = Gate(monkeypatch)

    async def main() -> None:
        clock = ManualClock()
        settings: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH", "broker_fast_failure_enable": True}
        async with broker_cluster(tmp_path, clock=clock, **settings) as cluster:
            client = cluster.client()
            await client.send("Orders", b"first")
            gate.shut()
            try:
                waiting = [
                    asyncio.ensure_future(
                        client.send("Orders", b"w%d" % each, properties={"UNIQ_KEY": "k"} if each % 2 else {})
                    )
                    for each in range(200)
                ]
                while cluster.broker.store.max_offset("Orders", 0, is_committed=False) < 201:
                    await asyncio.sleep(0.001)
                await clock.advance(1_100)
                for properties in ({"UNIQ_KEY": "k"}, {}):
                    with pytest.raises(BrokerError, match="PCBUSY_CLEAN_QUEUE") as raised:
                        await client.send("Orders", b"refused", properties=properties)
                    assert raised.value.code == BUSY
                assert not any(each.done() for each in waiting)
                assert (await client.pull("Orders")).code == 0
            finally:
                gate.open()
            assert await codes_of(waiting) == {0: 200}
            await clock.advance(100)
            assert (await client.send("Orders", b"last")).code == 0
            bodies = [record.body for record in await client.messages("Orders")]
            assert bodies[0] == b"first"
            assert bodies[-1] == b"last"
            assert sorted(bodies[1:-1]) == sorted(b"w%d" % each for each in range(200))

    run(main())


class TickingClock(ManualClock):
    """A clock that goes on by a millisecond whenever somebody looks at it."""

    def now_ms(self) -> int:
        self._now_ms += 1
        return super().now_ms()


def test_a_delay_begins_when_its_message_is_put(tmp_path: Path) -> None:
    """A delayed message at the end of a long pass: counted from the beginning of that, it would be early."""

    async def main() -> None:
        async with broker_cluster(tmp_path, **PATIENT, clock=TickingClock()) as cluster:
            client = cluster.client()
            await client.send("Orders")
            plain = encode_command(Command(310, 7, ext=send_fields(), body=b"plain"))
            fields = {**send_fields(), "i": "UNIQ_KEY\x01k\x02DELAY\x011\x02"}
            reader, writer = await asyncio.open_connection(*cluster.broker.address.split(":"))
            writer.write(plain * 3 + encode_command(Command(310, 8, ext=fields, body=b"delayed")))
            for _ in range(4):
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            writer.close()
            last = (await client.messages("Orders"))[-1]
            (delayed,) = await client.messages("SCHEDULE_TOPIC_XXXX")
            assert (last.body, delayed.body) == (b"plain", b"delayed")
            assert delayed.store_time_ms > last.store_time_ms

    run(main())

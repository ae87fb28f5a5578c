"""Peers that send garbage: they get clear codes or lose their own connection, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from rmq_core.protocol.command import Command, decode_command, encode_command
from rmq_core.protocol.record import decode_pull_body
from support.brokers import Client, Cluster, broker_cluster, run

SEND_V1 = {
    "producerGroup": "PG",
    "topic": "Orders",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "0",
    "properties": "UNIQ_KEY\x01k\x02",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "maxReconsumeTimes": "16",
    "batch": "false",
}
SEND_V2 = dict(zip("abcdefghijklm", (*list(SEND_V1.values())[:11], "16", "false"), strict=True))
PULL = {
    "consumerGroup": "CG",
    "topic": "Orders",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subVersion": "0",
    "subscription": "*",
    "expressionType": "TAG",
    "maxMsgBytes": "1000",
}
COMMIT = {"consumerGroup": "CG", "topic": "Orders", "queueId": "0", "commitOffset": "0"}
REQUESTS = {10: SEND_V1, 310: SEND_V2, 11: PULL, 361: PULL, 15: COMMIT}
GONE = object()
WRONG: list[Any] = [
    GONE, None, "", "x", "1.5", "9" * 30, "-1", str(1 << 31), str(1 << 63), "-" + "9" * 19, "\0", "é" * 200, 7, -7,
    True, 1.5, 1e300, [], ["x"], {}, {"x": 1}, "{}",
]  # fmt: skip
NOISE = ("Error", "' object", "invalid literal", "NoneType", "required", "Traceback")
"""What a remark that an interpreter made would contain."""


def frame_of(header: bytes, body: bytes = b"", *, word: int = 0) -> bytes:
    size = 4 + len(header) + len(body)
    return size.to_bytes(4, "big") + (word << 24 | len(header)).to_bytes(4, "big") + header + body


def request(code: Any, ext: Any, body: bytes = b"", **changes: Any) -> bytes:
    header = {"code": code, "flag": 0, "language": "JAVA", "opaque": 5, "version": 479, "extFields": ext, **changes}
    return frame_of(orjson.dumps(header), body)


GARBAGE: dict[str, bytes] = {
    "random bytes": random.Random(7).randbytes(5000),
    "text": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
    "a giant length": b"\x7f\xff\xff\xff" + b"x" * 100,
    "a negative length": b"\x80\0\0\0" + b"x" * 100,
    "a length without room for a header": b"\0\0\0\3abc",
    "one byte over the limit": (16 * 1024 * 1024 - 3).to_bytes(4, "big"),
    "a header longer than its frame": b"\0\0\0\x08\0\0\0\x09{}{}",
    "a header that is not JSON": frame_of(b"not JSON"),
    "a cut header": frame_of(b'{"code":10,"extFie'),
    "a header that is a list": frame_of(b"[1,2]"),
    "a header that is a number": frame_of(b"7"),
    "no header": frame_of(b""),
    "a header that nests too deep": frame_of(b"[" * 100_000),
    "an unknown encoding": frame_of(b"{}", word=9),
    "a broken binary header": frame_of(b"\x01\x36\0\0", word=1),
    "a code that is text": request("x", {}),
    "fields that are a list": request(30, []),
    "a flag that is text": request(310, SEND_V2, b"x", flag="x"),
    "an opaque that is text": request(310, SEND_V2, b"x", opaque="x"),
    "an opaque that is a list": request(11, PULL, opaque=[]),
    "an opaque of 64 bits": request(11, PULL, opaque=1 << 40),
}


@contextlib.asynccontextmanager
async def peer(cluster: Cluster) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to write anything to."""
    host, port = cluster.broker.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer_of(reader: asyncio.StreamReader) -> Command:
    prefix = await reader.readexactly(4)
    return decode_command(prefix + await reader.readexactly(int.from_bytes(prefix, "big")))


class Good:
    """A well-behaved client beside the others: what it does must always work."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._count = 0

    async def check(self) -> None:
        """Let a pull wait, send what it waits for, and find it in its place."""
        pull = asyncio.ensure_future(
            self._client.pull("Good", 0, self._count, sys_flag=6, suspend_timeout_millis=30_000)
        )
        body = b"%d" % self._count
        answer = await self._client.send("Good", body, properties={"UNIQ_KEY": f"k{self._count}"})
        assert answer.header.queue_offset == self._count
        assert [record.body for record in decode_pull_body((await pull).body)] == [body]
        self._count += 1


@contextlib.asynccontextmanager
async def good_cluster(folder: Path) -> AsyncIterator[tuple[Cluster, Good]]:
    """A broker with a good client, for whom everything works at the end as it did at the start."""
    async with broker_cluster(folder) as cluster:
        client = cluster.client()
        await client.send("Orders", b"first", properties={"UNIQ_KEY": "k"})
        await client.send("Good", b"other", queue_id=1)
        good = Good(client)
        await good.check()
        yield cluster, good
        await good.check()


def refused_or_stored(answer: Command) -> None:
    """A code with a remark that a person understands."""
    assert answer.opaque == 5
    if answer.code not in (0, 19, 20, 21):
        assert answer.remark
        assert not [noise for noise in NOISE if noise in answer.remark], answer.remark


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_garbage_costs_only_its_own_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each kind of garbage while another client sends and waits: that connection ends, nothing is kept of it."""

    async def main() -> None:
        async with good_cluster(tmp_path) as (cluster, good):
            server = cluster.apps[0]._server
            before = len(server.connections)
            for name, data in GARBAGE.items():
                async with peer(cluster) as (reader, writer):
                    writer.write(data)
                    with contextlib.suppress(ConnectionError):
                        while await reader.read(1 << 16):
                            pass
                await good.check()
                assert len(server.connections) == before, name
            assert server._options.limits.unfinished.size == 0
        assert errors_of(caplog) == []

    run(main())


def test_a_frame_may_end_anywhere(tmp_path: Path) -> None:
    """Closes in the middle of a frame, at every byte of its beginning, and sends a frame byte by byte."""

    async def main() -> None:
        async with good_cluster(tmp_path) as (cluster, good):
            server = cluster.apps[0]._server
            before = len(server.connections)
            frame = request(310, SEND_V2, b"x" * 100)
            for size in (*range(1, 40), len(frame) - 1):
                async with peer(cluster) as (_, writer):
                    writer.write(frame[:size])
            async with peer(cluster) as (reader, writer):
                for position in range(len(frame)):
                    writer.write(frame[position : position + 1])
                    await writer.drain()
                assert (await answer_of(reader)).code == 0
            await good.check()
            while len(server.connections) != before:
                await asyncio.sleep(0.001)
            assert server._options.limits.unfinished.size == 0
            # Of the frames that ended early nothing was stored.
            assert len(await cluster.client().messages("Orders")) == 2

    run(main())


@pytest.mark.parametrize("code", sorted(REQUESTS))
def test_wrong_fields_are_answered_clearly(tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture) -> None:
    """Every field missing, of every other type and out of range; all on one connection, which goes on."""
    fields = REQUESTS[code]

    async def main() -> None:
        async with good_cluster(tmp_path) as (cluster, good):
            async with peer(cluster) as (reader, writer):
                for name in fields:
                    for wrong in WRONG:
                        ext = {key: value for key, value in fields.items() if key != name}
                        if wrong is not GONE:
                            ext[name] = wrong
                        writer.write(request(code, ext, b"" if code in (11, 361, 15) else b"x"))
                        refused_or_stored(await answer_of(reader))
                writer.write(request(code, fields, b"" if code in (11, 361, 15) else b"x"))
                assert (await answer_of(reader)).code == 0
            await good.check()
            records = await cluster.client().messages("Orders")
            assert [record.queue_offset for record in records] == list(range(len(records)))
        assert errors_of(caplog) == []

    run(main())


HEARTBEATS: list[Any] = [
    b"", b"x", b"[]", b"7", b"null", b"{}", b"{" * 50_000,
    {"clientID": None}, {"clientID": 7}, {"clientID": []}, {"producerDataSet": 7}, {"producerDataSet": [7]},
    {"producerDataSet": [{"groupName": []}]}, {"producerDataSet": [{}]}, {"consumerDataSet": "x"},
    {"consumerDataSet": [None]}, {"consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": 7}]},
    {"consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": [{"topic": {}}]}]},
    {"consumerDataSet": [{"groupName": "CG", "consumeType": "x"}]},
    {"consumerDataSet": [{"groupName": "CG", "messageModel": 99}]},
    {"consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": [{"topic": "T", "codeSet": ["x"]}]}]},
    {"consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": [{"topic": "T", "subVersion": "x"}]}]},
    {"consumerDataSet": [{"groupName": "x" * 10_000}]}, {"consumerDataSet": [{"groupName": "a/b c"}]},
    {"heartbeatFingerprint": "x"}, {"withoutSub": []},
]  # fmt: skip


def test_wrong_heartbeats_are_answered_clearly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bodies that are no heartbeat, and every part of one wrong; who is refused becomes no member and may go on."""

    async def main() -> None:
        async with good_cluster(tmp_path) as (cluster, good):
            async with peer(cluster) as (reader, writer):
                for wrong in HEARTBEATS:
                    whole = {"clientID": "c", "producerDataSet": [], "consumerDataSet": []}
                    body = wrong if isinstance(wrong, bytes) else orjson.dumps(whole | wrong)
                    writer.write(request(34, {}, body))
                    answer = await answer_of(reader)
                    refused_or_stored(answer)
                    groups = cluster.broker.clients.consumer_groups()
                    assert answer.code == 0 or groups == [], wrong
                writer.write(
                    request(34, {}, orjson.dumps({"clientID": "c", "producerDataSet": [{"groupName": "PG"}]}))
                )
                assert (await answer_of(reader)).code == 0
                assert cluster.broker.clients.producer_by_client_id("c") is not None
            await good.check()
        assert errors_of(caplog) == []

    run(main())


def test_damaged_requests_harm_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """2,000 good requests with bytes changed, cut out and doubled, in their headers most of all."""
    chance = random.Random(20_15)
    originals = [request(code, ext, b"x" * 20) for code, ext in REQUESTS.items()]
    originals += [
        encode_command(Command(code, 5, ext=dict(COMMIT), body=b"{}")) for code in (14, 30, 31, 34, 36, 41)
    ]

    def damaged() -> bytes:
        data = bytearray(chance.choice(originals))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(8, len(data))
            kind = chance.randrange(3)
            if kind == 0:
                data[at] = chance.randrange(256)
            elif kind == 1:
                del data[at : at + chance.randrange(1, 9)]
            else:
                data[at:at] = data[at : at + chance.randrange(1, 9)]
        data[:4] = (len(data) - 4).to_bytes(4, "big")
        return bytes(data)

    async def one_peer(cluster: Cluster) -> None:
        async with peer(cluster) as (reader, writer):
            for _ in range(20):
                writer.write(damaged())
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass

    async def main() -> None:
        async with good_cluster(tmp_path) as (cluster, good):
            for _ in range(10):
                await asyncio.gather(*(one_peer(cluster) for _ in range(10)), good.check())
        assert errors_of(caplog) == []

    run(main())


def test_a_pull_that_cannot_be_answered_costs_others_nothing(tmp_path: Path) -> None:
    """Its call back fails when its message arrives: it is closed, and those who wait beside it are answered."""

    async def main() -> None:
        async with good_cluster(tmp_path) as (cluster, good):
            long_polls = cluster.broker.long_polls

            def fail() -> None:
                raise RuntimeError("for the test")

            async with peer(cluster) as (reader, writer):
                writer.write(request(30, {"topic": "Good", "queueId": "0"}))
                assert (await answer_of(reader)).code == 0
                port = writer.get_extra_info("sockname")[1]
                connections = cluster.apps[0]._server.connections
                (bad,) = [each for each in connections if each.peer.endswith(f":{port}")]
                assert long_polls.hold(("Good", 0), bad, 0, 60_000, None, fail)
                await good.check()
                assert await reader.read() == b""
                assert long_polls.count == 0

    run(main())

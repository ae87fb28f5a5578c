"""What both servers of the frame benchmark do with a request, and our own server doing it.

`python -m bench.serve` prints its port and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import Any

import orjson

from rmq_core.net.connection import Connection
from rmq_core.net.dispatch import Dispatcher
from rmq_core.net.server import Server
from rmq_core.protocol.requests import SendMessageV2

_PREFIX = struct.Struct(">ii")
_REPLY = (
    b'{"code":0,"extFields":{"queueId":"%d","queueOffset":"%d","msgId":"7F00000100002A9F%016X"},"flag":1,'
    b'"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":479}'
)


def reply_to(header: dict[str, Any], body: bytes) -> bytes:
    """Look the fields of a send up and answer it from a template."""
    ext = header["extFields"]
    queue_id, properties = int(ext["e"]), ext["i"].encode()
    born, flag, sys_flag = int(ext["g"]), int(ext["h"]), int(ext["f"])
    size = len(body) + len(properties) + len(ext["b"]) + 91
    text = _REPLY % (queue_id, size, born + flag + sys_flag, header["opaque"])
    return _PREFIX.pack(4 + len(text), len(text)) + text


def answer(frame: bytes) -> bytes:
    """The same from a whole frame."""
    end = 8 + int.from_bytes(frame[5:8], "big")
    return reply_to(orjson.loads(frame[8:end]), frame[end:])


def hot_send(connection: Connection, header: dict[str, Any], body: bytes) -> bytes:
    return reply_to(header, body)


async def serve_until_stdin_ends(port: int) -> None:
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def main() -> None:
    server = Server(Dispatcher(hot={SendMessageV2.code: hot_send}))
    await serve_until_stdin_ends(server.listen("127.0.0.1", 0))
    await server.close(drain_ms=100)


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())

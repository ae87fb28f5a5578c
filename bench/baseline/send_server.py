"""The least asyncio server that stores what is sent: parse, append into a mapped file, CRC, queue entry, answer.

No checks, no index, nothing durable. `python -m bench.baseline.send_server` prints its port and serves until its
standard input ends.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
from pathlib import Path
from typing import cast

import orjson

from bench.baseline.append import BareLog
from bench.serve import serve_until_stdin_ends

SIZE = 256 << 20
_PREFIX = struct.Struct(">ii")
_REPLY = (
    b'{"code":0,"extFields":{"queueId":"%d","queueOffset":"%d","msgId":"7F00000100002A9F%016X"},"flag":1,'
    b'"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":479}'
)


class SendServer(asyncio.Protocol):
    """All whole frames of a read, one write."""

    log: BareLog

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        buffer = self._rest + data if self._rest else data
        replies = []
        position, size = 0, len(buffer)
        while size - position >= 4:
            end = position + 4 + int.from_bytes(buffer[position : position + 4], "big")
            if end > size:
                break
            replies.append(self._store(buffer[position:end]))
            position = end
        self._rest = buffer[position:]
        if replies:
            self._transport.write(b"".join(replies))

    def _store(self, frame: bytes) -> bytes:
        body_start = 8 + int.from_bytes(frame[5:8], "big")
        header = orjson.loads(frame[8:body_start])
        ext = header["extFields"]
        queue_id = int(ext["e"])
        if self.log.end > SIZE - (1 << 16):
            self.log.rewind()
        at, queue_offset = self.log.put(ext["b"], queue_id, frame[body_start:], ext["i"].encode(), int(ext["g"]))
        text = _REPLY % (queue_id, queue_offset, at, header["opaque"])
        return _PREFIX.pack(4 + len(text), len(text)) + text


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=Path(__file__).parent.parent) as folder:
        SendServer.log = BareLog(Path(folder, "log"), SIZE)
        server = await asyncio.get_running_loop().create_server(SendServer, "127.0.0.1", 0)
        await serve_until_stdin_ends(server.sockets[0].getsockname()[1])


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())

"""The least asyncio server that answers send requests: whole frames of a read in, one write out.

`python -m bench.baseline.frame_server` prints its port and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
from typing import cast

from bench.serve import answer, serve_until_stdin_ends


class FrameServer(asyncio.Protocol):
    """No limits, no checks, no calls of its own."""

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
            replies.append(answer(buffer[position:end]))
            position = end
        self._rest = buffer[position:]
        if replies:
            self._transport.write(b"".join(replies))


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(FrameServer, "127.0.0.1", 0)
    await serve_until_stdin_ends(server.sockets[0].getsockname()[1])


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())

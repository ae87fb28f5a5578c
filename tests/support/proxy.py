"""A TCP proxy that tests put between two programs to stall, delay or cut what runs between them."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType


class Proxy:
    """Forwards every connection to one address until it is told otherwise."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.address = ""
        self.connections_made = 0
        self.delay_ms = 0
        """How long answers are held back."""
        self._cut_after: int | None = None

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.resume()
        self.cut()
        await asyncio.sleep(0)

    def stall(self) -> None:
        """Keep connections open and forward nothing more."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again what was held back."""
        self._flowing.set()

    def cut_after(self, size: int) -> None:
        """Let so many more bytes of answers through, then break the connection that they run on: mid-frame."""
        self._cut_after = size

    def lead_to(self, target: str) -> None:
        """Forward new connections to another address."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def cut(self) -> None:
        """Break every connection; new ones are accepted."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_made += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer, answers=True))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                if answers and self.delay_ms:
                    await asyncio.sleep(self.delay_ms / 1000)
                if answers and self._cut_after is not None:
                    data, self._cut_after = data[: self._cut_after], self._cut_after - len(data)
                    if self._cut_after <= 0:
                        self._cut_after = None
                        writer.write(data)
                        await writer.drain()
                        break
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)

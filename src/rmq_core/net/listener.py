"""Accepts connections and finds out what they speak before a protocol sees them.

The listener accepts by itself: in permissive mode the first byte, which is looked at but not taken, tells TLS
(0x16) from a frame (a length below 16 MiB begins with 0x00). A peer that sends nothing within the limit is
closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from rmq_core.net.tls import ServerTls, TlsMode

logger = logging.getLogger(__name__)

TLS_HANDSHAKE_BYTE = b"\x16"
FIRST_BYTE_TIMEOUT_S = 30
ACCEPT_PAUSE_S = 0.2


class Listener:
    """One listening socket."""

    def __init__(
        self,
        accept: Callable[[], asyncio.Protocol | None],
        tls: ServerTls,
        *,
        backlog: int = 1024,
    ) -> None:
        """accept() gives the protocol of a new connection, or None where there is no room for it."""
        self._accept = accept
        self._tls = tls
        self._backlog = backlog
        self._socket: socket.socket | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self.port = 0

    def open(self, host: str, port: int) -> None:
        """Bind and listen; port 0 takes a free one. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(self._backlog)
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise
        self._socket = listening
        self.port = listening.getsockname()[1]
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept_ready)

    def close(self) -> None:
        """Stop accepting. Connections that are open stay so."""
        if self._socket is None:
            return
        if self._paused is not None:
            self._paused.cancel()
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = None
        for task in self._opening:
            task.cancel()

    def _accept_ready(self) -> None:
        # Bounded, so that a flood of connections does not keep the loop from the others.
        for _ in range(64):
            if self._socket is None:
                return
            try:
                connected, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._welcome(connected)

    def _pause(self, error: OSError) -> None:
        """Out of file descriptors or memory: the backlog holds the peers until there is room."""
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            logger.error("cannot accept connections: %s", error)
        else:
            logger.warning("no room for more connections: %s", error)
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        self._paused = loop.call_later(ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept_ready)

    def _welcome(self, connected: socket.socket) -> None:
        protocol = self._accept()
        if protocol is None:
            connected.close()
            return
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.get_running_loop().create_task(self._open(connected, protocol))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connected: socket.socket, protocol: asyncio.Protocol) -> None:
        loop = asyncio.get_running_loop()
        try:
            context = await self._choose_context(connected)
            await loop.connect_accepted_socket(lambda: protocol, connected, ssl=context)
        except (OSError, ssl.SSLError, TimeoutError) as error:
            logger.info("a connection could not be opened: %s", error)
            connected.close()
            # The protocol was counted when it was made; this tells its owner that nothing came of it.
            protocol.connection_lost(None)
        except asyncio.CancelledError:
            connected.close()
            protocol.connection_lost(None)
            raise

    async def _choose_context(self, connected: socket.socket) -> ssl.SSLContext | None:
        if self._tls.mode is not TlsMode.PERMISSIVE or self._tls.context is None:
            return self._tls.context
        async with asyncio.timeout(FIRST_BYTE_TIMEOUT_S):
            first = await _peek(connected)
        return self._tls.context if first == TLS_HANDSHAKE_BYTE else None


async def _peek(connected: socket.socket) -> bytes:
    """The first byte of a connection, left in place; empty where the peer closed."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connected.fileno(), lambda: None if readable.done() else readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(connected.fileno())
    return connected.recv(1, socket.MSG_PEEK)

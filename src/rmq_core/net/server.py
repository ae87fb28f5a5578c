"""Listens, limits, closes what is idle, and drains when it stops.

Every listener of a program, the VIP port too, belongs to one Server: they share handlers, limits and the
pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rmq_core.clock import Clock, SystemClock, Timer
from rmq_core.config import ServerSettings
from rmq_core.net.connection import Connection, Limits, Pass, UnfinishedFrames
from rmq_core.net.dispatch import Dispatcher
from rmq_core.net.listener import Listener
from rmq_core.net.tls import ClientAuth, ServerTls, TlsFiles, TlsMode

logger = logging.getLogger(__name__)

IDLE_SWEEPS = 4
"""A connection is idle after this many sweeps, so it is closed up to a quarter of the time late."""

TLS_CHECK_INTERVAL_MS = 500
FILES_KEPT_FREE = 256
"""Descriptors that connections leave to files and outgoing calls."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server behaves; programs make it from their settings."""

    limits: Limits = field(default_factory=Limits)
    connections_max: int = 0
    """0 derives it from the limit of open files."""
    idle_ms: int = 120_000
    backlog: int = 1024


class Server:
    """The server side of a program."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        options: ServerOptions | None = None,
        *,
        clock: Clock | None = None,
        tls: ServerTls | None = None,
        on_pass_end: Callable[[], None] | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        last_answers: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """last_answers() returns when all that hot handlers answer later has been answered; asked at the end."""
        self.dispatcher = dispatcher
        self.connections: set[Connection] = set()
        self.tls = tls or ServerTls()
        self._options = options or ServerOptions()
        self._connections_max = self._options.connections_max or _connections_by_open_files()
        self._clock = clock or SystemClock()
        self._pass = Pass(on_pass_end)
        self.pass_end_soon = self._pass.soon
        """Have on_pass_end called at the end of this pass, whether or not anybody is answered in it."""
        self._on_open = on_open
        self._on_close = on_close
        self._last_answers = last_answers
        self._listeners: list[Listener] = []
        self._timers: dict[str, Timer] = {}
        self._all_closed = asyncio.Event()

    def listen(self, host: str, port: int) -> int:
        """Accept connections on an address and return the port; 0 takes a free one. Raises OSError."""
        listener = Listener(self._accept, self.tls, backlog=self._options.backlog)
        try:
            listener.open(host, port)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
        if not self._listeners:
            self._repeat("idle", self._options.idle_ms / IDLE_SWEEPS, self._close_idle)
            if self.tls.context is not None:
                self._repeat("tls", TLS_CHECK_INTERVAL_MS, self.tls.reload_if_changed)
        self._listeners.append(listener)
        return listener.port

    def _accept(self) -> Connection | None:
        if len(self.connections) >= self._connections_max:
            logger.warning("refusing a connection: %d are open", len(self.connections))
            return None
        connection = Connection(
            self.dispatcher,
            limits=self._options.limits,
            this_pass=self._pass,
            clock=self._clock,
            on_open=self._on_open,
            on_close=self._closed,
        )
        self.connections.add(connection)
        return connection

    def _closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._all_closed.set()
        if self._on_close is not None:
            self._on_close(connection)

    def _repeat(self, name: str, interval_ms: float, action: Callable[[], object]) -> None:
        def run() -> None:
            action()
            self._timers[name] = self._clock.call_later(interval_ms, run)

        self._timers[name] = self._clock.call_later(interval_ms, run)

    def _close_idle(self) -> None:
        for connection in list(self.connections):
            connection.idle_sweeps += 1
            if connection.idle_sweeps > IDLE_SWEEPS:
                logger.info("closing %s: idle", connection.peer)
                connection.close()

    async def close(self, *, drain_ms: float = 3_000, tell_to_go_away: bool = False) -> None:
        """Stop accepting, let calls finish, write what is waiting, close. Idempotent.

        tell_to_go_away: requests that still come are answered GO_AWAY where the client understands it.
        """
        self.dispatcher.is_going_away = tell_to_go_away
        for listener in self._listeners:
            listener.close()
        for timer in self._timers.values():
            timer.cancel()
        self._listeners.clear()
        self._timers.clear()
        await self.dispatcher.drain(drain_ms)
        for connection in list(self.connections):
            connection.take_no_more()
        # What came meanwhile.
        await self.dispatcher.drain(drain_ms)
        if self._last_answers is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._last_answers(), drain_ms / 1000)
        # One more pass: the answers of the last calls are written at its end.
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.close()
        if self.connections:
            self._all_closed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), drain_ms / 1000)
        for connection in list(self.connections):
            connection.abort()


def _connections_by_open_files() -> int:
    """Raise the limit of open files as far as it goes and leave some for the rest of the program."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            logger.info("the limit of open files stays at %d", soft)
    return max(soft - FILES_KEPT_FREE, 64)


def server_options(settings: ServerSettings) -> ServerOptions:
    """The options that settings ask for."""
    limits = Limits(
        frame_size_max=settings.frame_max_length,
        output_soft_bytes=settings.output_soft_limit_bytes,
        output_hard_bytes=settings.output_hard_limit_bytes,
        unfinished=UnfinishedFrames(settings.unfinished_frames_max_bytes),
    )
    return ServerOptions(
        limits,
        connections_max=settings.connections_max,
        idle_ms=settings.server_channel_max_idle_time_seconds * 1000,
        backlog=settings.server_socket_backlog,
    )


def server_tls(settings: ServerSettings) -> ServerTls:
    """The TLS side of the settings. Raises ConfigError where a file cannot be used."""
    files = TlsFiles(
        settings.tls_server_cert_path,
        settings.tls_server_key_path,
        settings.tls_server_key_password,
        settings.tls_server_trust_cert_path,
    )
    return ServerTls(
        TlsMode(settings.tls_server_mode), files, client_auth=ClientAuth(settings.tls_server_need_client_auth)
    )

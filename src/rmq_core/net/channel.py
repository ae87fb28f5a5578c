"""Outgoing calls to one address: connects when needed, again after a loss; takes calls from the peer too."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rmq_core.clock import Clock, SystemClock
from rmq_core.errors import CallTimeoutError, ConnectError
from rmq_core.net.calls import Answer, RpcHook
from rmq_core.net.connection import Connection, Limits, Pass, parse_address
from rmq_core.net.dispatch import Dispatcher
from rmq_core.protocol.request import Header, Request

R = TypeVar("R", bound=Header)
_CLOSE_S: Final = 1.0


class Channel:
    """A client of one address. The first call connects; after a loss the next call connects again."""

    def __init__(
        self,
        address: str,
        *,
        dispatcher: Dispatcher | None = None,
        limits: Limits | None = None,
        connect_timeout_ms: float = 3_000,
        tls: ssl.SSLContext | None = None,
        hooks: tuple[RpcHook, ...] = (),
        clock: Clock | None = None,
        on_open: Callable[[Connection], None] | None = None,
    ) -> None:
        """on_open is called with each new connection, before any call goes out on it."""
        self.address = address
        self._host, self._port = parse_address(address)
        self._dispatcher = dispatcher or Dispatcher()
        self._limits = limits or Limits()
        self._connect_timeout_ms = connect_timeout_ms
        self._tls = tls
        self._hooks = hooks
        self._clock = clock or SystemClock()
        self._on_open = on_open
        self._pass = Pass()
        self._connection: Connection | None = None
        self._ended: asyncio.Event
        """Of the last connection that was opened."""
        self._connecting: asyncio.Task[Connection] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"Channel({self.address!r}, {'connected' if self.is_connected else 'not connected'})"

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    @property
    def connection(self) -> Connection | None:
        """The connection, where it is open."""
        connection = self._connection
        return connection if connection is not None and connection.is_open else None

    async def call(self, request: Request[R], body: bytes = b"", *, timeout_ms: float = 3_000) -> Answer[R]:
        """Ask and wait for the answer; the time-out covers connecting too.

        Raises BrokerError where the peer answers with an error, CallTimeoutError, ConnectError,
        TooManyCallsError.
        """
        started_ms = self._clock.monotonic_ms()
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = await self.connect()
        remaining_ms = timeout_ms - (self._clock.monotonic_ms() - started_ms)
        if remaining_ms <= 0:
            raise CallTimeoutError(f"connecting to {self.address} took the whole {timeout_ms:.0f} ms")
        return await connection.call(request, body, timeout_ms=remaining_ms)

    async def oneway(self, request: Request[Any], body: bytes = b"") -> None:
        """Tell the peer and expect nothing. Raises ConnectError where it cannot be reached."""
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = await self.connect()
        connection.oneway(request, body)

    async def connect(self) -> Connection:
        """The open connection. Callers that come while it is being opened share the attempt."""
        if self._is_closed:
            raise ConnectError(f"the channel to {self.address} is closed")
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._open())
            self._connecting.add_done_callback(self._attempt_done)
        try:
            # Shielded: one caller that gives up does not take the attempt from the others.
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                raise ConnectError(f"the channel to {self.address} is closed") from None
            raise

    def _attempt_done(self, attempt: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not attempt.cancelled() and attempt.exception() is None:
            self._connection = attempt.result()

    async def _open(self) -> Connection:
        ended = asyncio.Event()
        connection = Connection(
            self._dispatcher,
            limits=self._limits,
            this_pass=self._pass,
            clock=self._clock,
            hooks=self._hooks,
            on_open=self._on_open,
            on_close=lambda _: ended.set(),
        )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                await loop.create_connection(lambda: connection, self._host, self._port, ssl=self._tls)
        except (OSError, ssl.SSLError) as error:  # TimeoutError is an OSError
            reason = str(error) or f"no answer in {self._connect_timeout_ms:.0f} ms"
            raise ConnectError(f"cannot connect to {self.address}: {reason}") from error
        if self._is_closed:
            connection.abort()
            raise ConnectError(f"the channel to {self.address} is closed")
        self._ended = ended
        return connection

    async def close(self) -> None:
        """Close the connection; calls in flight end with ConnectError. Idempotent.

        When it returns nothing is left of it: what was written has gone out and TLS has been ended. After a second
        both are given up.
        """
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._ended.wait()
        except TimeoutError:
            connection.abort()
            await self._ended.wait()

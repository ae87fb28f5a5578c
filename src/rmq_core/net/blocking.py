"""Calls from plain threads, without an event loop: what Spark executors use.

Several calls may be in flight, from one thread (start, start, wait, wait) or from many. There is no thread of
its own: whoever waits reads, and hands answers of others to them on the way. Requests of the peer go to
on_request in the thread that reads; poll() reads for their sake alone.

Where the connection is lost or the peer breaks the protocol, the calls in flight end with ConnectError and
the next start() connects again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from rmq_core.errors import CallTimeoutError, ConnectError, RemoteProtocolError, TooManyCallsError
from rmq_core.net.calls import Answer, RpcHook, read_answer
from rmq_core.net.connection import parse_address
from rmq_core.protocol.codes import Language, ResponseCode
from rmq_core.protocol.command import (
    FRAME_SIZE_MAX,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Command,
    decode_head,
    encode_command,
)
from rmq_core.protocol.request import Header, Request

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Header)
READ_SIZE = 256 * 1024
LARGE = READ_SIZE // 2
"""Frames above this size are received where they stay, instead of being cut out of what was read."""
AFTER_LARGE = 16 * 1024
"""So much is read behind a large frame: what belongs to another large one has to be copied once."""
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
OnRequest = Callable[[Command], Command | None]


class PendingCall(Generic[R]):
    """A call that was sent; wait() gives its answer."""

    __slots__ = ("_channel", "_command", "_deadline", "_request", "_session", "response", "takes_view", "view")

    def __init__(
        self,
        channel: BlockingChannel,
        session: _Session,
        request: type[Request[R]],
        command: Command,
        deadline: float,
        *,
        takes_view: bool = False,
    ) -> None:
        self._channel = channel
        self._session = session
        self._request = request
        self._command = command
        self._deadline = deadline
        self.response: Command | None = None
        self.takes_view = takes_view
        self.view = memoryview(b"")
        """The body of the answer where the call was started with takes_view; the answer itself has none then."""

    def wait(self, *, timeout_ms: float | None = None) -> Answer[R]:
        """The answer; a time-out given here runs from now. Raises BrokerError, CallTimeoutError, ConnectError."""
        deadline = self._deadline if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        try:
            self._session.read_until(lambda: self.response is not None, deadline)
        finally:
            self.cancel()
        assert self.response is not None
        for hook in self._channel.hooks:
            hook.after(self._channel.address, self._command, self.response)
        return read_answer(self._request, self.response)

    def cancel(self) -> None:
        """Nobody waits for the answer any more: it is dropped when it comes."""
        self._session.pending.pop(self._command.opaque, None)


class BlockingChannel:
    """A client of one address for plain threads; safe to use from many of them."""

    def __init__(
        self,
        address: str,
        *,
        connect_timeout_ms: float = 3_000,
        tls: ssl.SSLContext | None = None,
        hooks: tuple[RpcHook, ...] = (),
        on_request: OnRequest | None = None,
        calls_in_flight_max: int = 65_535,
        frame_size_max: int = FRAME_SIZE_MAX,
    ) -> None:
        """on_request answers what the peer asks; its None means that no answer is sent."""
        self.address = address
        self.hooks = hooks
        self._endpoint = parse_address(address)
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._tls = tls
        self._on_request = on_request
        self._calls_in_flight_max = calls_in_flight_max
        self._frame_size_max = frame_size_max
        self._opaques = itertools.count(1)
        self._opening = threading.Lock()
        self._session: _Session | None = None
        self._is_closed = False
        self.times_connected = 0
        """Another number than before means another connection: whoever is there may have been restarted."""

    def __enter__(self) -> BlockingChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"BlockingChannel({self.address!r})"

    def call(self, request: Request[R], body: bytes = b"", *, timeout_ms: float = 3_000) -> Answer[R]:
        """Ask and wait. Raises BrokerError, CallTimeoutError, ConnectError, TooManyCallsError."""
        return self.start(request, body, timeout_ms=timeout_ms).wait()

    def start(
        self, request: Request[R], body: bytes = b"", *, timeout_ms: float = 3_000, takes_view: bool = False
    ) -> PendingCall[R]:
        """Send a request and go on; the time-out runs from now. With takes_view the answer's body is not copied."""
        return self.start_all([(request, body)], timeout_ms=timeout_ms, takes_view=takes_view)[0]

    def start_all(
        self, requests: Sequence[tuple[Request[R], bytes]], *, timeout_ms: float = 3_000, takes_view: bool = False
    ) -> list[PendingCall[R]]:
        """Send several requests at once: all of them are on their way, or none counts as sent."""
        deadline = time.monotonic() + timeout_ms / 1000
        session = self._connected()
        if len(session.pending) + len(requests) > self._calls_in_flight_max:
            raise TooManyCallsError(f"{len(session.pending)} calls to {self.address} are in flight")
        calls: list[PendingCall[R]] = []
        frames: list[bytes] = []
        try:
            for request, body in requests:
                command = self._command(request, body, flag=0)
                call = PendingCall(self, session, type(request), command, deadline, takes_view=takes_view)
                calls.append(call)
                session.pending[command.opaque] = call
                frames.append(encode_command(command))
            session.write(b"".join(frames), deadline)
        except BaseException:
            for call in calls:
                call.cancel()
            raise
        return calls

    def oneway(self, request: Request[Any], body: bytes = b"", *, timeout_ms: float = 3_000) -> None:
        """Tell the peer and expect nothing. Raises ConnectError, CallTimeoutError."""
        frame = encode_command(self._command(request, body, flag=ONEWAY_FLAG))
        self._connected().write(frame, time.monotonic() + timeout_ms / 1000)

    def poll(self, timeout_ms: float) -> None:
        """Read for a while, for the sake of what the peer asks. Raises ConnectError."""
        try:
            self._connected().read_until(lambda: False, time.monotonic() + timeout_ms / 1000)
        except CallTimeoutError:
            return

    def drop(self) -> None:
        """Give the connection up: calls in flight end with ConnectError, the next one connects again.

        For a peer that no longer answers: the machine would find that out after many minutes.
        """
        session = self._session
        if session is not None:
            session.fail(ConnectError(f"the connection to {self.address} was given up: it did not answer"))

    def close(self) -> None:
        """Close the connection; calls in flight end with ConnectError. Idempotent."""
        self._is_closed = True
        session = self._session
        if session is not None:
            session.fail(ConnectError(f"the channel to {self.address} is closed"))

    def _command(self, request: Request[Any], body: bytes, *, flag: int) -> Command:
        command = Command(
            code=request.code,
            opaque=next(self._opaques) & 0x7FFFFFFF,
            flag=flag,
            ext=request.to_ext() or None,
            body=body,
            language=Language.PYTHON,
        )
        for hook in self.hooks:
            hook.before(self.address, command)
        return command

    def _connected(self) -> _Session:
        with self._opening:
            if self._is_closed:
                raise ConnectError(f"the channel to {self.address} is closed")
            if self._session is None or self._session.error is not None:
                self._session = _Session(self.address, self._connect(), self._frame_size_max, self._on_request)
                self.times_connected += 1
            return self._session

    def _connect(self) -> socket.socket:
        try:
            connected = socket.create_connection(self._endpoint, self._connect_timeout_s)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                return self._tls.wrap_socket(connected, server_hostname=self._endpoint[0])
        except (OSError, ssl.SSLError) as error:
            raise ConnectError(f"cannot connect to {self.address}: {error}") from error
        return connected


class _Session:
    """One connection of a channel and the calls in flight on it.

    Two locks, never held together but for `_reading` before `_writing` (an answer to a request of the peer is
    written by whoever reads).
    """

    def __init__(
        self, address: str, connected: socket.socket, frame_size_max: int, on_request: OnRequest | None
    ) -> None:
        self.pending: dict[int, PendingCall[Any]] = {}
        self.error: ConnectError | None = None
        self._address = address
        self._stream = _Stream(connected)
        self._frames = _Frames(frame_size_max)
        self._on_request = on_request
        self._reading = threading.Condition()
        self._has_reader = False
        self._writing = threading.Lock()

    def write(self, frame: bytes, deadline: float) -> None:
        if not self._writing.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise CallTimeoutError(f"{self._address} does not take more requests")
        try:
            self._check()
            # A time-out in the middle of a frame leaves half of it on the wire: it ends the session.
            self._stream.send_all(frame, deadline)
        except (OSError, ssl.SSLError) as error:
            raise self.fail(ConnectError(f"the connection to {self._address} broke: {error}")) from error
        finally:
            self._writing.release()

    def read_until(self, is_done: Callable[[], bool], deadline: float) -> None:
        """Read, or wait for the thread that does, until is_done. Raises CallTimeoutError, ConnectError."""
        while not is_done():
            with self._reading:
                while self._has_reader and not is_done() and self.error is None:
                    if not self._reading.wait(max(deadline - time.monotonic(), 0)):
                        raise CallTimeoutError(f"{self._address} did not answer in time")
                if is_done():
                    return
                self._check()
                self._has_reader = True
            try:
                self._read_once(deadline)
            finally:
                with self._reading:
                    self._has_reader = False
                    self._reading.notify_all()

    def _read_once(self, deadline: float) -> None:
        try:
            size = self._stream.receive(self._frames.room(), deadline)
            if size is None:
                raise CallTimeoutError(f"{self._address} did not answer in time")
            if not size:
                raise ConnectionResetError("closed by the peer")
            self._frames.arrived(size)
            while (frame := self._frames.next()) is not None:
                self._received(frame)
        except (CallTimeoutError, ConnectError):
            raise
        except (OSError, ssl.SSLError, RemoteProtocolError) as error:
            raise self.fail(ConnectError(f"the connection to {self._address} broke: {error}")) from error

    def _received(self, frame: memoryview) -> None:
        command, body_start = decode_head(frame)
        if command.is_response:
            call = self.pending.pop(command.opaque, None)
            if call is not None:
                if call.takes_view:
                    call.view = frame[body_start:]
                else:
                    command.body = bytes(frame[body_start:])
                call.response = command
            return
        command.body = bytes(frame[body_start:])
        answer = self._answer(command)
        if answer is not None and not command.is_oneway:
            answer.flag |= RESPONSE_FLAG
            answer.opaque = command.opaque
            answer.encoding = command.encoding
            self.write(encode_command(answer), time.monotonic() + 3)

    def _answer(self, command: Command) -> Command | None:
        if self._on_request is None:
            remark = f" request type {command.code} not supported"
            return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            return self._on_request(command)
        except Exception as error:  # the reader serves every call of this channel; one request must not end it
            logger.exception("request %d of %s failed", command.code, self._address)
            return Command(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _check(self) -> None:
        if self.error is not None:
            raise ConnectError(str(self.error))

    def fail(self, error: ConnectError) -> ConnectError:
        """End the session: everyone who waits hears of it."""
        with self._reading:
            if self.error is None:
                self.error = error
            self._reading.notify_all()
        self._stream.shut_down()
        return error


class _Frames:
    """Cuts what arrives into frames: room() says where to put it, arrived() how much it was."""

    def __init__(self, frame_size_max: int) -> None:
        self._frame_size_max = frame_size_max
        self._buffer = memoryview(bytearray(READ_SIZE))
        self._start = self._end = 0
        self._step = READ_SIZE
        self._large: memoryview | None = None
        self._filled = 0

    def room(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        if self._large is not None:
            return self._large[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == READ_SIZE:
            self._compact()
        return self._buffer[self._end : self._end + self._step]

    def _compact(self) -> None:
        size = self._end - self._start
        self._buffer[:size] = bytes(self._buffer[self._start : self._end])
        self._start, self._end = 0, size

    def arrived(self, size: int) -> None:
        """So much was put into the room."""
        if self._large is not None:
            self._filled += size
        else:
            self._end += size

    def next(self) -> memoryview | None:
        """The next whole frame, which is the caller's alone; None: more must arrive. Raises RemoteProtocolError."""
        if self._large is not None:
            if self._filled < len(self._large):
                return None
            frame, self._large, self._step = self._large, None, AFTER_LARGE
            return frame
        start, there = self._start, self._end - self._start
        if there < 4:
            return None
        length = int.from_bytes(self._buffer[start : start + 4], "big")
        if not 4 <= length <= self._frame_size_max - 4:
            raise RemoteProtocolError(
                f"a frame of {length} bytes; the limit is {self._frame_size_max - 4}, the least 4"
            )
        size = 4 + length
        if size <= there:
            self._start += size
            self._step = READ_SIZE
            return memoryview(bytes(self._buffer[start : start + size]))
        if size > LARGE:
            self._large, self._filled = memoryview(bytearray(size)), there
            self._large[:there] = self._buffer[start : self._end]
            self._start = self._end = 0
        elif start + size > READ_SIZE:
            self._compact()
        return None


class _Stream:
    """A connected socket that one thread reads while another writes, each with its own deadline."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        # One OpenSSL connection is not for two threads at once; a plain socket is.
        self._calling: AbstractContextManager[Any] = (
            threading.Lock() if isinstance(connected, ssl.SSLSocket) else contextlib.nullcontext()
        )
        self._selectors = {event: selectors.DefaultSelector() for event in (_READ, _WRITE)}
        for event, selector in self._selectors.items():
            selector.register(connected, event)
        self._lock = threading.Lock()
        self._users = 0
        self._is_shut = False

    def receive(self, room: memoryview, deadline: float) -> int | None:
        """Put there what arrived; how much, 0 at the end of the stream, None at the deadline. Raises OSError."""
        with self._in_use():
            while True:
                try:
                    with self._calling:
                        return self._socket.recv_into(room)
                except (BlockingIOError, ssl.SSLWantReadError):
                    event = _READ
                except ssl.SSLWantWriteError:
                    event = _WRITE
                if not self._wait(event, deadline):
                    return None

    def send_all(self, data: bytes, deadline: float) -> None:
        """Raises TimeoutError where the peer does not take all of it in time, and OSError."""
        rest = memoryview(data)
        with self._in_use():
            while rest:
                try:
                    with self._calling:
                        rest = rest[self._socket.send(rest) :]
                    continue
                except (BlockingIOError, ssl.SSLWantWriteError):
                    event = _WRITE
                except ssl.SSLWantReadError:
                    event = _READ
                if not self._wait(event, deadline):
                    raise TimeoutError("it does not take more requests")

    def _wait(self, event: int, deadline: float) -> bool:
        remaining = deadline - time.monotonic()
        return remaining > 0 and bool(self._selectors[event].select(remaining))

    def shut_down(self) -> None:
        """End the connection and wake the threads that wait in it; the last one to leave closes it."""
        with self._lock:
            if not self._is_shut:
                self._is_shut = True
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                self._close_if_left()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._lock:
            if self._is_shut:
                raise ConnectionResetError("the connection is closed")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._close_if_left()

    def _close_if_left(self) -> None:
        # Closed under a waiting thread, the descriptor could be another connection's by the time it wakes.
        if self._is_shut and not self._users:
            for selector in self._selectors.values():
                selector.close()
            self._socket.close()

"""One connection: frames in, commands out, calls in both directions matched by opaque.

Reading   All whole frames of one read are served in one go. Hot requests go to plain functions with the
          parsed header; everything else becomes a Command for the Dispatcher. A malformed frame closes
          this connection and nothing else.
Writing   send() collects; the Pass writes once per loop iteration. Nobody else touches the transport, and
          what is sent to a closed peer is dropped.
Limits    Above the soft output limit is_congested is set; above the hard one reading stops; at twice the hard
          limit the peer is given up. Unfinished frames are bounded per connection and over all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, cast

import orjson

from rmq_core.clock import Clock, SystemClock, Timer
from rmq_core.errors import (
    CallTimeoutError,
    ConnectError,
    ProtocolError,
    RemoteProtocolError,
    RocketMQError,
    TooManyCallsError,
)
from rmq_core.net.calls import Answer, RpcHook, read_answer
from rmq_core.net.dispatch import Dispatcher, HotHandler
from rmq_core.protocol.codes import Language
from rmq_core.protocol.command import (
    FRAME_SIZE_MAX,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Command,
    FrameDecoder,
    HeaderEncoding,
    decode_command,
    encode_command,
)
from rmq_core.protocol.request import Header, Request

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Header)

_PREFIX = struct.Struct(">iI").unpack_from
_OTHER_ENCODINGS: Final = 1 << 24
"""The second word of a frame is smaller where its header is JSON."""
_JOINED_MAX: Final = 32 << 10
"""Output up to this size is joined: copying it costs less than handing over many pieces."""
_OPAQUE_MIN: Final = -(1 << 31)
_OPAQUE_MAX: Final = (1 << 31) - 1
_opaques = itertools.count(1)


def next_opaque() -> int:
    """A number by which the answer to a call of ours will be known."""
    return next(_opaques) & 0x7FFFFFFF


class UnfinishedFrames:
    """How many bytes of unfinished frames all connections together may keep."""

    __slots__ = ("limit", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may take."""

    frame_size_max: int = FRAME_SIZE_MAX
    output_soft_bytes: int = 1 << 20
    output_hard_bytes: int = 64 << 20
    calls_in_flight_max: int = 65_535
    unfinished: UnfinishedFrames = field(default_factory=lambda: UnfinishedFrames(512 << 20))


class Pass:
    """One iteration of the event loop: what it has to say is written at its end, once per connection.

    Where its end fails, nothing that was said in it may be believed: those connections are closed.
    """

    __slots__ = ("_connections", "_is_scheduled", "_on_end")

    def __init__(self, on_end: Callable[[], None] | None = None) -> None:
        self._on_end = on_end
        self._connections: list[Connection] = []
        self._is_scheduled = False

    def soon(self) -> None:
        """Let this pass have an end even if no connection has anything to say."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._end)

    def schedule(self, connection: Connection) -> None:
        """Flush the connection at the end of this pass."""
        if not self._is_scheduled:
            self.soon()
        self._connections.append(connection)

    def _end(self) -> None:
        failure = None
        if self._on_end is not None:
            try:
                self._on_end()
            except Exception as error:  # whatever it was, it must not stop the loop
                failure = error
        self._is_scheduled = False
        connections, self._connections = self._connections, []
        if failure is not None:
            logger.critical("closing %d connections, their answers may be wrong: %s", len(connections), failure)
        for connection in connections:
            if failure is None:
                connection.flush()
            else:
                connection.abort()


class HeaderTaker(Protocol):
    """Waits for an answer whose body does not matter, as a future does, and takes its parsed header."""

    def done(self) -> bool: ...

    def set_result(self, result: dict[str, Any], /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


@dataclass(slots=True)
class _Pending:
    answer: Any
    """A future of the command, or a HeaderTaker."""
    deadline_ms: float
    takes_header: bool = False


class Connection(asyncio.Protocol):
    """A connected peer, on either side. Made by Server and Channel."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        limits: Limits,
        this_pass: Pass,
        clock: Clock | None = None,
        hooks: tuple[RpcHook, ...] = (),
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        self.peer = ""
        """ip:port of the other side."""
        self.local = ""
        self.encoding = HeaderEncoding.JSON
        """The encoding of the frame that is being served, for hot handlers."""
        self.idle_sweeps = 0
        """How often the idle sweep has passed since the last byte."""
        self.is_congested = False
        """Whether more output is waiting than the soft limit allows."""
        self.calls_served = 0
        """Requests of this peer whose answer is still to come."""
        self.limits = limits
        self._dispatcher = dispatcher
        self._hot: dict[int, HotHandler] = dispatcher.hot
        self._pass = this_pass
        self._clock = clock or SystemClock()
        self._hooks = hooks
        self._on_open = on_open
        self._on_close = on_close
        self._decoder = FrameDecoder(frame_size_max=limits.frame_size_max)
        self._transport: asyncio.Transport | None = None
        self._output: list[bytes | memoryview] = []
        self._output_size = 0
        """Of what send() collected; the small replies of hot handlers are not counted."""
        self._is_paused = False
        self._is_ending = False
        self._pending: dict[int, _Pending] = {}
        self._sweep: Timer | None = None
        self._sweep_at_ms = 0.0
        self._waiting_drain: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"Connection({self.local} - {self.peer}{'' if self.is_open else ', closed'})"

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.limits.output_soft_bytes)
        self.peer = format_address(transport.get_extra_info("peername"))
        self.local = format_address(transport.get_extra_info("sockname"))
        if self._on_open is not None:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._output.clear()
        self.limits.unfinished.size -= self._decoder.pending_size
        self._decoder = FrameDecoder()
        if self._sweep is not None:
            self._sweep.cancel()
        pending, self._pending = self._pending, {}
        for call in pending.values():
            if not call.answer.done():
                call.answer.set_exception(ConnectError(f"the connection to {self.peer} ended"))
        self._drained()
        if self._on_close is not None:
            self._on_close(self)

    def data_received(self, data: bytes) -> None:
        self.idle_sweeps = 0
        if self._is_ending:
            return
        decoder = self._decoder
        before = decoder.pending_size
        try:
            decoder.feed(data)
            if before or decoder.pending_size:
                self._account_unfinished(decoder.pending_size - before)
            frames = decoder.whole()
            if frames:
                self._serve(frames)
        except ProtocolError as error:
            logger.warning("closing %s: %s", self.peer, error)
            self.abort()

    def _account_unfinished(self, change: int) -> None:
        unfinished = self.limits.unfinished
        unfinished.size += change
        if change > 0 and unfinished.size > unfinished.limit:
            raise RemoteProtocolError(f"unfinished frames of all peers exceed {unfinished.limit} bytes")

    def pause_writing(self) -> None:
        self.is_congested = self._is_paused = True

    def resume_writing(self) -> None:
        self.is_congested = self._is_paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._drained()

    def _drained(self) -> None:
        waiting, self._waiting_drain = self._waiting_drain, []
        for callback in waiting:
            callback()

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call back once when the output is below the soft limit again, or the connection is gone."""
        if self.is_congested:
            self._waiting_drain.append(callback)
        else:
            callback()

    # Frames in

    def _serve(self, frames: bytes) -> None:
        position, end, hot, encoding = 0, len(frames), self._hot, HeaderEncoding.JSON
        while position < end:
            length, word = _PREFIX(frames, position)
            frame_end = position + 4 + length
            header_end = position + 8 + (word & 0xFFFFFF)
            if header_end > frame_end:
                raise RemoteProtocolError("a header longer than its frame")
            if word < _OTHER_ENCODINGS:
                try:
                    header = orjson.loads(frames[position + 8 : header_end])
                    is_answer = header.get("flag", 0) & RESPONSE_FLAG
                    opaque = header["opaque"]
                    # What answers later relies on it: there is no caller then to hear that it is no number.
                    is_hot = not is_answer and _OPAQUE_MIN <= opaque <= _OPAQUE_MAX and type(opaque) is int
                    handler = hot.get(header["code"]) if is_hot else None
                    if is_answer and self._take_header(opaque, header):
                        position = frame_end
                        continue
                except (ValueError, LookupError, TypeError, AttributeError):
                    handler = None  # no plain JSON of the expected shape goes the long way
                if handler is not None:
                    self.encoding = encoding
                    # As _serve_hot() does it, whose call would take as long as looking the handler up.
                    try:
                        reply = handler(self, header, frames[header_end:frame_end])
                    except Exception as error:
                        reply = self._dispatcher.failed(handler, self, header, frames[header_end:frame_end], error)
                    if reply is not None:
                        self._output.append(reply)
                        if len(self._output) == 1:
                            self._pass.schedule(self)
                    position = frame_end
                    continue
            self._receive(decode_command(frames[position:frame_end]))
            position = frame_end

    def _take_header(self, opaque: int, header: dict[str, Any]) -> bool:
        pending = self._pending.get(opaque)
        if pending is None or not pending.takes_header:
            return False
        del self._pending[opaque]
        if not pending.answer.done():
            pending.answer.set_result(header)
        return True

    def _serve_hot(self, handler: HotHandler, header: dict[str, Any], body: bytes) -> None:
        try:
            reply = handler(self, header, body)
        except Exception as error:  # whatever a handler raises is an answer, never a lost connection
            reply = self._dispatcher.failed(handler, self, header, body, error)
        if reply is not None:
            output = self._output
            output.append(reply)
            if len(output) == 1:
                self._pass.schedule(self)

    def _receive(self, command: Command) -> None:
        if command.flag & RESPONSE_FLAG:
            pending = self._pending.pop(command.opaque, None)
            if pending is not None and not pending.answer.done():
                pending.answer.set_result(header_of(command) if pending.takes_header else command)
            return
        handler = self._hot.get(command.code)
        if handler is not None:
            self.encoding = command.encoding
            self._serve_hot(handler, header_of(command), command.body)
            return
        self._dispatcher.serve(self, command)

    # Frames out

    def send(self, data: bytes | memoryview) -> None:
        """Write at the end of this pass. The memory behind data must never change."""
        if self._transport is None:
            return
        self._output.append(data)
        self._output_size += len(data)
        if self._output_size > self.limits.output_soft_bytes:
            self.is_congested = True
        if len(self._output) == 1:
            self._pass.schedule(self)

    def flush(self) -> None:
        """Hand what was collected to the transport."""
        output, self._output = self._output, []
        self._output_size = 0
        transport = self._transport
        if transport is None or not output or transport.is_closing():
            return
        self.idle_sweeps = 0
        if len(output) == 1:
            transport.write(output[0])
        elif sum(map(len, output)) <= _JOINED_MAX:
            transport.write(b"".join(output))
        else:
            transport.writelines(output)
        if self.is_congested and not self._is_paused:  # the socket took it all
            self.is_congested = False
            self._drained()
        elif self.is_congested:
            waiting = transport.get_write_buffer_size()
            if waiting > 2 * self.limits.output_hard_bytes:
                logger.warning("closing %s: it does not read, %d bytes wait for it", self.peer, waiting)
                self.abort()
            elif waiting > self.limits.output_hard_bytes:
                transport.pause_reading()

    def take_no_more(self) -> None:
        """Pass over what the peer still sends; what it asked before is answered."""
        # It is read all the same: a connection that is closed over unread bytes is reset, and answers may be lost.
        self._is_ending = True

    def close(self) -> None:
        """Write what is waiting, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # Calls to the peer

    async def call(self, request: Request[R], body: bytes = b"", *, timeout_ms: float = 3_000) -> Answer[R]:
        """Ask the peer and wait for its answer.

        Raises BrokerError where the peer answers with an error, CallTimeoutError, ConnectError, and
        TooManyCallsError where the limit of calls in flight is reached.
        """
        command = self._command(request, body, flag=0)
        response = await self.exchange(command, timeout_ms=timeout_ms)
        for hook in self._hooks:
            hook.after(self.peer, command, response)
        return read_answer(type(request), response)

    def oneway(self, request: Request[Any], body: bytes = b"") -> None:
        """Tell the peer and expect nothing. What is told to a closed connection is lost."""
        self.send(encode_command(self._command(request, body, flag=ONEWAY_FLAG)))

    def _command(self, request: Request[Any], body: bytes, *, flag: int) -> Command:
        command = Command(
            code=request.code,
            opaque=next_opaque(),
            flag=flag,
            ext=request.to_ext() or None,
            body=body,
            language=Language.PYTHON,
        )
        for hook in self._hooks:
            hook.before(self.peer, command)
        return command

    def exchange(self, command: Command, *, timeout_ms: float) -> asyncio.Future[Command]:
        """Send a command as it is; the future gives the peer's response, whatever its code."""
        if not self.is_open:
            raise ConnectError(f"the connection to {self.peer} is closed")
        if len(self._pending) >= self.limits.calls_in_flight_max:
            raise TooManyCallsError(f"{len(self._pending)} calls to {self.peer} are in flight")
        frame = encode_command(command)
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self._pending[command.opaque] = _Pending(answer, deadline_ms)
        self._watch(deadline_ms)
        self.send(frame)
        return answer

    def exchange_frame(self, frame: bytes, opaque: int, answer: HeaderTaker, *, timeout_ms: float) -> None:
        """Send a whole frame with that opaque; the header of what the peer answers is given to `answer`.

        For callers that encode by themselves. Raises ConnectError, TooManyCallsError.
        """
        if not self.is_open:
            raise ConnectError(f"the connection to {self.peer} is closed")
        if len(self._pending) >= self.limits.calls_in_flight_max:
            raise TooManyCallsError(f"{len(self._pending)} calls to {self.peer} are in flight")
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self._pending[opaque] = _Pending(answer, deadline_ms, takes_header=True)
        self._watch(deadline_ms)
        self.send(frame)

    def _watch(self, deadline_ms: float) -> None:
        """One timer per connection, set to the earliest deadline, serves all calls."""
        if self._sweep is not None:
            if self._sweep_at_ms <= deadline_ms:
                return
            self._sweep.cancel()
        self._sweep_at_ms = deadline_ms
        delay_ms = max(deadline_ms - self._clock.monotonic_ms(), 0)
        self._sweep = self._clock.call_later(delay_ms, self._expire)

    def _expire(self) -> None:
        self._sweep = None
        now_ms = self._clock.monotonic_ms()
        for opaque, call in list(self._pending.items()):
            if call.answer.done():
                del self._pending[opaque]
            elif call.deadline_ms <= now_ms:
                del self._pending[opaque]
                call.answer.set_exception(CallTimeoutError(f"{self.peer} did not answer in time"))
        if self._pending:
            self._watch(min(call.deadline_ms for call in self._pending.values()))


def header_of(command: Command) -> dict[str, Any]:
    """The header as hot handlers take it, whatever its encoding was."""
    return {
        "code": command.code,
        "opaque": command.opaque,
        "flag": command.flag,
        "version": command.version,
        "language": command.language.name,
        "remark": command.remark,
        "extFields": command.ext,
    }


def format_address(name: Any) -> str:
    """ip:port as peers write it."""
    if isinstance(name, tuple) and len(name) >= 2:
        return f"[{name[0]}]:{name[1]}" if ":" in str(name[0]) else f"{name[0]}:{name[1]}"
    return ""


def parse_address(address: str) -> tuple[str, int]:
    """(host, port) of "host:port" or "[ipv6]:port". Raises RocketMQError."""
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise RocketMQError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)

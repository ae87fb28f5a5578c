"""Takes each request to its handler and each result back to the wire.

Handlers are coroutines `async def f(context, call: Call[X]) -> Answer[Y]` marked with @handles(X). They are
stepped once right away; most finish in that step and never become a task. One that waits becomes a task, and
how many of those a connection may have is bounded.

A hot handler is a plain function of (connection, header, body) that returns the reply's bytes, or None when
the answer comes later or is not wanted.

This is the one place that turns an error into a reply.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rmq_core.errors import BrokerError, ProtocolError, RocketMQError
from rmq_core.net.calls import Answer, Call, RpcHook
from rmq_core.protocol.codes import V5_3_1, ResponseCode
from rmq_core.protocol.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Command,
    HeaderEncoding,
    encode_command,
    text_fields,
)
from rmq_core.protocol.request import REQUESTS, NoFields, Request

if TYPE_CHECKING:
    from rmq_core.net.connection import Connection

logger = logging.getLogger(__name__)

Handler = Callable[[Any, Call[Any]], Coroutine[Any, Any, Answer[Any] | None]]
HotHandler = Callable[["Connection", dict[str, Any], bytes], "bytes | None"]
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Answer[Any] | None]])

_NO_FIELDS = NoFields()
OVERLOAD_REMARK = "[OVERLOAD]system busy, start flow control for a while"


def handles(request: type[Request[Any]]) -> Callable[[F], F]:
    """Mark a coroutine function as the handler of a request."""

    def mark(function: F) -> F:
        function.request = request  # type: ignore[attr-defined]
        return function

    return mark


def handlers_in(*modules: types.ModuleType) -> dict[int, Handler]:
    """Every marked handler of the modules, by request code. Raises TypeError on a code handled twice."""
    handlers: dict[int, Handler] = {}
    for module in modules:
        for function in vars(module).values():
            request = getattr(function, "request", None)
            if isinstance(request, type) and issubclass(request, Request):
                if request.code in handlers:
                    raise TypeError(f"{request.__name__} has two handlers")
                handlers[request.code] = function
    return handlers


class Dispatcher:
    """Serves the requests of all connections of one program."""

    def __init__(
        self,
        context: Any = None,
        handlers: Mapping[int, Handler] | None = None,
        *,
        hot: Mapping[int, HotHandler] | None = None,
        hooks: Iterable[RpcHook] = (),
        calls_served_max: int = 10_000,
    ) -> None:
        self.context = context
        self.handlers = dict(handlers or {})
        self.hot: dict[int, HotHandler] = dict(hot or {})
        self.hooks = tuple(hooks)
        self.calls_served_max = calls_served_max
        self.is_going_away = False
        """While the server drains: newer clients are told to go elsewhere."""
        self._tasks: set[asyncio.Task[Answer[Any] | None]] = set()

    @property
    def calls_waiting(self) -> int:
        """Calls whose handler has not finished yet."""
        return len(self._tasks)

    def serve(self, connection: Connection, command: Command) -> None:
        """Start to serve a request; the reply goes to the connection when it is there."""
        try:
            if self.is_going_away and command.version > V5_3_1:
                raise BrokerError(ResponseCode.GO_AWAY, "the server is shutting down")
            handler = self.handlers.get(command.code)
            if handler is None:
                remark = f" request type {command.code} not supported"
                raise BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            for hook in self.hooks:
                hook.before(connection.peer, command)
            header = REQUESTS[command.code].from_ext(command.ext or {})
            coroutine = handler(self.context, Call(header, command, connection))
            answer = self._step(connection, command, coroutine)
        except Exception as error:  # every failure of a handler is an answer to its caller
            self._reply(connection, command, self._error_answer(command.code, error))
        else:
            if answer is not None:
                self._reply(connection, command, answer)

    def _step(
        self, connection: Connection, command: Command, coroutine: Coroutine[Any, Any, Answer[Any] | None]
    ) -> Answer[Any] | None:
        """Run a handler to its first wait; there it becomes a task that replies by itself."""
        try:
            waits_for = coroutine.send(None)
        except StopIteration as finished:
            answer: Answer[Any] | None = finished.value
            return answer
        if connection.calls_served >= self.calls_served_max:
            coroutine.close()
            raise BrokerError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        connection.calls_served += 1
        task = asyncio.get_running_loop().create_task(_resume(coroutine, waits_for))
        self._tasks.add(task)

        def finish(task: asyncio.Task[Answer[Any] | None]) -> None:
            self._tasks.discard(task)
            connection.calls_served -= 1
            if task.cancelled():
                return
            error = task.exception()
            answer = self._error_answer(command.code, error) if error is not None else task.result()
            if answer is not None:
                self._reply(connection, command, answer)

        task.add_done_callback(finish)
        return None

    def _reply(self, connection: Connection, command: Command, answer: Answer[Any]) -> None:
        response = _response(command.opaque, command.encoding, answer)
        for hook in self.hooks:
            hook.after(connection.peer, command, None if command.is_oneway else response)
        if not command.is_oneway:
            connection.send(encode_command(response))

    def failed(
        self, handler: HotHandler, connection: Connection, header: dict[str, Any], body: bytes, error: Exception
    ) -> bytes | None:
        """The reply of a hot handler that raised; None where the call was one-way.

        Hot handlers take fields as text. Clients in languages without types write numbers and booleans too, and
        such a call begins again with all fields as text, as Java reads them.
        """
        fields = header.get("extFields")
        if isinstance(fields, dict) and not all(isinstance(value, str) for value in fields.values()):
            header = {**header, "extFields": text_fields(fields)}
            try:
                return handler(connection, header, body)
            except Exception as second:  # whatever a handler raises is an answer, never a lost connection
                error = second
        return self._error_reply(header, connection.encoding, error)

    def _error_reply(self, header: Mapping[str, Any], encoding: HeaderEncoding, error: Exception) -> bytes | None:
        if not isinstance(error, BrokerError):
            error = _bad_field(header) or error
        answer = self._error_answer(header.get("code", 0), error)
        flag, opaque = header.get("flag", 0), header.get("opaque", 0)
        if flag & ONEWAY_FLAG or not isinstance(opaque, int):
            return None
        return encode_command(_response(opaque, encoding, answer))

    def encode_answer(self, opaque: int, encoding: HeaderEncoding, answer: Answer[Any]) -> bytes:
        """The frame of an answer, for handlers that send it by themselves."""
        return encode_command(_response(opaque, encoding, answer))

    def _error_answer(self, code: int, error: BaseException) -> Answer[Any]:
        if isinstance(error, BrokerError):
            return Answer(_NO_FIELDS, code=error.code, remark=error.remark)
        if isinstance(error, ProtocolError):
            return Answer(_NO_FIELDS, code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        if not isinstance(error, RocketMQError):
            logger.error("the handler of request %d failed", code, exc_info=error)
        return Answer(_NO_FIELDS, code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    async def drain(self, timeout_ms: float) -> None:
        """Wait for the handlers that are still at work; cancel what has not finished in time."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_ms / 1000)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _response(opaque: int, encoding: HeaderEncoding, answer: Answer[Any]) -> Command:
    return Command(
        code=int(answer.code),
        opaque=opaque,
        flag=RESPONSE_FLAG,
        remark=answer.remark,
        ext=answer.header.to_ext() or None,
        body=answer.body,
        encoding=encoding,
    )


def _bad_field(header: Mapping[str, Any]) -> ProtocolError | None:
    """What a request's declaration says against a header that a hot handler could not use."""
    request, fields = REQUESTS.get(header["code"]), header.get("extFields") or {}
    if request is None:
        return None
    try:
        request.from_ext(text_fields(fields))
    except ProtocolError as error:
        return error
    return None


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that has been stepped once and waits for something."""
    while True:
        try:
            value = yield waits_for
        except BaseException as error:  # cancellation too is the coroutine's to see
            try:
                waits_for = coroutine.throw(error)
            except StopIteration as finished:
                return finished.value
        else:
            try:
                waits_for = coroutine.send(value)
            except StopIteration as finished:
                return finished.value

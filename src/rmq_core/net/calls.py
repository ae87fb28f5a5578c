"""What a handler gets and gives, and what a caller gets back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from rmq_core.errors import BrokerError
from rmq_core.protocol.command import Command
from rmq_core.protocol.request import Header, NoFields, Request

if TYPE_CHECKING:
    from rmq_core.net.connection import Connection

Q = TypeVar("Q", bound=Request[Any])
R_co = TypeVar("R_co", bound=Header, covariant=True)


@dataclass(frozen=True, slots=True)
class Call(Generic[Q]):
    """A request being served."""

    header: Q
    command: Command
    connection: Connection

    @property
    def body(self) -> bytes:
        return self.command.body


@dataclass(frozen=True, slots=True)
class Answer(Generic[R_co]):
    """The answer to a call: made by handlers, received by callers."""

    header: R_co
    body: bytes = b""
    code: int = 0
    remark: str | None = None
    version: int = 0
    """The protocol version of who answered; 0 in answers that handlers make."""


DONE: Answer[NoFields] = Answer(NoFields())
"""Success, and nothing to tell."""


class RpcHook(Protocol):
    """Sees every call with its answer: signs requests, counts them, refuses them by raising."""

    def before(self, peer: str, request: Command) -> None:
        """Called before a request is sent or served; it may change the request's header fields."""

    def after(self, peer: str, request: Command, response: Command | None) -> None:
        """Called with the answer; None for a one-way call."""


def read_answer(request: type[Request[R_co]], response: Command) -> Answer[R_co]:
    """The typed answer. Raises BrokerError for a code that the request does not count as a result."""
    if response.code not in request.accepts:
        raise BrokerError(response.code, response.remark or "")
    header = cast(R_co, request.reply.from_ext(response.ext or {}))
    return Answer(header, response.body, response.code, response.remark, response.version)

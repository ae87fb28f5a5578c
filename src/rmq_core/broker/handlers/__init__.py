"""What a broker serves: one function per request, in modules named as those of the declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_core.broker.handlers import (
    access,
    broker,
    consumer,
    group,
    members,
    offset,
    pop,
    pull,
    query,
    replication,
    reply,
    reset,
    send,
    send_back,
    topic,
    transaction,
)
from rmq_core.net.dispatch import Dispatcher, Handler, HotHandler, handlers_in

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker


def all_handlers() -> dict[int, Handler]:
    """Every handler by its request code."""
    modules = (access, broker, consumer, group, members, offset, query, reply, reset, send, send_back, topic)
    return handlers_in(*modules, pop, replication, transaction)


def hot_handlers(context: Broker, dispatcher: Dispatcher) -> dict[int, HotHandler]:
    """The handlers that take the parsed header as it is."""
    hot = send.hot_handlers(context, dispatcher) | pull.hot_handlers(context, dispatcher)
    return hot | {code: make(context) for code, make in offset.HOT.items()}

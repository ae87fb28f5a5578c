"""Apache RocketMQ in Python: protocol, network, name server, broker, and message stores read offline.

Names are loaded when they are first used: who needs only a part does not pay for the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_core.embedded_broker import EmbeddedBroker as EmbeddedBroker
    from rmq_core.embedded_broker import embedded as embedded
    from rmq_core.store.reader import open_store as open_store

_HOMES = {
    "EmbeddedBroker": "rmq_core.embedded_broker",
    "embedded": "rmq_core.embedded_broker",
    "open_store": "rmq_core.store.reader",
}

__all__ = ["EmbeddedBroker", "embedded", "open_store"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))

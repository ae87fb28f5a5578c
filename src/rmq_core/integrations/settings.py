"""Settings as Spring applications write them, for those who share a file with one.

`rocketmq.name-server`, `rocketmq.producer.group` and so on, nested or as dotted keys, with or without the first
word. What we do not know raises: a setting that is not heeded is worse than one that is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rmq_core.client.options import Credentials

_CLIENT: Final = {
    "name-server": "name_server",
    "namespace": "namespace",
    "producer.namespace": "namespace",
    "producer.tls-enable": "tls",
    "producer.instance-name": "instance_name",
}
_PRODUCER: Final = {
    "producer.send-message-timeout": "timeout_ms",
    "producer.compress-message-body-threshold": "compress_over_bytes",
    "producer.max-message-size": "message_size_max",
    "producer.retry-times-when-send-failed": "retries",
    "producer.retry-next-server": "retry_unless_ok",
}
_GROUP: Final = "producer.group"
_ACCESS: Final = ("producer.access-key", "producer.secret-key")
_ASYNC_RETRIES: Final = "producer.retry-times-when-send-async-failed"
_DEFAULT_RETRIES: Final = 2


def spring_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an App: group, producer, and those of clients. Raises ValueError naming the setting."""
    flat = {name.removeprefix("rocketmq."): value for name, value in _flat(settings, "")}
    arguments: dict[str, Any] = {}
    producer: dict[str, Any] = {}
    for name, value in flat.items():
        if name in _CLIENT:
            arguments[_CLIENT[name]] = value
        elif name in _PRODUCER:
            producer[_PRODUCER[name]] = value
        elif name == _GROUP:
            arguments["group"] = value
        elif name not in (*_ACCESS, _ASYNC_RETRIES):
            known = sorted({*_CLIENT, *_PRODUCER, _GROUP, *_ACCESS, _ASYNC_RETRIES})
            raise ValueError(f"rocketmq.{name} is not known; there are {', '.join(known)}")
    if _ASYNC_RETRIES in flat and flat[_ASYNC_RETRIES] != producer.setdefault("retries", _DEFAULT_RETRIES):
        raise ValueError(f"rocketmq.{_ASYNC_RETRIES}: blocking and asynchronous sends are tried equally often here")
    access, secret = (flat.get(name) for name in _ACCESS)
    if access or secret:
        arguments["credentials"] = Credentials(access or "", secret or "")
    return {**arguments, "producer": producer}


def _flat(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value

"""Queue clients that outlive a task: a worker that is used again finds its connections open.

Shared   by all whose settings may share connections, and by threads. A client in use is never closed.
Bounds   Above CAPACITY the one that was not used for longest is closed, if nobody uses it; if all are in use there
         are more for a while.
Stale    connections are found at their next use, and replaced by the client itself.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final

from rmq_core.client.queue_client import QueueClient
from rmq_core.errors import BrokerError, CallTimeoutError, ConnectError, NoRouteError
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.options import Settings

_log: Final = logging.getLogger(__name__)

CAPACITY: Final = 16


@dataclass(slots=True)
class _Entry:
    client: QueueClient
    users: int = 0


class ClientPool:
    """Clients by what they connect to."""

    def __init__(self, make: Callable[[Settings], QueueClient], *, capacity: int = CAPACITY) -> None:
        self._make = make
        self._capacity = capacity
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}
        self._pid = os.getpid()

    @contextlib.contextmanager
    def client(self, settings: Settings) -> Iterator[QueueClient]:
        """A client for as long as the block runs."""
        entry = self._take(settings)
        try:
            yield entry.client
        finally:
            with self._lock:
                entry.users -= 1

    def _take(self, settings: Settings) -> _Entry:
        if self._pid != os.getpid():  # in a forked child: connections are the parent's
            self._lock, self._entries, self._pid = threading.Lock(), {}, os.getpid()
        key = settings.connection_key()
        idle: list[QueueClient] = []
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                entry = _Entry(self._make(settings))
            self._entries[key] = entry  # the last in the dict is the one that was used last
            entry.users += 1
            for other in list(self._entries):
                if len(self._entries) <= self._capacity:
                    break
                if not self._entries[other].users:
                    idle.append(self._entries.pop(other).client)
        for client in idle:
            _close(client)
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Close every client, in use or not. Idempotent."""
        if self._pid != os.getpid():
            return
        with self._lock:
            entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            _close(entry.client)


def _close(client: QueueClient) -> None:
    try:
        client.close()
    except Exception as error:  # the process ends, or somebody else needs the place: nobody waits for this one
        _log.warning("closing %r: %s", client, error)


def open_client(settings: Settings) -> QueueClient:
    """A client of one's own. Raises SparkRocketMQError (BAD_OPTION) for TLS files that cannot be used."""
    return QueueClient(
        settings.client_options(),
        group=settings.group or "",
        pull_timeout_ms=settings.pull_timeout_ms,
        read_from_slave=settings.read_from_slave,
        fetch_retries=settings.fetch_retries,
        fetch_retry_interval_ms=settings.fetch_retry_interval_ms,
    )


@contextlib.contextmanager
def named_errors(settings: Settings) -> Iterator[None]:
    """Errors of connections, and what the other side refuses, under their condition."""
    try:
        yield
    except (ConnectError, CallTimeoutError, NoRouteError) as error:
        raise SparkRocketMQError(
            Condition.UNREACHABLE,
            f"{error} (nameServer={settings.name_server}). Where a broker announces an address that cannot be "
            "reached from here, brokerAddressMap gives another one; `python -m rmq_spark doctor` checks them all",
            name_server=settings.name_server,
        ) from None
    except BrokerError as error:
        raise SparkRocketMQError(
            Condition.REFUSED,
            f"{error} (nameServer={settings.name_server}, group={settings.group}, accessKey={settings.access_key})",
            code=error.code,
        ) from None


POOL: Final = ClientPool(open_client)
"""The clients of this process."""

atexit.register(POOL.close)

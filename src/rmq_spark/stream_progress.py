"""A group's progress on the brokers: follows what Spark has made durable, in a thread of its own.

Stored    are the next offsets to read, never before Spark's checkpoint has them, and never less than the broker
          has, unless the group was reset. What fails is tried again; it never stops the query.
Resets    are told by the broker: by a request to the members, by refusing a commit because a reset waits, or by
          another offset than the one that we know on a broker that is the same process as then. After a connection
          was lost another offset may be an old one from a disk: it is overwritten.
Shared    with other members, the group's offsets change by themselves: only a reset that waits counts then, and it
          is left to the pulls of the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from rmq_core.client.queue_client import QueueClient
from rmq_core.errors import BrokerError, RocketMQError
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import MessageQueue
from rmq_spark.offsets import QueueOffsets, queue_name

_log: Final = logging.getLogger(__name__)

RETRY_S: Final = 1.0


class GroupProgress:
    """Stores offsets of the client's group; start() it, close() it."""

    def __init__(
        self, client: QueueClient, *, stores: bool = True, is_shared: bool = False, scan_s: float = 5.0
    ) -> None:
        """stores=False only looks after resets; scan_s: so often offsets are looked at while nothing changes."""
        self._client = client
        self._stores = stores
        self.is_shared = is_shared
        self._scan_s = scan_s
        self._changed = threading.Condition()
        self._positions: QueueOffsets = {}
        self._version = self._tried_version = self._stored_version = 0
        self._known: dict[MessageQueue, tuple[int | None, int]] = {}
        """The offset that a broker had, and the number of the connection on which it said so."""
        self._resets: QueueOffsets = {}
        self._shared_resets: QueueOffsets = {}
        """Resets that wait for other members, and are known here."""
        self._may_lower: set[MessageQueue] = set()
        self._is_closed = False
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="rmq-spark-progress", daemon=True)

    def start(self, positions: Mapping[MessageQueue, int]) -> None:
        """Begin to look after these queues; nothing is stored for them yet."""
        self._positions = dict(positions)
        self._thread.start()

    def durable(self, positions: Mapping[MessageQueue, int]) -> None:
        """Everything before these offsets is done for good."""
        with self._changed:
            self._positions = dict(positions)
            self._version += 1
            self._changed.notify_all()

    def positions(self) -> QueueOffsets:
        """What is durable."""
        with self._changed:
            return dict(self._positions)

    def flush(self, timeout_s: float) -> bool:
        """Wait until it was tried to store what is durable; whether it is stored. A broker may be away for long."""
        with self._changed:
            wanted = self._version
            self._changed.wait_for(lambda: self._tried_version >= wanted or self._is_closed, timeout_s)
            return self._stored_version >= wanted

    def close(self) -> None:
        """End the thread; what is not stored yet stays so."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # Resets

    def told(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """A broker tells the members of a reset."""
        _log.info("the broker says that the group was reset on topic %s", topic)
        with self._changed:
            self._resets.update(offsets)

    def resets(self) -> QueueOffsets:
        """Where the group was moved to, and has not gone yet."""
        with self._changed:
            return dict(self._resets)

    def followed(self, resets: Mapping[MessageQueue, int], *, is_ignored: bool = False) -> None:
        """These resets are done with; our next offsets may be lower than what the broker has."""
        with self._changed:
            for queue, offset in resets.items():
                if self._resets.get(queue) == offset:
                    del self._resets[queue]
                    self._may_lower.add(queue)
            if is_ignored:
                self._version += 1
                self._changed.notify_all()

    # The thread

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._version > self._stored_version, pause_s)
                if self._is_closed:
                    return
                version, positions = self._version, dict(self._positions)
            try:
                trouble = self._round(positions, is_durable=version > 0)
            except Exception as error:  # a query does not end because its progress cannot be shown
                trouble = f"{type(error).__name__}: {error}"
            self._troubled(trouble)
            with self._changed:
                self._tried_version = version
                if not trouble:
                    self._stored_version = version
                self._changed.notify_all()
            pause_s = self._scan_s if not trouble else 0
            if trouble:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, RETRY_S)

    def _troubled(self, text: str) -> None:
        if text and text != self._trouble:
            _log.warning("the group's progress could not be stored, and will be again: %s", text)
        self._trouble = text

    def _round(self, positions: QueueOffsets, *, is_durable: bool) -> str:
        """Look at the brokers' offsets and store ours; what went wrong, in words."""
        failures: dict[MessageQueue, RocketMQError] = {}
        before = {queue: self._connection(queue) for queue in positions}
        stored = self._client.group_offsets(list(positions), failures=failures)
        for queue, offset in stored.items():
            self._look_at(queue, offset, before[queue])
        if is_durable and self._stores:
            self._store(positions, stored, failures)
        return str(next(iter(failures.values()))) if failures else ""

    def _connection(self, queue: MessageQueue) -> int:
        try:
            return self._client.connection_number(queue)
        except RocketMQError:  # it will be told with the question itself
            return -1

    def _look_at(self, queue: MessageQueue, offset: int | None, connection: int) -> None:
        """Compare with what we know; connection is the one before the broker was asked."""
        known = self._known.pop(queue, None)
        if self._connection(queue) != connection:  # nobody can tell now which process answered
            return
        self._known[queue] = (offset, connection)
        if known is None or self.is_shared or known[0] is None or offset is None:
            return
        if known[1] == connection and offset != known[0]:
            self._was_reset(queue, offset)

    def _was_reset(self, queue: MessageQueue, offset: int) -> None:
        try:
            # A reset that waits in the broker is given to one pull, and until then no commit is taken.
            waiting = self._client.take_reset(queue)
        except RocketMQError as error:
            _log.info("%s: a reset that waits could not be taken: %s", queue_name(queue), error)
            waiting = None
        target = offset if waiting is None else waiting
        _log.info("the group was reset on %s to %d", queue_name(queue), target)
        with self._changed:
            self._resets[queue] = target

    def _commit(
        self, offsets: QueueOffsets, problems: dict[MessageQueue, RocketMQError]
    ) -> frozenset[MessageQueue]:
        """Store offsets; the queues where a reset waits instead."""
        refused = self._client.commit(offsets, failures=problems)
        unknown = {queue: offsets[queue] for queue, error in problems.items() if _is_unknown_group(error)}
        if not unknown:
            return refused
        # Brokers begin a group at its first heartbeat or pull, and with sharedGroup there may have been none.
        for queue in {queue.broker_name: queue for queue in unknown}.values():
            try:
                self._client.take_reset(queue)
            except RocketMQError as error:
                _log.info("broker %s begins no group: %s", queue.broker_name, error)
        for queue in unknown:
            del problems[queue]
        return refused | self._client.commit(unknown, failures=problems)

    def _store(
        self,
        positions: QueueOffsets,
        stored: Mapping[MessageQueue, int | None],
        failures: dict[MessageQueue, RocketMQError],
    ) -> None:
        with self._changed:
            waiting, may_lower = set(self._resets), set(self._may_lower)
        offsets: QueueOffsets = {}
        for queue, ours in positions.items():
            if queue not in stored or queue in waiting:
                continue
            theirs = stored[queue]
            if theirs is None or ours > theirs or (queue in may_lower and ours != theirs):
                offsets[queue] = ours
        problems: dict[MessageQueue, RocketMQError] = {}
        refused = self._commit(offsets, problems) if offsets else frozenset()
        failures.update(problems)
        for queue in refused:
            theirs = stored[queue]
            target = positions[queue] if theirs is None else theirs
            if not self.is_shared:
                self._was_reset(queue, target)
            elif self._shared_resets.get(queue) != target:
                self._shared_resets[queue] = target
                with self._changed:
                    self._resets[queue] = target
        for queue in problems:  # it may be stored all the same
            self._known.pop(queue, None)
        done = set(stored) - waiting - refused - set(failures)
        for queue in done & set(offsets):
            self._shared_resets.pop(queue, None)
            if queue in self._known:
                self._known[queue] = (offsets[queue], self._known[queue][1])
        with self._changed:
            self._may_lower -= done & may_lower


def _is_unknown_group(error: RocketMQError) -> bool:
    return isinstance(error, BrokerError) and error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

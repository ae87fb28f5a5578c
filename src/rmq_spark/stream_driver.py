"""What a running stream keeps in its driver process: connections, the watch over queues, membership and progress.

Member    The group is asked for other members before the first heartbeat: a push consumer would leave queues to us,
          and two queries would read everything twice. With sharedGroup, or once a stranger came, we only store.
End       Spark does not call stop() but ends the process: leaving happens on SIGTERM, at exit, and in close().
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Collection, Sequence
from types import FrameType
from typing import Any, Final

from rmq_core.client.group_member import GroupMember
from rmq_core.client.identity import make_client_id
from rmq_core.client.subscriptions import subscription
from rmq_core.errors import CallTimeoutError, ConnectError, NoRouteError, RocketMQError
from rmq_core.protocol.bodies import SubscriptionData
from rmq_core.protocol.message import MessageQueue
from rmq_spark.connections import open_client
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.options import Settings
from rmq_spark.stream_progress import GroupProgress
from rmq_spark.stream_queues import QueueWatch

_log: Final = logging.getLogger(__name__)

FLUSH_S: Final = 2.0
LEAVING_S: Final = 4 * FLUSH_S
"""So long members of an earlier run may take to be gone: twice as long as a process that ends takes at most."""
DISCOVERY_S: Final = 5.0
"""So often routes are looked up."""
SCAN_S: Final = 5.0
"""So often the brokers' offsets of the group are looked at while nothing changes."""


class StreamDriver:
    """Opens everything when it is made; close() it. Raises what keeps it from being opened."""

    def __init__(self, settings: Settings, expected: Collection[MessageQueue] = ()) -> None:
        """expected: queues of a checkpoint, which may belong to brokers that are away."""
        self.settings = settings
        self.client = open_client(settings)
        self.progress: GroupProgress | None = None
        self._member: GroupMember | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._previous_handler: Any = None
        self._has_handler = False
        self.watch = QueueWatch(self.client, settings, on_topics=self._topics_changed, discovery_s=DISCOVERY_S)
        try:
            self.watch.start(expected)
            if settings.group is not None:
                self._join(settings.group, expected)
        except BaseException:
            self.close(flush_s=0)
            raise
        atexit.register(self.close)
        self._handle_signals()

    # The group

    def _join(self, group: str, expected: Collection[MessageQueue]) -> None:
        settings = self.settings
        self.progress = GroupProgress(
            self.client, stores=settings.commit_offsets, is_shared=settings.shared_group, scan_s=SCAN_S
        )
        if settings.shared_group:
            return
        self._member = GroupMember(
            self.client,
            group,
            self._subscriptions(sorted({queue.topic for queue in (*self.watch.queues(), *expected)})),
            on_reset=self.progress.told,
            on_members_changed=self._members_changed,
            positions=self.progress.positions,
            client_id=make_client_id(f"spark-{_plain(group)}@{os.getpid()}@{time.monotonic_ns():x}"),
        )
        try:
            self._check_alone(self._member)
        except (ConnectError, CallTimeoutError, NoRouteError) as error:
            if not expected:
                raise
            # Brokers tell members who else is there: it is looked at when they are back.
            _log.warning("who else is in group %s is not known yet: %s", group, error)
        self._member.join()

    def _check_alone(self, member: GroupMember) -> None:
        deadline = time.monotonic() + LEAVING_S
        while others := member.members():
            if time.monotonic() >= deadline:
                raise SparkRocketMQError(
                    Condition.GROUP_IN_USE,
                    f"group {self.settings.group} has other members: {', '.join(others)}. Push consumers would "
                    "leave a share of the queues to this query, and another query would read them twice. Give this "
                    "query a group of its own, or set sharedGroup=true to read every queue without being a member. "
                    "Spark reads a stream that is joined with itself as two, which need sharedGroup=true",
                    group=self.settings.group, members=others,
                )  # fmt: skip
            time.sleep(0.1)

    def _members_changed(self) -> None:
        # On a thread of its own: this one reads the connection over which the members are asked for.
        threading.Thread(target=self._look_at_members, name="rmq-spark-members", daemon=True).start()

    def _look_at_members(self) -> None:
        member, progress = self._member, self.progress
        if member is None or progress is None:
            return
        try:
            others = [each for each in member.members() if each != member.client_id]
        except RocketMQError as error:
            _log.info("the members of group %s are not known now: %s", self.settings.group, error)
            return
        if others and not self._is_closed:
            _log.warning(
                "group %s has got other members (%s): this query is no member any more, so that they get all "
                "queues, and goes on reading every queue itself; give it a group of its own",
                self.settings.group,
                ", ".join(others),
            )
            self._member, progress.is_shared = None, True
            member.leave()

    def _topics_changed(self, topics: Sequence[str]) -> None:
        if self._member is not None and topics:
            self._member.subscribe(self._subscriptions(topics))

    def _subscriptions(self, topics: Sequence[str]) -> list[SubscriptionData]:
        settings = self.settings
        return [subscription(topic, tags=settings.tags or "*", sql=settings.sql) for topic in topics]

    # The end

    def _handle_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._terminated)
            self._has_handler = True

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        # What the interrupted code holds is not for us to wait for: another thread leaves, for a limited time.
        leaving = threading.Thread(target=self.close, daemon=True)
        leaving.start()
        leaving.join(2 * FLUSH_S)
        previous = self._previous_handler
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(signal.SIGTERM, previous if previous is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def close(self, *, flush_s: float = FLUSH_S) -> None:
        """Store what is durable, leave the group, and close the connections. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        atexit.unregister(self.close)
        if self._has_handler and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._previous_handler or signal.SIG_DFL)
        self.watch.close()
        if self.progress is not None:
            if flush_s and not self.progress.flush(flush_s):
                _log.warning("the last progress of group %s is not stored", self.settings.group)
            self.progress.close()
        if self._member is not None:
            self._member.leave()
        self.client.close()


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)

"""Offsets and messages, blocking: see admin_offsets and admin_messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rmq_core.client.admin_messages import BETWEEN_LIMIT, LIMIT, PULL_COUNT
from rmq_core.client.admin_offsets import Position
from rmq_core.client.admin_results import (
    GroupLag,
    GroupProgress,
    MessageTrack,
    QueueEntries,
    TimeSpan,
)
from rmq_core.client.blocking.admin_topics import BlockingTopics
from rmq_core.client.received import ReceivedMessage
from rmq_core.protocol.message import MessageQueue


class BlockingProgress(BlockingTopics):
    """Progress of groups, and messages."""

    def min_offset(self, queue: MessageQueue) -> int:
        """The offset of a queue's oldest message."""
        return self._call(lambda admin: admin.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that a queue's next message gets."""
        return self._call(lambda admin: admin.max_offset(queue))

    def offset_by_time(self, queue: MessageQueue, when: datetime) -> int:
        """The offset of the first message stored at a time or after it."""
        return self._call(lambda admin: admin.offset_by_time(queue, when))

    def earliest_stored_at(self, queue: MessageQueue) -> datetime | None:
        """When a queue's oldest message was stored; None where it has none."""
        return self._call(lambda admin: admin.earliest_stored_at(queue))

    def lag(self, group: str, *, topic: str | None = None) -> GroupLag:
        """How far a group is behind on a topic, or on all that it reads; its retries are a topic of their own.

        Without a topic, what it has stored no offset of yet is not there.
        """
        return self._call(lambda admin: admin.lag(group, topic=topic))

    def broker_lag(self, broker: str, *, ordered_only: bool = False) -> tuple[GroupLag, ...]:
        """How far all groups are behind on one broker; without ages."""
        return self._call(lambda admin: admin.broker_lag(broker, ordered_only=ordered_only))

    def progress(self, *, cluster: str | None = None) -> tuple[GroupProgress, ...]:
        """Every group in one line: who is there, how fast it reads, and how far it is behind."""
        return self._call(lambda admin: admin.progress(cluster=cluster))

    def offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """The committed offset of each queue of a topic; None where the group has none."""
        return self._call(lambda admin: admin.offsets(group, topic))

    def time_spans(self, group: str, topic: str) -> tuple[TimeSpan, ...]:
        """When the messages of each queue were stored, and the one that the group has come to."""
        return self._call(lambda admin: admin.time_spans(group, topic))

    def corrections(self, group: str, topic: str, *, without: Iterable[str] = ()) -> dict[MessageQueue, int]:
        """Where a group is ahead of others on a topic: the lowest offset among all groups, by queue."""
        return self._call(lambda admin: admin.corrections(group, topic, without=without))

    def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store the offset that a group reads next of a queue. A member that is online overwrites it."""
        self._call(lambda admin: admin.set_offset(group, queue, offset))

    def clone_offsets(self, source: str, target: str, *, topic: str | None = None) -> None:
        """Let a group go on where another one is, on one topic or on all that it reads."""
        self._call(lambda admin: admin.clone_offsets(source, target, topic=topic))

    def reset_offsets(
        self, group: str, topic: str, to: Position, *, queue: MessageQueue | None = None, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Move a group, online or not, to another place in a topic or in one queue of it; where it is then.

        to: an aware time, an offset, "earliest" or "latest". force=False moves backwards only. An offset has to lie
        in every queue that is moved: ValueError says in which it does not, and nothing is moved then.
        """
        return self._call(lambda admin: admin.reset_offsets(group, topic, to, queue=queue, force=force))

    def view_message(self, msg_id: str, *, topic: str | None = None) -> ReceivedMessage:
        """The message with an id. Raises BrokerError (22) where there is none; the sender's id needs the topic."""
        return self._call(lambda admin: admin.view_message(msg_id, topic=topic))

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        limit: int = LIMIT,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> tuple[ReceivedMessage, ...]:
        """The messages of a topic that have a key, oldest first; by default of all times."""
        return self._call(lambda admin: admin.messages_by_key(topic, key, limit=limit, start=start, end=end))

    def messages_by_unique_key(self, topic: str, msg_id: str) -> tuple[ReceivedMessage, ...]:
        """The messages that a sender gave this id: more than one where it had to send it again."""
        return self._call(lambda admin: admin.messages_by_unique_key(topic, msg_id))

    def message_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """The message at an offset of a queue. Raises BrokerError (22) where there is none."""
        return self._call(lambda admin: admin.message_at(queue, offset))

    def messages_between(
        self, topic: str, start: datetime, end: datetime, *, tags: str = "*", limit: int = BETWEEN_LIMIT
    ) -> tuple[ReceivedMessage, ...]:
        """The oldest messages of a topic that were stored in [start, end), so many at most."""
        return self._call(lambda admin: admin.messages_between(topic, start, end, tags=tags, limit=limit))

    def message_track(self, message: ReceivedMessage) -> tuple[MessageTrack, ...]:
        """What every group that consumes its topic has done with a message."""
        return self._call(lambda admin: admin.message_track(message))

    def queue_entries(
        self, queue: MessageQueue, start: int, count: int = PULL_COUNT, *, group: str | None = None
    ) -> QueueEntries:
        """Entries of a consume queue as they are, and whether the filter of a group lets them through."""
        return self._call(lambda admin: admin.queue_entries(queue, start, count, group=group))

    def resume_transaction_check(self, msg_id: str, *, topic: str | None = None) -> None:
        """Have a half message asked about again that was given up; msg_id is its offset message id."""
        self._call(lambda admin: admin.resume_transaction_check(msg_id, topic=topic))

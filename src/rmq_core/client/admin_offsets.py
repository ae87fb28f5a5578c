"""Administration of offsets: how far groups are behind, where they are, and moving them.

Moving a group   A broker that keeps resets itself (5.x, `useServerSideResetOffset`) is told the offset of each
                 queue and passes it on with the next pull, so it makes no difference whether members are there.
                 Any other broker tells the members that are online; without any, the offsets are stored for them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, Literal

from rmq_core.client.admin_groups import AdminGroups
from rmq_core.client.admin_results import (
    GroupLag,
    GroupProgress,
    QueueLag,
    TimeSpan,
    milliseconds,
    moment,
)
from rmq_core.client.routes import READABLE, BrokerAddress
from rmq_core.config import parse_properties
from rmq_core.errors import BrokerError, UnsupportedError
from rmq_core.protocol import bodies as b
from rmq_core.protocol import requests as r
from rmq_core.protocol.codes import ResponseCode, version_name
from rmq_core.protocol.message import MessageQueue

Position = datetime | int | Literal["earliest", "latest"]
"""A place in a queue: the first message stored at a time or after it, an offset, or one of the ends."""

END_MS: Final = -1
"""The time that means the end of a queue."""
NOTHING_TO_CORRECT: Final = (1 << 63) - 1
_KEEPS_RESETS: Final = "useServerSideResetOffset"


class AdminOffsets(AdminGroups):
    """Progress of groups."""

    # Of queues

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of a queue's oldest message."""
        topic, address = await self._place(queue)
        return (await self._call(address, r.GetMinOffset(topic, queue.queue_id))).header.queue_offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that a queue's next message gets."""
        topic, address = await self._place(queue)
        return (await self._call(address, r.GetMaxOffset(topic, queue.queue_id))).header.queue_offset

    async def offset_by_time(self, queue: MessageQueue, when: datetime) -> int:
        """The offset of the first message stored at a time or after it."""
        time_ms = milliseconds("when", when)
        topic, address = await self._place(queue)
        request = r.SearchOffsetByTimestamp(topic, queue.queue_id, time_ms)
        return (await self._call(address, request)).header.queue_offset

    async def earliest_stored_at(self, queue: MessageQueue) -> datetime | None:
        """When a queue's oldest message was stored; None where it has none."""
        topic, address = await self._place(queue)
        answer = await self._call(address, r.GetEarliestMsgStoretime(topic, queue.queue_id))
        return moment(answer.header.timestamp)

    async def _place(self, queue: MessageQueue) -> tuple[str, str]:
        if not isinstance(queue, MessageQueue):
            raise TypeError(f"queue must be a MessageQueue, not {type(queue).__name__}")
        topic = self._topic(queue.topic)
        return topic, await self._queue_address(queue.broker_name, topic)

    # How far groups are

    async def lag(self, group: str, *, topic: str | None = None) -> GroupLag:
        """How far a group is behind on a topic, or on all that it reads; its retries are a topic of their own.

        Without a topic, what it has stored no offset of yet is not there.
        """
        name = self._group(group)
        wanted = None if topic is None else self._topic(topic)
        targets = await (self._of_group(name) if wanted is None else self._any_of_topic(wanted))

        async def look(target: BrokerAddress) -> tuple[b.ConsumeStats, dict[MessageQueue, b.QueueTimeSpan]]:
            answer = await self._call(target.address, r.GetConsumeStats(name, wanted))
            stats = b.ConsumeStats.decode(answer.body)
            topics = {queue.topic for queue in stats.offset_table}
            found = await self._several(sorted(topics), lambda each: self._spans(target, each, name))
            return stats, {queue: span for spans in found for queue, span in spans.items()}

        looked = (await self._each(targets, look)).values()
        queues = [
            self._queue_lag(queue, each, spans.get(queue))
            for stats, spans in looked
            for queue, each in stats.offset_table.items()
        ]
        queues.sort(key=lambda each: (each.queue.topic, each.queue.broker_name, each.queue.queue_id))
        return GroupLag(group, tuple(queues), sum(stats.consume_tps for stats, _ in looked))

    def _queue_lag(self, queue: MessageQueue, stats: b.OffsetWrapper, span: b.QueueTimeSpan | None) -> QueueLag:
        is_behind = stats.broker_offset > stats.consumer_offset
        return QueueLag(
            queue=self._bare_queue(queue),
            end=stats.broker_offset,
            committed=stats.consumer_offset,
            pulled=stats.consumer_offset if stats.pull_offset is None else stats.pull_offset,
            last_consumed_at=moment(stats.last_timestamp),
            oldest_unread_age=timedelta(milliseconds=span.delay_time) if span is not None and is_behind else None,
        )

    async def _spans(self, target: BrokerAddress, topic: str, group: str) -> dict[MessageQueue, b.QueueTimeSpan]:
        """Empty for a topic that has been deleted: its offsets may still be there."""
        try:
            answer = await self._call(target.address, r.QueryConsumeTimeSpan(topic, group))
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return {}
        spans = b.QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set
        return {each.message_queue: each for each in spans if each.message_queue is not None}

    async def broker_lag(self, broker: str, *, ordered_only: bool = False) -> tuple[GroupLag, ...]:
        """How far all groups are behind on one broker; without ages."""
        answer = await self._call((await self._broker(broker)).address, r.GetBrokerConsumeStats(ordered_only))
        table: dict[str, list[b.ConsumeStats]] = {}
        for entry in b.ConsumeStatsList.decode(answer.body).consume_stats_list:
            for group, several in entry.items():
                table.setdefault(group, []).extend(several)
        own = self._own(table)
        by_name = {self._bare(group): several for group, several in table.items()}
        return tuple(self._broker_group_lag(group, by_name[group]) for group in own)

    def _broker_group_lag(self, group: str, several: Iterable[b.ConsumeStats]) -> GroupLag:
        stats = list(several)
        queues = [self._queue_lag(queue, each, None) for one in stats for queue, each in one.offset_table.items()]
        queues.sort(key=lambda each: (each.queue.topic, each.queue.broker_name, each.queue.queue_id))
        return GroupLag(group, tuple(queues), sum(one.consume_tps for one in stats))

    async def progress(self, *, cluster: str | None = None) -> tuple[GroupProgress, ...]:
        """Every group in one line: who is there, how fast it reads, and how far it is behind."""
        names = await self.groups(cluster=cluster)
        return tuple(await self._several(names, self._progress_of))

    async def _progress_of(self, group: str) -> GroupProgress:
        name = self._group(group)
        targets = await self._of_group(name)
        answers = await self._call_each(targets, r.GetConsumeStats(name))
        stats = [b.ConsumeStats.decode(answer.body) for answer in answers.values()]
        lag = self._broker_group_lag(group, stats)
        online = r.GetConsumerConnectionList(name)
        found = await self._call_some(targets, online, absent=(ResponseCode.CONSUMER_NOT_ONLINE,))
        connections = [b.ConsumerConnection.decode(answer.body) for answer in found.values()]
        members = {each.client_id: each.version for one in connections for each in one.connection_set}
        first = connections[0] if connections else b.ConsumerConnection()
        version = version_name(min(members.values())) if members else None
        return GroupProgress(
            group, len(members), version, first.consume_type, first.message_model, lag.consume_tps, lag.count
        )

    async def offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """The committed offset of each queue of a topic; None where the group has none."""
        name, wanted = self._group(group), self._topic(topic)
        found: dict[MessageQueue, int | None] = {}
        for target, queues in (await self._readable_queues(wanted)).items():
            values = await self._several(queues, functools.partial(self._committed, target, name))
            found |= {self._bare_queue(queue): value for queue, value in zip(queues, values, strict=True)}
        return found

    async def _committed(self, target: BrokerAddress, group: str, queue: MessageQueue) -> int | None:
        request = r.QueryConsumerOffset(group, queue.topic, queue.queue_id, set_zero_if_not_found=False)
        try:
            return (await self._call(target.address, request)).header.queue_offset
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def _readable_queues(self, topic: str) -> dict[BrokerAddress, list[MessageQueue]]:
        """The queues that may be read, by broker."""
        data = await self._route_data(topic)
        counts = {each.broker_name: each.read_queue_nums for each in data.queue_datas if each.perm & READABLE}
        return {
            target: [
                MessageQueue(topic, target.broker_name, number)
                for number in range(counts.get(target.broker_name, 0))
            ]
            for target in await self._of_topic(topic)
        }

    async def time_spans(self, group: str, topic: str) -> tuple[TimeSpan, ...]:
        """When the messages of each queue were stored, and the one that the group has come to."""
        name, wanted = self._group(group), self._topic(topic)

        async def look(target: BrokerAddress) -> dict[MessageQueue, b.QueueTimeSpan]:
            return await self._spans(target, wanted, name)

        found = await self._each(await self._of_topic(wanted), look)
        spans = {queue: span for each in found.values() for queue, span in each.items()}
        return tuple(
            TimeSpan(
                self._bare_queue(queue),
                moment(span.min_time_stamp),
                moment(span.max_time_stamp),
                moment(span.consume_time_stamp),
                timedelta(milliseconds=span.delay_time),
            )
            for queue, span in sorted(spans.items(), key=lambda item: (item[0].broker_name, item[0].queue_id))
        )

    async def corrections(self, group: str, topic: str, *, without: Iterable[str] = ()) -> dict[MessageQueue, int]:
        """Where a group is ahead of others on a topic: the lowest offset among all groups, by queue."""
        name, wanted = self._group(group), self._topic(topic)
        left_out = ",".join(self._group(each, what="without") for each in without) or None
        answers = await self._call_each(
            await self._of_topic(wanted), r.QueryCorrectionOffset(name, wanted, left_out)
        )
        return {
            MessageQueue(self._bare(wanted), broker, queue_id): offset
            for broker, answer in answers.items()
            for queue_id, offset in b.QueryCorrectionOffsetBody.decode(answer.body).correction_offsets.items()
            if offset != NOTHING_TO_CORRECT
        }

    # Moving groups

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store the offset that a group reads next of a queue. A member that is online overwrites it."""
        name = self._group(group)
        _check_offset("offset", offset)
        topic, address = await self._place(queue)
        await self._call(address, r.UpdateConsumerOffset(name, topic, queue.queue_id, offset))

    async def clone_offsets(self, source: str, target: str, *, topic: str | None = None) -> None:
        """Let a group go on where another one is, on one topic or on all that it reads."""
        names = self._group(source, what="source"), self._group(target, what="target")
        wanted = None if topic is None else self._topic(topic)
        targets = await (self._of_group(names[0]) if wanted is None else self._of_topic(wanted))
        await self._call_each(targets, r.CloneGroupOffset(names[0], names[1], wanted, offline=False))

    async def reset_offsets(
        self, group: str, topic: str, to: Position, *, queue: MessageQueue | None = None, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Move a group, online or not, to another place in a topic or in one queue of it; where it is then.

        to: an aware time, an offset, "earliest" or "latest". force=False moves backwards only. An offset has to lie
        in every queue that is moved: ValueError says in which it does not, and nothing is moved then.
        """
        name, wanted = self._group(group), self._topic(topic)
        _check_position(to)
        chosen = None if queue is None else self._wire_queue(queue, wanted)
        queues = await self._readable_queues(wanted)
        if chosen is not None:
            queues = {target: [chosen] for target, several in queues.items() if chosen in several}
            if not queues:
                raise ValueError(f"queue: {queue} is none of the topic's queues")
        plans = {target: await self._plan(target, name, several, to, force) for target, several in queues.items()}

        async def move(target: BrokerAddress) -> dict[MessageQueue, int]:
            plan = plans[target]
            if not plan or await self._keeps_resets(target):
                return await self._reset_there(target, name, plan)
            return await self._reset_by_members(target, name, plan, to, is_whole=chosen is None, force=force)

        moved = await self._each(list(plans), move)
        return {self._bare_queue(each): offset for one in moved.values() for each, offset in one.items()}

    def _wire_queue(self, queue: MessageQueue, topic: str) -> MessageQueue:
        if not isinstance(queue, MessageQueue):
            raise TypeError(f"queue must be a MessageQueue, not {type(queue).__name__}")
        if self._topic(queue.topic) != topic:
            raise ValueError(f"queue: {queue} is none of the topic's queues")
        return MessageQueue(topic, queue.broker_name, queue.queue_id)

    async def _plan(
        self, target: BrokerAddress, group: str, queues: Iterable[MessageQueue], to: Position, force: bool
    ) -> dict[MessageQueue, int]:
        """Where each queue goes; with force=False those that would go forwards stay out."""

        async def find(queue: MessageQueue) -> tuple[MessageQueue, int | None]:
            offset = await self._offset_at(target, queue, to)
            if force:
                return queue, offset
            committed = await self._committed(target, group, queue)
            return queue, None if committed is not None and committed <= offset else offset

        found = await self._several(queues, find)
        return {queue: offset for queue, offset in found if offset is not None}

    async def _offset_at(self, target: BrokerAddress, queue: MessageQueue, to: Position) -> int:
        topic, number, address = queue.topic, queue.queue_id, target.address
        if isinstance(to, datetime):
            request = r.SearchOffsetByTimestamp(topic, number, milliseconds("to", to))
            return (await self._call(address, request)).header.queue_offset
        if to == "earliest":
            return (await self._call(address, r.GetMinOffset(topic, number))).header.queue_offset
        high = (await self._call(address, r.GetMaxOffset(topic, number))).header.queue_offset
        if to == "latest":
            return high
        low = (await self._call(address, r.GetMinOffset(topic, number))).header.queue_offset
        assert isinstance(to, int)
        if not low <= to <= high:
            bare = self._bare_queue(queue)
            raise ValueError(f"to: offset {to} is not within {low} to {high} of {bare}; name one queue, or a time")
        return to

    async def _keeps_resets(self, target: BrokerAddress) -> bool:
        settings = parse_properties((await self._call(target.address, r.GetBrokerConfig())).body.decode())
        return settings.get(_KEEPS_RESETS) == "true"

    async def _reset_there(
        self, target: BrokerAddress, group: str, plan: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        async def tell(queue: MessageQueue) -> None:
            request = r.InvokeBrokerToResetOffset(queue.topic, group, END_MS, True, queue.queue_id, plan[queue])
            await self._call(target.address, request)

        await self._several(plan, tell)
        return dict(plan)

    async def _reset_by_members(
        self,
        target: BrokerAddress,
        group: str,
        plan: Mapping[MessageQueue, int],
        to: Position,
        *,
        is_whole: bool,
        force: bool,
    ) -> dict[MessageQueue, int]:
        topic = next(iter(plan)).topic
        if await self._is_online(target, group):
            if not is_whole or not isinstance(to, datetime | str):
                raise UnsupportedError(
                    f"{target.broker_name} moves a group that is online only as a whole and to a time: "
                    "stop its members first"
                )
            time_ms = END_MS if to == "latest" else 0 if to == "earliest" else _time_of(to)
            answer = await self._call(
                target.address, r.InvokeBrokerToResetOffset(topic, group, time_ms, is_force=force)
            )
            return b.ResetOffsetBody.decode(answer.body).offset_table

        async def store(queue: MessageQueue) -> None:
            request = r.UpdateConsumerOffset(group, topic, queue.queue_id, plan[queue])
            await self._call(target.address, request)

        await self._several(plan, store)
        return dict(plan)

    async def _is_online(self, target: BrokerAddress, group: str) -> bool:
        try:
            await self._call(target.address, r.GetConsumerConnectionList(group))
        except BrokerError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return False
            raise
        return True


def _time_of(to: Position) -> int:
    assert isinstance(to, datetime)
    return milliseconds("to", to)


def _check_offset(what: str, offset: int) -> None:
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise TypeError(f"{what} must be int, not {type(offset).__name__}")
    if offset < 0:
        raise ValueError(f"{what} must be 0 or more, not {offset}")


def _check_position(to: Position) -> None:
    if isinstance(to, datetime):
        milliseconds("to", to)
    elif isinstance(to, str):
        if to not in ("earliest", "latest"):
            raise ValueError(f'to must be a time, an offset, "earliest" or "latest", not {to!r}')
    else:
        _check_offset("to", to)

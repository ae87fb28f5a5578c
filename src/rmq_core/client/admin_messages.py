"""Administration of messages: find them by id, key, time and place, and what groups have done with them.

An id is the sender's, which is looked for in the index of the topic's brokers, or an offset message id, which names
the broker that stored the message. Both have the same length: only an address that is a broker's tells them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from rmq_core.client.admin_offsets import AdminOffsets
from rmq_core.client.admin_results import MessageTrack, QueueEntries, QueueEntry, TrackStatus, milliseconds
from rmq_core.client.pulls import Pulled, PullStatus, pull
from rmq_core.client.received import ReceivedMessage, decode_messages
from rmq_core.client.routes import MASTER, BrokerAddress
from rmq_core.client.subscriptions import matches, subscription
from rmq_core.errors import BrokerError, RemoteProtocolError, RocketMQError
from rmq_core.net.connection import format_address
from rmq_core.protocol import bodies as b
from rmq_core.protocol import requests as r
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import KEY_SEPARATOR, TOOLS_GROUP, MessageQueue, Property
from rmq_core.protocol.message_id import decode_offset_message_id
from rmq_core.protocol.record import StoredRecord, decode_pull_body, decode_record

LIMIT: Final = 64
BETWEEN_LIMIT: Final = 2_000
PULL_COUNT: Final = 32
_EVER_MS: Final = (1 << 63) - 1


class AdminMessages(AdminOffsets):
    """Messages."""

    async def view_message(self, msg_id: str, *, topic: str | None = None) -> ReceivedMessage:
        """The message with an id. Raises BrokerError (22) where there is none; the sender's id needs the topic."""
        place = await self._place_of_id(msg_id)
        if place is None:
            if topic is None:
                raise ValueError(f"topic: {msg_id} does not say which broker has it; name the topic")
            found = await self.messages_by_unique_key(topic, msg_id)
            if not found:
                raise _no_message(msg_id)
            return found[0]
        target, log_offset = place
        wanted = None if topic is None else self._topic(topic)
        try:
            answer = await self._call(target.address, r.ViewMessageById(log_offset, wanted))
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_ERROR and "can not find message" in error.remark:
                raise _no_message(msg_id) from error
            raise
        return self._received(answer.body, target.broker_name)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        limit: int = LIMIT,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> tuple[ReceivedMessage, ...]:
        """The messages of a topic that have a key, oldest first; by default of all times."""
        found = await self._query(topic, key, limit, start, end, is_unique=False)
        return tuple(each for each in found if _has_key(each, key))

    async def messages_by_unique_key(self, topic: str, msg_id: str) -> tuple[ReceivedMessage, ...]:
        """The messages that a sender gave this id: more than one where it had to send it again."""
        found = await self._query(topic, msg_id, LIMIT, None, None, is_unique=True)
        return tuple(each for each in found if each.properties.get(Property.UNIQUE_KEY) == msg_id)

    async def _query(
        self, topic: str, key: str, limit: int, start: datetime | None, end: datetime | None, *, is_unique: bool
    ) -> list[ReceivedMessage]:
        wanted = self._topic(topic)
        if not isinstance(key, str) or not key:
            raise ValueError("key must be text, and not empty")
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        request = r.QueryMessage(
            wanted,
            key,
            limit,
            0 if start is None else milliseconds("start", start),
            _EVER_MS if end is None else milliseconds("end", end),
            is_unique,
        )
        answers = await self._call_some(
            await self._readers(wanted), request, absent=(ResponseCode.QUERY_NOT_FOUND,)
        )
        found = [
            self._message(record_broker, record)
            for record_broker, answer in answers.items()
            for record in decode_pull_body(answer.body)
        ]
        # A hash may stand for another topic on brokers that do not compare.
        found = [each for each in found if each.record.topic == wanted]
        found.sort(key=lambda each: (each.stored_time_ms, each.queue.broker_name, each.log_offset))
        return found[:limit]

    async def message_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """The message at an offset of a queue. Raises BrokerError (22) where there is none."""
        topic, _ = await self._place(queue)
        wire = MessageQueue(topic, queue.broker_name, queue.queue_id)
        for message in await self._pull(wire, offset, "*", 1):
            if message.queue_offset == offset:
                return message
        raise _no_message(f"{offset} in {queue}")

    async def messages_between(
        self, topic: str, start: datetime, end: datetime, *, tags: str = "*", limit: int = BETWEEN_LIMIT
    ) -> tuple[ReceivedMessage, ...]:
        """The oldest messages of a topic that were stored in [start, end), so many at most."""
        wanted = self._topic(topic)
        start_ms, end_ms = milliseconds("start", start), milliseconds("end", end)
        if start_ms >= end_ms:
            raise ValueError("start must lie before end")
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        subscription(wanted, tags=tags)
        found: list[ReceivedMessage] = []
        for queues in (await self._readable_queues(wanted)).values():
            for queue in queues:
                found += await self._between(queue, start_ms, end_ms, tags, limit)
                # Cut after each queue, so that never more than twice the limit is in memory.
                found.sort(key=lambda each: (each.stored_time_ms, each.queue.broker_name, each.log_offset))
                del found[limit:]
        return tuple(found)

    async def _between(
        self, queue: MessageQueue, start_ms: int, end_ms: int, tags: str, limit: int
    ) -> list[ReceivedMessage]:
        address = await self._queue_address(queue.broker_name, queue.topic)

        async def search(time_ms: int) -> int:
            request = r.SearchOffsetByTimestamp(queue.topic, queue.queue_id, time_ms)
            return (await self._call(address, request)).header.queue_offset

        # Behind the last message brokers of 4.9 give the last, newer ones the end: one more is asked for.
        position, last = await asyncio.gather(search(start_ms), search(end_ms))
        found: list[ReceivedMessage] = []
        while position <= last and len(found) < limit:
            pulled = await self._pulled(queue, position, tags, PULL_COUNT)
            if pulled.next_offset <= position or pulled.status is PullStatus.NO_NEW_MESSAGE:
                break
            messages = self._wanted(pulled.body, queue, tags)
            found += [each for each in messages if start_ms <= each.stored_time_ms < end_ms]
            position = pulled.next_offset
        return found[:limit]

    async def _pull(self, queue: MessageQueue, offset: int, tags: str, count: int) -> list[ReceivedMessage]:
        return self._wanted((await self._pulled(queue, offset, tags, count)).body, queue, tags)

    async def _pulled(self, queue: MessageQueue, offset: int, tags: str, count: int) -> Pulled:
        return await pull(
            await self._use(),
            queue,
            group=TOOLS_GROUP,
            offset=offset,
            subscription=subscription(queue.topic, tags=tags),
            count_max=count,
            send_expression=True,
            timeout_ms=self._timeout_ms,
        )

    def _wanted(self, body: bytes, queue: MessageQueue, tags: str) -> list[ReceivedMessage]:
        data = subscription(queue.topic, tags=tags)
        return [each for each in decode_messages(body, queue, self._options.namespace) if matches(data, each)]

    # What became of a message

    async def message_track(self, message: ReceivedMessage) -> tuple[MessageTrack, ...]:
        """What every group that consumes its topic has done with a message."""
        groups = await self.consumers_of(self._bare(message.record.topic))
        return tuple(await self._several(groups, lambda group: self._track(group, message)))

    async def _track(self, group: str, message: ReceivedMessage) -> MessageTrack:
        name = self._group(group)
        try:
            targets = await self._of_group(name)
            answers = await self._call_some(
                targets, r.GetConsumerConnectionList(name), absent=(ResponseCode.CONSUMER_NOT_ONLINE,)
            )
            if not answers:
                return MessageTrack(group, TrackStatus.NOT_ONLINE)
            connection = b.ConsumerConnection.decode(next(iter(answers.values())).body)
            if connection.consume_type is b.ConsumeType.CONSUME_ACTIVELY:
                return MessageTrack(group, TrackStatus.PULL)
            if connection.message_model is b.MessageModel.BROADCASTING:
                return MessageTrack(group, TrackStatus.CONSUME_BROADCASTING)
            if not await self._is_consumed(name, message):
                return MessageTrack(group, TrackStatus.NOT_CONSUME_YET)
            data = connection.subscription_table.get(message.record.topic)
            is_filtered = data is not None and bool(data.tags_set) and message.tags not in data.tags_set
        except RocketMQError as error:
            return MessageTrack(group, TrackStatus.UNKNOWN, str(error))
        return MessageTrack(group, TrackStatus.CONSUMED_BUT_FILTERED if is_filtered else TrackStatus.CONSUMED)

    async def _is_consumed(self, group: str, message: ReceivedMessage) -> bool:
        record = message.record
        target = await self._broker(message.queue.broker_name)
        queue = MessageQueue(record.topic, target.broker_name, record.queue_id)
        committed = await self._committed(target, group, queue)
        return committed is not None and committed > record.queue_offset

    # Looking deeper

    async def queue_entries(
        self, queue: MessageQueue, start: int, count: int = PULL_COUNT, *, group: str | None = None
    ) -> QueueEntries:
        """Entries of a consume queue as they are, and whether the filter of a group lets them through."""
        topic, address = await self._place(queue)
        name = None if group is None else self._group(group)
        answer = await self._call(address, r.QueryConsumeQueue(topic, queue.queue_id, start, count, name))
        body = b.QueryConsumeQueueResponseBody.decode(answer.body)
        entries = tuple(
            QueueEntry(
                start + number,
                each.physic_offset,
                each.physic_size,
                each.tags_code,
                each.eval,
                each.extend_data_json,
                each.bit_map,
            )
            for number, each in enumerate(body.queue_data or ())
        )
        data = body.subscription_data
        shown = None if data is None else self._subscription(data)
        return QueueEntries(queue, body.min_queue_index, body.max_queue_index, entries, shown, body.filter_data)

    async def resume_transaction_check(self, msg_id: str, *, topic: str | None = None) -> None:
        """Have a half message asked about again that was given up; msg_id is its offset message id."""
        place = await self._place_of_id(msg_id)
        if place is None:
            raise ValueError(f"msg_id: {msg_id} is no offset message id of a broker here")
        wanted = None if topic is None else self._topic(topic)
        await self._call(place[0].address, r.ResumeCheckHalfMessage(msg_id, wanted))

    # Where messages are

    async def _place_of_id(self, msg_id: str) -> tuple[BrokerAddress, int] | None:
        """The broker and place that an offset message id names; None where it is another kind of id."""
        if not isinstance(msg_id, str) or not msg_id:
            raise ValueError("msg_id must be text, and not empty")
        try:
            found = decode_offset_message_id(msg_id)
        except RemoteProtocolError:
            return None
        address = format_address((found.host, found.port))
        for name, data in ((await self._cluster_info()).broker_addr_table or {}).items():
            for broker_id, announced in data.broker_addrs.items():
                if announced == address:
                    return BrokerAddress(name, broker_id, announced), found.log_offset
        return None

    async def _readers(self, topic: str) -> list[BrokerAddress]:
        """One process of each broker of a topic: its master, or a replica while there is none."""
        data = await self._route_data(topic)
        return [
            BrokerAddress(each.broker_name, number := min(each.broker_addrs), each.broker_addrs[number])
            for each in data.broker_datas or ()
            if each.broker_addrs
        ]

    async def _address_of_message(self, message: ReceivedMessage) -> str:
        table = (await self._cluster_info()).broker_addr_table or {}
        data = table.get(message.queue.broker_name)
        return message.store_host if data is None else data.broker_addrs.get(MASTER, message.store_host)

    def _received(self, body: bytes, broker_name: str) -> ReceivedMessage:
        return self._message(broker_name, decode_record(body))

    def _message(self, broker_name: str, record: StoredRecord) -> ReceivedMessage:
        queue = MessageQueue(self._bare(record.topic), broker_name, record.queue_id)
        return ReceivedMessage(record, queue, namespace=self._options.namespace)


def _has_key(message: ReceivedMessage, key: str) -> bool:
    properties = message.properties
    keys: Iterable[str] = properties.get(Property.KEYS, "").split(KEY_SEPARATOR)
    return key in keys or properties.get(Property.UNIQUE_KEY) == key


def _no_message(what: str) -> BrokerError:
    return BrokerError(ResponseCode.QUERY_NOT_FOUND, f"there is no message {what}; it may have been deleted")

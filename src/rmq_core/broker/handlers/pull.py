"""Pulls: checked in the order clients rely on, answered with views of the log, or held until something arrives.

Read      Hot bytes go from the mapping to the socket without a copy; cold ones are read in the pool first.
Held      A pull that finds nothing waits in long_polls and is served once more, then answered whatever it finds.
Pressure  A connection that does not read what it was sent gets no more: its pulls wait until it does.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rmq_core.broker.admission import HELP, REJECTED
from rmq_core.broker.filters import ALL, Wish, is_tag_type
from rmq_core.errors import BrokerError, RemoteProtocolError
from rmq_core.net.calls import Answer
from rmq_core.net.connection import Connection
from rmq_core.net.dispatch import Dispatcher, HotHandler
from rmq_core.protocol.bodies import MessageModel, SubscriptionData, SubscriptionGroupConfig, TopicConfig
from rmq_core.protocol.codes import CURRENT_VERSION, Permission, ResponseCode
from rmq_core.protocol.command import HeaderEncoding, command_of, encode_command, frame_prefix
from rmq_core.protocol.filter import parse_tags
from rmq_core.protocol.message import is_retry_topic
from rmq_core.protocol.requests import LitePullMessage, Pulled, PullMessage
from rmq_core.protocol.requests.pull import PullFields, decode_pull
from rmq_core.store.queue_reader import ANSWER_SIZE_MAX, GetStatus, Got, MessageFilter

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

COMMIT, SUSPEND, SUBSCRIPTION, LITE = 0x1, 0x2, 0x4, 0x10
WAITING_MAX: Final = 1024
"""Pulls of one connection that wait until it reads what it was sent."""
JOIN_MAX: Final = 16 << 10
"""Parts up to this size, on average, are joined: copying them costs less than handing over many."""

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_READ: Final = int(Permission.READ)
"""A plain number: an enumeration's operators are calls."""
_TEXTS: Final = {code: b"%d" % code for code in ResponseCode}


class ForbiddenError(BrokerError):
    """A pull that is not allowed; says by whom."""

    def __init__(self, remark: str, kind: int) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.kind = kind


@dataclass(slots=True, eq=False)
class Pull:
    """One pull, until it is answered."""

    connection: Connection
    encoding: HeaderEncoding
    fields: PullFields
    is_lite: bool
    is_first: bool = True
    wish: Wish = field(default=ALL)
    group: SubscriptionGroupConfig | None = None
    topic: TopicConfig | None = None


class Pulls:
    """Serves codes 11 and 361."""

    def __init__(self, broker: Broker, dispatcher: Dispatcher) -> None:
        self._broker = broker
        self._dispatcher = dispatcher
        self._waiting: dict[Connection, int] = {}
        self._tag_wishes: dict[tuple[int, ...], Wish] = {}

    def pull(self, connection: Connection, header: dict[str, Any], body: bytes) -> bytes | None:
        """Serve a PULL_MESSAGE or LITE_PULL_MESSAGE."""
        if self._dispatcher.is_going_away:
            self._dispatcher.serve(connection, command_of(header, body, connection.encoding))
            return None
        pull = Pull(connection, connection.encoding, decode_pull(header), header["code"] == LitePullMessage.code)
        if connection.is_congested:
            self._wait_for_room(pull)
        else:
            self._start(pull)
        return None

    def _wait_for_room(self, pull: Pull) -> None:
        connection = pull.connection
        waiting = self._waiting.get(connection, 0)
        if waiting >= WAITING_MAX:
            self._refuse(pull, BrokerError(ResponseCode.SYSTEM_BUSY, REJECTED))
            return
        self._waiting[connection] = waiting + 1

        def go_on() -> None:
            left = self._waiting.get(connection, 0) - 1
            if left > 0:
                self._waiting[connection] = left
            else:
                self._waiting.pop(connection, None)
            if not connection.is_open:
                return
            if connection.is_congested:
                self._wait_for_room(pull)
            else:
                self._start(pull)

        connection.when_drained(go_on)

    def _start(self, pull: Pull) -> None:
        try:
            self._check(pull)
            self._serve(pull)
        except BrokerError as error:
            self._refuse(pull, error)

    # Checks

    def _check(self, pull: Pull) -> None:
        broker, fields = self._broker, pull.fields
        settings = broker.settings
        if not settings.broker_permission & _READ:
            raise ForbiddenError(f"the broker[{settings.broker_ip1}] pulling message is forbidden", 1)
        if pull.is_lite and not settings.lite_pull_message_enable:
            raise ForbiddenError(f"the broker[{settings.broker_ip1}] for lite pull consumer is forbidden", 1)
        group = broker.groups.table.get(fields.group) or broker.groups.find_or_begin(fields.group)
        if group is None:
            remark = f"subscription group [{fields.group}] does not exist, \n{HELP}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            raise ForbiddenError(f"subscription group no permission, {fields.group}", 2)
        topic = broker.topics.table.get(fields.topic)
        if topic is None:
            remark = f"topic[{fields.topic}] not exist, apply first please! \n{HELP}"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.perm & _READ:
            raise ForbiddenError(f"the topic[{fields.topic}] pulling message is forbidden", 3)
        if not 0 <= fields.queue_id < topic.read_queue_nums:
            remark = (
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}] consumer:[{pull.connection.peer}]"
            )
            raise BrokerError(ResponseCode.INVALID_PARAMETER, remark)
        pull.group, pull.topic = group, topic
        pull.wish = self._wish(pull, group)

    def _wish(self, pull: Pull, group: SubscriptionGroupConfig) -> Wish:
        fields = pull.fields
        if fields.sys_flag & SUBSCRIPTION:
            return self._wish_of_text(fields)
        subscription = self._subscription(pull, group)
        if is_retry_topic(fields.topic) and self._broker.settings.filter_support_retry:
            return self._broker.filters.retry_wish(fields.group)
        if is_tag_type(subscription.expression_type):
            return self._wish_of_tags(subscription)
        return self._wish_of_expression(fields, subscription)

    def _subscription(self, pull: Pull, group: SubscriptionGroupConfig) -> SubscriptionData:
        broker, fields = self._broker, pull.fields
        members = broker.clients.consumer_group(fields.group)
        if members is None:
            remark = f"the consumer's group info not exist\n{HELP}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if not group.consume_broadcast_enable and members.message_model is MessageModel.BROADCASTING:
            raise ForbiddenError(f"the consumer group[{fields.group}] can not consume by broadcast way", 4)
        if broker.groups.is_read_forbidden(fields.group, fields.topic):
            raise ForbiddenError(f"the consumer group[{fields.group}] is forbidden for topic[{fields.topic}]", 5)
        subscription = members.subscriptions.get(fields.topic)
        if subscription is None:
            remark = f"the consumer's subscription not exist\n{HELP}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if subscription.sub_version < fields.sub_version:
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription

    def _wish_of_text(self, fields: PullFields) -> Wish:
        broker = self._broker
        try:
            if is_tag_type(fields.expression_type):
                wish = _tag_wish(fields.subscription or "")
            else:
                if not fields.subscription:
                    raise RemoteProtocolError(f"an expression of the type {fields.expression_type} is empty")
                self._check_expressions_enabled(str(fields.expression_type))
                wish = broker.filters.wish(fields.topic, fields.subscription, fields.expression_type)
        except RemoteProtocolError as error:
            remark = f"parse the consumer's subscription failed: {error}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from None
        broker.clients.infer_subscription(fields.group, fields.topic, fields.subscription, fields.expression_type)
        return wish

    def _wish_of_tags(self, subscription: SubscriptionData) -> Wish:
        if not subscription.sub_string or subscription.sub_string == "*":
            return ALL
        codes = tuple(int(code) for code in subscription.code_set)
        wish = self._tag_wishes.get(codes)
        if wish is None:
            if len(self._tag_wishes) > 10_000:
                self._tag_wishes.clear()
            wish = self._tag_wishes[codes] = _code_wish(frozenset(codes))
        return wish

    def _wish_of_expression(self, fields: PullFields, subscription: SubscriptionData) -> Wish:
        self._check_expressions_enabled(str(subscription.expression_type))
        broker = self._broker
        topic, group = fields.topic, fields.group
        if is_retry_topic(topic):
            return ALL
        data = broker.filters.get(topic, group)
        if data is None:
            remark = f"The broker does not have the filter data of {group} for {topic}"
            raise BrokerError(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
        if data.client_version < fields.sub_version:
            remark = f"The filter data of {group} for {topic} is not the latest"
            raise BrokerError(ResponseCode.FILTER_DATA_NOT_LATEST, remark)
        return broker.filters.wish_of(data)

    def _check_expressions_enabled(self, kind: str) -> None:
        if not self._broker.settings.enable_property_filter:
            remark = f"The broker does not support consumer to filter message by {kind}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)

    # Serving

    def _serve(self, pull: Pull) -> None:
        broker, fields = self._broker, pull.fields
        key = (fields.group, fields.topic, fields.queue_id)
        reset = broker.offsets.take_reset(*key)
        if reset is not None:
            got = Got(
                GetStatus.OFFSET_TOO_SMALL,
                reset,
                broker.store.min_offset(fields.topic, fields.queue_id),
                broker.store.max_offset(fields.topic, fields.queue_id),
            )
            self._answer(pull, got, ResponseCode.PULL_OFFSET_MOVED, b"OFFSET_RESET")
            return
        got = broker.store.get(
            fields.topic,
            fields.queue_id,
            fields.offset,
            fields.count_max,
            size_max=fields.size_max if fields.size_max > 0 else ANSWER_SIZE_MAX,
            filter_=pull.wish.filter,
        )
        if pull.is_first and fields.sys_flag & COMMIT and fields.commit_offset >= 0:
            broker.offsets.commit(*key, fields.commit_offset)
        if got.status is GetStatus.COLD:
            broker.begin(self._serve_cold(pull))
        else:
            self._finish(pull, got)

    async def _serve_cold(self, pull: Pull) -> None:
        """Read from the device in the pool; topic, group and connection may be gone afterwards."""
        broker, fields = self._broker, pull.fields
        read = functools.partial(
            broker.store.get,
            fields.topic,
            fields.queue_id,
            fields.offset,
            fields.count_max,
            size_max=fields.size_max if fields.size_max > 0 else ANSWER_SIZE_MAX,
            filter_=pull.wish.filter,
            may_wait=True,
        )
        started_ms = broker.clock.monotonic_ms()
        got = await broker.run(read)
        waited_ms = int(broker.clock.monotonic_ms() - started_ms)
        if pull.connection.is_open:
            self._finish(pull, got)
            broker.stats.get_waited(fields.group, fields.topic, fields.queue_id, waited_ms)

    def _finish(self, pull: Pull, got: Got) -> None:
        fields = pull.fields
        code = _CODES.get(got.status)
        if code is None:  # there is no message in the queue, or no queue
            code = ResponseCode.PULL_NOT_FOUND if fields.offset == 0 else ResponseCode.PULL_OFFSET_MOVED
        if code is ResponseCode.PULL_NOT_FOUND and pull.is_first and fields.sys_flag & SUSPEND and self._hold(pull):
            return
        self._answer(pull, got, code, got.status.name.encode())

    def _hold(self, pull: Pull) -> bool:
        broker, fields = self._broker, pull.fields
        settings = broker.settings
        timeout_ms = fields.suspend_ms if settings.long_polling_enable else settings.short_polling_time_mills
        if timeout_ms <= 0:
            return False

        def resume() -> None:
            pull.is_first = False
            self._start(pull)

        key = (fields.topic, fields.queue_id)
        return broker.long_polls.hold(key, pull.connection, fields.offset, timeout_ms, pull.wish.wanted, resume)

    # Answers

    def _answer(self, pull: Pull, got: Got, code: ResponseCode, remark: bytes) -> None:
        broker, fields, connection = self._broker, pull.fields, pull.connection
        broker.offsets.note_pull(fields.group, fields.topic, fields.queue_id, got.next_offset)
        if got.status is GetStatus.FOUND:
            broker.stats.got(fields.group, fields.topic, fields.queue_id, got.count, got.size)
        else:
            broker.stats.misses += 1
        if fields.is_oneway:
            return
        size = got.size if code is ResponseCode.SUCCESS else 0
        connection.send(self._head(pull, got, code, remark, size))
        if size:
            if len(got.parts) > 1 and size <= JOIN_MAX * len(got.parts):
                connection.send(b"".join(got.parts))
            else:
                for part in got.parts:
                    connection.send(part)

    def _head(self, pull: Pull, got: Got, code: ResponseCode, remark: bytes, size: int) -> bytes:
        suggested = self._suggested_broker(pull, got)
        topic_flag = pull.topic.topic_sys_flag if pull.topic is not None else 0
        group_flag = (pull.group.group_sys_flag or 0) if pull.group is not None else 0
        if pull.encoding is not HeaderEncoding.JSON:
            header = Pulled(
                suggested,
                got.next_offset,
                got.min_offset,
                got.max_offset,
                topic_sys_flag=topic_flag,
                group_sys_flag=group_flag,
            )
            answer = Answer(header, code=int(code), remark=remark.decode())
            frame = self._dispatcher.encode_answer(pull.fields.opaque, pull.encoding, answer)
            return frame_prefix(frame[8:], size, pull.encoding) + frame[8:]
        text = (
            b'{"code":%b,"extFields":{"suggestWhichBrokerId":"%d","groupSysFlag":"%d","nextBeginOffset":"%d",'
            b'"maxOffset":"%d","minOffset":"%d","topicSysFlag":"%d"},"flag":1,"language":"JAVA","opaque":%d,'
            b'"remark":"%b","serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (
            _TEXTS[code], suggested, group_flag, got.next_offset, got.max_offset, got.min_offset, topic_flag,
            pull.fields.opaque, remark, CURRENT_VERSION,
        )  # fmt: skip
        return frame_prefix(text, size, HeaderEncoding.JSON) + text

    def _suggested_broker(self, pull: Pull, got: Got) -> int:
        if not self._broker.settings.slave_read_enable or pull.group is None:
            return 0
        return pull.group.which_broker_when_consume_slowly if got.suggests_slave else pull.group.broker_id

    def _refuse(self, pull: Pull, error: BrokerError) -> None:
        if pull.fields.is_oneway:
            return
        ext = {"forbiddenType": str(error.kind)} if isinstance(error, ForbiddenError) else {}
        header = {"code": error.code, "flag": 1, "language": "JAVA", "opaque": pull.fields.opaque}
        header |= {"remark": error.remark, "extFields": ext, "version": CURRENT_VERSION}
        pull.connection.send(encode_command(command_of(header, b"", pull.encoding)))


@functools.lru_cache(maxsize=4096)
def _tag_wish(text: str) -> Wish:
    expression = parse_tags(text)
    return ALL if expression.matches_all else _code_wish(expression.codes)


def _code_wish(codes: frozenset[int]) -> Wish:
    """By the hash of the tag alone: clients compare the tags themselves."""
    return Wish(
        MessageFilter(by_entry=lambda code, unit: code in codes),
        lambda code, properties: code in codes,
    )


def hot_handlers(broker: Broker, dispatcher: Dispatcher) -> dict[int, HotHandler]:
    """The handlers of pulls, by code."""
    pulls = Pulls(broker, dispatcher)
    return {PullMessage.code: pulls.pull, LitePullMessage.code: pulls.pull}

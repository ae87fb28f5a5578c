"""Sends: the plain ones in one go, everything else step by step.

Plain     A known topic, no delay, no transaction, no retry, one message: its fields are read from the parsed
          header, its properties stay bytes, and its answer is made from a template. What is not plain goes the
          long way, which is the reference: both must store the same.
Answers   Refusals too carry MSG_REGION and TRACE_ON, as producers are used to.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson

from rmq_core.broker.admission import (
    PUT_CODES,
    STORED,
    Place,
    check_broker,
    check_topic,
    choose_queue,
    delayed,
    filter_flag,
    find_topic,
    put_remark,
    redirect_retry,
)
from rmq_core.broker.hosts import packed_host
from rmq_core.errors import BrokerError
from rmq_core.net.calls import Answer, Call
from rmq_core.net.connection import Connection
from rmq_core.net.dispatch import Dispatcher, HotHandler, handles
from rmq_core.protocol.bodies import TopicConfig
from rmq_core.protocol.codes import CURRENT_VERSION, ResponseCode
from rmq_core.protocol.command import ONEWAY_FLAG, HeaderEncoding, command_of
from rmq_core.protocol.fields import Wire
from rmq_core.protocol.message import (
    DERIVED_TOPIC_NAME_MAX,
    FORBIDDEN_SEND_TOPICS,
    TOPIC_NAME_MAX,
    append_properties,
    find_property,
    is_retry_topic,
    remove_property,
)
from rmq_core.protocol.message_id import encode_offset_message_id
from rmq_core.protocol.request import Header
from rmq_core.protocol.requests import RecallMessage, SendBatchMessage, SendMessage, SendMessageV2, Sent
from rmq_core.protocol.requests.send import SendFields, decode_send_v1, decode_send_v2
from rmq_core.store.message_store import Put, PutStatus

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

_PREFIX: Final = struct.Struct(">ii")
_UNIQUE_KEY: Final = "UNIQ_KEY\x01"


@dataclass(frozen=True, slots=True)
class PlainTopic:
    """What is decided once for the plain messages of a topic."""

    config: TopicConfig
    """As it was then: another one means that all is to be decided anew."""
    settings_version: object
    """The same, for what is plain depends on settings that may change."""
    queue_count: int
    sys_flag: int


@dataclass(frozen=True, slots=True)
class Refused(Header):
    """What a producer is told beside the code."""

    msg_region: Annotated[str | None, Wire("MSG_REGION")] = None
    trace_on: Annotated[bool | None, Wire("TRACE_ON")] = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that a client sends, as far as it is known from its header."""

    topic: str
    default_topic: str
    default_queues: int
    queue_id: int
    sys_flag: int
    born_time_ms: int
    flag: int
    properties: bytes
    reconsume_times: int
    max_reconsume_times: int | None
    is_batch: bool


class PlainSends:
    """The hot handlers of codes 10 and 310."""

    def __init__(self, broker: Broker, dispatcher: Dispatcher) -> None:
        self._broker = broker
        self._dispatcher = dispatcher
        self._store = broker.store
        self._suffix = own_properties(broker)
        self._topics: dict[str, PlainTopic] = {}
        self._reply = b""
        """A successful answer, without its numbers and the message's key."""

    def v1(self, connection: Connection, header: dict[str, Any], body: bytes) -> bytes | None:
        """Serve a SEND_MESSAGE."""
        return self._send(connection, header, body, decode_send_v1(header))

    def v2(self, connection: Connection, header: dict[str, Any], body: bytes) -> bytes | None:
        """Serve a SEND_MESSAGE_V2."""
        return self._send(connection, header, body, decode_send_v2(header))

    def _send(
        self, connection: Connection, header: dict[str, Any], body: bytes, fields: SendFields
    ) -> bytes | None:
        opaque, _, topic, _, _, queue_id, sys_flag, born_ms, flag, text, reconsume_times, _, batch = fields
        broker, store = self._broker, self._store
        if broker.busy is not None and broker.is_master and connection.encoding is HeaderEncoding.JSON:
            return None if header.get("flag", 0) & ONEWAY_FLAG else _busy_answer(opaque, broker.busy)
        known = self._topics.get(topic)
        if (
            known is None
            or broker.topics.table.get(topic) is not known.config
            or broker.configuration.version is not known.settings_version
        ):
            known = self._decide(topic)
        key = _unique_key(text) if text else ""
        if (
            known is None
            or not text
            or not key
            or not body
            or not 0 <= queue_id < known.queue_count
            or not (batch is None or batch == "false")  # spelled otherwise: the declaration knows
            or broker.busy is not None
            or self._dispatcher.is_going_away
            or _is_special(text)
        ):
            self._dispatcher.serve(connection, command_of(header, body, connection.encoding))
            return None
        properties = text.encode() + (self._suffix if text[-1] == "\x02" else b"\x02" + self._suffix)
        broker.pass_end_soon()
        put = store.put(
            topic,
            queue_id,
            body,
            properties,
            born_time_ms=born_ms,
            born_host=packed_host(connection.peer),
            flag=flag,
            sys_flag=sys_flag | known.sys_flag,
            reconsume_times=int(reconsume_times) if reconsume_times else 0,
        )
        is_oneway = header.get("flag", 0) & ONEWAY_FLAG
        if put.status is not PutStatus.PUT_OK:
            broker.stats.failures += 1
            if is_oneway:
                return None
            error = BrokerError(PUT_CODES[put.status], put_remark(put.status, put.reason))
            return self._dispatcher.encode_answer(opaque, connection.encoding, refused_answer(broker, error))
        broker.stats.sent(topic, queue_id, put.size)
        if is_oneway:
            return None
        if store.flusher.is_sync and "WAIT\x01false" not in text:
            self._answer_later(connection, opaque, topic, queue_id, put, key)
            return None
        return self._answer(connection.encoding, put.status, opaque, queue_id, put, key)

    def _answer_later(
        self, connection: Connection, opaque: int, topic: str, queue_id: int, put: Put, key: str
    ) -> None:
        broker = self._broker
        encoding, started_ms = connection.encoding, broker.clock.monotonic_ms()

        def tell(status: PutStatus) -> None:
            broker.stats.put_waited(topic, queue_id, int(broker.clock.monotonic_ms() - started_ms))
            connection.send(self._answer(encoding, status, opaque, queue_id, put, key))

        self._store.when_durable(put.end, tell)

    def _decide(self, topic: str) -> PlainTopic | None:
        broker = self._broker
        config = broker.topics.table.get(topic)
        is_plain = (
            config is not None
            and not topic.startswith("%")
            and topic not in FORBIDDEN_SEND_TOPICS
            and len(topic) <= TOPIC_NAME_MAX
            and not (config.order and broker.settings.broker_permission & 2 == 0)
            and broker.is_master
            and broker.now_ms() >= broker.settings.start_accept_send_request_time_stamp
            and (config.attributes or {}).get("cleanup.policy") != "COMPACTION"
        )
        if config is None or not is_plain:
            self._topics.pop(topic, None)
            return None
        self._reply = self._reply or _reply_template(broker)
        queue_count = max(config.write_queue_nums, config.read_queue_nums)
        known = PlainTopic(config, broker.configuration.version, queue_count, filter_flag(config))
        self._topics[topic] = known
        return known

    def _answer(
        self, encoding: HeaderEncoding, status: PutStatus, opaque: int, queue_id: int, put: Put, key: str
    ) -> bytes:
        if encoding is HeaderEncoding.JSON and status is PutStatus.PUT_OK:
            # A key of letters and digits, as clients make them, needs no quoting.
            quoted = b'"%b"' % key.encode() if key.isalnum() else orjson.dumps(key)
            text = self._reply % (queue_id, put.log_offset, put.queue_offset, quoted, opaque)
            size = len(text)
            return _PREFIX.pack(4 + size, size) + text
        answer = sent_answer(self._broker, status, queue_id, put, key)
        return self._dispatcher.encode_answer(opaque, encoding, answer)


def _busy_answer(opaque: int, remark: str) -> bytes:
    """The refusal of a busy broker. It must cost less than serving, or being busy would keep the broker busy."""
    text = (
        b'{"code":%d,"flag":1,"language":"JAVA","opaque":%d,"remark":%b,"serializeTypeCurrentRPC":"JSON",'
        b'"version":%d}'
    ) % (ResponseCode.SYSTEM_BUSY, opaque, orjson.dumps(remark), CURRENT_VERSION)
    size = len(text)
    return _PREFIX.pack(4 + size, size) + text


def _reply_template(broker: Broker) -> bytes:
    """To be filled in with queue id, log offset, queue offset, the quoted key and the opaque."""
    settings = broker.settings
    own = b'"MSG_REGION":%b,"TRACE_ON":"%b"' % (
        orjson.dumps(settings.region_id),
        str(settings.trace_on).lower().encode(),
    )
    host = broker.store_host.hex().upper().encode()
    return (
        b'{"code":0,"extFields":{"queueId":"%d",' + own.replace(b"%", b"%%") + b',"msgId":"' + host + b'%016X",'
        b'"queueOffset":"%d","transactionId":%b},"flag":1,"language":"JAVA","opaque":%d,'
        b'"serializeTypeCurrentRPC":"JSON","version":' + b"%d}" % CURRENT_VERSION
    )


def _is_special(text: str) -> bool:
    """Whether one of the names may be there that a plain message does not have."""
    # Written out, and in text: the same looks into bytes take five times as long.
    return (
        "DELAY" in text
        or "TIMER_" in text
        or "TRAN_MSG" in text
        or "POP_CK" in text
        or "MSG_REGION" in text
        or "TRACE_ON" in text
        or "CLUSTER" in text
        or "INNER_" in text
        or "__CRC32#" in text
    )


def _unique_key(text: str) -> str:
    """The client's id of a message; empty where it has none."""
    start = text.find(_UNIQUE_KEY)
    if start > 0 and text[start - 1] != "\x02":  # the end of another name
        start = text.find("\x02" + _UNIQUE_KEY) + 1 or -1
    if start < 0:
        return ""
    start += len(_UNIQUE_KEY)
    end = text.find("\x02", start)
    return text[start:end] if end >= 0 else text[start:]


def hot_handlers(broker: Broker, dispatcher: Dispatcher) -> dict[int, HotHandler]:
    """The handlers of plain sends, by code."""
    plain = PlainSends(broker, dispatcher)
    return {10: plain.v1, 310: plain.v2}


def own_properties(broker: Broker) -> bytes:
    """What the broker adds to the properties of every message."""
    settings = broker.settings
    pairs = {
        "MSG_REGION": settings.region_id,
        "CLUSTER": settings.broker_cluster_name,
        "TRACE_ON": "true" if settings.trace_on else "false",
    }
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()


def sent_answer(broker: Broker, status: PutStatus, queue_id: int, put: Put, key: str | None) -> Answer[Sent]:
    """The answer for a stored message, or for the messages of a batch."""
    offsets = put.log_offsets or (put.log_offset,)
    ids = ",".join(encode_offset_message_id(broker.store_host, offset) for offset in offsets)
    header = Sent(
        ids,
        queue_id,
        put.queue_offset,
        transaction_id=key,
        msg_region=broker.settings.region_id,
        trace_on=broker.settings.trace_on,
    )
    return Answer(header, code=int(PUT_CODES[status]))


def refused_answer(broker: Broker, error: BrokerError) -> Answer[Refused]:
    """The answer for a message that was not taken."""
    header = Refused(broker.settings.region_id, broker.settings.trace_on)
    return Answer(header, code=error.code, remark=error.remark)


# The long way


@handles(SendMessage)
async def send_message(broker: Broker, call: Call[SendMessage]) -> Answer[Any]:
    """Store a message."""
    return await _serve(broker, call)


@handles(SendMessageV2)
async def send_message_v2(broker: Broker, call: Call[SendMessageV2]) -> Answer[Any]:
    """Store a message."""
    return await _serve(broker, call)


@handles(SendBatchMessage)
async def send_batch_message(broker: Broker, call: Call[SendBatchMessage]) -> Answer[Any]:
    """Store the messages of a batch."""
    return await _serve(broker, call)


async def _serve(broker: Broker, call: Call[Any]) -> Answer[Any]:
    check_broker(broker)
    message = outgoing(call.header)
    try:
        return await send(broker, message, call)
    except BrokerError as error:
        return refused_answer(broker, error)


def outgoing(header: SendMessage | SendMessageV2 | SendBatchMessage) -> Outgoing:
    """The message of a send header."""
    return Outgoing(
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
        header.queue_id,
        header.sys_flag,
        header.born_timestamp,
        header.flag,
        (header.properties or "").encode("utf-8", "replace"),
        header.reconsume_times or 0,
        header.max_reconsume_times,
        bool(header.batch),
    )


async def send(broker: Broker, message: Outgoing, call: Call[Any]) -> Answer[Any]:
    """Check, rewrite and store a message or a batch. Raises BrokerError."""
    check_topic(broker, message.topic)
    config = await find_topic(broker, message.topic, message.default_topic, message.default_queues)
    queue_id = choose_queue(config, message.queue_id, call.connection.peer)
    if message.is_batch:
        return await _send_batch(broker, message, call, config, queue_id)
    if not call.body:
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, "a message without a body")
    properties, key = complete_properties(broker, message.properties, given_key=None)
    is_half = find_property(properties, b"TRAN_MSG") == b"true" and not (
        message.reconsume_times > 0 and find_property(properties, b"DELAY") not in (None, b"0")
    )
    if (config.attributes or {}).get("cleanup.policy") == "COMPACTION" and not find_property(properties, b"KEYS"):
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, "a message of a compacted topic needs keys")
    if is_half and broker.settings.reject_transaction_message:
        ip = broker.settings.broker_ip1
        remark = f"the broker[{ip}] sending transaction message is forbidden"
        raise BrokerError(ResponseCode.NO_PERMISSION, remark)
    place = Place(config.topic_name, queue_id, properties)
    if is_retry_topic(message.topic):
        place = await redirect_retry(
            broker,
            place,
            reconsume_times=message.reconsume_times,
            max_times=message.max_reconsume_times,
            version=call.command.version,
        )
    sys_flag = message.sys_flag | filter_flag(config)
    if is_half:
        place, sys_flag = broker.transactions.half_place(place, sys_flag)
    else:
        place = delayed(broker, place)
    put = broker.put(
        place.topic,
        place.queue_id,
        call.body,
        place.properties,
        born_time_ms=message.born_time_ms,
        born_host=packed_host(call.connection.peer),
        flag=message.flag,
        sys_flag=sys_flag,
        reconsume_times=message.reconsume_times,
    )
    started_ms = broker.clock.monotonic_ms()
    status = await broker.stored(put, place.properties)
    if status not in STORED:
        raise BrokerError(PUT_CODES[status], put_remark(status, put.reason))
    broker.stats.sent(place.topic, place.queue_id, put.size)
    broker.stats.put_waited(place.topic, place.queue_id, int(broker.clock.monotonic_ms() - started_ms))
    return sent_answer(broker, status, queue_id, put, key)


async def _send_batch(
    broker: Broker, message: Outgoing, call: Call[Any], config: TopicConfig, queue_id: int
) -> Answer[Any]:
    if is_retry_topic(message.topic) or len(message.topic) > TOPIC_NAME_MAX:
        remark = f"a batch cannot go to the topic {message.topic[:DERIVED_TOPIC_NAME_MAX]}"
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, remark)
    key = find_property(message.properties, b"UNIQ_KEY")
    put = broker.put_batch(
        config.topic_name,
        queue_id,
        call.body,
        extra_properties=batch_properties(broker, message.properties),
        born_time_ms=message.born_time_ms,
        born_host=packed_host(call.connection.peer),
        sys_flag=message.sys_flag | filter_flag(config),
        reconsume_times=message.reconsume_times,
    )
    status = await broker.stored(put, message.properties)
    if status not in STORED:
        raise BrokerError(PUT_CODES[status], put_remark(status, put.reason))
    broker.stats.sent(message.topic, queue_id, put.size, len(put.log_offsets))
    return sent_answer(broker, status, queue_id, put, None if key is None else key.decode("utf-8", "replace"))


def batch_properties(broker: Broker, properties: bytes) -> bytes:
    """What the properties of a batch add to each of its messages: all but an id, which they have of their own."""
    for name in (b"UNIQ_KEY", b"POP_CK", b"MSG_REGION", b"TRACE_ON", b"CLUSTER", b"DELAY", b"TRAN_MSG"):
        properties = remove_property(properties, name)
    return append_properties(properties, own_properties(broker))


def complete_properties(broker: Broker, properties: bytes, *, given_key: str | None) -> tuple[bytes, str]:
    """The properties with what every stored message has, and the client's id, made here where it has none."""
    for name in (b"POP_CK", b"MSG_REGION", b"TRACE_ON", b"CLUSTER"):
        properties = remove_property(properties, name)
    found = find_property(properties, b"UNIQ_KEY")
    key = given_key or (found.decode("utf-8", "replace") if found else broker.unique_key())
    if not found:
        properties = append_properties(remove_property(properties, b"UNIQ_KEY"), f"UNIQ_KEY\x01{key}\x02".encode())
    return append_properties(properties, own_properties(broker)), key


@handles(RecallMessage)
async def recall_message(broker: Broker, call: Call[RecallMessage]) -> Answer[Refused]:
    """Only timed messages can be recalled, and those are refused as long as there is no timer."""
    remark = "recall failed, operation is forbidden"
    return Answer(Refused(broker.settings.region_id), code=ResponseCode.NO_PERMISSION, remark=remark)

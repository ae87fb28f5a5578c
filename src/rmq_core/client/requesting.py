"""Requests that another client answers: what they are sent with, and how an answer is made and read.

A request carries a correlation id and the client id of who asks. The answer goes to the cluster's reply topic, and
the broker passes it on to that client over its connection.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from rmq_core.client.received import ReceivedMessage
from rmq_core.client.replies import PushedReply
from rmq_core.client.sending import Outgoing
from rmq_core.errors import RocketMQError
from rmq_core.net.connection import parse_address
from rmq_core.protocol.message import REPLY_TOPIC_SUFFIX, Message, MessageQueue, Property
from rmq_core.protocol.record import Host, StoredRecord

_ASKED_WITH = (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.TTL)


def new_correlation_id() -> str:
    """An identity for one request."""
    return str(uuid.uuid4())


def request_properties(correlation_id: str, client_id: str, timeout_ms: float) -> dict[str, str]:
    """What makes a message a request."""
    return {
        Property.CORRELATION_ID.value: correlation_id,
        Property.REPLY_TO_CLIENT.value: client_id,
        Property.TTL.value: str(int(timeout_ms)),
    }


def reply_topic(cluster: str) -> str:
    """Where answers go in a cluster. It is the broker's own topic: no namespace changes it."""
    return cluster + REPLY_TOPIC_SUFFIX


def reply_message(request: ReceivedMessage, body: bytes) -> tuple[Message, dict[str, str]]:
    """The answer to a request, and the properties that only clients give. Raises TypeError, ValueError."""
    if not isinstance(request, ReceivedMessage):
        raise TypeError(f"message must be the ReceivedMessage to answer, not {type(request).__name__}")
    properties = request.properties
    cluster = properties.get(Property.CLUSTER)
    missing = [name.value for name in _ASKED_WITH if name not in properties]
    if missing or not cluster:
        raise ValueError(f"message {request.msg_id} is no request: it lacks {', '.join(missing) or 'CLUSTER'}")
    more = {name.value: properties[name] for name in _ASKED_WITH}
    more[Property.MSG_TYPE.value] = "reply"
    return Message(reply_topic(cluster), body), more


def received_reply(pushed: PushedReply, namespace: str) -> ReceivedMessage:
    """An answer as its reader gets it."""
    header = pushed.header
    record = StoredRecord(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=0,
        log_offset=0,
        body=pushed.body,
        property_bytes=(header.properties or "").encode(),
        born_time_ms=header.born_timestamp,
        born_host=_host(header.born_host),
        store_time_ms=header.store_timestamp,
        store_host=_host(header.store_host),
        flag=header.flag,
        sys_flag=header.sys_flag,
        reconsume_times=header.reconsume_times or 0,
    )
    return ReceivedMessage(record, MessageQueue(header.topic, "", header.queue_id), namespace=namespace)


def _host(address: str) -> Host:
    try:
        host, port = parse_address(address)
        return Host.of(host, port)
    except (RocketMQError, ValueError):  # a broker may give a name here: no reason to lose the answer
        return Host(bytes(4), 0)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request on its way."""

    message: Message
    out: Outgoing
    correlation_id: str
    time_ms: float
    started_ms: float

    def left_ms(self, now_ms: float) -> float:
        """What remains of its time."""
        return max(self.time_ms - (now_ms - self.started_ms), 1)

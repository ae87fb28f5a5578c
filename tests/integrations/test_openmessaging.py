"""The OpenMessaging façade over a real broker."""

from __future__ import annotations

import pytest

import rmq_core
from rmq_core.errors import RocketMQError
from rmq_core.integrations.openmessaging import (
    BytesMessage,
    Context,
    Keys,
    MessagingAccessPoint,
    messaging_access_point,
)
from rmq_core.integrations.pytest_plugin import RocketMQ
from rmq_core.protocol.codes import Permission
from support.waiting import until


def access_point(rocketmq: RocketMQ) -> MessagingAccessPoint:
    return messaging_access_point(f"oms:rocketmq://{rocketmq.name_server}/default:default", {"OWN": "attribute"})


def test_messages_go_through_with_their_headers(rocketmq: RocketMQ) -> None:
    """Sent in all three ways, and then to a consumer that was suspended; its listener must see every header."""
    queue, closed = rocketmq.topic(), rocketmq.topic()
    with rmq_core.Admin(name_server=rocketmq.name_server) as admin:
        admin.set_topic_permission(closed, Permission.READ)
    point = access_point(rocketmq)
    got: list[BytesMessage] = []

    def listen(message: BytesMessage, context: Context) -> None:
        got.append(message)
        context.ack()

    with point.create_producer({Keys.PRODUCER_ID: "shop", Keys.OPERATION_TIMEOUT: "5000"}) as producer:
        message = producer.create_bytes_message(queue, b"one").put_user_header("shop", "s7")
        message.put_sys_header(Keys.SEARCH_KEYS, "k1 k2").put_sys_header(Keys.TAGS, "paid")
        sent = producer.send(message)
        assert message.message_id == sent.message_id
        assert producer.send_async(producer.create_bytes_message(queue, b"two")).result(30).message_id
        producer.send_oneway(producer.create_bytes_message(queue, b"three"))
        with pytest.raises(RocketMQError):
            producer.send_async(producer.create_bytes_message(closed, b"x")).result(30)
        assert producer.attributes["OWN"] == "attribute"
        consumer = point.create_push_consumer({Keys.CONSUMER_ID: rocketmq.group()})
        consumer.attach_queue(queue, listen)
        with consumer:
            consumer.suspend()
            assert consumer.is_suspended
            consumer.resume()
            for number in range(5):
                producer.send(producer.create_bytes_message(queue, b"%d" % number))
            until(lambda: len(got) >= 5)
            assert {each.message_id is not None for each in got} == {True}
            consumer.detach_queue(queue)
            with pytest.raises(ValueError, match="is not attached"):
                consumer.detach_queue(queue)


def test_the_pull_consumer_commits_up_to_the_first_message_that_is_open(rocketmq: RocketMQ) -> None:
    """Acknowledges out of order: what follows an open message is read again by the next consumer."""
    queue, group = rocketmq.topic(queues=1), rocketmq.group()
    point = access_point(rocketmq)
    attributes = {Keys.CONSUMER_ID: group}
    with point.create_pull_consumer(attributes).attach_queue(queue) as consumer:
        assert consumer.receive(1) is None
        with point.create_producer() as producer:
            for number in range(5):
                message = producer.create_bytes_message(queue, b"%d" % number)
                producer.send(message.put_user_header("number", str(number)))
        taken: list[BytesMessage] = []
        while len(taken) < 4:
            found = consumer.receive()
            assert found is not None
            taken.append(found)
        assert [each.body for each in taken] == [b"0", b"1", b"2", b"3"]
        assert taken[0].user_headers == {"number": "0"}
        assert taken[0].sys_headers[Keys.DESTINATION] == queue
        for number in (0, 1, 3):
            consumer.ack(taken[number].message_id or "")
        with pytest.raises(ValueError, match="was not received here"):
            consumer.ack(taken[0].message_id or "")
    with point.create_pull_consumer(attributes).attach_queue(queue) as again:
        rest: list[bytes] = []
        while len(rest) < 3:
            left = again.receive()
            assert left is not None
            rest.append(left.body)
    assert rest == [b"2", b"3", b"4"]


def test_wrong_addresses_and_attributes_are_refused() -> None:
    """Each mistake alone."""
    for url, match in (
        ("rocketmq://h:1/a:b", "is not like oms:rocketmq"),
        ("oms:kafka://h:1/a:b", "not of kafka"),
        ("oms:rocketmq://h:1", "is not like"),
    ):
        with pytest.raises(ValueError, match=match):
            messaging_access_point(url)
    point = messaging_access_point("oms:rocketmq://user:secret@h:1,h:2/region:deployment")
    assert point.implementation_version() == "0.3.0"
    assert "secret" not in repr(point)
    with pytest.raises(ValueError, match="needs a CONSUMER_ID"):
        point.create_push_consumer()
    with pytest.raises(ValueError, match="OPERATION_TIMEOUT must be milliseconds"):
        point.create_producer({Keys.OPERATION_TIMEOUT: "soon"})

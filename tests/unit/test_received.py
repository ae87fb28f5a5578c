"""Messages as consumers get them, and the subscriptions that let them through."""

from __future__ import annotations

import pickle
import zlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.client.received import ReceivedMessage, decode_messages
from rmq_core.client.subscriptions import is_by_tags, matches, renewed, subscription
from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.message import MessageQueue, encode_properties
from rmq_core.protocol.message_id import decode_offset_message_id
from rmq_core.protocol.record import Host, StoredRecord, decode_record, encode_record
from support.records import record_bytes

QUEUE = MessageQueue("Orders", "broker-a", 3)


def record(body: bytes = b"hello", *, topic: str = "Orders", sys_flag: int = 0, **properties: str) -> StoredRecord:
    return StoredRecord(
        topic=topic,
        queue_id=3,
        queue_offset=17,
        log_offset=4096,
        body=body,
        property_bytes=encode_properties(properties),
        born_time_ms=1_700_000_000_123,
        born_host=Host.of("10.0.0.1", 5000),
        store_time_ms=1_700_000_000_456,
        store_host=Host.of("10.0.0.2", 10911),
        flag=9,
        sys_flag=sys_flag,
        reconsume_times=2,
        body_crc=zlib.crc32(body) & 0x7FFFFFFF,
    )


def received(stored: StoredRecord, *, namespace: str = "") -> ReceivedMessage:
    """The message as a pull would bring it."""
    (message,) = decode_messages(encode_record(stored), QUEUE, namespace)
    return message


def test_a_message_shows_what_was_stored() -> None:
    """Reads every field of one message, whether it was decoded from bytes or made from a record."""
    stored = record(TAGS="paid", KEYS="42  43", UNIQ_KEY="7F01", __SHARDINGKEY="s", DELAY="3", shop="s7")
    for message in (received(stored), ReceivedMessage(decode_record(encode_record(stored)), QUEUE)):
        assert (message.topic, message.body, message.tags, message.keys) == (
            "Orders",
            b"hello",
            "paid",
            ("42", "43"),
        )
        assert (message.sharding_key, message.delay_level, message.properties["shop"]) == ("s", 3, "s7")
        assert (message.queue, message.queue_offset, message.log_offset) == (QUEUE, 17, 4096)
        assert (message.flag, message.sys_flag, message.reconsume_times) == (9, 0, 2)
        assert message.born_at == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
        assert message.stored_at == datetime(2023, 11, 14, 22, 13, 20, 456_000, tzinfo=UTC)
        assert (message.born_time_ms, message.stored_time_ms) == (1_700_000_000_123, 1_700_000_000_456)
        assert (message.born_host, message.store_host) == ("10.0.0.1:5000", "10.0.0.2:10911")
        assert message.msg_id == "7F01"
        where = decode_offset_message_id(message.offset_msg_id)
        assert (where.host, where.port, where.log_offset) == ("10.0.0.2", 10911, 4096)
        assert message.size == len(encode_record(stored))
        assert message.transaction_id is None
        assert "7F01" in repr(message)
        assert "paid" in repr(message)


def test_a_message_without_an_identity_is_known_by_where_it_is() -> None:
    """A sender that gives no unique key, no tag and no keys."""
    message = received(record())
    assert message.msg_id == message.offset_msg_id
    assert (message.tags, message.keys, message.delay_level, message.sharding_key) == (None, (), None, None)


def test_a_transaction_is_known_by_its_property_or_by_the_message_it_is() -> None:
    """Both ways that clients write it."""
    assert received(record(__transactionId__="T1")).transaction_id == "T1"
    assert received(record(TRAN_MSG="true", UNIQ_KEY="U1")).transaction_id == "U1"


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_a_body_comes_as_it_was_sent_however_it_was_compressed(kind: int) -> None:
    """Each type of compression, and the old way that names none."""
    from rmq_core.protocol.compression import CompressionType, compress

    packed = compress(b"x" * 5_000, CompressionType(kind or 3))
    assert received(record(packed, sys_flag=1 | kind << 8)).body == b"x" * 5_000


def test_a_damaged_body_raises_only_where_it_is_read() -> None:
    """Compressed data that is none: everything else of the message can still be seen."""
    message = received(record(b"no zlib", sys_flag=1, KEYS="42"))
    assert message.keys == ("42",)
    with pytest.raises(RemoteProtocolError, match="cannot be inflated"):
        _ = message.body


def test_a_message_that_comes_again_shows_the_topic_it_was_sent_to() -> None:
    """From the retry topic, with and without a namespace; elsewhere a property of that name counts nothing."""
    assert received(record(topic="%RETRY%group", RETRY_TOPIC="Orders")).topic == "Orders"
    assert received(record(topic="%RETRY%group")).topic == "%RETRY%group"
    assert received(record(topic="Bills", RETRY_TOPIC="Orders")).topic == "Bills"
    retried = record(topic="%RETRY%shop%group", RETRY_TOPIC="shop%Orders")
    assert received(retried, namespace="shop").topic == "Orders"


def test_queues_come_without_the_namespace() -> None:
    """The queue that is pulled is named as on the wire."""
    wire = MessageQueue("shop%Orders", "broker-a", 3)
    (message,) = decode_messages(encode_record(record(topic="shop%Orders")), wire, "shop")
    assert (message.queue, message.topic) == (QUEUE, "Orders")


def test_a_message_knows_how_far_behind_it_is() -> None:
    """The range of its queue, as attributes and under the names that Java's programs read."""
    (message,) = decode_messages(encode_record(record()), QUEUE, min_offset=5, max_offset=99)
    assert (message.min_offset, message.max_offset) == (5, 99)
    assert (message.properties["MIN_OFFSET"], message.properties["MAX_OFFSET"]) == ("5", "99")
    assert received(record()).max_offset is None


def test_times_that_are_no_dates_are_shown_as_none() -> None:
    """A sender's clock may say anything."""
    import dataclasses

    message = received(dataclasses.replace(record(), born_time_ms=2**62, store_time_ms=-(2**62)))
    assert (message.born_at, message.stored_at) == (None, None)
    assert message.born_time_ms == 2**62


def test_messages_go_to_other_processes() -> None:
    """Pickled before and after it was read."""
    message = received(record(TAGS="paid"))
    assert pickle.loads(pickle.dumps(message)).tags == "paid"
    assert message.topic == "Orders"
    copy = pickle.loads(pickle.dumps(message))
    assert (copy.topic, copy.body, copy.queue) == ("Orders", b"hello", QUEUE)


@given(st.lists(record_bytes(), max_size=4))
def test_bodies_of_pulls_are_cut_where_their_records_end(records: list[bytes]) -> None:
    """Records of either version and both kinds of hosts, one behind the other."""
    messages = decode_messages(b"".join(records), QUEUE)
    assert [message.size for message in messages] == list(map(len, records))


@given(st.lists(record_bytes(), min_size=1, max_size=3), st.data())
def test_a_damaged_body_of_a_pull_is_refused_as_a_whole(records: list[bytes], data: st.DataObject) -> None:
    """Cuts the body within a record: nothing may be taken for the end of it."""
    body = b"".join(records)
    ends = {sum(map(len, records[:count])) for count in range(len(records) + 1)}
    cut = data.draw(st.integers(1, len(body) - 1).filter(lambda at: at not in ends))
    with pytest.raises(RemoteProtocolError, match="damaged record"):
        decode_messages(body[:cut], QUEUE)


# Subscriptions


def test_tags_are_compared_by_their_text() -> None:
    """Aa and BB have one hash in Java; a message without a tag is none that was asked for."""
    wanted = subscription("Orders", tags="Aa || paid")
    assert (wanted.tags_set, wanted.expression_type, wanted.sub_string) == (("Aa", "paid"), "TAG", "Aa || paid")
    assert matches(wanted, received(record(TAGS="Aa")))
    assert not matches(wanted, received(record(TAGS="BB")))
    assert not matches(wanted, record())
    assert matches(subscription("Orders"), record())


def test_sql_is_checked_and_left_to_the_broker() -> None:
    """One expression that can be read and one that cannot."""
    wanted = subscription("Orders", sql="amount > 100")
    assert (wanted.expression_type, wanted.sub_string, wanted.tags_set) == ("SQL92", "amount > 100", ())
    assert matches(wanted, record(amount="5"))
    assert not is_by_tags(wanted)
    with pytest.raises(ValueError, match="sql"):
        subscription("Orders", sql="amount >")


def test_each_subscription_is_newer_than_all_before() -> None:
    """Many within one millisecond: brokers keep the one with the highest version."""
    versions = [subscription("Orders").sub_version for _ in range(100)]
    assert sorted(set(versions)) == versions
    assert renewed(subscription("Orders")).sub_version > versions[-1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": "a b"}, "topic"),
        ({"topic": "Orders", "tags": " || "}, "tags"),
        ({"topic": "Orders", "tags": "a", "sql": "b = 1"}, "either tags or sql"),
    ],
)
def test_wrong_subscriptions_name_the_argument(arguments: dict[str, str], problem: str) -> None:
    """What a user may get wrong in text."""
    with pytest.raises(ValueError, match=problem):
        subscription(**arguments)


def test_subscriptions_of_other_types_are_refused() -> None:
    """A list of tags, SQL as bytes, a topic that is no text."""
    for arguments in ({"tags": ["a"]}, {"sql": b"a = 1"}):
        with pytest.raises(TypeError, match=next(iter(arguments))):
            subscription("Orders", **arguments)
    with pytest.raises(TypeError, match="topic"):
        subscription(3)  # type: ignore[arg-type]

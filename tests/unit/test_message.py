"""Messages as users build them, properties as bytes, and names of topics and groups."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.errors import LocalProtocolError
from rmq_core.protocol import message as m
from rmq_core.protocol.message import Message, MessageQueue, Property

property_text = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
property_maps = st.dictionaries(property_text, property_text, max_size=8)
# Mostly separators and few letters: names repeat, values are empty, chunks are short.
property_noise = st.lists(st.sampled_from([b"\x01", b"\x02", b"A", b"AB", b"\xff", "é".encode()]), max_size=30).map(
    b"".join
)


@given(property_maps)
def test_properties_survive_the_round_trip(properties: dict[str, str]) -> None:
    """Any text without separators, in any script."""
    encoded = m.encode_properties(properties)
    assert m.decode_properties(encoded) == properties
    assert m.decode_properties(memoryview(encoded)) == properties
    assert m.decode_properties(encoded[:-1]) == properties


def test_properties_are_written_with_a_separator_at_their_end() -> None:
    """The bytes of Apache's batch example, in its order."""
    encoded = m.encode_properties({"KEYS": "k1 k2", "WAIT": "true", "TAGS": "TagA"})
    assert encoded.hex() == "4b455953016b31206b320257414954017472756502544147530154616741" + "02"


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b"", {}),
        (b"\x02\x02\x01\x02", {}),
        (b"A\x01\x02", {}),
        (b"\x01A\x01B\x02", {}),
        (b"AB\x02C\x01D", {"C": "D"}),
        (b"A\x01B\x01C\x02", {"A": "B\x01C"}),
        (b"A\x011\x02A\x012\x02", {"A": "2"}),
        (b"A\x011\x02A\x01\x02", {"A": "1"}),
        (b"A\x01\xff\x02B\x012", {"A": "�", "B": "2"}),
        (b"A\x01\xe6\x02B\x012", {"A": "�", "B": "2"}),
    ],
)
def test_odd_properties_are_read_as_apache_reads_them(encoded: bytes, expected: dict[str, str]) -> None:
    """Missing names, missing values, repeats, and a character cut off before a separator."""
    assert m.decode_properties(encoded) == expected


@pytest.mark.parametrize(
    "properties",
    [{"a\x01": "b"}, {"a": "b\x02"}, {"a\x02": "b"}, {"a": "\ud800"}, {"a": "x" * 32765}],
)
def test_properties_no_reader_would_find_again_are_not_written(properties: dict[str, str]) -> None:
    """Separators in names and values, half a surrogate pair, one byte too many."""
    with pytest.raises(LocalProtocolError):
        m.encode_properties(properties)


def test_the_largest_properties_are_written() -> None:
    """A signed 16-bit length allows 32767 bytes."""
    assert len(m.encode_properties({"a": "x" * 32764})) == m.PROPERTIES_SIZE_MAX


@given(property_noise, st.sampled_from(["A", "AB", "B", "AA", "é"]))
def test_one_property_is_found_as_decoding_all_would_find_it(encoded: bytes, name: str) -> None:
    """Names within names and values, repeats with and without a value, bytes that are no text."""
    found = m.find_property(encoded, name.encode())
    value = m.decode_properties(encoded).get(name)
    assert (None if found is None else found.decode(errors="replace")) == value


@given(property_maps, property_maps, st.booleans())
def test_appended_properties_never_melt_into_the_last_one(
    first: dict[str, str], second: dict[str, str], is_cut: bool
) -> None:
    """The first string comes with and without its last separator."""
    encoded = m.encode_properties(first)
    joined = m.append_properties(encoded[:-1] if is_cut else encoded, m.encode_properties(second))
    assert m.decode_properties(joined) == first | second


@given(property_noise, st.sampled_from(["A", "AB", "é"]))
def test_a_removed_property_is_gone_and_the_others_stay(encoded: bytes, name: str) -> None:
    """Every repeat goes, also those in the middle and at an end without separator."""
    expected = m.decode_properties(encoded)
    expected.pop(name, None)
    assert m.decode_properties(m.remove_property(encoded, name.encode())) == expected


def test_reserved_names_are_what_apache_writes() -> None:
    """Spellings that differ from their constants are the ones that go wrong."""
    assert {"REAL_QID", "TRAN_MSG", "PGROUP", "UNIQ_KEY", "1ST_POP_TIME", "__SHARDINGKEY", "__CRC32#"} <= m.RESERVED
    assert {"__transactionId__", "TIMER_DEL_UNIQKEY", "__STARTDELIVERTIME", "__BORNHOST"} <= m.RESERVED
    assert len(m.RESERVED) == len(Property)


# Names


def test_names_of_retry_and_dead_letter_topics() -> None:
    """Both forms of POP's, too."""
    assert m.retry_topic("g") == "%RETRY%g"
    assert m.dlq_topic("g") == "%DLQ%g"
    assert m.pop_retry_topic("g", "t") == "%RETRY%g_t"
    assert m.pop_retry_topic("g", "t", v2=True) == "%RETRY%g+t"
    assert m.is_retry_topic("%RETRY%g")
    assert m.is_dlq_topic("%DLQ%g")
    assert not m.is_retry_topic("RETRY%g")


def test_system_topics_are_told_from_users_topics() -> None:
    """Names in the table, names by prefix, and names that only look alike."""
    assert all(map(m.is_system_topic, m.FORBIDDEN_SEND_TOPICS))
    assert m.is_system_topic("rmq_sys_anything")
    assert m.is_system_topic("TBW102")
    assert not m.is_system_topic("RMQ_SYS_anything")
    assert not m.is_system_topic("%RETRY%TBW102")


@pytest.mark.parametrize("name", ["a", "A-b_c%d|9", "t" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250])
def test_allowed_topic_names_pass(name: str) -> None:
    """The whole charset, and the longest of each kind."""
    assert m.topic_name_problem(name) is None


@pytest.mark.parametrize("name", ["", "a.b", "a:b", "a/b", "a b", "é", "a\n", "t" * 128, "%RETRY%" + "g" * 249])
def test_other_topic_names_are_told_apart(name: str) -> None:
    """Each forbidden character, a line end, and one character too many."""
    assert m.topic_name_problem(name) is not None


def test_group_names_have_a_limit_the_caller_may_lower() -> None:
    """4.9 allows 255 characters, clients of 5.x 120."""
    assert m.group_name_problem("g" * 255) is None
    assert "255" in (m.group_name_problem("g" * 256) or "")
    assert "120" in (m.group_name_problem("g" * 121, length_max=120) or "")


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("Orders", "ns%Orders"),
        ("%RETRY%g", "%RETRY%ns%g"),
        ("%DLQ%g", "%DLQ%ns%g"),
        ("TBW102", "TBW102"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
    ],
)
def test_a_namespace_is_put_inside_the_prefix_and_taken_off_again(name: str, wrapped: str) -> None:
    """System names stay, and wrapping twice changes nothing."""
    assert m.wrap_namespace("ns", name) == wrapped
    assert m.wrap_namespace("ns", wrapped) == wrapped
    assert m.unwrap_namespace(wrapped) == name


def test_without_a_namespace_names_stay() -> None:
    """An empty namespace, and a name that begins with the separator."""
    assert m.wrap_namespace("", "Orders") == "Orders"
    assert m.unwrap_namespace("Orders") == "Orders"
    assert m.unwrap_namespace("%Orders") == "%Orders"


# Messages


def test_a_message_carries_its_arguments_as_properties() -> None:
    """Each argument alone, in the form brokers read."""
    wire = Message(
        "T", b"x", tags="paid", keys=["1", "2"], properties={"shop": "s7"}, sharding_key="c"
    ).wire_properties()
    assert wire == {"shop": "s7", "TAGS": "paid", "KEYS": "1 2", "__SHARDINGKEY": "c", "WAIT": "true"}
    assert Message("T", b"x", keys="1", wait_stored=False).wire_properties() == {"KEYS": "1", "WAIT": "false"}
    assert Message("T", b"", delay_level=3).wire_properties()["DELAY"] == "3"
    assert Message("T", b"", delay=timedelta(seconds=1.5)).wire_properties()["TIMER_DELAY_MS"] == "1500"
    east = datetime(2026, 1, 1, 2, 0, 0, 999, tzinfo=timezone(timedelta(hours=2)))
    assert Message("T", b"", deliver_at=east).wire_properties()["TIMER_DELIVER_MS"] == "1767225600000"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"topic": 1}, TypeError, "topic"),
        ({"topic": "a b"}, ValueError, "topic"),
        ({"topic": ""}, ValueError, "topic"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ValueError, "belongs"),
        ({"body": "text"}, TypeError, "body"),
        ({"body": None}, TypeError, "body"),
        ({"tags": ""}, ValueError, "tags"),
        ({"tags": 5}, TypeError, "tags"),
        ({"tags": "a\x02"}, ValueError, "tags"),
        ({"sharding_key": " "}, ValueError, "sharding_key"),
        ({"keys": 5}, TypeError, "keys"),
        ({"keys": "a b"}, ValueError, "blank"),
        ({"keys": ["a", "b c"]}, ValueError, "'b c'"),
        ({"keys": ["a", ""]}, ValueError, "key"),
        ({"keys": ["a", 1]}, TypeError, "key"),
        ({"properties": {"TAGS": "x"}}, ValueError, "TAGS is reserved"),
        ({"properties": {"__RMQ.TRANSIENT.X": "x"}}, ValueError, "__RMQ.TRANSIENT.X is reserved"),
        ({"properties": {"a": 1}}, TypeError, "property a"),
        ({"properties": {"": "a"}}, ValueError, "name"),
        ({"properties": {"a": "\ud800"}}, ValueError, "property a"),
        ({"properties": [("a", "b")]}, TypeError, "properties"),
        ({"delay_level": 0}, ValueError, "delay_level"),
        ({"delay_level": True}, TypeError, "delay_level"),
        ({"delay": 5}, TypeError, "delay"),
        ({"delay": timedelta(0)}, ValueError, "delay"),
        ({"deliver_at": datetime(2026, 1, 1)}, ValueError, "time zone"),  # noqa: DTZ001, RUF100
        ({"deliver_at": datetime(1969, 1, 1, tzinfo=UTC)}, ValueError, "1970"),
        ({"deliver_at": 5}, TypeError, "deliver_at"),
        ({"delay_level": 1, "delay": timedelta(1)}, ValueError, "only one"),
        ({"flag": 2**31}, ValueError, "flag"),
        ({"flag": "1"}, TypeError, "flag"),
        ({"wait_stored": 1}, TypeError, "wait_stored"),
    ],
)
def test_wrong_arguments_raise_before_anything_is_sent(
    arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    """One wrong argument at a time; the message names it."""
    with pytest.raises(error, match=says):
        Message(**({"topic": "T", "body": b""} | arguments))


def test_a_message_cannot_change_behind_its_sender() -> None:
    """The caller goes on using its dict and list; another process gets an equal message."""
    properties, keys = {"a": "1"}, ["k"]
    message = Message("T", b"x", properties=properties, keys=keys)
    properties["b"] = "2"
    keys.append("l")
    assert message.wire_properties() == {"a": "1", "KEYS": "k", "WAIT": "true"}
    assert message.key_list == ("k",)
    assert pickle.loads(pickle.dumps(message)) == message
    assert hash(message) == hash(Message("T", b"x", properties={"a": "1"}, keys=["k"]))


def test_queues_are_ordered_by_topic_broker_and_number() -> None:
    """As every member of a group must order them to share them out alike."""
    queues = [
        MessageQueue("T", "b", 0),
        MessageQueue("T", "a", 10),
        MessageQueue("S", "z", 3),
        MessageQueue("T", "a", 9),
    ]
    assert sorted(queues) == [queues[2], queues[3], queues[1], queues[0]]
    assert len({*queues, MessageQueue("T", "b", 0)}) == 4

"""Options of the Spark connector: every one declared, every fault told."""

from __future__ import annotations

import dataclasses
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.client.options import Credentials
from rmq_core.protocol.message import MessageQueue
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.option_checks import check_loaded
from rmq_spark.options import OPTIONS, Scope, Settings, parse

ONLINE = {"nameServer": "127.0.0.1:9876", "topic": "Orders"}
EXAMPLES: dict[str, tuple[str, Any]] = {
    "nameServer": ("ns1:9876;ns2:9876", "ns1:9876;ns2:9876"),
    "topic": (" Orders ", "Orders"),
    "subscribe": ("a, b,", ("a", "b")),
    "subscribePattern": ("orders.*", "orders.*"),
    "assign": ('{"A":{"a":[1,0]},"B":{"b":[4]}}',
               (MessageQueue("A", "a", 0), MessageQueue("A", "a", 1), MessageQueue("B", "b", 4))),
    "group": ("spark-orders", "spark-orders"),
    "tags": ("a || b", "a || b"),
    "sql": ("amount > 100", "amount > 100"),
    "startingOffsets": (" earLiEst", "earliest"),
    "fallbackOffsets": ("Earliest", "earliest"),
    "startingTimestamp": ("1767225600000", 1767225600000),
    "startingOffsetsByTimestamp": ('{"A":{"a":{"0":7}}}', {MessageQueue("A", "a", 0): 7}),
    "startingOffsetsByTimestampStrategy": ("latest", "latest"),
    "endingOffsets": ('{"A":{"a":{"0":7,"1":-1}}}', {MessageQueue("A", "a", 0): 7, MessageQueue("A", "a", 1): -1}),
    "endingTimestamp": ("0", 0),
    "endingOffsetsByTimestamp": ('{"A":{"a":{"0":7}}}', {MessageQueue("A", "a", 0): 7}),
    "maxOffsetsPerTrigger": ("1000", 1000),
    "minOffsetsPerTrigger": ("10", 10),
    "maxTriggerDelay": ("2min", 120_000),
    "minPartitions": ("4", 4),
    "maxRecordsPerPartition": ("5000", 5000),
    "minRowsPerPartition": ("1", 1),
    "failOnDataLoss": ("FALSE", False),
    "commitOffsets": ("false", False),
    "sharedGroup": ("True", True),
    "onGroupReset": ("fail", "fail"),
    "columns": ("queueOffset, body", ("queueOffset", "body")),
    "includeProperties": ("true", True),
    "fetchBufferBytes": ("8m", 8 << 20),
    "compiled": ("off", "off"),
    "brokerAddressMap": ("172.17.0.2:10911=localhost:10911", {"172.17.0.2:10911": "localhost:10911"}),
    "pullBatchSize": ("32", 32),
    "pullTimeoutMs": ("500", 500),
    "fetchRetries": ("1", 1),
    "fetchRetryIntervalMs": ("0", 0),
    "readFromSlave": ("true", True),
    "accessKey": ("ak", "ak"),
    "secretKey": ("sk", "sk"),
    "securityToken": ("st", "st"),
    "tls": ("true", True),
    "tlsCaFile": ("/ca.pem", "/ca.pem"),
    "tlsCertFile": ("/cert.pem", "/cert.pem"),
    "tlsKeyFile": ("/key.pem", "/key.pem"),
    "namespace": ("ns", "ns"),
    "keys": ("k1 k2", "k1 k2"),
    "producerGroup": ("sink", "sink"),
    "sendTimeoutMs": ("100", 100),
    "retries": ("0", 0),
    "batchSize": ("10", 10),
    "waitStore": ("false", False),
    "compression": ("ZSTD", "zstd"),
    "orderBy": ("customer", "customer"),
    "path": ("s3://bucket/store", "s3://bucket/store"),
    "queueId": ("3", 3),
    "brokerName": ("broker-a", "broker-a"),
    "commitLogPath": ("/a, /b", ("/a", "/b")),
    "splitBytes": ("64MB", 64 << 20),
    "onCorrupt": ("fail", "fail"),
}  # fmt: skip
NEEDS = {
    "secretKey": {"accessKey": "ak"}, "accessKey": {"secretKey": "sk"},
    "securityToken": {"accessKey": "ak", "secretKey": "sk"}, "tlsCaFile": {"tls": "true"},
    "tlsCertFile": {"tls": "true"}, "tlsKeyFile": {"tls": "true", "tlsCertFile": "c"},
    "sharedGroup": {"group": "g"}, "queueId": {"topic": "T"},
}  # fmt: skip


def refused(options: dict[str, str], scope: Scope | None = None) -> str:
    with pytest.raises(SparkRocketMQError) as error:
        parse(options, scope)
    assert error.value.condition is Condition.BAD_OPTION
    return str(error.value)


def test_every_option_has_an_example_here_and_text_in_the_table() -> None:
    """A new declaration must come with a value to test it by."""
    assert {each.name for each in OPTIONS} == set(EXAMPLES)
    assert all(each.text.endswith((".", "`")) and each.scopes and each.kind for each in OPTIONS)
    assert len({each.name.lower() for each in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize("name", list(EXAMPLES))
@pytest.mark.parametrize("change", [str, str.lower, str.upper], ids=["as written", "lower", "upper"])
def test_each_option_is_read_whatever_its_case(name: str, change: Any) -> None:
    """C006, C129, C141, C142, C145, C182: Spark hands names over in lower case."""
    text, value = EXAMPLES[name]
    settings = parse({change(name): text, **NEEDS.get(name, {})})
    attribute = next(each.attribute for each in OPTIONS if each.name == name)
    assert getattr(settings, attribute) == value
    assert name in settings.given


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("topic", " ", "no topic"),
        ("topic", "a b", "letters, digits"),
        ("topic", "t" * 128, "127"),
        ("group", "grüße", "letters, digits"),
        ("subscribe", " ,", "no topic"),
        ("subscribePattern", "", "empty"),
        ("subscribePattern", "(", "regular expression"),
        ("assign", "", "no queue to assign"),
        ("assign", "T", "no queue to assign"),
        ("assign", '{"T":{"a":[]}}', "no queue to assign"),
        ("assign", '{"T":[0]}', '{"Orders"'),
        ("assign", '{"T":{"a":["0"]}}', '{"Orders"'),
        ("assign", '{"T":', '{"Orders"'),
        ("nameServer", "ns1", "ns1"),
        ("startingOffsets", "newest", "group, earliest, latest"),
        ("startingOffsets", '{"T":{"0":1}}', '{"Orders"'),
        ("startingOffsets", '{"T":{"a":{"0":-3}}}', "whole number"),
        ("startingOffsets", "{}", "no queue"),
        ("endingOffsets", "group", "latest"),
        ("startingTimestamp", "yesterday", "milliseconds"),
        ("startingTimestamp", "1.5", "milliseconds"),
        ("startingOffsetsByTimestamp", '{"T":{"a":{"0":-1}}}', "time in milliseconds"),
        ("startingOffsetsByTimestampStrategy", "earliest", "error or latest"),
        ("maxOffsetsPerTrigger", "0", "at least 1"),
        ("maxOffsetsPerTrigger", "-1", "at least 1"),
        ("maxOffsetsPerTrigger", "1.5", "whole number"),
        ("maxOffsetsPerTrigger", "many", "whole number"),
        ("minPartitions", "a", "whole number"),
        ("minPartitions", "1.0", "whole number"),
        ("minPartitions", "0", "at least 1"),
        ("maxRecordsPerPartition", "-1", "at least 1"),
        ("maxTriggerDelay", "5 weeks", "15m"),
        ("failOnDataLoss", "maybe", "true or false"),
        ("brokerAddressMap", "a:1", "announced=reachable"),
        ("fetchBufferBytes", "0", "above zero"),
        ("compression", "gzip", "zstd"),
        ("onCorrupt", "ignore", "skip or fail"),
        ("sql", "amount >", ""),
        ("columns", ",", "names nothing"),
    ],
)
def test_a_wrong_value_is_refused_with_option_value_and_advice(name: str, text: str, hint: str) -> None:
    """C043, C044, C062, C124, C130-C132, C138, C145, C146: one wrong value each."""
    message = refused({name: text})
    assert message.startswith(f"[ROCKETMQ_BAD_OPTION] option {name}=")
    assert hint in message
    assert repr(text) in message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("topics", "topic"),
        ("startingOffset", "startingOffsets"),
        ("nameserver.addr", "nameServer"),
        ("maxOffsetPerTriger", "maxOffsetsPerTrigger"),
        ("kafka.bootstrap.servers", "nameServer"),
        ("kafka.group.id", "group"),
        ("includeHeaders", "properties"),
        ("groupIdPrefix", "give a group"),
        ("maxBytesPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka.key.serializer", "nearest"),
        ("subExpression", "tags"),
        ("x", "nearest"),
    ],
)
def test_an_unknown_option_is_told_the_nearest(name: str, told: str) -> None:
    """C063, C143, C144, C150, C181: misspelt names, and those of other connectors."""
    assert told in refused({**ONLINE, name: "1"})


def test_sparks_own_keys_pass_and_those_of_files_go_to_fsspec() -> None:
    """checkpointLocation comes with every stream; fs.* are typed as JSON would."""
    settings = parse(
        {"path": "s3://b/s", "checkpointLocation": "c", "queryName": "q", "fs.anon": "true", "fs.key": "k",
         "fs.client_kwargs": '{"region_name":"eu"}'},
        Scope.READ,
    )  # fmt: skip
    assert settings.scope is Scope.OFFLINE
    assert settings.file_options == {"anon": True, "key": "k", "client_kwargs": {"region_name": "eu"}}


@pytest.mark.parametrize(
    ("options", "scope", "hints"),
    [
        ({"nameServer": "n:1"}, Scope.READ, ["topic", "subscribe", "subscribePattern", "assign"]),
        ({**ONLINE, "subscribe": "a"}, Scope.STREAM, ["only one", "topic", "subscribe"]),
        ({"topic": "T"}, Scope.READ, ["nameServer"]),
        ({"topic": "T"}, Scope.STREAM_WRITE, ["nameServer"]),
        ({**ONLINE, "tags": "a", "sql": "a > 1"}, None, ["tags", "sql"]),
        ({**ONLINE, "path": "/store"}, None, ["path", "nameServer"]),
        ({"path": "/store", "group": "g"}, None, ["path", "group"]),
        ({"path": "/store"}, Scope.STREAM, ["path", "batch"]),
        ({"path": "/store"}, Scope.WRITE, ["path", "batch"]),
        ({"path": "/store", "queueId": "1"}, None, ["queueId", "topic"]),
        ({"path": "/s", "startingTimestamp": "2", "endingTimestamp": "1"}, Scope.READ, ["after the end"]),
        ({**ONLINE, "startingOffsets": "group"}, None, ["startingOffsets", "group"]),
        ({**ONLINE, "sharedGroup": "true"}, None, ["sharedGroup", "group"]),
        ({**ONLINE, "commitOffsets": "true"}, None, ["commitOffsets", "group"]),
        ({**ONLINE, "minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"}, None, ["20", "15"]),
        ({**ONLINE, "accessKey": "a"}, None, ["accessKey", "secretKey"]),
        ({**ONLINE, "securityToken": "a"}, None, ["securityToken"]),
        ({**ONLINE, "tlsCaFile": "f"}, None, ["tlsCaFile", "tls"]),
        ({**ONLINE, "tls": "true", "tlsKeyFile": "f"}, None, ["tlsKeyFile", "tlsCertFile"]),
        ({**ONLINE, "startingOffsets": "latest"}, Scope.READ, ["cannot start"]),
        ({**ONLINE, "startingOffsets": '{"Orders":{"a":{"3":-1}}}'}, Scope.READ, ["Orders/a/3"]),
        ({**ONLINE, "endingOffsets": "earliest"}, Scope.READ, ["cannot end"]),
        ({**ONLINE, "endingOffsets": '{"Orders":{"a":{"3":-2}}}'}, Scope.READ, ["Orders/a/3"]),
        ({**ONLINE, "endingOffsets": "latest"}, Scope.STREAM, ["endingOffsets", "read"]),
        ({**ONLINE, "endingOffsetsByTimestamp": '{"T":{"a":{"0":1}}}'}, Scope.STREAM, ["endingOffsetsByTimestamp"]),
        ({**ONLINE, "batchSize": "1"}, Scope.READ, ["batchSize", "write"]),
        ({**ONLINE, "group": "g"}, Scope.WRITE, ["group", "read"]),
        ({**ONLINE, "startingTimestamp": "2", "endingTimestamp": "1"}, Scope.READ, ["Timestamp", "after the end"]),
        ({**ONLINE, "startingOffsets": '{"T":{"a":{"0":1,"1":1}}}', "endingOffsets": '{"T":{"a":{"0":1}}}'},
         Scope.READ, ["T/a/1", "startingOffsets", "endingOffsets"]),
        ({**ONLINE, "startingOffsets": '{"T":{"a":{"0":7}}}', "endingOffsets": '{"T":{"a":{"0":3}}}'},
         Scope.READ, ["7", "3", "T/a/0", "offset"]),
        ({**ONLINE, "startingOffsetsByTimestamp": '{"T":{"a":{"0":7}}}',
          "endingOffsetsByTimestamp": '{"T":{"a":{"0":3}}}'}, Scope.READ, ["7", "3", "T/a/0", "timestamp"]),
        ({"nameServer": "n:1", "assign": '{"T":{"a":[0,1]}}', "startingOffsets": '{"T":{"a":{"0":7}}}'},
         Scope.STREAM, ["T/a/1", "-1", "-2"]),
    ],
)  # fmt: skip
def test_options_that_contradict_are_refused_before_any_connection(
    options: dict[str, str], scope: Scope | None, hints: list[str]
) -> None:
    """C004, C005, C009, C018-C023, C025, C061, C136, C137, C139, C147: one contradiction each."""
    message = refused(options, scope)
    assert all(hint in message for hint in hints), message


def test_what_a_load_can_know_is_refused_at_load() -> None:
    """C136, C139, C140: without the mode, as schema() is asked."""
    for options, hint in (
        ({}, "nameServer"),
        ({"nameServer": "n:1"}, "topic"),
        ({**ONLINE, "assign": '{"T":{"a":[0]}}'}, "one of"),
    ):
        with pytest.raises(SparkRocketMQError, match=hint):
            check_loaded(parse(options))
    check_loaded(parse(ONLINE))
    check_loaded(parse({"path": "/store"}))


@pytest.mark.parametrize(
    ("options", "scope", "starting", "fallback"),
    [
        ({}, Scope.READ, "earliest", "earliest"),
        ({"group": "g"}, Scope.READ, "earliest", "earliest"),
        ({"group": "g", "startingOffsets": "group"}, Scope.READ, "group", "earliest"),
        ({}, Scope.STREAM, "latest", "latest"),
        ({"fallbackOffsets": "earliest"}, Scope.STREAM, "earliest", "earliest"),
        ({"group": "g"}, Scope.STREAM, "group", "latest"),
        ({"group": "g", "startingOffsets": "earliest"}, Scope.STREAM, "earliest", "latest"),
    ],
)
def test_where_a_query_starts_unless_told(options: Any, scope: Scope, starting: str, fallback: str) -> None:
    """C007, C009: the group where there is one, else the fallback; a batch from its beginning."""
    settings = parse({**ONLINE, **options}, scope)
    assert (settings.starting_offsets, settings.fallback_offsets) == (starting, fallback)


def test_a_time_beats_offsets_that_would_be_refused_alone() -> None:
    """C036: startingOffsets=latest is not looked at when a batch starts at a time."""
    parse({**ONLINE, "startingOffsets": "latest", "startingTimestamp": "5"}, Scope.READ)


def test_limits_of_streams_only_warn_in_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    """C027: one warning each."""
    with caplog.at_level(logging.WARNING):
        parse({**ONLINE, "maxOffsetsPerTrigger": "5", "maxTriggerDelay": "5s"}, Scope.READ)
    assert [record.args for record in caplog.records] == [("maxOffsetsPerTrigger",), ("maxTriggerDelay",)]


def test_offsets_are_taken_as_progress_shows_them() -> None:
    """What lastProgress prints can be given back as startingOffsets."""
    inner = {"Orders": {"a": {"0": 23, "1": -1}}}
    plain, whole = (parse({"startingOffsets": json.dumps(each)}) for each in (inner, {"v": 1, "queues": inner}))
    assert plain.starting_offsets == whole.starting_offsets
    assert plain.starting_offsets == {MessageQueue("Orders", "a", 0): 23, MessageQueue("Orders", "a", 1): -1}


@pytest.mark.parametrize(
    ("text", "ms"), [("1111", 1111), ("5s", 5000), ("2min", 120_000), ("15m", 900_000), ("1 h", 3_600_000)]
)
def test_durations_take_units(text: str, ms: int) -> None:
    """C058."""
    assert parse({"maxTriggerDelay": text}).max_trigger_delay == ms


def test_settings_travel_and_hide_secrets() -> None:
    """Executors get them pickled; logs show their repr."""
    settings = parse({**ONLINE, "accessKey": "ak", "secretKey": "hidden", "securityToken": "hidden"}, Scope.READ)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert "hidden" not in repr(settings)
    options = settings.client_options()
    assert options.credentials == Credentials("ak", "hidden", "hidden")
    assert options.name_servers == ("127.0.0.1:9876",)
    assert "secretKey='…'" in refused({**ONLINE, "accessKey": "a", "secretKey": "  "})


def test_files_of_tls_that_are_not_there_are_named(tmp_path: Path) -> None:
    """They are looked for on the machine that connects."""
    settings = parse({**ONLINE, "tls": "true", "tlsCaFile": str(tmp_path / "none.pem")}, Scope.READ)
    with pytest.raises(SparkRocketMQError, match="tlsCaFile"):
        settings.client_options()


def test_settings_share_connections_only_where_they_may() -> None:
    """C201: another credential, address or TLS setting is another connection."""
    one = parse(ONLINE, Scope.READ)
    assert (
        one.connection_key()
        == parse({**ONLINE, "topic": "Other", "minPartitions": "3"}, Scope.READ).connection_key()
    )
    for other in ({"nameServer": "n:2"}, {"group": "g"}, {"tls": "true"}, {"accessKey": "a", "secretKey": "b"},
                  {"namespace": "n"}, {"brokerAddressMap": "a:1=b:1"}):  # fmt: skip
        assert one.connection_key() != parse({**ONLINE, **other}, Scope.READ).connection_key()


@given(st.dictionaries(st.sampled_from([each.name for each in OPTIONS]), st.text(max_size=20), max_size=4))
def test_random_values_are_taken_or_refused_by_name(options: dict[str, str]) -> None:
    """Anything but settings or BAD_OPTION would be an unreadable error to the user."""
    try:
        assert isinstance(parse(options), Settings)
    except SparkRocketMQError as error:
        assert error.condition is Condition.BAD_OPTION


def test_settings_are_values() -> None:
    """Nothing may change them on the way to an executor."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse(ONLINE).topic = "x"  # type: ignore[misc]

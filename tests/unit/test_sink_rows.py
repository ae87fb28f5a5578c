"""Rows to messages: what each column becomes, which queue it goes to, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from rmq_core.client.selectors import sharded_index
from rmq_core.client.sending import Outgoing, SendRules
from rmq_core.protocol.compression import decompress_body
from rmq_core.protocol.message import MessageQueue, decode_properties
from rmq_core.protocol.message_id import decode_unique_key
from rmq_core.protocol.record import BatchRecord, decode_batch
from rmq_core.protocol.requests import SendBatchMessage
from rmq_spark.errors import SparkRocketMQError
from rmq_spark.options import Scope, parse
from rmq_spark.sink_columns import sink_plan
from rmq_spark.sink_dedup import DEDUP_PROPERTY, RowIdentities, SeenNumbers, context_of
from rmq_spark.sink_parts import UniqueKeys
from rmq_spark.sink_queues import QueueChoice
from rmq_spark.sink_rows import REQUEST_BYTES_MAX, RowEncoder

NOW_MS = 1_790_000_000_000
MAP = pa.map_(pa.string(), pa.string())
TYPES: dict[str, tuple[t.DataType, pa.DataType]] = {
    "body": (t.BinaryType(), pa.binary()),
    "topic": (t.StringType(), pa.string()),
    "tags": (t.StringType(), pa.string()),
    "keys": (t.StringType(), pa.string()),
    "properties": (t.MapType(t.StringType(), t.StringType()), MAP),
    "shardingKey": (t.StringType(), pa.string()),
    "queueId": (t.IntegerType(), pa.int32()),
    "delayTimeLevel": (t.IntegerType(), pa.int32()),
    "deliverTime": (t.TimestampType(), pa.timestamp("us", tz="UTC")),
    "flag": (t.IntegerType(), pa.int32()),
    "dedupKey": (t.StringType(), pa.string()),
    "amount": (t.LongType(), pa.int64()),
}


def some_queues(count: int = 4, brokers: str = "a") -> list[MessageQueue]:
    return [MessageQueue("T", f"broker-{name}", number) for name in brokers for number in range(count)]


class Sink:
    """An encoder over columns given as lists, and what it makes of them."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        queues: Sequence[MessageQueue] | None = None,
        context: bytes = context_of("query", 7),
        namespace: str = "",
        topic: str | None = "T",
        **options: str,
    ) -> None:
        named = {} if topic is None else {"topic": topic}
        settings = parse({"nameServer": "localhost:9876", **named, **options}, Scope.WRITE)
        schema = t.StructType([t.StructField(name, TYPES[name][0]) for name in names])
        self.names = list(names)
        self.encoder = RowEncoder(
            sink_plan(schema, settings),
            settings,
            SendRules(group="PG", namespace=namespace),
            queues=lambda topic: some_queues() if queues is None else queues,
            identities=RowIdentities(context),
            first_turn=0,
            now_ms=lambda: NOW_MS,
        )

    def requests(self, *columns: list[Any]) -> list[tuple[MessageQueue, Outgoing]]:
        arrays = [pa.array(values, TYPES[name][1]) for name, values in zip(self.names, columns, strict=True)]
        return list(self.encoder.requests(pa.record_batch(arrays, names=self.names)))

    def messages(self, *columns: list[Any]) -> list[tuple[MessageQueue, BatchRecord]]:
        return [(queue, record) for queue, request in self.requests(*columns) for record in records_of(request)]

    def properties(self, *columns: list[Any]) -> list[dict[str, str]]:
        """Of each message in the order of the rows, without what every message has."""
        own = ("UNIQ_KEY", DEDUP_PROPERTY, "WAIT")
        by_body = {}
        for _, record in self.messages(*columns):
            found = decode_properties(record.properties)
            by_body[record.body] = {name: value for name, value in found.items() if name not in own}
        return [by_body[body] for body in columns[self.names.index("body")]]


def records_of(request: Outgoing) -> list[BatchRecord]:
    if request.request is SendBatchMessage:
        return decode_batch(request.body)
    return [BatchRecord(request.flag, request.body, request.properties.encode())]


def bodies(count: int) -> list[bytes]:
    return [b"body-%d" % number for number in range(count)]


def identities(requests: list[tuple[MessageQueue, Outgoing]]) -> list[str]:
    return [
        decode_properties(record.properties)[DEDUP_PROPERTY]
        for _, request in requests
        for record in records_of(request)
    ]


def test_every_column_arrives_in_its_place() -> None:
    """Sends one row with all of them, and one with none, and takes the requests apart."""
    sink = Sink(["body", "tags", "keys", "properties", "shardingKey", "flag"], queues=some_queues(1))
    [(_, request)] = sink.requests(
        [b"first", b"second"], ["paid", None], ["k1 k2", None], [[("shop", "s7"), ("x", "ü")], None], ["c7", None],
        [5, None],
    )  # fmt: skip
    first, second = decode_batch(request.body)
    found = decode_properties(first.properties)
    unique = decode_unique_key(found.pop("UNIQ_KEY"), near_ms=NOW_MS + 86_400_000)
    assert unique is not None
    assert len(found.pop(DEDUP_PROPERTY)) == 32
    assert found == {"TAGS": "paid", "KEYS": "k1 k2", "__SHARDINGKEY": "c7", "shop": "s7", "x": "ü"}
    assert (first.body, first.flag, second.body, second.flag) == (b"first", 5, b"second", 0)
    assert set(decode_properties(second.properties)) == {"UNIQ_KEY", DEDUP_PROPERTY}
    assert (request.topic, request.properties) == ("T", "WAIT\x01true\x02")


def test_options_fill_what_rows_leave_out() -> None:
    """Gives tags and keys by option, with and without a column of that name."""
    sink = Sink(["body", "tags"], tags="all", keys="k", namespace="shop")
    assert sink.properties([b"a", b"b"], ["own", None]) == [
        {"TAGS": "own", "KEYS": "k", "INSTANCE_ID": "shop"},
        {"TAGS": "all", "KEYS": "k", "INSTANCE_ID": "shop"},
    ]
    [(_, request), *_] = sink.requests([b"a"], [None])
    assert request.topic == "shop%T"


def test_reserved_and_empty_properties_are_dropped() -> None:
    """Puts names among the properties that would delay, half-commit or rename the message."""
    given = [
        ("DELAY", "3"), ("TRAN_MSG", "true"), ("UNIQ_KEY", "x"), ("TAGS", "y"), ("__RMQ.TRANSIENT.A", "1"),
        ("ORIGIN_TOPIC", "Orders"), ("empty", ""), ("", "nameless"), ("null", None), ("kept", "1"),
    ]  # fmt: skip
    sink = Sink(["body", "properties"])
    assert sink.properties([b"a", b"b", b"c"], [given, [], None]) == [
        {"ORIGIN_TOPIC": "Orders", "kept": "1"},
        {},
        {},
    ]


def test_a_slice_of_a_batch_gives_the_messages_of_its_rows() -> None:
    """Encodes the middle of an Arrow batch, whose buffers begin before it."""
    names = ["body", "tags", "properties"]
    sink = Sink(names, queues=some_queues(1))
    count = 10
    whole = pa.record_batch(
        [
            pa.array(bodies(count)),
            pa.array([f"t{number}" if number % 2 else None for number in range(count)]),
            pa.array([[("n", str(number))] * (number % 3) for number in range(count)], MAP),
        ],
        names=names,
    )
    [(_, request)] = sink.encoder.requests(whole.slice(3, 4))
    found = [(record.body, decode_properties(record.properties)) for record in decode_batch(request.body)]
    assert [body for body, _ in found] == bodies(count)[3:7]
    assert [each.get("TAGS") for _, each in found] == ["t3", None, "t5", None]
    assert [each.get("n") for _, each in found] == [None, "4", "5", None]


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=40),
            st.none()
            | st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=9),
            st.none() | st.dictionaries(st.text("abcü", max_size=3), st.none() | st.text("xyß ", max_size=5)),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 7),
)
def test_batches_say_what_single_messages_would(rows: list[tuple[bytes, Any, Any]], batch_size: int) -> None:
    """Encodes any rows with small batches, and compares with the properties written one by one."""
    sink = Sink(["body", "tags", "properties"], queues=some_queues(3), batchSize=str(batch_size))
    maps = [None if each is None else list(each.items()) for _, _, each in rows]
    found = sink.messages([body for body, _, _ in rows], [tags for _, tags, _ in rows], maps)
    wanted = []
    for body, tags, more in rows:
        expected = {name: value for name, value in (more or {}).items() if name and value}
        wanted.append((body, sorted((expected | ({"TAGS": tags} if tags else {})).items())))
    made = []
    for _, record in found:
        pairs = decode_properties(record.properties)
        made.append(
            (record.body, sorted((k, v) for k, v in pairs.items() if k not in ("UNIQ_KEY", DEDUP_PROPERTY, "WAIT")))
        )
    assert sorted(made) == sorted(wanted)


# Requests


def test_batches_end_at_the_number_and_at_the_bytes() -> None:
    """Sends 2,500 small rows to one queue, then rows of which two fit and three do not."""
    sink = Sink(["body"], queues=some_queues(1))
    sizes = [len(decode_batch(request.body)) for _, request in sink.requests(bodies(2_500))]
    assert sizes == [1_000, 1_000, 500]
    large = [b"x" * (REQUEST_BYTES_MAX // 2 - 500)] * 5
    assert [len(records_of(request)) for _, request in sink.requests(large)] == [2, 2, 1]


def test_large_delayed_and_timed_rows_go_singly_and_in_their_place() -> None:
    """Mixes them with plain rows: the order of the queue must be the order of the rows."""
    sink = Sink(["body", "delayTimeLevel", "deliverTime"], queues=some_queues(1))
    moment = datetime(2026, 12, 24, 18, tzinfo=UTC)
    rows = [b"a", b"b", b"delayed", b"c", b"d", b"timed", b"x" * (REQUEST_BYTES_MAX + 1), b"e", b"f"]
    requests = sink.requests(
        rows, [0, None, 3, None, None, None, None, None, 0], [None] * 5 + [moment] + [None] * 3
    )
    assert [record.body for _, request in requests for record in records_of(request)] == rows
    assert [request.is_batch for _, request in requests] == [True, False, True, False, False, True]
    assert decode_properties(requests[1][1].properties.encode())["DELAY"] == "3"
    timed = requests[3][1]
    assert decode_properties(timed.properties.encode())["TIMER_DELIVER_MS"] == str(int(moment.timestamp() * 1000))
    assert [request.is_timed for _, request in requests] == [False, False, False, True, False, False]
    assert decode_properties(requests[1][1].properties.encode())["WAIT"] == "true"


def test_retry_topics_take_no_batches() -> None:
    """Brokers refuse a batch to such a topic."""
    sink = Sink(["body"], topic="%RETRY%group", queues=some_queues(1), waitStore="false")
    requests = sink.requests(bodies(3))
    assert [request.is_batch for _, request in requests] == [False] * 3
    assert decode_properties(requests[0][1].properties.encode())["WAIT"] == "false"


def test_compressed_and_plain_rows_do_not_share_a_request() -> None:
    """Two large bodies between small ones, and one that does not shrink; the request's flag tells."""
    noise = np.random.default_rng(1).bytes(5_000)
    rows = [b"a", b"b", b"x" * 5_000, b"y" * 5_000, b"c", noise, b"d"]
    for kind in ("zlib", "lz4", "zstd"):
        sink = Sink(["body"], queues=some_queues(1), compression=kind)
        requests = sink.requests(rows)
        assert [len(records_of(request)) for _, request in requests] == [2, 2, 3]
        inflated = [
            decompress_body(record.body, request.sys_flag)
            for _, request in requests
            for record in records_of(request)
        ]
        assert inflated == rows
        assert len(requests[1][1].body) < 1_000


def test_unique_keys_are_never_given_twice() -> None:
    """Takes more of one millisecond than it has, and goes back in time."""
    keys = UniqueKeys(b"0123456789")
    taken = [keys.take(40_000, 5), keys.take(40_000, 5), keys.take(10, 4), keys.take(10, 1_000)]
    texts = [line.tobytes() for part in taken for line in part]
    assert len(set(texts)) == 80_020
    assert texts[0] == b"30313233343536373839" + b"00000005" + b"0000"
    assert texts[-10] == b"30313233343536373839" + b"000003E8" + b"0000"


# Queues


def test_equal_sharding_keys_share_a_queue_as_in_java() -> None:
    """Compares with the hash of one key at a time, over two brokers, text that is not ASCII included."""
    queues = some_queues(3, "ab")
    keys = [f"customer-{number % 20}" for number in range(100)] + ["ü", "语", "polygenelubricants"]
    sink = Sink(["body", "shardingKey"], queues=queues)
    found = sink.messages(bodies(len(keys)), keys)
    by_body = {record.body: queue for queue, record in found}
    for number, key in enumerate(keys):
        assert by_body[b"body-%d" % number] == queues[sharded_index(key, len(queues))]
    for key in set(keys):
        order = [r.body for _, r in found if keys[int(r.body[5:])] == key]
        assert order == sorted(order, key=lambda body: int(body[5:]))


def test_a_queue_id_beats_a_sharding_key() -> None:
    """C189: every row says queue 2 and names a key of another queue."""
    sink = Sink(["body", "queueId", "shardingKey"])
    assert {queue.queue_id for queue, _ in sink.messages(bodies(50), [2] * 50, ["a"] * 50)} == {2}


def test_one_queue_id_is_one_queue_on_several_brokers() -> None:
    """Two brokers have the queues 0 to 3: each number must always mean the same broker, and both must be used."""
    sink = Sink(["body", "queueId"], queues=some_queues(4, "ab"))
    found = {queue for queue, _ in sink.messages(bodies(40), [number % 4 for number in range(40)])}
    assert len(found) == 4
    assert {queue.broker_name for queue in found} == {"broker-a", "broker-b"}
    assert found == {queue for queue, _ in sink.messages(bodies(4), [0, 1, 2, 3])}


def test_rows_without_a_key_use_many_queues_and_take_turns() -> None:
    """Five rows, one row at a time, and many: no queue may be left out for long."""
    sink = Sink(["body"])
    assert len({queue for queue, _ in sink.messages(bodies(5))}) > 1
    assert {queue.queue_id for _ in range(4) for queue, _ in sink.messages([b"x"])} == {0, 1, 2, 3}
    choice = QueueChoice(some_queues(64), run_max=1_000, first=3)
    chosen = choice.choose(10_000, None, None)
    assert np.diff(np.flatnonzero(np.diff(chosen))).min() >= 256
    assert len(np.unique(chosen)) == 40


def test_rows_order_by_any_column() -> None:
    """orderBy names a number, which becomes the sharding key as text."""
    sink = Sink(["body", "amount"], orderBy="Amount")
    found = sink.messages(bodies(9), [7, 8, None] * 3)
    assert len({queue for queue, record in found if int(record.body[5:]) % 3 == 0}) == 1
    assert decode_properties(found[0][1].properties).get("__SHARDINGKEY") in ("7", "8", None)
    keys = [decode_properties(record.properties).get("__SHARDINGKEY") for _, record in found]
    assert sorted(str(key) for key in keys) == ["7"] * 3 + ["8"] * 3 + ["None"] * 3


# What a task tried again sends


def test_a_task_tried_again_gives_its_rows_the_same_identities() -> None:
    """Encodes the same rows in another order and in other batches; equal rows must stay apart."""
    rows = [(b"%d" % (number % 50), f"tag{number % 3}") for number in range(300)]
    first, again = (Sink(["body", "tags"]) for _ in range(2))
    once = identities(first.requests([body for body, _ in rows], [tags for _, tags in rows]))
    shuffled = [rows[place] for place in np.random.default_rng(3).permutation(len(rows))]
    twice = []
    for part in (shuffled[:7], shuffled[7:200], shuffled[200:]):
        twice += identities(again.requests([body for body, _ in part], [tags for _, tags in part]))
    assert sorted(once) == sorted(twice)
    assert len(set(once)) == 300


def test_another_micro_batch_or_content_has_other_identities() -> None:
    """Changes one thing at a time: query, tag, flag, topic, queue."""
    names = ["body", "tags", "flag", "queueId", "topic"]
    plain: list[list[Any]] = [[b"x"], ["a"], [1], [0], ["T"]]
    changed: list[list[Any]] = [[b"y"], ["b"], [2], [1], ["U"]]
    found = identities(Sink(names, topic=None).requests(*plain))
    found += identities(Sink(names, topic=None, context=context_of("query", 8)).requests(*plain))
    for number in range(len(names)):
        columns = [changed[place] if place == number else plain[place] for place in range(len(names))]
        found += identities(Sink(names, topic=None).requests(*columns))
    assert len(set(found)) == 7


def test_a_key_of_the_user_is_the_identity() -> None:
    """Rows without one have none."""
    sink = Sink(["body", "dedupKey"], queues=some_queues(1))
    found = [
        decode_properties(record.properties).get(DEDUP_PROPERTY)
        for _, record in sink.messages([b"a", b"b"], ["k", None])
    ]
    assert found == ["k", None]


@given(st.lists(st.lists(st.integers(0, 20), max_size=30), max_size=12))
def test_counting_agrees_with_a_dictionary(parts: list[list[int]]) -> None:
    """Few numbers in many parts, so that they repeat within one and over several."""
    seen, counted = SeenNumbers(), dict[int, int]()
    for part in parts:
        wanted = []
        for number in part:
            wanted.append(counted.get(number, 0))
            counted[number] = counted.get(number, 0) + 1
        assert seen.add(np.array(part, np.uint64)).tolist() == wanted


def test_counting_takes_eight_bytes_for_each_row() -> None:
    """Counts a million numbers in batches, and looks at what is kept."""
    seen = SeenNumbers()
    numbers = np.random.default_rng(5).integers(0, 2**63, 1_000_000).astype(np.uint64)
    for start in range(0, len(numbers), 10_000):
        assert not seen.add(numbers[start : start + 10_000]).any()
    assert seen.add(numbers[:10]).tolist() == [1] * 10
    assert sum(run.nbytes for run in seen._runs) == 8_000_000
    assert len(seen._runs) < 12


# What is refused


@pytest.mark.parametrize(
    ("names", "columns", "said"),
    [
        (["body"], [[b"a", None]], r"column body is 'null': RocketMQ has no messages without a body"),
        (["body"], [[b"a", b""]], r"column body is 'empty'"),
        (["body", "tags"], [[b"a"], ["x\x01y"]], r"column tags is .*: it holds U\+0001 or U\+0002"),
        (["body", "keys"], [[b"a"], ["\x02"]], r"column keys is"),
        (["body", "properties"], [[b"a"], [[("n", "a\x02b")]]], r"column properties is"),
        (["body", "properties"], [[b"a"], [[("n\x01", "b")]]], r"column properties is"),
        (["body", "properties"], [[b"a"], [[("n", "x" * 33_000)]]], r"column properties is '33051 bytes'"),
        (["body", "delayTimeLevel"], [[b"a"], [19]], r"column delayTimeLevel is 19: levels go from 0 to 18"),
        (["body", "delayTimeLevel"], [[b"a"], [-1]], r"column delayTimeLevel is -1"),
        (["body", "queueId"], [[b"a", b"b"], [0, 4]], r"queueId is 4: topic T has the queues 0 to 3.*row 1 "),
        (["body", "deliverTime"], [[b"a"], [datetime(1969, 1, 1, tzinfo=UTC)]], r"deliverTime .* before 1970"),
        (
            ["body", "delayTimeLevel", "deliverTime"],
            [[b"a"], [1], [datetime(2030, 1, 1, tzinfo=UTC)]],
            r"column deliverTime .* not both",
        ),
    ],
)  # fmt: skip
def test_a_row_that_is_no_message_is_named(names: list[str], columns: list[list[Any]], said: str) -> None:
    """C183: one wrong value among right ones; the error must say column, value and row, and nothing may be made."""
    sink = Sink(names)
    with pytest.raises(SparkRocketMQError, match=said) as caught:
        sink.requests(*columns)
    assert str(caught.value).startswith("[ROCKETMQ_BAD_ROW] ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (None, "column topic is None: it is null; fill it, or give the option topic"),
        ("", "the topic name is empty"),
        ("a b", "has characters other than"),
        ("SCHEDULE_TOPIC_XXXX", "belongs to the broker"),
    ],
)
def test_a_topic_that_cannot_be_sent_to_is_named(topic: str | None, said: str) -> None:
    """In the second row, behind a good one."""
    sink = Sink(["body", "topic"], topic=None)
    with pytest.raises(SparkRocketMQError, match=said):
        sink.requests([b"a", b"b"], ["Good", topic])


def test_the_topic_of_the_option_beats_the_column() -> None:
    """The column may then hold anything, even nulls."""
    sink = Sink(["body", "topic"])
    assert {request.topic for _, request in sink.requests([b"a", b"b"], ["Other", None])} == {"T"}
    several = Sink(["body", "topic"], topic=None)
    found = several.requests(bodies(4), ["T1", "T2", "T1", "T2"])
    assert {request.topic: [r.body for r in records_of(request)] for _, request in found}.keys() == {"T1", "T2"}


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        ([("text", t.StringType())], {}, r"needs the column body \(binary or string\), and there is text"),
        ([("bodyy", t.StringType())], {}, r"is it the column bodyy\?"),
        ([("body", t.IntegerType())], {}, "column body is int, and must be binary or string"),
        ([("topic", t.IntegerType())], {}, "column topic is int, and must be string"),
        ([("tags", t.IntegerType())], {}, "column tags is int, and must be string"),
        ([("keys", t.IntegerType())], {}, "column keys is int, and must be string"),
        ([("keys", t.ArrayType(t.StringType()))], {}, "column keys is array<string>, and must be string"),
        ([("queueId", t.StringType())], {}, "column queueId is string, and must be int"),
        ([("delayTimeLevel", t.LongType())], {}, "column delayTimeLevel is bigint, and must be int"),
        ([("deliverTime", t.StringType())], {}, "column deliverTime is string, and must be timestamp, or bigint"),
        (
            [("properties", t.MapType(t.StringType(), t.IntegerType()))], {},
            "column properties is map<string,int>, and must be map<string,string>",
        ),
        ([("Tags", t.StringType()), ("tags", t.StringType())], {}, "column tags stands twice"),
        ([("amount", t.LongType())], {"orderBy": "amont"}, "orderBy names the column amont.*the nearest is amount"),
        ([("m", t.MapType(t.StringType(), t.StringType()))], {"orderBy": "m"}, "orderBy names the column m,"),
        ([], {"topic": ""}, "give the option topic, or a column topic"),
    ],
)  # fmt: skip
def test_wrong_columns_are_refused_before_anything_is_sent(
    fields: list[tuple[str, t.DataType]], options: dict[str, str], said: str
) -> None:
    """C176, C177: each case is one wrong or missing column beside a right body."""
    has_body = any(name.startswith("bod") or name == "text" for name, _ in fields)
    given = fields if has_body else [("body", t.StringType()), *fields]
    schema = t.StructType([t.StructField(name, kind) for name, kind in given])
    topic = {} if options.get("topic") == "" else {"topic": "T"}
    more = {name: value for name, value in options.items() if name != "topic"}
    settings = parse({"nameServer": "localhost:9876", **topic, **more}, Scope.WRITE)
    with pytest.raises(SparkRocketMQError, match=said):
        sink_plan(schema, settings)


def test_columns_of_the_source_are_taken_or_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Rows as they were read can be written; a name that is nearly right is warned of."""
    names = ["topic", "broker", "queueId", "queueOffset", "body", "tags", "keys", "msgId", "bornTimestamp", "tgas"]
    kinds = [t.StringType(), t.StringType(), t.IntegerType(), t.LongType(), t.BinaryType(), *[t.StringType()] * 3]
    schema = t.StructType(
        [
            t.StructField(name, kind)
            for name, kind in zip(names, [*kinds, t.TimestampType(), t.StringType()], strict=True)
        ]
    )
    plan = sink_plan(schema, parse({"nameServer": "n:1"}, Scope.WRITE))
    assert (plan.topic, plan.queue_id, plan.body, plan.tags, plan.keys) == (0, 2, 4, 5, 6)
    assert not caplog.records
    misspelt = t.StructType([t.StructField("body", t.StringType()), t.StructField("tag", t.StringType())])
    sink_plan(misspelt, parse({"nameServer": "n:1", "topic": "T"}, Scope.WRITE))
    assert "column tag is not sent; a sink has a column tags" in caplog.text

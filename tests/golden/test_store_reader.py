"""Store directories that Apache's brokers wrote, read offline: every message with every field."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_core import open_store
from rmq_core.columnar import kernels
from rmq_core.store.message_store import MessageStore
from rmq_core.store.verify import Verified, verify
from support.stores import GOLDEN_NAMES, GoldenStore, unpack_golden

CLEAN = [name for name in GOLDEN_NAMES if "killed" not in name and "torn" not in name]
UNCLEAN = [name for name in GOLDEN_NAMES if name not in CLEAN]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture(params=[False, True], ids=["numpy", "compiled"])
def is_compiled(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Both ways to decode."""
    was_loaded = kernels.is_loaded()
    if request.param:
        pytest.importorskip("numba")
        if not kernels.load():
            pytest.skip("compiled loops cannot be loaded here")
    else:
        kernels.unload()
    yield request.param
    if was_loaded:
        kernels.load()
    else:
        kernels.unload()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GoldenStore]:
    """Every directory once, only read."""
    folder = tmp_path_factory.mktemp("golden")
    return {name: unpack_golden(name, folder) for name in GOLDEN_NAMES}


def expected_rows(store: GoldenStore, topic: str, queue_id: str) -> list[dict[str, Any]]:
    """What Apache's broker answered for a queue, in the form of our rows."""
    rows = []
    for message in store.answers["messages"][topic][queue_id]:
        named = dict(zip(store.answers["messageFields"], message, strict=False))
        for inner in message[20] if len(message) > 20 else [{}]:
            # All of a batch have the times, hosts, flags and the place of the record that holds them.
            row = {**named, **inner}
            rows.append({**row, "properties": dict(sorted(row["properties"].items())), "isInner": bool(inner)})
    return rows


def as_answered(row: dict[str, Any]) -> dict[str, Any]:
    """A row of ours in the form of the answers."""
    return {
        **{name: row[name] for name in SAME},
        "commitLogOffset": row["commitLogOffset"],
        "bornTimestamp": (row["bornTimestamp"] - EPOCH) // MILLISECOND,
        "storeTimestamp": (row["storeTimestamp"] - EPOCH) // MILLISECOND,
        "bodySize": len(row["body"]),
        "bodySha256": hashlib.sha256(row["body"]).hexdigest(),
        "properties": dict(sorted(row["properties"])),
        # Java writes IPv6 addresses out in full.
        "bornHost": java_host(row["bornHost"]),
        "storeHost": java_host(row["storeHost"]),
    }


def java_host(text: str) -> str:
    if not text.startswith("["):
        return text
    address, port = text[1:].split("]")
    packed = ipaddress.ip_address(address).packed
    return f"[{':'.join(packed[at : at + 2].hex().lstrip('0') or '0' for at in range(0, 16, 2))}]{port}"


SAME = (
    "queueOffset", "storeSize", "offsetMsgId", "msgId", "tags", "keys", "flag", "sysFlag",
    "reconsumeTimes", "preparedTransactionOffset",
)  # fmt: skip


def check_rows(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        got = as_answered(row)
        assert got == {name: wanted[name] for name in got}
        if not wanted["isInner"]:
            assert row["bodyCrc"] == wanted["bodyCRC"]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_message_of_a_topic_has_every_field_that_apache_answered(
    name: str, stores: dict[str, GoldenStore], is_compiled: bool
) -> None:
    """Reads each queue with all columns: compressed bodies, IPv6 hosts, batch and light queues among them."""
    store = stores[name]
    with open_store(store.root) as reader:
        for topic, queues in store.answers["messages"].items():
            for queue_id in queues:
                expected = expected_rows(store, topic, queue_id)
                if not expected and topic not in {each.topic for each in reader.topics()}:
                    continue  # a topic that nobody has sent to
                if (topic, int(queue_id)) not in {(each.topic, each.queue_id) for each in reader.topics()}:
                    assert not expected
                    continue
                rows = reader.to_arrow(topic, queue=int(queue_id), columns="all").to_pylist()
                if name in UNCLEAN:  # the queues of a killed broker may end a little before its log
                    assert len(rows) >= len(expected) - 5
                    expected = expected[: len(rows)]
                check_rows(rows, expected)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_whole_log_holds_the_messages_of_all_topics(
    name: str, stores: dict[str, GoldenStore], is_compiled: bool
) -> None:
    """Compares the log's rows with those of all queues: none may be missing, doubled, or out of order."""
    store = stores[name]
    with open_store(store.root) as reader:
        rows = reader.to_arrow(columns="all").to_pylist()
        assert reader.count() == len(rows)
        assert [row["commitLogOffset"] for row in rows] == sorted(row["commitLogOffset"] for row in rows)
        in_log = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows}
        assert len(in_log) == len(rows)
        for topic, queues in store.answers["messages"].items():
            if topic.startswith("%LMQ%"):
                continue
            for queue_id in queues:
                expected = expected_rows(store, topic, queue_id)
                check_rows([in_log[topic, int(queue_id), row["queueOffset"]] for row in expected], expected)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_queues_have_the_ranges_that_apache_answered(name: str, stores: dict[str, GoldenStore]) -> None:
    """Compares minimum and maximum; a torn log keeps entries of messages that are gone, which Apache forgets."""
    store = stores[name]
    with open_store(store.root) as reader:
        infos = {(info.topic, info.queue_id): info for info in reader.topics()}
        for topic, queues in store.answers["queues"].items():
            for queue_id, answer in queues.items():
                info = infos.get((topic, int(queue_id)))
                if info is None:
                    assert answer["max"] == 0
                    continue
                assert info.min_offset == answer["min"]
                assert info.max_offset == answer["max"] or (name in UNCLEAN and info.max_offset != answer["max"])


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_keys_find_the_messages_that_apache_found(name: str, stores: dict[str, GoldenStore]) -> None:
    """Asks for each key that Apache's broker was asked for; after a crash more may be found, never fewer."""
    store = stores[name]
    with open_store(store.root) as reader:
        for query in store.answers["keys"]:
            if query["topic"] not in {info.topic for info in reader.topics()}:
                assert not query["matching"]
                continue
            found = {record.log_offset for record in reader.find(key=query["key"], topic=query["topic"])}
            assert found >= set(query["matching"])
            if name in CLEAN:
                assert found == set(query["matching"])


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_both_kinds_of_message_id_find_their_message(name: str, stores: dict[str, GoldenStore]) -> None:
    """Asks by offset message id and by the client's own id, IPv6 ones too."""
    store = stores[name]
    with open_store(store.root) as reader:
        for topic, queues in store.answers["messages"].items():
            for queue_id, messages in queues.items():
                for message in messages[:: max(len(messages) // 3, 1)]:
                    offset, offset_id, msg_id = message[1], message[3], message[4]
                    (record,) = reader.find(msg_id=offset_id)
                    assert record.log_offset == offset, (topic, queue_id)
                    assert offset in {each.log_offset for each in reader.find(msg_id=msg_id)}


@pytest.mark.parametrize("name", CLEAN)
def test_a_time_splits_a_queue_where_apache_splits_it(name: str, stores: dict[str, GoldenStore]) -> None:
    """Uses the searches by time that 5.3.3 answered: what is behind must be read from there on."""
    store = stores[name]
    if store.answers["apacheVersion"] != "5.3.3":
        pytest.skip("4.9.7 searches by file times")
    with open_store(store.root) as reader:
        infos = {(info.topic, info.queue_id): info for info in reader.topics()}
        for topic, queues in store.answers["queues"].items():
            for queue_id, answer in queues.items():
                if (topic, int(queue_id)) not in infos or topic == "ga-BatchCq":
                    continue
                for search in answer["search"]:
                    start = EPOCH + search["timestamp"] * MILLISECOND
                    (range_,) = reader.queue_ranges(topic, queue=int(queue_id), start=start)
                    assert range_.start == search["offset"], (topic, queue_id, search)


def unusual(found: Verified) -> list[str]:
    return [str(problem) for problem in found.problems]


@pytest.mark.parametrize("name", CLEAN)
def test_directories_of_brokers_that_stopped_verify_clean(
    name: str, stores: dict[str, GoldenStore], is_compiled: bool
) -> None:
    """Checks every record, entry and slot that Apache wrote."""
    found = verify(stores[name].root)
    assert unusual(found) == []
    assert found.records > 200
    assert found.entries >= found.records
    assert found.index_entries > 200


@pytest.mark.parametrize("name", CLEAN)
def test_directories_that_our_store_went_on_with_verify_clean(name: str, tmp_path: Path) -> None:
    """Opens a copy, appends, closes: what both brokers wrote must fit together."""
    store = unpack_golden(name, tmp_path)
    ours = MessageStore(store.settings())
    ours.open()
    for number in range(300):
        ours.put(
            "Orders", number % 4, b"%d" % number, b"UNIQ_KEY\x01ours-%d\x02TAGS\x01TagA\x02" % number,
            born_time_ms=1, born_host=b"\x7f\0\0\x01\0\0\0\x01",
        )  # fmt: skip
        ours.end_pass()
    ours.close()
    assert unusual(verify(store.root)) == []
    with open_store(store.root) as reader:
        assert len(reader.find(key="ours-299")) == 1


@pytest.mark.parametrize("name", UNCLEAN)
def test_verify_tells_what_a_kill_left(name: str, stores: dict[str, GoldenStore]) -> None:
    """A killed broker leaves the mark of an unclean stop; only a torn log has problems, from its tear on."""
    store = stores[name]
    found = verify(store.root)
    assert any("abort" in note for note in found.notes)
    if "torn" not in name:
        assert unusual(found) == []
        return
    end = int(store.answers["runtime"]["commitLogMaxOffset"])
    assert found.log_end == end
    assert found.problems
    for problem in found.problems:
        if problem.path.startswith("commitlog"):
            assert problem.offset >= end % 262144
    kinds = {problem.path.split("/")[0] for problem in found.problems}
    assert kinds <= {"commitlog", "consumequeue", "index", "checkpoint"}
    assert {"commitlog", "consumequeue"} <= kinds


def test_a_batch_topic_is_cut_between_messages_of_one_record(stores: dict[str, GoldenStore]) -> None:
    """Reads a batch queue in splits so small that their bounds lie within records."""
    with open_store(stores["apache-5.3.3-normal"].root) as reader:
        whole = reader.to_arrow("ga-BatchCq", columns="all")
        splits = reader.splits(200, "ga-BatchCq")
        assert len(splits) > 40
        parts = [pa.Table.from_batches(reader.read_range(each, columns="all"), whole.schema) for each in splits]
        assert pa.concat_tables(parts).equals(whole)
        assert whole.num_rows == reader.count("ga-BatchCq") == 170 + 42

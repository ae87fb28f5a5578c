"""SQL92 subscriptions of groups: versions, death and return, filter bits, the file beside Apache's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.broker.filters import ALL, ConsumerFilterManager, compile_expression, is_tag_type
from rmq_core.clock import ManualClock
from rmq_core.config import BrokerSettings
from rmq_core.errors import RemoteProtocolError, RocketMQError
from rmq_core.protocol import fastjson
from rmq_core.protocol.bodies import SubscriptionData
from rmq_core.protocol.message import encode_properties
from rmq_core.protocol.record import Host, StoredRecord, decode_record, encode_record, record_properties
from rmq_core.store.queue_ext import ExtUnit
from support.stores import GOLDEN_NAMES, unpack_golden

DAY_MS = 86_400_000
HOST = Host(b"\x7f\0\0\x01", 10911)


def manager(folder: Path, clock: ManualClock | None = None, **changes: Any) -> ConsumerFilterManager:
    own = BrokerSettings(**{"enable_calc_filter_bit_map": True, **changes})
    filters = ConsumerFilterManager(own, folder / "consumerFilter.json", clock=clock or ManualClock())
    filters.load()
    return filters


def sql(topic: str, text: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic, text, sub_version=version, expression_type="SQL92")


def record(**properties: str) -> memoryview:
    encoded = encode_properties(properties)
    return memoryview(
        encode_record(StoredRecord("Orders", 0, 0, 0, b"body", encoded, 0, HOST, 0, HOST, flag=0, sys_flag=0))
    )


def test_a_newer_version_replaces_and_an_older_one_does_not(tmp_path: Path) -> None:
    """Versions come out of order, with the same and with other expressions."""

    async def main() -> None:
        clock = ManualClock()
        filters = manager(tmp_path, clock)
        assert filters.register("CG", "Orders", "a > 5", "SQL92", 10)
        born_ms = clock.now_ms()
        await clock.advance(1000)
        assert not filters.register("CG", "Orders", "a > 6", "SQL92", 9)
        assert not filters.register("CG", "Orders", "a > 6", "SQL92", 10)
        assert filters.register("CG", "Orders", "a > 5", "SQL92", 11)
        data = filters.get("Orders", "CG")
        assert data is not None
        # The same filter under a newer version: bits computed for it stay good.
        assert (data.expression, data.client_version, data.born_time_ms) == ("a > 5", 11, born_ms)
        assert filters.register("CG", "Orders", "a > 6", "SQL92", 12)
        data = filters.get("Orders", "CG")
        assert data is not None
        assert (data.expression, data.client_version, data.born_time_ms) == ("a > 6", 12, clock.now_ms())
        assert not filters.register("CG", "Orders", "a > > 6", "SQL92", 13)
        assert filters.get("Orders", "CG") is None

    asyncio.run(main())


@pytest.mark.parametrize(("text", "kind"), [("", "SQL92"), (None, "SQL92"), ("a >", "SQL92"), ("a", "CLASS")])
def test_what_is_no_expression_is_not_registered(tmp_path: Path, text: str | None, kind: str) -> None:
    """Empty, broken, or of a type that nobody evaluates."""
    filters = manager(tmp_path)
    assert not filters.register("CG", "Orders", text, kind, 1)
    assert filters.get("Orders", "CG") is None
    with pytest.raises(RemoteProtocolError):
        compile_expression(text, kind)


def test_tags_are_no_business_of_filters(tmp_path: Path) -> None:
    """A heartbeat with subscriptions of both types."""
    filters = manager(tmp_path)
    filters.register_group(
        "CG", [SubscriptionData("Tags", "a", expression_type="TAG"), SubscriptionData("Old", "*")]
    )
    filters.register_group("CG", [sql("Orders", "a = 1"), SubscriptionData("Tags", "a")])
    assert filters.get("Tags", "CG") is None
    assert filters.get("Old", "CG") is None
    assert filters.get("Orders", "CG") is not None
    assert [is_tag_type(kind) for kind in (None, "", "TAG", "SQL92")] == [True, True, True, False]


def test_a_filter_lives_dies_returns_and_is_forgotten_after_a_day(tmp_path: Path) -> None:
    """Unsubscribed, unregistered, back with the same version, and away for longer than it is kept."""

    async def main() -> None:
        clock = ManualClock()
        filters = manager(tmp_path, clock)
        both = [sql("Orders", "a = 1"), sql("Events", "a = 2")]
        filters.register_group("CG", both)
        born_ms = clock.now_ms()
        await clock.advance(1000)
        filters.register_group("CG", both[:1])
        events, orders = filters.get("Events", "CG"), filters.get("Orders", "CG")
        assert events is not None
        assert orders is not None
        assert events.is_dead
        assert not orders.is_dead
        filters.unregister_group("CG")
        assert orders.is_dead
        await clock.advance(DAY_MS - 1)
        filters.register_group("CG", both)
        assert not orders.is_dead
        assert not events.is_dead
        assert events.born_time_ms == born_ms
        filters.unregister_group("CG")
        await clock.advance(DAY_MS)
        assert orjson.loads(filters.encode()) == {"filterDataByTopic": {}}
        filters.register_group("CG", both)
        again = filters.get("Orders", "CG")
        assert again is not None
        assert again.born_time_ms == clock.now_ms()

    asyncio.run(main())


def test_messages_older_than_the_filter_or_with_other_bits_are_judged_by_their_properties(tmp_path: Path) -> None:
    """Bits say no; they count only where they were computed for this filter."""
    clock = ManualClock()
    filters = manager(tmp_path, clock)
    filters.register("CG", "Orders", "a = '1'", "SQL92", 1)
    data = filters.get("Orders", "CG")
    assert data is not None
    wish = filters.wish_of(data)
    by_entry, by_record = wish.filter.by_entry, wish.filter.by_record
    assert by_entry is not None
    assert by_record is not None
    nothing, everything = bytes(14), b"\xff" * 14
    later = clock.now_ms() + 1
    assert by_entry(0, None)
    assert by_entry(0, ExtUnit(0, clock.now_ms(), nothing))
    assert by_entry(0, ExtUnit(0, later, b""))
    assert by_entry(0, ExtUnit(0, later, bytes(8)))
    assert by_entry(0, ExtUnit(0, later, everything))
    assert not by_entry(0, ExtUnit(0, later, nothing))
    assert by_record(record(a="1"))
    assert not by_record(record(a="2"))
    assert not by_record(record(a="1")[:80])
    assert wish.wanted is not None
    assert wish.wanted(0, encode_properties({"a": "1"}))
    assert not wish.wanted(0, encode_properties({"b": "1"}))
    assert filters.wish_of(data) is wish


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["a > 5", "a IS NULL", "b = 'x'", "TAGS IN ('A', 'B')", "a > 5 AND b <> 'x'"])),
    st.dictionaries(st.sampled_from(["a", "b", "TAGS"]), st.sampled_from(["1", "6", "x", "A", "C"])),
    st.booleans(),
)
def test_no_message_that_matches_is_rejected_by_its_bits(
    expressions: list[str], properties: dict[str, str], is_dead: bool
) -> None:
    """Whatever filters a topic has, alive or dead, the bits of a message keep every one that it passes."""
    clock = ManualClock()
    own = BrokerSettings(enable_calc_filter_bit_map=True)
    filters = ConsumerFilterManager(own, Path("never-written"), clock=clock)
    for number, text in enumerate(expressions):
        filters.register(f"G{number}", "Orders", text, "SQL92", 1)
        if is_dead:
            filters.unregister_group(f"G{number}")
    encoded = encode_properties(properties)
    bits = filters.filter_bits("Orders", encoded)
    assert len(bits) == (14 if expressions else 0)
    for number in range(len(expressions)):
        data = filters.get("Orders", f"G{number}")
        assert data is not None
        by_entry = filters.wish_of(data).filter.by_entry
        assert by_entry is not None
        if data.compiled.matches(properties):
            assert by_entry(0, ExtUnit(0, clock.now_ms() + 1, bits))


def test_bits_are_computed_only_where_they_are_wanted(tmp_path: Path) -> None:
    """Without the setting, and on topics without filters, there are none."""
    filters = manager(tmp_path, enable_calc_filter_bit_map=False)
    filters.register("CG", "Orders", "a IS NULL", "SQL92", 1)
    assert filters.filter_bits("Orders", b"") == b""
    assert manager(tmp_path).filter_bits("Other", b"") == b""


def test_a_retried_message_is_judged_by_the_filter_of_its_own_topic(tmp_path: Path) -> None:
    """The group has a filter on one of two topics whose messages it retries."""
    filters = manager(tmp_path)
    filters.register("CG", "Orders", "a = '1'", "SQL92", 1)
    by_record = filters.retry_wish("CG").filter.by_record
    assert by_record is not None
    assert by_record(record(RETRY_TOPIC="Orders", a="1"))
    assert not by_record(record(RETRY_TOPIC="Orders", a="2"))
    assert by_record(record(RETRY_TOPIC="Events", a="2"))
    assert by_record(record(a="2"))


def test_an_expression_that_a_pull_brings_needs_no_registration(tmp_path: Path) -> None:
    """It is compiled and evaluated; a broken one is refused."""
    filters = manager(tmp_path)
    wish = filters.wish("Orders", "a = '1'", "SQL92")
    assert wish != ALL
    assert wish.filter.by_entry is None
    assert wish.filter.by_record is not None
    assert wish.filter.by_record(record(a="1"))
    with pytest.raises(RemoteProtocolError):
        filters.wish("Orders", "a > > 3", "SQL92")


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_files_of_apache_are_read_and_written_back_alike(name: str, tmp_path: Path) -> None:
    """Loaded, changed and saved: expressions, bits, versions and times are what they were."""
    config = unpack_golden(name, tmp_path).root / "config"
    path = config / "consumerFilter.json"
    before = fastjson.loads(path.read_bytes())
    dead = [
        each["deadTime"]
        for topic in before["filterDataByTopic"].values()
        for each in topic["groupFilterData"].values()
    ]
    filters = manager(config, ManualClock(max(dead, default=0) + 1000))
    filters.register("new", "New", "a = 1", "SQL92", 1)
    filters.persist()
    after = orjson.loads(path.read_bytes())
    assert after["filterDataByTopic"].pop("New")["groupFilterData"]["new"]["expression"] == "a = 1"
    assert after == before


def test_after_a_start_filters_count_as_dead_until_a_heartbeat(tmp_path: Path) -> None:
    """Saved alive, loaded dead, alive again with the same version."""

    async def main() -> None:
        clock = ManualClock()
        filters = manager(tmp_path, clock)
        filters.register_group("CG", [sql("Orders", "a = 1", version=7)])
        filters.persist()
        await clock.advance(60_000)
        again = manager(tmp_path, clock)
        data = again.get("Orders", "CG")
        assert data is not None
        assert data.dead_time_ms == clock.now_ms() - 30_000
        again.register_group("CG", [sql("Orders", "a = 1", version=7)])
        assert not data.is_dead

    asyncio.run(main())


def test_another_bloom_filter_makes_the_whole_file_worthless(tmp_path: Path) -> None:
    """Saved under one error rate and loaded under another: bits would lie."""
    filters = manager(tmp_path)
    filters.register("CG", "Orders", "a = 1", "SQL92", 1)
    filters.persist()
    assert manager(tmp_path, max_error_rate_of_bloom_filter=10).get("Orders", "CG") is None
    assert manager(tmp_path).get("Orders", "CG") is not None


def test_a_damaged_file_falls_back_or_stops_the_start(tmp_path: Path) -> None:
    """What is no table of filters is never taken for an empty one."""
    filters = manager(tmp_path)
    for number in range(2):
        filters.register("CG", "Orders", f"a = {number}", "SQL92", number)
        filters.persist()
    path = tmp_path / "consumerFilter.json"
    path.write_bytes(path.read_bytes()[:-5])
    data = manager(tmp_path).get("Orders", "CG")
    assert data is not None
    assert data.expression == "a = 0"
    (tmp_path / "consumerFilter.json.bak").unlink()
    for bad in (b"", b"[]", b'{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"topic":"T"}}}}}'):
        path.write_bytes(bad)
        with pytest.raises(RocketMQError, match="consumerFilter"):
            manager(tmp_path)


@settings(max_examples=40)
@given(
    st.dictionaries(st.text("abc", min_size=1), st.text("xyz", min_size=1)),
    st.binary(max_size=40),
    st.sampled_from([Host(b"\x7f\0\0\x01", 1), Host(bytes(16), 1)]),
    st.text("t", max_size=200, min_size=1),
)
def test_the_properties_of_a_record_are_found_without_the_rest(
    properties: dict[str, str], body: bytes, host: Host, topic: str
) -> None:
    """Both address families and both versions of records, beside the whole decoder; cut anywhere it says so."""
    plain = StoredRecord(topic, 0, 0, 0, body, encode_properties(properties), 0, host, 0, HOST)
    encoded = b"xx" + encode_record(plain)
    assert record_properties(encoded, 2) == decode_record(encoded, 2).property_bytes
    for size in range(0, len(encoded) - 2, 7):
        with pytest.raises(RemoteProtocolError):
            record_properties(encoded[2 : 2 + size])

"""The SQL92 subscriptions of groups, compiled; kept in config/consumerFilter.json.

Versions  A heartbeat with a newer version of a subscription replaces it; an older one changes nothing.
Dead      What nobody subscribes to any more is kept for a day: a consumer that comes back finds the filter bits of
          the messages stored meanwhile, which is why dead filters are evaluated too.
Bits      Say for each message which filters it passes. They are trusted only for messages stored after the filter
          was made, and only where they were computed with the same Bloom filter.
Threads   The loop's thread changes the table; persist() may run in another and copies before it looks.
Crash     The file is replaced as a whole. A filter that was lost is made again by the next heartbeat, and older
          messages are then judged by their properties.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from rmq_core.clock import Clock
from rmq_core.config import BrokerSettings
from rmq_core.errors import RemoteProtocolError
from rmq_core.files import read_or_backup, replace_file
from rmq_core.protocol import fastjson
from rmq_core.protocol.bloom import BloomFilter
from rmq_core.protocol.message import decode_properties, find_property
from rmq_core.protocol.record import record_properties
from rmq_core.protocol.sql92 import SqlFilter, compile_sql
from rmq_core.store.queue_ext import ExtUnit
from rmq_core.store.queue_reader import EVERYTHING, MessageFilter

if TYPE_CHECKING:
    from rmq_core.broker.longpoll import Wanted
    from rmq_core.protocol.bodies import SubscriptionData

log = logging.getLogger(__name__)

SQL_TYPE: Final = "SQL92"
LOADED_DEAD_MS: Final = 30_000
"""After a start every filter counts as dead for so long, until a heartbeat says otherwise."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Which messages a pull wants: for the store, and for those that arrive while it waits."""

    filter: MessageFilter = EVERYTHING
    wanted: Wanted | None = None


ALL: Final = Wish()


def is_tag_type(kind: str | None) -> bool:
    """Whether an expression of this type is one of tags."""
    return kind is None or kind in ("", "TAG")


def compile_expression(expression: str | None, kind: str | None) -> SqlFilter:
    """A subscription by properties. Raises RemoteProtocolError, which says what is wrong with it."""
    if kind != SQL_TYPE:
        raise RemoteProtocolError(f"there is no filter of the type {kind}")
    if not expression:
        raise RemoteProtocolError(f"an expression of the type {kind} is empty")
    return compile_sql(expression)


@dataclass(slots=True, eq=False)
class ConsumerFilterData:
    """The filter of one group on one topic."""

    topic: str
    group: str
    expression: str
    expression_type: str
    client_version: int
    """The subscription's version in the heartbeat that brought it."""
    born_time_ms: int
    compiled: SqlFilter
    bits: tuple[int, ...]
    """Its bits in the filter bits of a message."""
    dead_time_ms: int = 0
    wish: Wish | None = field(default=None, repr=False)

    @property
    def is_dead(self) -> bool:
        return self.dead_time_ms >= self.born_time_ms


class ConsumerFilterManager:
    """The filters of all groups."""

    def __init__(self, settings: BrokerSettings, path: Path, *, clock: Clock) -> None:
        self._settings = settings
        self._path = path
        self._clock = clock
        self.bloom = BloomFilter(
            error_rate_percent=settings.max_error_rate_of_bloom_filter,
            expected=settings.expect_consumer_num_use_filter,
        )
        self._by_topic: dict[str, dict[str, ConsumerFilterData]] = {}
        self._by_group: dict[str, dict[str, ConsumerFilterData]] = {}
        self._is_changed = False
        self._writing = threading.Lock()

    # Registration

    def register_group(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take over what a heartbeat says of a group; its other filters are dead from now on."""
        topics = set()
        for each in subscriptions:
            topics.add(each.topic)
            if not is_tag_type(each.expression_type):
                self.register(group, each.topic, each.sub_string, each.expression_type, each.sub_version)
        if group in self._by_group:
            self._bury(group, kept=topics)

    def unregister_group(self, group: str) -> None:
        """Nobody of the group is there any more."""
        if group in self._by_group:
            self._bury(group, kept=set())

    def _bury(self, group: str, *, kept: set[str]) -> None:
        now_ms = self._clock.now_ms()
        for topic, data in list(self._by_group[group].items()):
            if topic not in kept and not data.is_dead:
                data.dead_time_ms = max(now_ms, data.born_time_ms)
                self._is_changed = True
            elif self._is_forgotten(data):
                self._remove(data)

    def register(self, group: str, topic: str, expression: str | None, kind: str | None, version: int) -> bool:
        """Make or renew a filter; False where nothing changed, or where the expression is none."""
        data = self.get(topic, group)
        if data is not None and self._is_forgotten(data):
            self._remove(data)
            data = None
        if data is not None and version <= data.client_version:
            if version < data.client_version or not data.is_dead:
                return False
            data.dead_time_ms = 0
        elif data is not None and (data.expression, data.expression_type) == (expression, kind):
            data.client_version, data.dead_time_ms = version, 0
        else:
            return self._replace(data, group, topic, expression, kind, version)
        self._is_changed = True
        return True

    def _replace(
        self,
        old: ConsumerFilterData | None,
        group: str,
        topic: str,
        expression: str | None,
        kind: str | None,
        version: int,
    ) -> bool:
        if old is not None:
            self._remove(old)
        try:
            compiled = compile_expression(expression, kind)
        except RemoteProtocolError as error:
            log.warning("group %s subscribes to %s by an expression that is none: %s", group, topic, error)
            return False
        now_ms = self._clock.now_ms()
        bits = self.bloom.bits(f"{group}#{topic}")
        self._add(ConsumerFilterData(topic, group, str(expression), str(kind), version, now_ms, compiled, bits))
        return True

    def _add(self, data: ConsumerFilterData) -> None:
        self._by_topic.setdefault(data.topic, {})[data.group] = data
        self._by_group.setdefault(data.group, {})[data.topic] = data
        self._is_changed = True

    def _remove(self, data: ConsumerFilterData) -> None:
        for index, outer, inner in (
            (self._by_topic, data.topic, data.group),
            (self._by_group, data.group, data.topic),
        ):
            del index[outer][inner]
            if not index[outer]:
                del index[outer]
        self._is_changed = True

    def _is_forgotten(self, data: ConsumerFilterData) -> bool:
        return (
            data.is_dead and self._clock.now_ms() - data.dead_time_ms >= self._settings.filter_data_clean_time_span
        )

    # Use

    def get(self, topic: str, group: str) -> ConsumerFilterData | None:
        """The filter of a group on a topic, dead or alive."""
        groups = self._by_topic.get(topic)
        return None if groups is None else groups.get(group)

    def wish(self, topic: str, expression: str | None, kind: str | None) -> Wish:
        """What a pull wants that brings its own expression. Raises RemoteProtocolError where that is none."""
        return _wish_of_filter(compile_expression(expression, kind))

    def wish_of(self, data: ConsumerFilterData) -> Wish:
        """What a pull wants whose group has registered a filter."""
        if data.wish is None:
            plain = _wish_of_filter(data.compiled)
            by_entry = functools.partial(_may_pass, data, self.bloom)
            data.wish = Wish(MessageFilter(by_entry, plain.filter.by_record), plain.wanted)
        return data.wish

    def retry_wish(self, group: str) -> Wish:
        """What a group wants of its retry topic: retried messages that pass its filters for their own topics."""

        def passes(properties: bytes) -> bool:
            topic = find_property(properties, b"RETRY_TOPIC")
            data = None if topic is None else self.get(topic.decode("utf-8", "replace"), group)
            return data is None or data.compiled.matches(decode_properties(properties))

        return _wish(passes)

    def filter_bits(self, topic: str, properties: bytes) -> bytes:
        """Which filters a message of a topic passes; nothing where there are none, or bits are not wanted."""
        groups = self._by_topic.get(topic)
        if not groups or not self._settings.enable_calc_filter_bit_map:
            return b""
        bits = bytearray(self.bloom.bit_count // 8)
        decoded = decode_properties(properties)
        for data in groups.values():
            if data.compiled.matches(decoded):
                self.bloom.set(bits, data.bits)
        return bytes(bits)

    # The file

    def load(self) -> None:
        """Read the file. Raises RocketMQError where neither it nor its .bak can be read."""
        saved = read_or_backup(self._path, _parse)
        for each in saved or ():
            bloom = each.get("bloomFilterData") or {}
            bits = tuple(bloom.get("bitPos") or ())
            if bloom.get("bitNum") != self.bloom.bit_count or len(bits) != self.bloom.hash_count:
                log.warning("consumerFilter.json is of another Bloom filter; subscribers bring their filters again")
                self._by_topic.clear()
                self._by_group.clear()
                return
            self._load_one(each, bits)
        self._is_changed = False

    def _load_one(self, each: dict[str, Any], bits: tuple[int, ...]) -> None:
        try:
            compiled = compile_expression(each["expression"], each["expressionType"])
        except RemoteProtocolError as error:
            log.warning("the filter of %s on %s is left out: %s", each["consumerGroup"], each["topic"], error)
            return
        born_ms, dead_ms = each["bornTime"], each.get("deadTime") or 0
        self._add(
            ConsumerFilterData(
                each["topic"],
                each["consumerGroup"],
                each["expression"],
                each["expressionType"],
                each["clientVersion"],
                born_ms,
                compiled,
                bits,
                dead_ms or max(born_ms, self._clock.now_ms() - LOADED_DEAD_MS),
            )
        )

    def encode(self) -> bytes:
        """The file's content."""
        by_topic = {}
        for topic, groups in self._by_topic.copy().items():
            entries = [data for data in groups.copy().values() if not self._is_forgotten(data)]
            if entries:
                filters = {data.group: self._entry(data) for data in entries}
                by_topic[topic] = {"groupFilterData": filters, "topic": topic}
        return orjson.dumps({"filterDataByTopic": by_topic})

    def _entry(self, data: ConsumerFilterData) -> dict[str, Any]:
        return {
            "bloomFilterData": {"bitNum": self.bloom.bit_count, "bitPos": data.bits},
            "bornTime": data.born_time_ms,
            "clientVersion": data.client_version,
            "consumerGroup": data.group,
            "dead": data.is_dead,
            "deadTime": data.dead_time_ms,
            "expression": data.expression,
            "expressionType": data.expression_type,
            "topic": data.topic,
        }

    def persist(self) -> None:
        """Write the file if anything has changed. Raises OSError; it is tried again the next time."""
        with self._writing:
            if not self._is_changed:
                return
            self._is_changed = False
            try:
                replace_file(self._path, self.encode())
            except OSError:
                self._is_changed = True
                raise


def _may_pass(data: ConsumerFilterData, bloom: BloomFilter, code: int, unit: ExtUnit | None) -> bool:
    """Whether the filter bits leave it open that a message passes."""
    if unit is None or unit.store_time_ms <= data.born_time_ms or len(unit.filter_bits) * 8 != bloom.bit_count:
        return True
    return bloom.is_hit(unit.filter_bits, data.bits)


def _wish_of_filter(compiled: SqlFilter) -> Wish:
    return _wish(lambda properties: compiled.matches(decode_properties(properties)))


def _wish(passes: Callable[[bytes], bool]) -> Wish:
    def by_record(record: memoryview) -> bool:
        try:
            return passes(record_properties(record))
        except RemoteProtocolError:
            # A damaged record: it is passed over, or the group would stay at it for ever.
            return False

    return Wish(MessageFilter(by_record=by_record), lambda code, properties: passes(properties))


_FIELDS: Final = {"topic": str, "consumerGroup": str, "expression": str, "expressionType": str}


def _parse(data: bytes) -> list[dict[str, Any]]:
    """The entries of the file. Raises RemoteProtocolError where it is of another shape."""
    try:
        topics = fastjson.loads(data).get("filterDataByTopic") or {}
        entries = [each for topic in topics.values() for each in (topic.get("groupFilterData") or {}).values()]
        for each in entries:
            if not all(isinstance(each[name], kind) for name, kind in _FIELDS.items()):
                raise TypeError("names and expressions are text")
            each["bornTime"], each["clientVersion"] = int(each["bornTime"]), int(each["clientVersion"])
            each["deadTime"] = int(each.get("deadTime") or 0)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"not a table of filters: {error!r}") from None
    return entries

"""How far each group has read each queue; kept in config/consumerOffset.json.

Commit    Whatever is committed counts, a smaller offset too. An offset below 0 counts as none.
Reset     An offset that an administrator sets waits for the group's next pull, which takes it. Until then queries
          answer it, and whoever serves commits of the members asks has_reset() and drops them.
Light     With light queues the file is lmqConsumerOffset.json; groups of light queues stand in a table of their own
          there, with one queue each.
Threads   The loop's thread changes the tables. persist() may run in another: what it writes is taken by single
          calls, during which no other thread runs.
Crash     The file is replaced as a whole every few seconds, with the one before kept as .bak; what was committed
          since is consumed again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from rmq_core.errors import RemoteProtocolError
from rmq_core.files import read_or_backup, replace_file
from rmq_core.protocol import fastjson
from rmq_core.protocol.bodies import ConsumerOffsetSerializeWrapper, DataVersion
from rmq_core.protocol.message import LMQ_PREFIX

log = logging.getLogger(__name__)

LIGHT_FILE: Final = "lmqConsumerOffset.json"
_BITS_MAX: Final = 63


class QueueEnds(Protocol):
    """What says where queues end: the message store."""

    def max_offset(self, topic: str, queue_id: int) -> int: ...


class ConsumerOffsetManager:
    """The committed offsets of every group."""

    def __init__(self, path: Path, *, with_light_queues: bool = False, version_step: int = 500) -> None:
        """version_step: after so many commits the version of the table changes, for replicas."""
        self._path = path.with_name(LIGHT_FILE) if with_light_queues else path
        self._other_path = path if with_light_queues else path.with_name(LIGHT_FILE)
        self._with_light_queues = with_light_queues
        self._version_step = version_step
        # All tables: topic@group → queue id → offset.
        self._table: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self._topics_of: dict[str, list[str]] = {}
        self._groups_of: dict[str, list[str]] = {}
        self._version = DataVersion(time.time_ns() // 1_000_000, 0, 0)
        self._commits = 0
        self._moved_back = 0
        self._is_changed = False
        self._writing = threading.Lock()

    # Committed offsets

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store the next offset that a group will read.

        Raises RemoteProtocolError for a number that no peer could read back.
        """
        if offset.bit_length() > _BITS_MAX:
            raise RemoteProtocolError(f"the offset {offset} has more than 64 bits")
        queues = self._table.get(f"{topic}@{group}")
        if queues is None:
            queues = self._enter(group, topic)
        if offset < queues.get(queue_id, offset):
            self._moved_back += 1
        queues[queue_id] = offset
        self._is_changed = True
        self._commits += 1
        if self._commits % self._version_step == 0:
            self._next_version()

    def _enter(self, group: str, topic: str) -> dict[int, int]:
        queues = self._table[f"{topic}@{group}"] = {}
        self._topics_of.setdefault(group, []).append(topic)
        self._groups_of.setdefault(topic, []).append(group)
        return queues

    def _next_version(self) -> None:
        version = self._version
        self._version = DataVersion(time.time_ns() // 1_000_000, version.counter + 1, version.state_version)

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The next offset that a group will read, -1 where it has none; a reset that waits wins."""
        key = f"{topic}@{group}"
        reset = self._resets.get(key)
        if reset is not None and queue_id in reset:
            return reset[queue_id]
        queues = self._table.get(key)
        return -1 if queues is None else max(queues.get(queue_id, -1), -1)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """The offsets of a group by queue id; empty where it has none."""
        return dict(self._table.get(f"{topic}@{group}", {}))

    def topics_of(self, group: str) -> list[str]:
        """The topics that a group has offsets for."""
        return list(self._topics_of.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets for a topic."""
        return list(self._groups_of.get(topic, ()))

    def lowest_of(self, topic: str, min_offset: Callable[[int], int], *, without: frozenset[str]) -> dict[int, int]:
        """The lowest offset of all groups, but for some, by queue id; min_offset() says where a queue begins.

        An offset before the first message is of a group that has not read for long, and does not count.
        """
        lowest: dict[int, int] = {}
        for group in self._groups_of.get(topic, ()):
            if group not in without:
                for queue_id, offset in self._table[f"{topic}@{group}"].items():
                    if offset >= min_offset(queue_id):
                        lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        return lowest

    def clone(self, source: str, target: str, topic: str | None = None) -> None:
        """Give a group the offsets of another, on one topic or on all that the other has offsets for."""
        for each in self.topics_of(source) if topic is None else [topic]:
            queues = self._table.get(f"{each}@{source}")
            if queues is not None:
                known = self._table.get(f"{each}@{target}")
                (self._enter(target, each) if known is None else known).update(queues)
                self._changed()

    def remove_group(self, group: str) -> None:
        """Forget everything about a group."""
        for topic in self.topics_of(group):
            self._remove(group, topic)
        self._forget_transient(lambda key: key.endswith(f"@{group}"))

    def remove_topic(self, topic: str) -> None:
        """Forget everything about a topic."""
        for group in self.groups_of(topic):
            self._remove(group, topic)
        self._forget_transient(lambda key: key.startswith(f"{topic}@"))

    def _remove(self, group: str, topic: str) -> None:
        del self._table[f"{topic}@{group}"]
        for index, name, value in ((self._topics_of, group, topic), (self._groups_of, topic, group)):
            index[name].remove(value)
            if not index[name]:
                del index[name]
        self._changed()

    def _forget_transient(self, is_meant: Callable[[str], bool]) -> None:
        for table in (self._resets, self._pulled):
            for key in [key for key in table if is_meant(key)]:
                del table[key]

    def _changed(self) -> None:
        self._is_changed = True
        self._next_version()

    # Pulls

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Remember where a group's next pull begins; it is not kept on disk."""
        key = f"{topic}@{group}"
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
        queues[queue_id] = next_offset

    def pull_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Where a group's next pull begins; -1 where it has not pulled since the start."""
        queues = self._pulled.get(f"{topic}@{group}")
        return -1 if queues is None else queues.get(queue_id, -1)

    # Resets

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Have the group go on from an offset: it is committed now, and the next pull is told."""
        self.commit(group, topic, queue_id, offset)
        self._resets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        self._next_version()

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset waits for the next pull."""
        if not self._resets:
            return False
        return queue_id in self._resets.get(f"{topic}@{group}", ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset that a pull has to be told instead of messages; given once."""
        if not self._resets:
            return None
        key = f"{topic}@{group}"
        queues = self._resets.get(key)
        offset = None if queues is None else queues.pop(queue_id, None)
        if not queues:
            self._resets.pop(key, None)
        return offset

    # After a start

    def lower_to_queue_ends(self, store: QueueEnds) -> int:
        """Lower what lies above the end of its queue, and say how many offsets that were.

        A crash may lose messages that were consumed already; new ones at the same offsets must be consumed too.
        """
        count = 0
        for key, queues in self._table.items():
            topic, _, group = key.partition("@")
            ends = {queue_id: store.max_offset(topic, queue_id) for queue_id in queues}
            lowered = {queue_id: end for queue_id, end in ends.items() if queues[queue_id] > end}
            if lowered:
                log.warning(
                    "the offsets of group %s on %s are lowered to the queues' ends: %s", group, topic, lowered
                )
                queues.update(lowered)
                count += len(lowered)
        if count:
            self._changed()
        return count

    # The file

    def load(self) -> None:
        """Read the file. Raises RocketMQError where neither it nor its .bak can be read."""
        # The setting for light queues may have changed: then the other file has the offsets.
        saved = read_or_backup(self._path, _parse) or read_or_backup(self._other_path, _parse)
        if saved is None:
            return
        table, version = saved
        for key, queues in table.items():
            topic, _, group = key.partition("@")
            self._enter(group, topic).update(queues)
        if version is not None:
            self._version = DataVersion(version.timestamp, version.counter, version.state_version or 0)

    def encode(self) -> bytes:
        """The whole table as the file and replicas have it."""
        version: dict[str, Any] = self._version.to_json()
        value = {"dataVersion": version, "groupTopicMap": self._topics_of, "offsetTable": self._table}
        if self._with_light_queues:
            value |= self._split_light()
        # Java reads queue ids in quotes as well; writing them without would take twenty times as long.
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)

    def _split_light(self) -> dict[str, Any]:
        # Copies: unlike list(items()) they make no objects, so that no garbage collection lets other threads in.
        table, groups = self._table.copy(), self._topics_of.copy()
        return {
            "groupTopicMap": {name: topics for name, topics in groups.items() if not name.startswith(LMQ_PREFIX)},
            "lmqOffsetTable": {key: queues.get(0, -1) for key, queues in table.items() if _is_light(key)},
            "offsetTable": {key: queues for key, queues in table.items() if not _is_light(key)},
        }

    def persist(self) -> None:
        """Write the file if anything has changed. Raises OSError; it is tried again the next time."""
        with self._writing:
            if not self._is_changed:
                return
            self._is_changed = False
            moved_back, self._moved_back = self._moved_back, 0
            if moved_back:
                log.warning("%d commits since the last save moved a group backwards", moved_back)
            try:
                replace_file(self._path, self.encode())
            except OSError:
                self._is_changed = True
                raise


def _is_light(key: str) -> bool:
    return f"@{LMQ_PREFIX}" in key


def _parse(data: bytes) -> tuple[dict[str, dict[int, int]], DataVersion | None]:
    value = fastjson.loads(data)
    saved = ConsumerOffsetSerializeWrapper.from_json(value)
    light = value.get("lmqOffsetTable") or {}
    if not all(type(offset) is int and offset.bit_length() <= _BITS_MAX for offset in light.values()):
        raise RemoteProtocolError("lmqOffsetTable holds something other than offsets")
    return saved.offset_table | {key: {0: offset} for key, offset in light.items()}, saved.data_version

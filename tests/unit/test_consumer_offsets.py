"""Committed offsets: the table, resets, and the file beside Apache's."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.broker.consumer_offsets import ConsumerOffsetManager
from rmq_core.errors import RemoteProtocolError, RocketMQError
from rmq_core.protocol import fastjson
from rmq_core.protocol.bodies import ConsumerOffsetSerializeWrapper
from rmq_core.protocol.message import LMQ_PREFIX
from rmq_core.protocol.requests import UpdateConsumerOffset
from rmq_core.protocol.requests.offset import decode_commit
from support.stores import GOLDEN_NAMES, unpack_golden


def manager(folder: Path, **options: Any) -> ConsumerOffsetManager:
    offsets = ConsumerOffsetManager(folder / "consumerOffset.json", **options)
    offsets.load()
    return offsets


class Ends:
    """Queues that all end at the same offset."""

    def __init__(self, end: int) -> None:
        self.end = end

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.end


def test_the_last_commit_counts_even_if_it_is_smaller(tmp_path: Path) -> None:
    """Commits forwards, backwards and below zero; other queues, topics and groups stay apart."""
    offsets = manager(tmp_path)
    assert offsets.query("CG", "Orders", 0) == -1
    for offset in (5, 9, 3):
        offsets.commit("CG", "Orders", 0, offset)
        assert offsets.query("CG", "Orders", 0) == offset
    offsets.commit("CG", "Orders", 1, -7)
    assert offsets.query("CG", "Orders", 1) == -1
    assert offsets.query("CG2", "Orders", 0) == offsets.query("CG", "Orders2", 0) == -1
    assert offsets.topics_of("CG") == ["Orders"]
    assert offsets.groups_of("Orders") == ["CG"]


def test_no_commit_can_make_the_table_unwritable(tmp_path: Path) -> None:
    """A peer sends a number of more than 64 bits: refused, and everybody else's offsets are still saved."""
    offsets = manager(tmp_path)
    offsets.commit("CG", "Orders", 0, (1 << 63) - 1)
    with pytest.raises(RemoteProtocolError):
        offsets.commit("CG", "Orders", 1, 1 << 63)
    offsets.persist()
    assert manager(tmp_path).of("CG", "Orders") == {0: (1 << 63) - 1}


def test_a_reset_wins_until_the_next_pull_takes_it(tmp_path: Path) -> None:
    """Queries see it, a pull gets it once, and afterwards the group stands where it was put."""
    offsets = manager(tmp_path)
    offsets.commit("CG", "Orders", 0, 100)
    assert not offsets.has_reset("CG", "Orders", 0)
    offsets.assign_reset("CG", "Orders", 0, 7)
    offsets.commit("CG", "Orders", 0, 101)  # what the pull that is under way carries
    assert offsets.query("CG", "Orders", 0) == 7
    assert offsets.has_reset("CG", "Orders", 0)
    assert not offsets.has_reset("CG", "Orders", 1)
    assert offsets.take_reset("CG", "Orders", 1) is None
    assert offsets.take_reset("CG", "Orders", 0) == 7
    assert offsets.take_reset("CG", "Orders", 0) is None
    assert offsets.query("CG", "Orders", 0) == 101


def test_pull_positions_are_not_commits(tmp_path: Path) -> None:
    """A pull's next offset is known until the group goes, and never in the file."""
    offsets = manager(tmp_path)
    assert offsets.pull_offset("CG", "Orders", 0) == -1
    offsets.note_pull("CG", "Orders", 0, 32)
    assert offsets.pull_offset("CG", "Orders", 0) == 32
    assert offsets.pull_offset("CG", "Orders", 1) == offsets.query("CG", "Orders", 0) == -1
    assert b"Orders" not in offsets.encode()
    offsets.remove_group("CG")
    assert offsets.pull_offset("CG", "Orders", 0) == -1


def test_removal_leaves_nothing_of_a_group_or_a_topic(tmp_path: Path) -> None:
    """Names that begin or end alike must survive each other's removal."""
    offsets = manager(tmp_path)
    for group in ("G", "xG", "Gx"):
        for topic in ("T", "xT", "Tx"):
            offsets.commit(group, topic, 0, 5)
            offsets.assign_reset(group, topic, 1, 6)
    offsets.remove_group("G")
    assert offsets.topics_of("G") == []
    assert offsets.of("G", "T") == {}
    assert not offsets.has_reset("G", "T", 1)
    assert offsets.topics_of("xG") == offsets.topics_of("Gx") == ["T", "xT", "Tx"]
    offsets.remove_topic("T")
    assert offsets.groups_of("T") == []
    assert offsets.take_reset("xG", "T", 1) is None
    assert offsets.take_reset("xG", "Tx", 1) == 6
    assert offsets.groups_of("xT") == ["xG", "Gx"]
    written = orjson.loads(offsets.encode())
    assert sorted(written["groupTopicMap"]) == ["Gx", "xG"]
    assert sorted(written["offsetTable"]) == ["Tx@Gx", "Tx@xG", "xT@Gx", "xT@xG"]


def test_a_clone_is_independent_of_its_source(tmp_path: Path) -> None:
    """One topic, all topics, and a target that has offsets already."""
    offsets = manager(tmp_path)
    for topic in ("A", "B"):
        offsets.commit("source", topic, 0, 5)
    offsets.commit("one", "A", 1, 9)
    offsets.clone("source", "one", "A")
    offsets.clone("source", "all")
    offsets.clone("nobody", "none")
    offsets.commit("source", "A", 0, 6)
    assert offsets.of("one", "A") == {0: 5, 1: 9}
    assert offsets.topics_of("one") == ["A"]
    assert offsets.of("all", "A") == offsets.of("all", "B") == {0: 5}
    assert offsets.topics_of("none") == []


def test_the_lowest_offset_leaves_out_groups_that_lag_behind_the_first_message(tmp_path: Path) -> None:
    """Three groups, one of them excluded, one behind what retention has deleted."""
    offsets = manager(tmp_path)
    for group, offset in (("slow", 40), ("fast", 60), ("gone", 5), ("left-out", 20)):
        offsets.commit(group, "Orders", 0, offset)
    assert offsets.lowest_of("Orders", lambda queue_id: 10, without=frozenset({"left-out"})) == {0: 40}
    assert offsets.lowest_of("Orders", lambda queue_id: 0, without=frozenset()) == {0: 5}


def test_offsets_above_the_end_are_lowered_to_it(tmp_path: Path) -> None:
    """A crash lost messages that had been consumed: the new ones at these offsets must be consumed too."""
    offsets = manager(tmp_path)
    offsets.commit("CG", "Orders", 0, 10)
    offsets.commit("CG", "Orders", 1, 11)
    offsets.commit("CG", "Orders", 2, 9)
    assert offsets.lower_to_queue_ends(Ends(10)) == 1
    assert offsets.of("CG", "Orders") == {0: 10, 1: 10, 2: 9}
    offsets.persist()
    assert manager(tmp_path).of("CG", "Orders") == {0: 10, 1: 10, 2: 9}
    assert offsets.lower_to_queue_ends(Ends(10)) == 0


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_files_of_apache_are_read_and_written_back_alike(name: str, tmp_path: Path) -> None:
    """Each file that a broker of Apache's left, both dialects: nothing is lost on the way in or out."""
    config = unpack_golden(name, tmp_path).root / "config"
    source = next(path for path in config.glob("*onsumerOffset.json"))
    before = fastjson.loads(source.read_bytes())
    with_light = source.name.startswith("lmq")
    offsets = ConsumerOffsetManager(config / "consumerOffset.json", with_light_queues=with_light)
    offsets.load()
    offsets.commit("new", "New", 0, 1)
    offsets.remove_group("new")
    offsets.persist()
    after = orjson.loads(source.read_bytes())
    assert after["offsetTable"] == before["offsetTable"]
    assert after.get("lmqOffsetTable") == before.get("lmqOffsetTable")
    if "groupTopicMap" in before:
        expected = {group: sorted(topics) for group, topics in before["groupTopicMap"].items()}
        assert {group: sorted(topics) for group, topics in after["groupTopicMap"].items()} == expected
        assert after["dataVersion"]["counter"] > before["dataVersion"]["counter"]
    backup = fastjson.loads(source.with_name(source.name + ".bak").read_bytes())
    assert backup["offsetTable"] == before["offsetTable"]


def test_light_queues_stand_in_a_table_of_their_own(tmp_path: Path) -> None:
    """With the setting off again, the same offsets are found in the other file."""
    offsets = manager(tmp_path, with_light_queues=True)
    offsets.commit(f"{LMQ_PREFIX}g", f"{LMQ_PREFIX}t", 0, 17)
    offsets.commit("CG", "Orders", 3, 4)
    offsets.persist()
    written = orjson.loads((tmp_path / "lmqConsumerOffset.json").read_bytes())
    assert written["lmqOffsetTable"] == {"%LMQ%t@%LMQ%g": 17}
    assert written["offsetTable"] == {"Orders@CG": {"3": 4}}
    assert written["groupTopicMap"] == {"CG": ["Orders"]}
    for with_light_queues in (True, False):
        again = manager(tmp_path, with_light_queues=with_light_queues)
        assert again.query("%LMQ%g", "%LMQ%t", 0) == 17
        assert again.query("CG", "Orders", 3) == 4


def test_a_damaged_file_falls_back_to_the_one_before_or_stops_the_start(tmp_path: Path) -> None:
    """Cuts the file at every byte: the backup counts; without one a broker must not begin from nothing."""
    offsets = manager(tmp_path)
    for number in range(2):
        offsets.commit("CG", "Orders", 0, number)
        offsets.persist()
    path = tmp_path / "consumerOffset.json"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert manager(tmp_path).query("CG", "Orders", 0) == 0
    (tmp_path / "consumerOffset.json.bak").unlink()
    for bad in (b"", b"[]", b'{"offsetTable":{"a@b":5}}', b'{"lmqOffsetTable":{"a@b":"x"}}'):
        path.write_bytes(bad)
        with pytest.raises(RocketMQError, match="consumerOffset"):
            manager(tmp_path)


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    """The inode tells whether the file was replaced."""
    offsets = manager(tmp_path)
    offsets.commit("CG", "Orders", 0, 1)
    offsets.persist()
    first = (tmp_path / "consumerOffset.json").stat().st_ino
    offsets.persist()
    assert (tmp_path / "consumerOffset.json").stat().st_ino == first
    offsets.commit("CG", "Orders", 0, 2)
    offsets.persist()
    assert (tmp_path / "consumerOffset.json").stat().st_ino != first


def test_a_failed_write_is_tried_again(tmp_path: Path) -> None:
    """The folder is a file when the table is saved first, and a folder the next time."""
    blocked = tmp_path / "config"
    blocked.write_text("in the way")
    offsets = ConsumerOffsetManager(blocked / "consumerOffset.json")
    offsets.commit("CG", "Orders", 0, 1)
    with pytest.raises(OSError, match="config"):
        offsets.persist()
    blocked.unlink()
    offsets.persist()
    assert manager(blocked).query("CG", "Orders", 0) == 1


def test_a_file_written_while_others_commit_is_always_whole(tmp_path: Path) -> None:
    """A thread persists all the time while this one enters and removes groups: every file is whole."""
    offsets = manager(tmp_path, with_light_queues=True)
    problems: list[BaseException] = []
    stop = threading.Event()

    def persist() -> None:
        try:
            while not stop.is_set():
                offsets.persist()
                ConsumerOffsetSerializeWrapper.decode((tmp_path / "lmqConsumerOffset.json").read_bytes())
        except BaseException as error:
            problems.append(error)

    offsets.commit("first", "T", 0, 0)
    thread = threading.Thread(target=persist)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread.start()
        for number in range(20_000):
            offsets.commit(f"G{number % 300}", f"T{number % 7}", number % 5, number)
            offsets.commit(f"{LMQ_PREFIX}G{number}", f"{LMQ_PREFIX}T{number}", 0, number)
            if number % 100 == 99:
                offsets.remove_group(f"G{number % 299}")
    finally:
        sys.setswitchinterval(interval_s)
        stop.set()
        thread.join()
    assert not problems


def test_the_version_moves_with_commits_for_replicas(tmp_path: Path) -> None:
    """One step for so many commits."""
    offsets = manager(tmp_path, version_step=10)
    for number in range(25):
        offsets.commit("CG", "Orders", 0, number)
    assert orjson.loads(offsets.encode())["dataVersion"]["counter"] == 2


longs = st.integers(-(1 << 63), (1 << 63) - 1)
ints = st.integers(-(1 << 31), (1 << 31) - 1)


@settings(max_examples=50)
@given(st.text(min_size=1), st.text(min_size=1), ints, longs, ints, st.booleans())
def test_the_hot_decoder_of_commits_agrees_with_the_declaration(
    group: str, topic: str, queue_id: int, offset: int, opaque: int, is_oneway: bool
) -> None:
    """Every field that the declaration writes is read alike."""
    request = UpdateConsumerOffset(group, topic, queue_id, offset)
    header = {"code": 15, "opaque": opaque, "flag": 2 if is_oneway else 0, "extFields": request.to_ext()}
    assert decode_commit(header) == (opaque, is_oneway, group, topic, queue_id, offset)
    assert UpdateConsumerOffset.from_ext(request.to_ext()) == request


@pytest.mark.parametrize(
    "ext",
    [None, [], {}, {"topic": "T"}, {"consumerGroup": "G", "topic": "T", "queueId": "x"}]
    + [
        {"consumerGroup": "G", "topic": "T", "queueId": "1", "commitOffset": bad} for bad in ("1_0", " 1", "9" * 30)
    ],
)
def test_a_commit_that_is_none_is_refused_by_the_hot_decoder(ext: Any) -> None:
    """Fields missing, of another type, or numbers that Java would not read."""
    with pytest.raises(RemoteProtocolError):
        decode_commit({"code": 15, "opaque": 1, "extFields": ext})

"""The stream reader as Spark calls it, in this process against real brokers, without a Spark session.

A `Query` here keeps the order of Spark's calls: latestOffset, partitions, tasks, and the next latestOffset with the
end once it is durable. Numbers C… are those of docs/connector-scenarios.md.
"""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from rmq_core.client.group_member import GroupMember
from rmq_core.client.queue_client import QueueClient
from rmq_core.client.subscriptions import subscription
from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import ConsumerConnection
from rmq_spark import stream_driver
from rmq_spark.errors import Condition, SparkRocketMQError
from rmq_spark.offsets import from_json, to_json
from rmq_spark.source import RocketMQDataSource
from support.stream_query import GROUP, TOPIC, Query, bodies, group_offset, members, queue, reset
from support.threaded import Threaded, threaded_cluster, until

pytestmark = pytest.mark.usefixtures("quick")


# Beginning


def test_a_new_query_begins_at_the_groups_progress(running: Threaded, query: Callable[..., Query]) -> None:
    """Progress 2 on one queue, none on the other, whose fallback is the earliest (C008)."""
    running.send(TOPIC, bodies(1, 2, 3, 4))
    running.send(TOPIC, bodies(11, 12), queue_id=1)
    with QueueClient(running.options(), group=GROUP) as client:
        list(client.read(queue(0), 0, 1))
        client.commit({queue(0): 2})
    new = query(fallbackOffsets="earliest")
    assert sorted(new.batch() or []) == ["11", "12", "3", "4"]


@pytest.mark.parametrize(("starting", "expected"), [("earliest", ["1", "2"]), ("latest", [])])
def test_a_query_without_a_group_leaves_no_trace(
    running: Threaded, query: Callable[..., Query], starting: str, expected: list[str]
) -> None:
    """It reads, and the broker knows of no new group, member or progress (C001, C002, C149)."""
    running.send(TOPIC, bodies(1, 2))
    before = set(running.broker.groups.table)
    new = query(group=None, startingOffsets=starting)
    assert new.batch() == expected
    running.send(TOPIC, bodies(3))
    assert new.until_rows() == ["3"]
    assert set(running.broker.groups.table) == before
    assert members(running) == []


def test_the_initial_offset_does_not_move_within_a_run(running: Threaded, query: Callable[..., Query]) -> None:
    """`latest` asked for twice, with a message between (C013): that message is read."""
    new = query(startingOffsets="latest")
    first = new.reader.initialOffset()
    running.send(TOPIC, bodies(1))
    assert new.reader.initialOffset() == first
    assert new.until_rows() == ["1"]


def test_batch_0_is_replayed_from_where_it_began(running: Threaded, query: Callable[..., Query]) -> None:
    """It crashes before its first commit and starts anew with `latest`, which is elsewhere by then."""
    new = query(startingOffsets="latest")
    new.reader.initialOffset()
    running.send(TOPIC, bodies(1, 2))
    new.see(lambda look: look.latest[queue(0)] == 2)
    assert new.plan()
    assert set(new.last_end()) == {"v", "queues", "start"}
    running.send(TOPIC, bodies(3))
    new.crash()
    new.offsets[0] = (json.dumps(new.reader.initialOffset()), new.offsets[0][1])
    assert from_json(json.loads(new.offsets[0][0])).queues[queue(0)] == 3
    assert new.commit(new.tasks()) == ["1", "2"]
    assert new.until_rows() == ["3"]
    assert "start" not in new.last_end()


def test_an_unknown_topic_is_named(running: Threaded, query: Callable[..., Query]) -> None:
    """The start fails under its condition (C099)."""
    with pytest.raises(SparkRocketMQError, match="Nowhere") as failed:
        query(topic="Nowhere", fetchRetries=1).batch()
    assert failed.value.condition is Condition.UNKNOWN_TOPIC


# Batches


def test_every_message_is_read_once_over_batches_and_restarts(
    running: Threaded, query: Callable[..., Query]
) -> None:
    """Crashes at every point: after planning, after tasks, after the commit (C151, C155)."""
    new = query(startingOffsets="earliest", maxOffsetsPerTrigger=4)
    sent = 0
    for step in range(8):
        for number in (0, 1):
            running.send(TOPIC, bodies(*range(sent, sent + 3)), queue_id=number)
            sent += 3
        assert new.plan() or step
        if step % 4 == 0:
            new.crash()
        rows = new.tasks()
        if step % 4 == 1:
            new.crash()
            running.send(TOPIC, bodies(sent))
            sent += 1
            assert sorted(new.tasks()) == sorted(rows)
        new.commit(rows)
        if step % 4 == 2:
            new.crash()
        if step % 4 == 3:
            new.restart()
    while len(new.rows) < sent:
        new.until_rows()
    assert sorted(map(int, new.rows)) == list(range(sent))


def test_nothing_new_gives_the_very_same_offset(running: Threaded, query: Callable[..., Query]) -> None:
    """Byte for byte, also from batch 0 with its start (C060, C133): no batch runs while nothing comes."""
    running.send(TOPIC, bodies(1))
    new = query(startingOffsets="earliest")
    assert new.batch() == ["1"]
    for _ in range(3):
        assert new.batch() is None
    assert len(new.offsets) == 1


def test_limits_are_divided_by_backlog(tmp_path: Path, query: Callable[..., Query]) -> None:
    """Limit 10 over backlogs of 101, 11 and 1: 8, 1, 1, then 9, 1, and so on after a restart (C049, C053)."""
    with threaded_cluster(tmp_path / "own") as running:
        running.create_topic(TOPIC, queues=3)
        for number, count in enumerate((101, 11, 1)):
            running.send(TOPIC, bodies(*range(count)), queue_id=number)
        new = query(running, startingOffsets="earliest", maxOffsetsPerTrigger=10)
        new.batch()
        assert [new.positions()[queue(number)] for number in range(3)] == [8, 1, 1]
        new.batch()
        assert [new.positions()[queue(number)] for number in range(3)] == [17, 2, 1]
        new.restart()
        new.batch()
        assert [new.positions()[queue(number)] for number in range(3)] == [26, 3, 1]
        assert len(new.batch(ReadAllAvailable()) or []) == 113 - 30
        new.reader.stop()


def test_a_minimum_holds_batches_back_until_the_delay(running: Threaded, query: Callable[..., Query]) -> None:
    """Minimum 5: the first batch never waits, 3 wait, 3 more go, 1 goes after the delay (C055, C059, C060)."""
    running.send(TOPIC, bodies(1, 2))
    new = query(startingOffsets="earliest", minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    assert isinstance(new.reader.getDefaultReadLimit(), ReadMinRows)
    assert new.batch() == ["1", "2"]
    running.send(TOPIC, bodies(3, 4, 5))
    assert new.batch() is None
    running.send(TOPIC, bodies(6, 7, 8))
    assert new.until_rows() == ["3", "4", "5", "6", "7", "8"]
    running.send(TOPIC, bodies(9))
    assert new.batch() is None
    assert new.until_rows(ReadAllAvailable()) == ["9"]
    new.restart(maxTriggerDelay="200ms")
    running.send(TOPIC, bodies(10))
    assert new.until_rows() == ["10"]  # the first of a run
    began = time.monotonic()
    running.send(TOPIC, bodies(11))
    assert new.until_rows() == ["11"]
    assert time.monotonic() - began >= 0.1


def test_default_limits_tell_once_apart() -> None:
    """Once gives ReadAllAvailable: no query with limits of its own may have that for its default (C057)."""
    options = {"nameServer": "127.0.0.1:1", "topic": TOPIC}
    for more, kind in (
        ({}, ReadAllAvailable),
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows),
        ({"minOffsetsPerTrigger": "7"}, ReadMinRows),
    ):
        source = RocketMQDataSource(options | more)
        assert type(source.streamReader(source.schema()).getDefaultReadLimit()) is kind


def test_a_filter_leaves_no_hole_unread(running: Threaded, query: Callable[..., Query]) -> None:
    """Every fifth message has the tag; offsets go to the end of what was looked at (C085)."""
    tags = ["paid" if number % 5 == 0 else "other" for number in range(60)]
    running.send(TOPIC, bodies(*range(60)), tags=tags)
    new = query(startingOffsets="earliest", tags="paid", maxOffsetsPerTrigger=17)
    while new.batch() is not None:
        pass
    assert list(map(int, new.rows)) == list(range(0, 60, 5))
    assert new.positions()[queue(0)] == 60


# Available now


def test_available_now_ends_with_what_was_there(running: Threaded, query: Callable[..., Query]) -> None:
    """15 messages, limit 5: three batches; what comes meanwhile waits for the next run (C071, C072, C076)."""
    running.send(TOPIC, bodies(*range(15)))
    new = query(startingOffsets="earliest", maxOffsetsPerTrigger=5)
    new.reader.prepareForTriggerAvailableNow()
    assert len(new.batch() or []) == 5
    running.send(TOPIC, bodies(*range(15, 25)))
    running.create_topic("Later")
    while new.batch() is not None:
        pass
    assert (list(map(int, new.rows)), len(new.offsets)) == (list(range(15)), 3)
    assert group_offset(running) == 15  # stored before the run ends
    new.restart()
    new.reader.prepareForTriggerAvailableNow()
    while new.batch() is not None:
        pass
    assert list(map(int, new.rows)) == list(range(25))


def test_available_now_without_data_ends(running: Threaded, query: Callable[..., Query]) -> None:
    """An empty topic, and a minimum that is never reached (C073)."""
    new = query(startingOffsets="earliest", minOffsetsPerTrigger=100)
    new.reader.prepareForTriggerAvailableNow()
    assert new.batch() in ([], None)
    running.send(TOPIC, bodies(1))
    assert new.batch() is None
    new.restart()
    new.reader.prepareForTriggerAvailableNow()
    assert new.batch() == ["1"]


def test_available_now_fails_where_a_queue_of_it_is_gone(running: Threaded, query: Callable[..., Query]) -> None:
    """The topic shrinks between two batches, with failOnDataLoss=false too (C074)."""
    for number in (0, 1):
        running.send(TOPIC, bodies(*range(5)), queue_id=number)
    new = query(startingOffsets="earliest", maxOffsetsPerTrigger=4, failOnDataLoss="false")
    new.reader.prepareForTriggerAvailableNow()
    new.batch()
    running.create_topic(TOPIC, queues=1)
    new.see(lambda look: queue(1) not in look.latest)
    with pytest.raises(SparkRocketMQError, match="Orders/broker-a/1") as failed:
        new.batch()
    assert failed.value.condition is Condition.OFFSETS_CHANGED
    new.restart()
    new.reader.prepareForTriggerAvailableNow()
    new.until_rows()


# The group


def test_progress_follows_every_batch_and_the_last_one(running: Threaded, query: Callable[..., Query]) -> None:
    """Read in the broker after each: never ahead of what is durable, behind it until the next call (C158)."""
    new = query(startingOffsets="earliest", maxOffsetsPerTrigger=3)
    running.send(TOPIC, bodies(*range(9)))
    assert new.plan()
    new.tasks()
    assert group_offset(running) == -1  # the batch ran, and Spark has not committed it
    new.commit([])
    for expected in (3, 6):
        assert new.plan()
        until(lambda expected=expected: group_offset(running) == expected, "the last batch is stored")  # type: ignore[misc]
        new.commit(new.tasks())
    assert new.batch() is None
    until(lambda: group_offset(running) == 9, "the last batch of all is stored")
    new.reader.stop()
    assert group_offset(running) == 9


def test_progress_is_stored_when_the_process_ends(running: Threaded, query: Callable[..., Query]) -> None:
    """The driver is closed right behind the call that made a batch durable."""
    running.send(TOPIC, bodies(*range(9)))
    new = query(startingOffsets="earliest")
    new.batch()
    new.plan()
    new.reader.stop()
    assert group_offset(running) == 9
    assert members(running) == []


def test_progress_never_goes_back(running: Threaded, query: Callable[..., Query]) -> None:
    """The group stands at 8 and the query begins at 0: it is shown once it has passed 8."""
    running.send(TOPIC, bodies(*range(12)))
    with QueueClient(running.options(), group=GROUP) as client:
        list(client.read(queue(0), 0, 1))
        client.commit({queue(0): 8})
    new = query(startingOffsets="earliest", maxOffsetsPerTrigger=5)
    seen = set()
    for _ in range(3):
        new.batch()
        new.reader._open().progress.flush(10)  # type: ignore[union-attr]
        seen.add(group_offset(running))
    assert new.batch() is None
    until(lambda: group_offset(running) == 12, "it is passed")
    assert min(seen) == 8


def test_nothing_is_stored_where_it_is_not_wanted(running: Threaded, query: Callable[..., Query]) -> None:
    """commitOffsets=false: the query is a member, and the group has no progress."""
    running.send(TOPIC, bodies(1, 2))
    new = query(startingOffsets="earliest", commitOffsets="false")
    new.batch()
    assert new.batch() is None
    assert new.reader._open().progress.flush(10)  # type: ignore[union-attr]
    assert group_offset(running) == -1
    assert len(members(running)) == 1


def test_a_failed_store_never_ends_a_query(
    running: Threaded, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stores fail; batches go on, and the next store carries what is missing (C159)."""
    running.send(TOPIC, bodies(*range(4)))
    commit, calls = QueueClient.commit, 0

    def failing(self: QueueClient, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise BrokerError(1, "the disk is on fire")
        return commit(self, *arguments, **named)

    monkeypatch.setattr(QueueClient, "commit", failing)
    new = query(startingOffsets="earliest", maxOffsetsPerTrigger=2)
    new.batch()
    new.batch()
    assert new.batch() is None
    until(lambda: group_offset(running) == 4, "it is stored in the end")
    assert calls > 2


def test_tools_see_the_query_until_it_stops(running: Threaded, query: Callable[..., Query]) -> None:
    """One member with a name that tells it from others (C211, C218)."""
    running.send(TOPIC, bodies(1))
    new, other = query(startingOffsets="earliest"), query(startingOffsets="earliest", group="spark-other")
    new.batch()
    other.batch()
    (mine,), (others,) = members(running), members(running, "spark-other")
    assert mine != others
    assert "spark-orders" in (mine or "")
    new.reader.stop()
    assert members(running) == []
    assert members(running, "spark-other") == [others]


def test_a_group_in_use_is_refused(running: Threaded, query: Callable[..., Query]) -> None:
    """By a push consumer or by a second query; sharedGroup reads without being a member."""
    running.send(TOPIC, bodies(1, 2))
    with (
        QueueClient(running.options()) as client,
        GroupMember(client, GROUP, [subscription(TOPIC)], client_id="10.0.0.7@push"),
    ):
        with pytest.raises(SparkRocketMQError, match=r"10\.0\.0\.7@push") as failed:
            query(startingOffsets="earliest").batch()
        assert failed.value.condition is Condition.GROUP_IN_USE
        assert members(running) == ["10.0.0.7@push"]
        shared = query(startingOffsets="earliest", sharedGroup="true")
        assert shared.batch() == ["1", "2"]
        assert shared.batch() is None
        assert members(running) == ["10.0.0.7@push"]
        until(lambda: group_offset(running) == 2, "progress is stored all the same")
    first = query()
    first.batch()
    with pytest.raises(SparkRocketMQError) as failed:
        query().batch()
    assert failed.value.condition is Condition.GROUP_IN_USE


def test_a_query_makes_room_for_a_stranger(
    running: Threaded, query: Callable[..., Query], caplog: pytest.LogCaptureFixture
) -> None:
    """A member joins while the query runs: the query leaves, warns, and reads and stores on."""
    new = query(startingOffsets="earliest")
    new.batch()
    with (
        caplog.at_level(logging.WARNING),
        QueueClient(running.options()) as client,
        GroupMember(client, GROUP, [subscription(TOPIC)], client_id="stranger"),
    ):
        until(lambda: members(running) == ["stranger"], "the query left")
        running.send(TOPIC, bodies(1))
        assert new.until_rows() == ["1"]
        assert new.batch() is None
        until(lambda: group_offset(running) == 1, "progress is stored")
    assert "stranger" in caplog.text


# Resets


@pytest.mark.parametrize("target", [2, 8])
def test_a_reset_is_followed_and_a_replay_repeats_it(
    running: Threaded, query: Callable[..., Query], target: int
) -> None:
    """Back from 6 to 2, or on to 8 of 10; the batch crashes behind its plan and reads the same again."""
    running.send(TOPIC, bodies(*range(6)))
    new = query(startingOffsets="earliest")
    new.batch()
    assert new.batch() is None
    until(lambda: group_offset(running) == 6, "the batch is stored")
    running.send(TOPIC, bodies(6, 7, 8, 9))
    if target == 8:
        until(lambda: new.reader._open().watch.look(age_max_s=0, wait_s=1).latest[queue(0)] == 10, "all is seen")
    reset(running, target)
    progress = new.reader._open().progress
    assert progress is not None
    until(progress.resets, "the reset is seen")
    assert new.plan()
    assert new.last_end()["seek"] == {TOPIC: {"broker-a": {"0": target}}}
    new.crash()
    rows = new.tasks()
    assert list(map(int, rows)) == list(range(target, 10))
    new.commit(rows)
    assert new.batch() is None
    until(lambda: group_offset(running) == 10, "progress is behind the reset")


def test_a_reset_that_a_task_meets_is_followed_too(running: Threaded, query: Callable[..., Query]) -> None:
    """The broker tells it to the next pull of the group, which is a task's: the driver sees it all the same."""
    running.send(TOPIC, bodies(*range(6)))
    new = query(startingOffsets="earliest")
    new.batch()
    assert new.batch() is None
    until(lambda: group_offset(running) == 6, "the batch is stored")
    progress = new.reader._open().progress
    assert progress is not None
    running.send(TOPIC, bodies(6, 7))
    until(new.plan, "a batch")
    reset(running, 3)
    assert new.tasks() == ["6", "7"]
    new.commit(["6", "7"])
    assert new.until_rows() == ["3", "4", "5", "6", "7"]
    assert new.batch() is None
    until(lambda: group_offset(running) == 8, "progress is behind the reset")
    assert not running.broker.offsets.has_reset(GROUP, TOPIC, 0)


def test_resets_told_to_members_are_followed(tmp_path: Path, query: Callable[..., Query]) -> None:
    """As brokers of 4.9 do it; the group's offset goes back with the query, because it was asked to."""
    with threaded_cluster(tmp_path / "own", use_server_side_reset_offset=False) as running:
        running.create_topic(TOPIC, queues=1)
        running.send(TOPIC, bodies(*range(6)))
        new = query(running, startingOffsets="earliest", maxOffsetsPerTrigger=6)
        new.batch()
        assert new.batch() is None
        until(lambda: group_offset(running) == 6, "the batch is stored")
        running.do(running.client().call(r.InvokeBrokerToResetOffset(TOPIC, GROUP, 0, is_force=True)))
        assert new.until_rows(ReadMaxRows(2)) == ["0", "1"]
        new.plan(ReadMaxRows(2))
        until(lambda: group_offset(running) == 2, "it went back")
        new.reader.stop()


def test_a_reset_may_be_ignored_or_fail_the_query(running: Threaded, query: Callable[..., Query]) -> None:
    """ignore puts the query's own offsets back; fail names the queue."""
    running.send(TOPIC, bodies(*range(6)))
    new = query(startingOffsets="earliest", onGroupReset="ignore")
    new.batch()
    assert new.batch() is None
    until(lambda: group_offset(running) == 6, "the batch is stored")
    reset(running, 2)
    until(lambda: new.batch() is None and group_offset(running) == 6, "ours is back")
    new.restart(onGroupReset="fail")
    assert new.batch() is None
    assert new.reader._open().progress.flush(10)  # type: ignore[union-attr]
    reset(running, 2)
    with pytest.raises(SparkRocketMQError, match="Orders/broker-a/0") as failed:
        until(lambda: new.batch() is not None, "it fails")
    assert failed.value.condition is Condition.GROUP_RESET


def test_older_offsets_of_a_restarted_broker_are_no_reset(running: Threaded, query: Callable[..., Query]) -> None:
    """The broker comes back with what it had on disk, which is less: it is stored again, nothing is read twice."""
    running.send(TOPIC, bodies(*range(6)))
    new = query(startingOffsets="earliest")
    new.batch()
    assert new.batch() is None
    until(lambda: group_offset(running) == 6, "the batch is stored")
    running.restart()
    running.broker.offsets.commit(GROUP, TOPIC, 0, 1)  # as if it had been killed before it wrote
    until(lambda: new.batch() is None and group_offset(running) == 6, "it is stored again")
    running.send(TOPIC, bodies(6))
    assert new.until_rows() == ["6"]


# Queues that come and go


def test_new_queues_are_read_from_their_first_message(running: Threaded, query: Callable[..., Query]) -> None:
    """Whatever startingOffsets says, and in a replay too (C011, C095)."""
    new = query(startingOffsets="latest")
    new.batch()
    running.create_topic(TOPIC, queues=4)
    running.send(TOPIC, bodies(31, 32), queue_id=3)
    new.see(lambda look: look.latest.get(queue(3)) == 2)
    assert new.plan()
    assert set(from_json(new.last_end()).queues) == {queue(number) for number in range(4)}
    new.crash()
    assert new.commit(new.tasks()) == ["31", "32"]
    assert new.batch() is None


def test_topics_that_match_later_are_read(running: Threaded, query: Callable[..., Query]) -> None:
    """A pattern; the group's members subscribe to the new topic too (C094, C096, C097)."""
    running.create_topic("orders-eu", queues=1)
    running.send("orders-eu", bodies(1))
    new = query(subscribePattern="orders-.*", startingOffsets="earliest")
    assert new.until_rows() == ["1"]
    running.create_topic("orders-us", queues=1)
    running.create_topic("other", queues=1)
    running.send("orders-us", bodies(2))
    assert new.until_rows() == ["2"]

    def subscribed() -> set[str]:
        answer = running.do(running.client().call(r.GetConsumerConnectionList(GROUP)))
        return set(ConsumerConnection.decode(answer.body).subscription_table)

    until(lambda: subscribed() == {"orders-eu", "orders-us"}, "the member subscribes to both")


def test_a_queue_that_is_gone_is_loss(
    running: Threaded, query: Callable[..., Query], caplog: pytest.LogCaptureFixture
) -> None:
    """The topic shrinks: the query fails and names the queue; or it warns once and goes on (C083)."""
    for number in (0, 1):
        running.send(TOPIC, bodies(number), queue_id=number)
    strict, lenient = (
        query(startingOffsets="earliest"),
        query(group="lenient", startingOffsets="earliest", failOnDataLoss="false"),
    )
    assert sorted(strict.batch() or []) == sorted(lenient.batch() or []) == ["0", "1"]
    running.create_topic(TOPIC, queues=1)
    with pytest.raises(SparkRocketMQError, match="Orders/broker-a/1 from 1 on") as failed:
        until(lambda: strict.batch() is not None, "it fails")
    assert failed.value.condition is Condition.DATA_LOSS
    assert "failOnDataLoss" in str(failed.value)
    with caplog.at_level(logging.WARNING):
        until(lambda: lenient.batch() is not None, "the queue is left out")
        assert set(lenient.positions()) == {queue(0)}
        running.send(TOPIC, bodies(5))
        assert lenient.until_rows() == ["5"]
    assert caplog.text.count("messages are lost") == 1


def test_a_broker_that_is_away_keeps_its_queues(tmp_path: Path, query: Callable[..., Query]) -> None:
    """One of two brokers stops and comes back; a restart of the query in between changes nothing (C106, C077)."""
    with threaded_cluster(tmp_path / "own", masters=2) as running:
        for number in (0, 1):
            running.create_topic(TOPIC, queues=1, number=number)
            running.send(TOPIC, bodies(number), number=number)
        new = query(running, startingOffsets="earliest", fetchRetryIntervalMs=1)
        assert sorted(new.batch() or []) == ["0", "1"]
        away = queue(0, broker="broker-b")
        start_again = running.stop(1)
        until(lambda: away in new.reader._open().watch.look(age_max_s=0, wait_s=1).away, "it is missed")
        assert new.batch() is None
        running.send(TOPIC, bodies(2))
        assert new.until_rows() == ["2"]
        assert new.positions()[away] == 1
        new.restart()
        assert new.batch() is None
        new.restart()
        new.reader.prepareForTriggerAvailableNow()
        assert new.batch() is None
        new.restart()
        new.batch()
        start_again()
        running.send(TOPIC, bodies(3), number=1)
        assert new.until_rows() == ["3"]
        assert new.positions()[away] == 2
        new.reader.stop()


def test_a_topic_made_again_with_less_is_loss(running: Threaded, query: Callable[..., Query]) -> None:
    """The start is above the end of the queue: both numbers are named (C082); or it begins anew."""
    running.send(TOPIC, bodies(1))
    new = query(startingOffsets="earliest", group=None)
    new.batch()
    end = to_json({queue(0): 2, queue(1): 0})
    new.offsets[0] = (new.offsets[0][0], json.dumps(end))
    with pytest.raises(SparkRocketMQError, match="from 2 back to 1") as failed:
        new.batch()
    assert failed.value.condition is Condition.DATA_LOSS
    new.restart(failOnDataLoss="false")
    assert new.batch() == ["1"]


def test_what_retention_overtook_is_loss_with_its_span(tmp_path: Path, query: Callable[..., Query]) -> None:
    """The oldest files go between two batches (C078, C079, C084, C088)."""
    import os

    with threaded_cluster(tmp_path / "own", mapped_file_size_commit_log=1 << 20, file_reserved_time=0) as running:
        running.create_topic(TOPIC, queues=1)
        running.send(TOPIC, [b"%d" % number + b" " * 1000 for number in range(4_000)])
        strict = query(running, startingOffsets="earliest", maxOffsetsPerTrigger=100)
        lenient = query(
            running, startingOffsets="earliest", maxOffsetsPerTrigger=100, group="lenient", failOnDataLoss="false"
        )
        strict.batch()
        lenient.batch()
        store = running.broker.store

        async def clean() -> None:
            store.keep_all()
            for start in store.log.segments.starts:
                os.utime(store.log.segments.path(start), (1, 1))
            store.retention.request()
            assert store.retention.run().log_files > 0

        running.do(clean())
        with QueueClient(running.options()) as client:
            least = client.min_offsets([queue(0)])[queue(0)]
        for each in (strict, lenient):
            each.see(lambda look: look.earliest[queue(0)] == least)
        with pytest.raises(SparkRocketMQError, match=rf"\[100, {least}\)"):
            strict.batch()
        while lenient.batch() is not None:
            pass
        numbers = [int(row) for row in lenient.rows]
        assert numbers == [*range(100), *range(least, 4_000)]
        strict.reader.stop()
        lenient.reader.stop()


def test_a_query_waits_for_a_broker_that_is_away_when_it_starts_again(
    running: Threaded, query: Callable[..., Query], caplog: pytest.LogCaptureFixture
) -> None:
    """The only broker is stopped, so that no name server knows the topic: the checkpoint names its queues."""
    running.send(TOPIC, bodies(1, 2))
    new = query(startingOffsets="earliest", fetchRetryIntervalMs=1)
    assert new.batch() == ["1", "2"]
    start_again = running.stop()
    with caplog.at_level(logging.WARNING):
        new.restart()
        assert new.batch() is None
    assert "broker" in caplog.text
    start_again()
    running.send(TOPIC, bodies(3))
    assert new.until_rows() == ["3"]
    assert new.batch() is None
    until(lambda: group_offset(running) == 3, "progress is stored")
    until(lambda: len(members(running)) == 1, "the query is a member")


def test_a_name_server_that_hangs_keeps_no_message_back(running: Threaded, query: Callable[..., Query]) -> None:
    """It takes connections and answers nothing; brokers are asked all the same."""
    with running.proxy(running.name_server) as proxy:
        new = query(startingOffsets="earliest", nameServer=proxy.address)
        running.send(TOPIC, bodies(0))
        assert new.until_rows() == ["0"]
        proxy.stall()
        for number in (1, 2, 3):
            running.send(TOPIC, bodies(number))
            assert new.until_rows() == [str(number)]


def test_a_pattern_without_a_topic_waits_for_one(running: Threaded, query: Callable[..., Query]) -> None:
    """Nothing matches when the query begins; then a topic does, and the group is seen on its broker."""
    new = query(subscribePattern="later-.*", startingOffsets="latest")
    assert new.batch() == []
    running.create_topic("later-1", queues=1)
    running.send("later-1", bodies(1))
    assert new.until_rows() == ["1"]
    until(lambda: len(members(running)) == 1, "the query is a member")


# The process


def test_idle_queries_ask_little(
    running: Threaded, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second of polling as fast as it goes: few polls, and route requests by the interval alone (C103)."""
    monkeypatch.setattr(stream_driver, "DISCOVERY_S", 60.0)
    running.send(TOPIC, bodies(1))
    new = query(startingOffsets="earliest")
    new.batch()
    asked: list[Any] = []
    polls = 0
    routes = new.reader._open().client.routes
    ask = routes._ask_once

    def counted(request: Any) -> Any:
        asked.append(request)
        return ask(request)

    monkeypatch.setattr(routes, "_ask_once", counted)
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        assert new.batch() is None
        polls += 1
    assert polls <= 20
    assert not asked


def test_the_reader_that_spark_pickles_opens_nothing(running: Threaded) -> None:
    """Planning and executors have copies: they must neither connect nor join."""
    source = RocketMQDataSource({"nameServer": "127.0.0.1:1", "topic": TOPIC, "group": GROUP})
    reader = source.streamReader(source.schema())
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._driver is None
    assert copy.getDefaultReadLimit() == ReadAllAvailable()
    start = to_json({queue(0): 3})
    assert [part.value for part in copy.partitions(start, start)] == [()]
    assert members(running) == []


def test_sigterm_stores_and_leaves(tmp_path: Path) -> None:
    """A process of its own is told to end while it polls: Spark ends readers so, and never calls stop()."""
    import signal
    import subprocess
    import sys

    program = """
import sys
from rmq_spark.source import RocketMQDataSource
options = {"nameServer": sys.argv[1], "topic": "Orders", "group": "spark-orders", "startingOffsets": "earliest"}
source = RocketMQDataSource(options)
reader = source.streamReader(source.schema())
start = reader.initialOffset()
end = reader.latestOffset(start, reader.getDefaultReadLimit())
reader.partitions(start, end)
reader.latestOffset(end, reader.getDefaultReadLimit())
print("polling", flush=True)
while True:
    reader.latestOffset(end, reader.getDefaultReadLimit())
"""
    with threaded_cluster(tmp_path) as running:
        running.create_topic(TOPIC, queues=1)
        running.send(TOPIC, bodies(1, 2, 3))
        with subprocess.Popen(
            [sys.executable, "-c", program, running.name_server], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "polling\n"
            assert len(members(running)) == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == -signal.SIGTERM
        assert members(running) == []
        assert group_offset(running) == 3

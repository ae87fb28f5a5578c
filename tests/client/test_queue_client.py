"""QueueClient against real brokers: where queues are, and their bytes by range, whatever happens in between."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client.blocking_routes import BlockingRoutes
from rmq_core.client.options import client_options
from rmq_core.client.queue_client import NO_GROUP, QueueClient
from rmq_core.client.queue_read import Piece, cut
from rmq_core.client.subscriptions import subscription
from rmq_core.errors import (
    BrokerError,
    CallTimeoutError,
    ClientClosedError,
    ConnectError,
    NoRouteError,
    OffsetGoneError,
    RemoteProtocolError,
)
from rmq_core.protocol import requests as r
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import decode_pull_body
from support.brokers import broker_app
from support.threaded import Threaded, threaded_cluster, until

TOPIC = "Orders"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Threaded]:
    with threaded_cluster(tmp_path) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


def client_of(running: Threaded, **arguments: Any) -> QueueClient:
    own = {
        "pull_timeout_ms",
        "retry_budget_ms",
        "read_from_slave",
        "group",
        "fetch_retries",
        "fetch_retry_interval_ms",
    }
    return QueueClient(
        running.options(**{key: value for key, value in arguments.items() if key not in own}),
        **{key: value for key, value in arguments.items() if key in own},
    )


def offsets_in(pieces: list[Piece]) -> list[int]:
    return [record.queue_offset for piece in pieces for record in decode_pull_body(bytes(piece.buffer))]


def check(pieces: list[Piece], start: int, end: int) -> list[int]:
    """Pieces follow one another without gap or overlap, and hold what they say and nothing else."""
    at = start
    for piece in pieces:
        assert piece.start == at < piece.end
        assert all(piece.start <= offset < piece.end for offset in offsets_in([piece]))
        at = piece.end
    assert at == max(start, end)
    return offsets_in(pieces)


def bodies(count: int, size: int = 100) -> list[bytes]:
    return [b"%06d" % number + b"x" * size for number in range(count)]


# Where queues begin and end


def test_offsets_of_many_queues_come_in_one_go(tmp_path: Path) -> None:
    """600 queues on two brokers, more than may be asked at once; messages in some, progress in one."""
    with threaded_cluster(tmp_path, masters=2) as running:
        for number in (0, 1):
            running.create_topic("Wide", queues=300, number=number)
        running.send("Wide", bodies(7), queue_id=250)
        running.send("Wide", bodies(3), queue_id=299, number=1)
        with client_of(running, group="readers") as client:
            queues = client.queues("Wide")
            assert len(queues) == 600
            assert list(queues) == sorted(queues, key=lambda each: (each.broker_name, each.queue_id))
            ends = client.max_offsets(queues)
            assert {queue: end for queue, end in ends.items() if end} == {
                MessageQueue("Wide", "broker-a", 250): 7,
                MessageQueue("Wide", "broker-b", 299): 3,
            }
            assert set(client.min_offsets(queues).values()) == {0}
            assert set(client.group_offsets(queues).values()) == {None}
            check(list(client.read(queues[250], 0, 7)), 0, 7)  # pulling makes the group known
            assert client.commit({queues[250]: 5}) == frozenset()
            progress = client.group_offsets(queues)
            assert progress.pop(queues[250]) == 5
            assert set(progress.values()) == {None}
            assert client.group_offsets(queues[:3], group="others") == dict.fromkeys(queues[:3])


def test_offsets_by_time(running: Threaded) -> None:
    """Two runs of messages with a moment between; asks for a time before, between and behind them."""
    running.send(TOPIC, bodies(3))
    between_ms = time.time_ns() // 1_000_000 + 5
    until(lambda: time.time_ns() // 1_000_000 > between_ms, "the clock goes on")
    running.send(TOPIC, bodies(2))
    with client_of(running) as client:
        assert client.offsets_by_time([QUEUE], 0) == {QUEUE: 0}
        assert client.offsets_by_time([QUEUE], between_ms) == {QUEUE: 3}
        assert client.offsets_by_time([QUEUE], between_ms + 3_600_000) == {QUEUE: 5}


def test_wrong_arguments_raise_before_anything_is_sent() -> None:
    """There is no name server at that address: an error about it would mean that one was asked."""
    options = client_options({"name_server": "127.0.0.1:1"})
    for wrong in ({"pull_timeout_ms": 0}, {"fetch_retries": 0}, {"retry_budget_ms": -1}, {"group": "no good"}):
        with pytest.raises(ValueError):
            QueueClient(options, **wrong)
    client = QueueClient(options)
    with pytest.raises(ValueError, match="start=5, end=4"):
        client.read(QUEUE, 5, 4)
    with pytest.raises(ValueError, match="bytes_in_flight_max"):
        client.read(QUEUE, 0, 4, bytes_in_flight_max=0)
    with pytest.raises(ValueError, match="group"):
        client.commit({QUEUE: 1})
    with pytest.raises(ValueError, match="-1"):
        client.commit({QUEUE: -1}, group="g")


def test_look_ups_are_tried_as_often_as_agreed(running: Threaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two questions fail: three tries find the route, two give the failure through."""
    asked = 0
    ask = BlockingRoutes._ask_once

    def failing(self: BlockingRoutes, request: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked <= 2:
            raise ConnectError(f"failure {asked}")
        return ask(self, request)

    monkeypatch.setattr(BlockingRoutes, "_ask_once", failing)
    with (
        client_of(running, fetch_retries=2, fetch_retry_interval_ms=1) as client,
        pytest.raises(ConnectError) as last,
    ):
        client.queues(TOPIC)
    assert str(last.value) == "failure 2"
    asked = 0
    with client_of(running, fetch_retries=3, fetch_retry_interval_ms=1) as client:
        assert len(client.queues(TOPIC)) == 4
    assert asked == 3


def test_what_does_not_exist_is_told_apart(running: Threaded) -> None:
    """A topic that nobody knows, a queue beyond the topic's, name servers that are not there."""
    with client_of(running, fetch_retries=1) as client:
        with pytest.raises(NoRouteError, match="Nowhere"):
            client.queues("Nowhere")
        with pytest.raises(BrokerError) as refused:
            list(client.read(MessageQueue(TOPIC, "broker-a", 99), 0, 1))
        assert refused.value.code == 29
        with pytest.raises(NoRouteError, match="broker-z"):
            client.max_offsets([MessageQueue(TOPIC, "broker-z", 0)])
        assert TOPIC in client.topics()
        assert list(client.brokers()) == ["broker-a"]
    lost = QueueClient(client_options({"name_server": "127.0.0.1:1"}), fetch_retries=1)
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        lost.queues(TOPIC)


def test_a_broker_that_is_away_does_not_hide_the_others(tmp_path: Path) -> None:
    """One of two brokers is stopped: its queues are in failures, the others have their offsets."""
    with threaded_cluster(tmp_path, masters=2) as running:
        for number in (0, 1):
            running.create_topic(TOPIC, queues=2, number=number)
            running.send(TOPIC, bodies(3 + number), queue_id=1, number=number)
        with client_of(running, fetch_retries=1) as client:
            queues = client.queues(TOPIC)
            start_again = running.stop(1)
            failures: dict[MessageQueue, Any] = {}
            found = client.max_offsets(queues, failures=failures)
            assert {queue.broker_name: end for queue, end in found.items() if queue.queue_id == 1} == {
                "broker-a": 3
            }
            assert {queue.broker_name for queue in failures} == {"broker-b"}
            assert all(isinstance(error, ConnectError) for error in failures.values())
            with pytest.raises(ConnectError):
                client.max_offsets(queues)
            start_again()
            assert client.max_offsets(queues)[MessageQueue(TOPIC, "broker-b", 1)] == 4


def test_a_namespace_is_added_on_the_wire_alone(running: Threaded) -> None:
    """Topic and group of a namespace: the broker has long names, the client shows short ones."""
    running.create_topic("shop%Orders", queues=1)
    running.send("shop%Orders", bodies(5))
    with client_of(running, namespace="shop", group="readers") as client:
        queues = client.queues("Orders")
        assert queues == (MessageQueue("Orders", "broker-a", 0),)
        assert client.topics() == ["Orders"]
        assert check(list(client.read(queues[0], 0, 5)), 0, 5) == [0, 1, 2, 3, 4]
        client.commit({queues[0]: 4})
    assert running.broker.offsets.query("shop%readers", "shop%Orders", 0) == 4


# Reading ranges


def test_a_range_is_read_exactly_whatever_brokers_give(running: Threaded) -> None:
    """Sizes from nothing to 300 KB, and 60 ranges read with all kinds of limits; the answers never fit the plan."""
    draw = random.Random(5)
    sizes = [draw.choice([0, 10, 200, 3_000, 60_000]) for _ in range(700)] + [300_000] * 3
    draw.shuffle(sizes)
    running.send(TOPIC, [b"y" * size for size in sizes])
    with client_of(running) as client:
        assert client.max_offsets([QUEUE]) == {QUEUE: 703}
        for _ in range(60):
            start = draw.randrange(703)
            end = draw.randint(start, 703)
            pieces = client.read(
                QUEUE,
                start,
                end,
                count_max=draw.choice([1, 3, 32, 33, 500, 8192]),
                bytes_in_flight_max=draw.choice([1, 5_000, 1 << 20, 32 << 20]),
            )
            assert check(list(pieces), start, end) == list(range(start, end))


@pytest.mark.parametrize("cap", [1, 8])
def test_a_broker_that_caps_its_answers_loses_nothing(tmp_path: Path, cap: int) -> None:
    """It gives less than the 32 that are asked for, and in the middle of it begins to give more."""
    with threaded_cluster(tmp_path, max_transfer_count_on_message_in_memory=cap) as running:
        running.create_topic(TOPIC)
        running.send(TOPIC, bodies(4_000))
        with client_of(running) as client:
            pieces = []
            for piece in client.read(QUEUE, 3, 4_000, count_max=32):
                pieces.append(piece)
                if piece.end > 700:
                    running.broker.store.settings.max_transfer_count_on_message_in_memory = 32
            assert check(pieces, 3, 4_000) == list(range(3, 4_000))
            assert max(piece.end - piece.start for piece in pieces) == 32


def test_holes_of_a_filter_are_followed(running: Threaded) -> None:
    """Every tenth message has the tag, then none of two thousand, then all; with plans that overlap."""
    tags = (["paid", *["other"] * 9] * 100) + ["other"] * 2_000 + ["paid"] * 500
    running.send(TOPIC, bodies(len(tags)), tags=tags)
    expected = [number for number, tag in enumerate(tags) if tag == "paid"]
    with client_of(running) as client:
        for count_max, start, end in ((8192, 0, 3_500), (40, 5, 3_333), (7, 0, 3_500), (32, 990, 3_010)):
            pieces = list(
                client.read(QUEUE, start, end, subscription=subscription(TOPIC, tags="paid"), count_max=count_max)
            )
            assert check(pieces, start, end) == [each for each in expected if start <= each < end]


def test_sql_is_judged_by_the_broker(tmp_path: Path) -> None:
    """A broker that takes expressions gives what matches; one that doesn't says so at once."""
    for is_enabled in (True, False):
        with threaded_cluster(tmp_path / str(is_enabled), enable_property_filter=is_enabled) as running:
            running.create_topic(TOPIC)
            running.send(TOPIC, bodies(4), tags=["a", "b", "a", "c"])
            with client_of(running) as client:
                pieces = client.read(QUEUE, 0, 4, subscription=subscription(TOPIC, sql="TAGS = 'a'"))
                if is_enabled:
                    assert check(list(pieces), 0, 4) == [0, 2]
                else:
                    with pytest.raises(BrokerError, match="SQL92"):
                        list(pieces)


def test_one_message_larger_than_all_limits_still_comes(running: Threaded) -> None:
    """3 MB with a limit of one byte in flight."""
    running.send(TOPIC, [b"z" * 3_000_000, b"small"])
    with client_of(running) as client:
        pieces = list(client.read(QUEUE, 0, 2, bytes_in_flight_max=1))
        assert check(pieces, 0, 2) == [0, 1]
        assert len(pieces[0].buffer) > 3_000_000


def test_what_retention_deleted_is_reported_with_where_it_goes_on(tmp_path: Path) -> None:
    """The oldest files go, before a read and in the middle of one."""
    with threaded_cluster(tmp_path, mapped_file_size_commit_log=1 << 20, file_reserved_time=0) as running:
        running.create_topic(TOPIC)
        running.send(TOPIC, bodies(4_000, 1_000))
        with client_of(running) as client:
            reading = client.read(QUEUE, 0, 4_000, count_max=10)
            first = next(reading)
            assert first.start == 0
            delete(running)
            least = client.min_offsets([QUEUE])[QUEUE]
            assert 0 < least < 4_000
            seen = first.end
            rest: list[Piece] = []
            with pytest.raises(OffsetGoneError, match=f"continue from {least}") as gone:
                rest.extend(reading)
            if rest:
                seen = rest[-1].end
                check(rest, first.end, seen)
            assert (gone.value.queue, gone.value.asked, gone.value.available_from) == (QUEUE, seen, least)
            assert check(list(client.read(QUEUE, least, 4_000)), least, 4_000) == list(range(least, 4_000))


def delete(running: Threaded) -> None:
    """Remove every file of the log but the last."""
    store = running.broker.store

    async def run() -> None:
        store.keep_all()
        for start in store.log.segments.starts:
            os.utime(store.log.segments.path(start), (1, 1))
        store.retention.request()
        assert store.retention.run().log_files > 0

    running.do(run())


def test_a_queue_that_ends_before_the_range_is_reported(running: Threaded) -> None:
    """Asks past the end, and of a queue that was never written."""
    running.send(TOPIC, bodies(10))
    with client_of(running) as client:
        with pytest.raises(OffsetGoneError, match="ends at 10") as gone:
            list(client.read(QUEUE, 5, 20))
        assert (gone.value.asked, gone.value.max_offset) == (10, 10)
        with pytest.raises(OffsetGoneError, match="ends at 10"):
            list(client.read(QUEUE, 15, 20))
        with pytest.raises(OffsetGoneError, match="ends at 0"):
            list(client.read(MessageQueue(TOPIC, "broker-a", 3), 0, 1))
        assert list(client.read(QUEUE, 7, 7)) == []


def test_a_reset_of_the_group_does_not_change_what_a_range_holds(running: Threaded) -> None:
    """An administrator moves the group while its range is read: the broker says so instead of an answer."""
    running.send(TOPIC, bodies(1_000))
    with client_of(running, group="readers") as client:
        reading = client.read(QUEUE, 0, 1_000, count_max=10)
        pieces = [next(reading)]
        client.commit({QUEUE: 0})
        running.do(
            running.client().call(
                r.InvokeBrokerToResetOffset(TOPIC, "readers", -1, is_force=True, queue_id=0, offset=500)
            )
        )
        assert client.commit({QUEUE: 10}) == {QUEUE}
        pieces += reading
        assert check(pieces, 0, 1_000) == list(range(1_000))
        assert client.group_offsets([QUEUE]) == {QUEUE: 500}
        assert client.commit({QUEUE: 10}) == frozenset()


def test_reading_without_a_group_makes_none(running: Threaded) -> None:
    """The broker must not keep a group that nobody named."""
    running.send(TOPIC, bodies(3))
    before = set(running.broker.groups.table)
    with client_of(running) as client:
        check(list(client.read(QUEUE, 0, 3)), 0, 3)
    assert set(running.broker.groups.table) == before
    assert NO_GROUP in before


def test_cut_refuses_records_that_are_not_whole() -> None:
    """Lengths of nothing, of too much, and beyond the end."""
    for broken in (bytes(200), b"\x7f\xff\xff\xff" + bytes(200), b"\0\0\0\x70" + bytes(50)):
        with pytest.raises(RemoteProtocolError):
            cut(memoryview(broken), 0, 10)


# Faults


def test_broken_connections_cost_no_message(running: Threaded) -> None:
    """The connection is cut 20 times while a range is read."""
    running.send(TOPIC, bodies(3_000, 1_000))
    with running.proxy() as proxy:
        mapping = {running.broker.address: proxy.address}
        with client_of(running, broker_address_map=mapping, retry_budget_ms=20_000) as client:
            pieces, cuts = [], 0
            for piece in client.read(QUEUE, 0, 3_000, count_max=32, bytes_in_flight_max=1 << 20):
                pieces.append(piece)
                if cuts < 20 and piece.end > 100 * cuts:
                    cuts += 1
                    proxy.cut()
            assert check(pieces, 0, 3_000) == list(range(3_000))
            assert cuts == 20
            assert proxy.connections_made > 5


def test_a_broker_that_hangs_is_left_and_asked_anew(running: Threaded) -> None:
    """The network swallows everything on the first connection; a new one works."""
    running.send(TOPIC, bodies(500))
    with running.proxy() as hanging, running.proxy() as working:
        mapping = {running.broker.address: hanging.address}
        with client_of(running, broker_address_map=mapping, pull_timeout_ms=300, retry_budget_ms=20_000) as client:
            reading = client.read(QUEUE, 0, 500, count_max=10)
            pieces = [next(reading)]
            hanging.stall()
            made = hanging.connections_made

            def resume_later() -> None:
                until(lambda: hanging.connections_made > made, "it reconnects")
                hanging.resume()

            mover = threading.Thread(target=resume_later)
            mover.start()
            pieces += reading
            mover.join()
            assert check(pieces, 0, 500) == list(range(500))
            assert working.connections_made == 0


def test_a_budget_that_is_used_up_ends_with_the_reason(running: Threaded) -> None:
    """The broker never comes back: refused connections, and one that hangs."""
    running.send(TOPIC, bodies(100))
    with running.proxy() as proxy:
        mapping = {running.broker.address: proxy.address}
        with client_of(running, broker_address_map=mapping, retry_budget_ms=400, pull_timeout_ms=200) as client:
            client.queues(TOPIC)
            proxy.stall()
            with pytest.raises((CallTimeoutError, ConnectError)):
                list(client.read(QUEUE, 0, 100))
            proxy.resume()
            assert check(list(client.read(QUEUE, 0, 100)), 0, 100) == list(range(100))
            running.stop()
            with pytest.raises((ConnectError, NoRouteError)):
                list(client.read(QUEUE, 0, 100))


def test_a_topic_that_is_gone_is_told_at_once(running: Threaded) -> None:
    """Unknown to name servers while its broker lives, with a long budget; a dead broker's is waited for."""
    with client_of(running, retry_budget_ms=600_000) as client:
        with pytest.raises(NoRouteError, match="Never"):
            list(client.read(MessageQueue("Never", "broker-a", 0), 0, 1))
        with pytest.raises(NoRouteError, match="broker-z"):
            client.max_offsets([MessageQueue(TOPIC, "broker-z", 0)])
        assert client.is_gone(MessageQueue("Never", "broker-a", 0))
        assert client.is_gone(MessageQueue(TOPIC, "broker-a", 99))
        assert not client.is_gone(QUEUE)
        running.stop()
        assert not client.is_gone(QUEUE)
    began = time.monotonic()
    with client_of(running, retry_budget_ms=300) as client, pytest.raises(NoRouteError, match=TOPIC):
        list(client.read(QUEUE, 0, 1))
    assert time.monotonic() - began >= 0.3


def test_a_broker_that_restarts_is_read_on(running: Threaded) -> None:
    """Stopped and started again on the same files in the middle of a range."""
    running.send(TOPIC, bodies(2_000))
    with client_of(running, retry_budget_ms=30_000) as client:
        reading = client.read(QUEUE, 0, 2_000, count_max=10)
        pieces = [next(reading) for _ in range(5)]
        running.restart()
        pieces += reading
        assert check(pieces, 0, 2_000) == list(range(2_000))


def test_a_busy_broker_is_asked_again(running: Threaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pulls are refused as too many, then it serves."""
    from rmq_core.broker.handlers.pull import Pulls

    running.send(TOPIC, bodies(200))
    check_pull, refused = Pulls._check, 0

    def busy(self: Pulls, pull: Any) -> None:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise BrokerError(2, "too many")
        check_pull(self, pull)

    monkeypatch.setattr(Pulls, "_check", busy)
    with client_of(running) as client:
        assert check(list(client.read(QUEUE, 0, 200)), 0, 200) == list(range(200))
    assert refused == 3


def test_a_slave_is_read_while_its_master_is_away(tmp_path: Path) -> None:
    """The slave has a copy of the first 600 messages; the rest has to wait until the master is back."""
    with threaded_cluster(tmp_path) as running:
        running.create_topic(TOPIC)
        running.send(TOPIC, bodies(600))
        port_of = running.stop()
        shutil.copytree(tmp_path / "broker-a", tmp_path / "copy" / "broker-a")
        port_of()
        running.send(TOPIC, bodies(400))
        slave = broker_app(tmp_path / "copy", running.name_server, broker_id=1, broker_role="SLAVE")
        running.do(slave.start())
        try:
            with client_of(running, retry_budget_ms=60_000) as client:
                until(
                    lambda: (
                        len(client.routes.replicas(TOPIC, "broker-a")) == 2
                        or client.queues(TOPIC, refresh=True) is None
                    ),
                    "two processes",
                )
                start_again = running.stop()
                reading = client.read(QUEUE, 0, 1_000, count_max=50)
                pieces = []
                for piece in reading:
                    pieces.append(piece)
                    if piece.end == 600:
                        break
                assert check(pieces, 0, 600) == list(range(600))
                starter = threading.Thread(target=start_again)
                starter.start()
                pieces += reading
                starter.join()
                assert check(pieces, 0, 1_000) == list(range(1_000))
        finally:
            running.do(slave.close(drain_ms=200))


# Ends


def test_a_read_that_is_given_up_leaves_nothing_waiting(running: Threaded) -> None:
    """Ends iteration after the first piece; the connection serves the next range."""
    running.send(TOPIC, bodies(2_000))
    with client_of(running) as client:
        reading = client.read(QUEUE, 0, 2_000, count_max=10)
        next(reading)
        reading.close()  # type: ignore[attr-defined]
        (channel,) = [
            each for each in client._connections._channels.values() if each.address == running.broker.address
        ]
        assert channel._session is not None
        assert not channel._session.pending
        assert check(list(client.read(QUEUE, 0, 2_000)), 0, 2_000) == list(range(2_000))


def test_a_closed_client_says_so(running: Threaded) -> None:
    """Closed in the middle of a range, and asked afterwards; threads and sockets are gone."""
    running.send(TOPIC, bodies(2_000))
    client = client_of(running, retry_budget_ms=60_000)
    reading = client.read(QUEUE, 0, 2_000, count_max=1)
    next(reading)
    client.close()
    client.close()
    with pytest.raises(ClientClosedError):
        list(reading)
    with pytest.raises(ClientClosedError):
        client.queues(TOPIC, refresh=True)
    assert not [each for each in threading.enumerate() if each.name.startswith(("member", "heartbeats"))]


def test_many_threads_share_one_client(running: Threaded) -> None:
    """Eight threads read ranges of four queues over the same connection."""
    for queue_id in range(4):
        running.send(TOPIC, bodies(500 + queue_id), queue_id=queue_id)
    with client_of(running) as client:
        queues = client.queues(TOPIC)
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for queue in queues:
                    end = 500 + queue.queue_id
                    assert check(list(client.read(queue, number, end, count_max=40)), number, end)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert len([each for each in client._connections._channels if each == running.broker.address]) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_connections_of_its_own() -> None:
    """The child reads and closes; the parent's connection still works."""
    import subprocess
    import sys

    program = """
import os, sys, rmq_core
from rmq_core.client.options import client_options
from rmq_core.client.queue_client import QueueClient
with rmq_core.embedded() as mq:
    mq.create_topic("Orders")
    client = QueueClient(client_options({"name_server": mq.name_server}))
    queues = client.queues("Orders")
    assert set(client.max_offsets(queues).values()) == {0}
    before = {key: id(channel._session) for key, channel in client._connections._channels.items()}
    child = os.fork()
    if not child:
        assert set(client.max_offsets(queues).values()) == {0}
        client.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert set(client.max_offsets(queues).values()) == {0}
    assert before == {key: id(channel._session) for key, channel in client._connections._channels.items()}
print("well")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "well", done.stderr


def test_pieces_are_values(running: Threaded) -> None:
    """Nobody who gets a piece can change it for others."""
    running.send(TOPIC, bodies(1))
    with client_of(running) as client:
        (piece,) = client.read(QUEUE, 0, 1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            piece.start = 7  # type: ignore[misc]

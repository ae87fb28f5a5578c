"""Delayed messages: when they come, what they are then, and what a stop, a kill and a power cut do to them."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.longpoll import LongPolls
from rmq_core.broker.schedule import BATCH_COUNT, Schedule
from rmq_core.broker.stats import Stats
from rmq_core.clock import ManualClock
from rmq_core.config import BrokerSettings, ClientSettings, ServerSettings, StoreSettings
from rmq_core.errors import BrokerError, RocketMQError
from rmq_core.net.connection import Pass
from rmq_core.protocol.bodies import DelayOffsetSerializeWrapper
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import HALF_TOPIC, SCHEDULE_TOPIC, encode_properties
from rmq_core.protocol.record import decode_pull_body
from rmq_core.protocol.requests import GetAllDelayOffset
from rmq_core.store.disk import Disk
from rmq_core.store.dispatcher import Appended
from rmq_core.store.message_store import MessageStore
from support.brokers import Cluster, broker_cluster, run
from support.forgetful import ForgetfulDisk
from support.stores import HOST, records_of, small_settings, unpack_golden

LEVELS = "1s 5s 2m 3h 4d"
DELAYS_MS = {1: 1000, 2: 5000, 3: 120_000, 4: 10_800_000, 5: 345_600_000}
SENT_MS = 1_700_000_000_000


def delay(level: int, **more: str) -> dict[str, str]:
    return {"DELAY": str(level), "UNIQ_KEY": f"key-{level}", **more}


def bodies(cluster: Cluster, topic: str = "Orders", queue_id: int = 0) -> list[bytes]:
    """What readers find in a queue."""
    return [record.body for record in records_of(cluster.broker.store, topic, queue_id)]


class SteppedClock(ManualClock):
    """A clock whose wall time can be set, as an administrator does; timers do not notice."""

    def __init__(self, now_ms: int = SENT_MS) -> None:
        super().__init__(now_ms)
        self.set_by_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_by_ms

    async def reach(self, time_ms: int) -> None:
        """Set the clock to shortly before a time, then wait for it."""
        self.set_by_ms += max(time_ms - self.now_ms() - 1500, 0)
        await self.advance(time_ms - self.now_ms())


def test_each_level_comes_when_its_time_is_over_and_never_before(tmp_path: Path) -> None:
    """Looks a millisecond before each delay is over and when it is, in all units."""

    async def main() -> None:
        clock = SteppedClock()
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            for level in DELAYS_MS:
                await client.send("Orders", b"level %d" % level, properties=delay(level))
            expected: list[bytes] = []
            for level, delay_ms in DELAYS_MS.items():
                await clock.reach(SENT_MS + delay_ms - 1)
                assert bodies(cluster) == expected
                await clock.advance(1)
                expected.append(b"level %d" % level)
                assert bodies(cluster) == expected

    run(main())


def test_two_messages_a_millisecond_apart_come_a_millisecond_apart(tmp_path: Path) -> None:
    """The second is looked at when the first is due."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            await client.send("Orders", b"first", properties=delay(1))
            await clock.advance(1)
            await client.send("Orders", b"second", properties=delay(1))
            await clock.advance(999)
            assert bodies(cluster) == [b"first"]
            await clock.advance(1)
            assert bodies(cluster) == [b"first", b"second"]

    run(main())


def test_levels_outside_of_the_table_are_brought_into_it(tmp_path: Path) -> None:
    """Sends with level 99 of 5, with 0, and with levels that are no numbers."""

    async def main() -> None:
        clock = SteppedClock()
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            await client.send("Orders", b"last", properties=delay(99))
            for text in ("0", "-1", "x"):
                await client.send("Orders", b"now", properties={"DELAY": text})
            assert bodies(cluster) == [b"now"] * 3
            await clock.reach(SENT_MS + DELAYS_MS[5] - 1)
            assert bodies(cluster) == [b"now"] * 3
            await clock.advance(1)
            assert bodies(cluster) == [b"now"] * 3 + [b"last"]

    run(main())


def test_a_delivered_message_is_the_one_that_was_sent(tmp_path: Path) -> None:
    """Compares every field of the waiting and of the delivered record, and wakes a long poll with it."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            wanted = delay(2, TAGS="red", KEYS="a b", mine="né")
            await client.send(
                "Orders", b"\0" * 5000, queue_id=3, properties=wanted, flag=7, sys_flag=0x301, reconsume_times=2
            )
            (waiting,) = records_of(cluster.broker.store, SCHEDULE_TOPIC, 1)
            assert waiting.properties["REAL_TOPIC"] == "Orders"
            assert waiting.properties["REAL_QID"] == "3"
            await clock.advance(5000)
            (record,) = records_of(cluster.broker.store, "Orders", 3)
            assert record.property_bytes == waiting.property_bytes
            assert wanted.items() <= record.properties.items()
            for field in ("body", "flag", "sys_flag", "reconsume_times", "born_time_ms", "born_host", "body_crc"):
                assert getattr(record, field) == getattr(waiting, field), field
            assert record.store_time_ms == SENT_MS + 5000
            assert [entry.tags_code for entry in entries(cluster, "Orders", 3)] == [112785]  # "red".hashCode()

    run(main())


def entries(cluster: Cluster, topic: str, queue_id: int) -> list[Any]:
    queue = cluster.broker.store.queues.table[topic, queue_id]
    return [queue.entry(offset) for offset in range(queue.min_offset, queue.max_offset)]


def test_a_long_poll_is_woken_by_a_delivery(tmp_path: Path) -> None:
    """Holds a pull at the end of a queue until the delay is over."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            await client.send("Orders", b"first")
            await client.send("Orders", b"later", properties=delay(1))
            held = asyncio.ensure_future(client.pull("Orders", 0, 1, sys_flag=6, suspend_timeout_millis=20_000))
            await clock.advance(999)
            assert not held.done()
            await clock.advance(1)
            (record,) = decode_pull_body((await held).body)
            assert record.body == b"later"

    run(main())


def test_a_backlog_comes_in_order_and_lets_others_in(tmp_path: Path) -> None:
    """Four hundred messages are due at once; what the log is given in one write stays small."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            for number in range(400):
                await client.send("Orders", b"%d" % number, properties=delay(1))
            passes: list[int] = []
            arrived = cluster.broker.long_polls.arrived

            def count(appended: list[Appended]) -> None:
                passes.append(len(appended))
                arrived(appended)

            cluster.broker.long_polls.arrived = count  # type: ignore[method-assign]
            await clock.advance(1000)
            await clock.settle()
            assert bodies(cluster) == [b"%d" % number for number in range(400)]
            assert sum(passes) == 400
            assert max(passes) <= BATCH_COUNT

    run(main())


def test_what_was_delivered_is_not_delivered_again_after_a_stop(tmp_path: Path) -> None:
    """Stops between a delivery and the next; the clock goes on while nobody runs."""

    async def main() -> None:
        clock = SteppedClock()
        settings: dict[str, Any] = {"clock": clock, "message_delay_level": LEVELS}
        async with broker_cluster(tmp_path, **settings) as cluster:
            client = cluster.client()
            for level in (1, 2, 3, 3):
                await client.send("Orders", b"level %d" % level, properties=delay(level))
            await clock.advance(5000)
            assert bodies(cluster) == [b"level 1", b"level 2"]
        assert offsets_in(tmp_path / "broker-a") == {1: 1, 2: 1}
        clock.set_by_ms += DELAYS_MS[3]
        async with broker_cluster(tmp_path, **settings) as cluster:
            await clock.settle()
            assert bodies(cluster) == [b"level 1", b"level 2", b"level 3", b"level 3"]
            await cluster.client().send("Orders", b"again 1", properties=delay(1))
            await clock.advance(1000)
            assert bodies(cluster)[4:] == [b"again 1"]
            answer = await cluster.client().call(GetAllDelayOffset())
            table = DelayOffsetSerializeWrapper.decode(answer.body)
            assert table.offset_table == {1: 2, 2: 1, 3: 2}

    run(main())


def offsets_in(root: Path) -> dict[int, int]:
    return DelayOffsetSerializeWrapper.decode((root / "config" / "delayOffset.json").read_bytes()).offset_table


def test_after_a_kill_only_what_was_delivered_since_the_last_save_comes_again(tmp_path: Path) -> None:
    """Starts from the files as a kill leaves them, the offsets' file being a little older than the log."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        image = tmp_path / "image" / "broker-a"
        async with broker_cluster(tmp_path / "run", clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            for name in (b"a", b"b"):
                await client.send("Orders", name, properties=delay(1))
            await clock.advance(1000)
            await cluster.broker.schedule.save()
            saved = (tmp_path / "run" / "broker-a" / "config" / "delayOffset.json").read_bytes()
            await client.send("Orders", b"c", properties=delay(1))
            await clock.advance(1000)
            await client.send("Orders", b"d", properties=delay(1))
            assert bodies(cluster) == [b"a", b"b", b"c"]
            shutil.copytree(tmp_path / "run" / "broker-a", image)
            (image / "config" / "delayOffset.json").write_bytes(saved)
        async with broker_cluster(tmp_path / "image", clock=clock, message_delay_level=LEVELS) as cluster:
            await clock.advance(1000)
            assert bodies(cluster) == [b"a", b"b", b"c", b"c", b"d"]

    run(main())


class Parts:
    """A broker's schedule and store without threads and sockets, so that its power can be cut at any moment."""

    def __init__(
        self,
        root: Path,
        *,
        clock: ManualClock,
        disk: Disk | None = None,
        settings: StoreSettings | None = None,
        **changes: Any,
    ) -> None:
        settings = settings or small_settings(root, message_delay_level=LEVELS, **changes)
        self.store = MessageStore(settings, clock=clock, disk=disk, on_arrival=self._arrived)
        self.broker = Broker(
            BrokerSettings(),
            settings,
            ServerSettings(),
            ClientSettings(),
            clock=clock,
            store=self.store,
            pass_end_soon=Pass(self.store.end_pass).soon,
        )
        self.broker.store_host = HOST
        self.broker.stats = Stats(clock, cluster="C")
        self.broker.long_polls = LongPolls(clock, count_max=1)
        self.broker.schedule = self.schedule = Schedule(self.broker, root / "config" / "delayOffset.json")
        self.schedule.load()
        self.store.open()
        self.schedule.start()

    def _arrived(self, appended: list[Appended]) -> None:
        self.broker.arrived(appended)

    async def delay(self, body: bytes, *, topic: str = "Orders", queue_id: str = "0", size: int = 0) -> None:
        """Put a message that waits one second."""
        properties = encode_properties({"DELAY": "1", "REAL_TOPIC": topic, "REAL_QID": queue_id})
        self.broker.put(SCHEDULE_TOPIC, 0, body.ljust(size, b"."), properties, born_time_ms=1, born_host=HOST)
        await self.broker.written()

    def delivered(self, topic: str = "Orders") -> list[bytes]:
        return [record.body.rstrip(b".") for record in records_of(self.store, topic, 0)]

    async def stop(self, *, is_clean: bool = True) -> None:
        await self.schedule.stop()
        await self.broker.stop_work()
        self.broker.close_pool()
        if is_clean:
            self.store.close()
        else:
            assert self.store._lock is not None
            self.store._lock.close()


@pytest.mark.parametrize("is_saved_by_hand", [False, True])
def test_a_power_cut_loses_no_message_that_was_durable(tmp_path: Path, is_saved_by_hand: bool) -> None:
    """Delivers with ASYNC_FLUSH, saves the offsets, and cuts the power before anybody else syncs the log.

    Offsets that are stored without a flush of the log, by hand, lose messages: so this test would notice.
    """

    async def main(root: Path, seed: int) -> int:
        clock = ManualClock(SENT_MS)
        disk = ForgetfulDisk(root)
        parts = Parts(root, clock=clock, disk=disk)
        for number in range(10):
            await parts.delay(b"%d" % number)
        parts.store.flusher.flush()
        await clock.advance(1000)
        assert len(parts.delivered()) == 10
        if is_saved_by_hand:
            (root / "config").mkdir(exist_ok=True)
            (root / "config" / "delayOffset.json").write_bytes(parts.schedule.encode())
        else:
            await parts.schedule.save()
        assert offsets_in(root) == {1: 10}
        await parts.stop(is_clean=False)
        disk.power_cut(random.Random(seed))
        after = Parts(root, clock=clock)
        await clock.advance(2000)
        found = after.delivered()
        await after.stop()
        return len({b"%d" % number for number in range(10)} - set(found))

    lost: list[int] = []
    for seed in range(6):
        root = tmp_path / str(seed)
        root.mkdir()
        run_with_result(main(root, seed), lost)
    assert (sum(lost) > 0) is is_saved_by_hand


def run_with_result(main: Coroutine[Any, Any, int], results: list[int]) -> None:
    async def keep() -> None:
        results.append(await main)

    run(keep())


def test_an_offset_outside_of_its_queue_is_brought_into_it(tmp_path: Path) -> None:
    """The file names a queue that is gone, and an offset behind the end of another."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        config = tmp_path / "config"
        config.mkdir()
        first = Parts(tmp_path, clock=clock)
        await first.delay(b"a")
        await first.stop()
        (config / "delayOffset.json").write_bytes(b'{"offsetTable":{1:7,2:9}}')
        parts = Parts(tmp_path, clock=clock)
        assert parts.schedule.offsets == {1: 1, 2: 0}
        await parts.delay(b"b")
        await clock.advance(1000)
        assert parts.delivered() == [b"b"]
        await parts.stop()

    run(main())


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    """Both the file and its backup are torn; with a whole backup the start goes well."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "delayOffset.json").write_bytes(b'{"offsetTable":{1:')
    (config / "delayOffset.json.bak").write_bytes(b"\0\0")

    async def main() -> None:
        with pytest.raises(RocketMQError, match="delayOffset"):
            Parts(tmp_path, clock=ManualClock(SENT_MS))
        (config / "delayOffset.json.bak").write_bytes(b'{"offsetTable":{"1":0}}')
        parts = Parts(tmp_path, clock=ManualClock(SENT_MS))
        await parts.stop()

    run(main())


def test_a_put_that_is_refused_is_tried_again(tmp_path: Path) -> None:
    """Fills the disk while messages are due, then makes room."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        disk = ForgetfulDisk(tmp_path)
        parts = Parts(tmp_path, clock=clock, disk=disk)
        await parts.delay(b"a")
        await parts.delay(b"b")
        disk.used = 0.99
        parts.store.retention.run()
        await clock.advance(1500)
        assert parts.delivered() == []
        assert parts.schedule.offsets.get(1, 0) == 0
        disk.used = 0.1
        parts.store.retention.run()
        await clock.advance(100)
        assert parts.delivered() == [b"a", b"b"]
        await parts.stop()

    run(main())


def test_a_message_that_can_never_be_put_does_not_hold_up_its_level(tmp_path: Path) -> None:
    """One is larger than is allowed by now, the others belong nowhere, to no queue, or to a transaction."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        parts = Parts(tmp_path, clock=clock)
        await parts.delay(b"large", size=2000)
        await parts.delay(b"nowhere", topic="")
        await parts.delay(b"no queue", queue_id="x")
        await parts.delay(b"half", topic=HALF_TOPIC)
        await parts.delay(b"a slash", topic="a/b")
        await parts.delay(b"small")
        parts.store.settings.max_message_size = 1000
        await clock.advance(1000)
        assert parts.delivered() == [b"small"]
        assert parts.schedule.offsets == {1: 6}
        assert HALF_TOPIC not in {topic for topic, _ in parts.store.queues.table}
        await parts.stop()

    run(main())


def test_messages_that_are_not_in_memory_any_more_are_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes nothing to be in memory; more than one batch is due, and one arrives while they are read."""
    monkeypatch.setattr("rmq_core.broker.schedule.HOT_SIZE", -1)

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        parts = Parts(tmp_path, clock=clock)
        expected = [b"%d" % number for number in range(BATCH_COUNT + 2)]
        for body in expected[:-1]:
            await parts.delay(body)
        await clock.advance(1000)
        await parts.delay(expected[-1])
        while len(parts.delivered()) < len(expected) - 1:
            await asyncio.sleep(0.001)
        await clock.advance(999)
        assert parts.delivered() == expected[:-1]
        await clock.advance(1)
        while len(parts.delivered()) < len(expected):
            await asyncio.sleep(0.001)
        assert parts.delivered() == expected
        await parts.stop()

    run(main())


def test_messages_of_a_level_that_is_configured_no_more_still_come(tmp_path: Path) -> None:
    """Restarts with two levels while a message waits in the third."""

    async def main() -> None:
        clock = SteppedClock()
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            await cluster.client().send("Orders", b"level 3", properties=delay(3))
        async with broker_cluster(tmp_path, clock=clock, message_delay_level="1s 5s") as cluster:
            await clock.reach(SENT_MS + DELAYS_MS[3] - 1)
            assert bodies(cluster) == []
            await clock.advance(1)
            assert bodies(cluster) == [b"level 3"]

    run(main())


def test_a_clock_that_was_set_back_delivers_nothing_early_and_holds_nothing_up_for_long(tmp_path: Path) -> None:
    """Sets the clock back by an hour before and after messages are sent: store times never go back with it."""

    async def main() -> None:
        clock = SteppedClock()
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            await client.send("Orders", b"before", properties=delay(2))
            clock.set_by_ms -= 3_600_000
            await client.send("Orders", b"after", properties=delay(2))
            await clock.advance(4999)
            assert bodies(cluster) == []
            await client.send("Orders", b"later", properties=delay(2))
            await clock.advance(1001)  # a sleeper looks at the clock each second
            assert bodies(cluster) == [b"before", b"after"]
            await clock.advance(3998)
            assert bodies(cluster) == [b"before", b"after"]
            await clock.advance(6002)
            assert bodies(cluster) == [b"before", b"after", b"later"]

    run(main())


def test_a_message_is_never_stored_as_if_it_had_been_early(tmp_path: Path) -> None:
    """It becomes due while a pass is under way whose messages all get the time when it began."""

    async def main() -> None:
        clock = SteppedClock()
        parts = Parts(tmp_path, clock=clock)
        await parts.delay(b"a")
        await clock.advance(999)
        parts.broker.put("Other", 0, b"first of the pass", b"", born_time_ms=1, born_host=HOST)
        clock.set_by_ms += 1
        assert await parts.schedule._deliver(1) == 1
        await parts.broker.written()
        assert await parts.schedule._deliver(1) == 0
        (record,) = records_of(parts.store, "Orders", 0)
        assert record.store_time_ms == SENT_MS + 1000
        await parts.stop()

    run(main())


def test_a_time_of_delivery_is_refused_and_never_ignored(tmp_path: Path) -> None:
    """Sends with each of the timer's properties; with a delay level beside it the level counts."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock, message_delay_level=LEVELS) as cluster:
            client = cluster.client()
            for name in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"):
                with pytest.raises(BrokerError) as refused:
                    await client.send("Orders", b"timed", properties={name: "5000"})
                assert refused.value.code == ResponseCode.SYSTEM_ERROR
                await client.send("Orders", b"level", properties=delay(1, **{name: "5000"}))
            assert bodies(cluster) == []
            await clock.advance(1000)
            assert bodies(cluster) == [b"level"] * 3

    run(main())


def test_entries_with_ext_units_are_delivered_in_time(tmp_path: Path) -> None:
    """With enableConsumeQueueExt an entry holds an address instead of the time."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        parts = Parts(tmp_path, clock=clock, enable_consume_queue_ext=True)
        await parts.delay(b"a")
        await clock.advance(999)
        assert parts.delivered() == []
        await clock.advance(1)
        assert parts.delivered() == [b"a"]
        await parts.stop()

    run(main())


@pytest.mark.parametrize("name", ["apache-5.3.3-normal", "apache-4.9.7-normal", "apache-5.3.3-killed"])
def test_what_waits_in_a_store_of_apaches_is_delivered_from_where_apache_was(tmp_path: Path, name: str) -> None:
    """Opens the directory when all levels are due but for two, which wait for years."""
    golden = unpack_golden(name, tmp_path)

    async def main() -> None:
        now_ms = max(path.stat().st_mtime_ns for path in golden.root.rglob("*") if path.is_file()) // 1_000_000
        clock = ManualClock(now_ms + 120_000)
        parts = Parts(golden.root, clock=clock, settings=golden.settings())
        store = parts.store
        saved = offsets_in(golden.root)
        ends = {level: store.max_offset(SCHEDULE_TOPIC, level - 1) for level in store.delay_levels_ms}
        waiting = sum(ends[level] - saved.get(level, 0) for level in ends if level < 17)
        before = store.log.end
        await clock.advance(1000)
        for _ in range(waiting):
            await clock.settle()
        after = {level: parts.schedule.offsets.get(level, 0) for level in ends}
        assert {level: after[level] for level in ends if level < 17} == {
            level: end for level, end in ends.items() if level < 17
        }
        assert (after[17], after[18]) == (0, 0)
        assert (store.log.end > before) is (waiting > 0)
        await parts.stop()

    run(main())

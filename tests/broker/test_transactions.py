"""Transactions: commit, rollback, questions to producers, and what is known of them after a restart."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.halves import read_decisions
from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError
from rmq_core.net.calls import Call
from rmq_core.net.channel import Channel
from rmq_core.net.dispatch import Dispatcher
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TRANSACTION_GROUP,
)
from rmq_core.protocol.message_id import decode_offset_message_id, encode_offset_message_id
from rmq_core.protocol.record import StoredRecord, decode_record
from rmq_core.protocol.requests import (
    CheckTransactionState,
    EndTransaction,
    GetMaxOffset,
    ResumeCheckHalfMessage,
    Sent,
)
from rmq_core.store.message_store import MessageStore
from support.brokers import Client, Cluster, broker_cluster, run
from support.stores import GOLDEN_NAMES, records_of, unpack_golden

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
FAST: dict[str, Any] = {
    "transaction_check_interval": 2000,
    "transaction_time_out": 1000,
    "transaction_check_max": 3,
}
SENT_MS = 1_700_000_000_000
"""The time at which Client.send() says that messages are born."""


class Producer:
    """A client with a producer group that notes what it is asked."""

    def __init__(self, cluster: Cluster, name: str, group: str = "PG") -> None:
        self.asked: list[tuple[CheckTransactionState, StoredRecord]] = []
        dispatcher = Dispatcher(self, {CheckTransactionState.code: _note})
        self.client = Client(Channel(cluster.broker.address, dispatcher=dispatcher))
        cluster._channels.append(self.client.channel)
        self.name = name
        self.group = group
        self.answers_with: int | None = None
        """How each question is answered at once, if it is."""

    async def join(self) -> Producer:
        await self.client.heartbeat(self.name, producers=(self.group,))
        return self

    async def half(self, body: bytes = b"half", *, key: str = "id-1", born_ms: int = SENT_MS, **more: str) -> Sent:
        properties = {"TRAN_MSG": "true", "PGROUP": self.group, "UNIQ_KEY": key, "TAGS": "t", "mine": "1", **more}
        answer = await self.client.send(
            "Orders",
            body,
            queue_id=2,
            properties=properties,
            sys_flag=4,
            flag=9,
            producer_group=self.group,
            born_timestamp=born_ms,
        )
        header: Sent = answer.header
        return header

    async def end(self, sent: Sent, decision: int, **changes: Any) -> int:
        fields = {
            "producer_group": self.group,
            "tran_state_table_offset": sent.queue_offset,
            "commit_log_offset": decode_offset_message_id(sent.msg_id).log_offset,
            "commit_or_rollback": decision,
            "from_transaction_check": False,
            "msg_id": sent.transaction_id,
            "transaction_id": sent.transaction_id,
            **changes,
        }
        return (await self.client.call(EndTransaction(**fields))).code

    async def answer(self, number: int, decision: int) -> None:
        """Answer a question as Java's clients do: with the offsets that it came with."""
        question, _ = self.asked[number]
        await self.client.call(
            EndTransaction(
                self.group,
                question.tran_state_table_offset,
                question.commit_log_offset,
                decision,
                from_transaction_check=True,
                msg_id=question.msg_id,
                transaction_id=question.transaction_id,
            )
        )


async def _note(producer: Producer, call: Call[CheckTransactionState]) -> None:
    assert call.command.is_oneway
    assert (call.command.ext or {})["bname"] == "broker-a"
    producer.asked.append((call.header, decode_record(call.body, verify_crc=True)))
    if producer.answers_with is not None:
        await producer.answer(-1, producer.answers_with)


def stored(cluster: Cluster, topic: str = "Orders", queue_id: int = 2) -> list[StoredRecord]:
    return records_of(cluster.broker.store, topic, queue_id)


def positions(cluster: Cluster) -> tuple[int, int]:
    offsets = cluster.broker.offsets
    return (offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0), offsets.query(TRANSACTION_GROUP, OP_HALF_TOPIC, 0))


async def until(is_so: Callable[[], object]) -> None:
    """Wait for what a thread has a part in; the limit is that of run()."""
    while not is_so():
        await asyncio.sleep(0.001)


def test_a_committed_message_appears_where_it_was_sent_to(tmp_path: Path) -> None:
    """Compares every field with the half message, which nobody sees before the commit."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            producer = await Producer(cluster, "p").join()
            sent = await producer.half(b"pay")
            assert sent.transaction_id == "id-1"
            assert stored(cluster) == []
            (half,) = stored(cluster, HALF_TOPIC, 0)
            assert half.sys_flag == 0
            assert half.properties["REAL_TOPIC"] == "Orders"
            assert half.properties["REAL_QID"] == "2"
            assert half.properties["__transactionId__"] == "id-1"
            assert await producer.end(sent, COMMIT) == 0
            (record,) = stored(cluster)
            assert record.sys_flag == COMMIT
            assert record.prepared_transaction_offset == half.log_offset
            assert record.property_bytes == half.property_bytes
            for field in ("body", "flag", "born_time_ms", "born_host", "store_host", "reconsume_times"):
                assert getattr(record, field) == getattr(half, field), field
            (op,) = stored(cluster, OP_HALF_TOPIC, 0)
            assert (op.body, op.properties["TAGS"]) == (b"0", "d")
            cluster.broker.transactions.advance()
            assert positions(cluster) == (1, 1)

    run(main())


def test_a_message_that_was_rolled_back_never_appears(tmp_path: Path) -> None:
    """Rolls one of two back and commits the other."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            producer = await Producer(cluster, "p").join()
            first, second = await producer.half(b"first"), await producer.half(b"second", key="id-2")
            await producer.end(second, ROLLBACK)
            cluster.broker.transactions.advance()
            assert positions(cluster) == (-1, -1)
            await producer.end(first, COMMIT)
            assert [record.body for record in stored(cluster)] == [b"first"]
            cluster.broker.transactions.advance()
            assert positions(cluster) == (2, 2)

    run(main())


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
def test_a_second_decision_writes_nothing(tmp_path: Path, first: int, second: int) -> None:
    """Decides again at once, several times in one write, and when the position has passed the half message."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            producer = await Producer(cluster, "p").join()
            sent = await producer.half()
            await asyncio.gather(producer.end(sent, first), *(producer.end(sent, second) for _ in range(3)))
            end = cluster.broker.store.log.end
            cluster.broker.transactions.advance()
            assert await producer.end(sent, second) == 0
            assert cluster.broker.store.log.end == end
            assert len(stored(cluster)) == (first == COMMIT)
            assert len(stored(cluster, OP_HALF_TOPIC, 0)) == 1

    run(main())


def test_a_decision_that_fits_no_half_message_is_refused(tmp_path: Path) -> None:
    """Offsets of nothing, of the middle of a record, of messages that are no halves; another group and position."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            producer = await Producer(cluster, "p").join()
            plain = (await producer.client.send("Orders", b"plain", queue_id=2)).header
            await producer.end(await producer.half(), COMMIT)
            committed = stored(cluster)[-1]
            sent = await producer.half()
            at = decode_offset_message_id(sent.msg_id).log_offset
            end = cluster.broker.store.log.end
            for changes, remark in (
                ({"commit_log_offset": 999_999_999}, "Find prepared transaction message failed"),
                ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
                ({"commit_log_offset": at + 8}, "Find prepared transaction message failed"),
                (
                    {"commit_log_offset": decode_offset_message_id(plain.msg_id).log_offset},
                    "Find prepared transaction message failed",
                ),
                (
                    {
                        "commit_log_offset": committed.log_offset,
                        "tran_state_table_offset": committed.queue_offset,
                    },
                    "Find prepared transaction message failed",
                ),
                ({"producer_group": "Other"}, "The producer group wrong"),
                ({"tran_state_table_offset": 7}, "The transaction state table offset wrong"),
            ):
                for decision in (COMMIT, ROLLBACK):
                    with pytest.raises(BrokerError, match=remark) as refused:
                        await producer.end(sent, decision, **changes)
                    assert refused.value.code == ResponseCode.SYSTEM_ERROR
            assert cluster.broker.store.log.end == end

    run(main())


def test_a_producer_that_does_not_know_yet_gets_no_answer(tmp_path: Path) -> None:
    """The next request on the same connection is answered, this one is not."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            producer = await Producer(cluster, "p").join()
            sent = await producer.half()
            unanswered = asyncio.ensure_future(producer.end(sent, UNKNOWN))
            await producer.client.call(GetMaxOffset("Orders", 2))
            assert not unanswered.done()
            unanswered.cancel()
            assert cluster.broker.store.max_offset(OP_HALF_TOPIC, 0) == 0

    run(main())


def test_an_undecided_message_is_asked_about_and_the_answer_decides_it(tmp_path: Path) -> None:
    """One is committed and one rolled back by answers; a third is still too young to be asked about."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock, **FAST) as cluster:
            producer = await Producer(cluster, "p").join()
            halves = [await producer.half(b"%d" % number, key=f"id-{number}") for number in range(2)]
            await clock.advance(1500)
            await producer.half(b"young", key="id-2", born_ms=clock.now_ms())
            await clock.advance(500)
            assert [question.msg_id for question, _ in producer.asked] == ["id-0", "id-1"]
            question, record = producer.asked[0]
            assert (record.topic, record.queue_id, record.body) == ("Orders", 2, b"0")
            assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
            assert (record.log_offset, record.queue_offset) == (
                question.commit_log_offset,
                question.tran_state_table_offset,
            )
            host = cluster.broker.store_host
            assert question.offset_msg_id == encode_offset_message_id(host, question.commit_log_offset)
            assert question.topic == HALF_TOPIC
            assert question.tran_state_table_offset > halves[1].queue_offset
            await producer.answer(0, COMMIT)
            await producer.answer(1, ROLLBACK)
            assert [record.body for record in stored(cluster)] == [b"0"]
            await clock.advance(2000)
            assert [question.msg_id for question, _ in producer.asked[2:]] == ["id-2"]

    run(main())


def test_a_late_answer_about_an_older_copy_counts_once(tmp_path: Path) -> None:
    """The producer commits what it was sent first, after the question, and answers the question as well."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock, **FAST) as cluster:
            producer = await Producer(cluster, "p").join()
            sent = await producer.half(b"late")
            await clock.advance(4000)
            assert len(producer.asked) == 2
            await producer.end(sent, COMMIT)
            await producer.answer(0, COMMIT)
            await producer.answer(1, COMMIT)
            await clock.advance(4000)
            assert [record.body for record in stored(cluster)] == [b"late"]
            assert len(producer.asked) == 2
            assert positions(cluster)[0] == cluster.broker.store.max_offset(HALF_TOPIC, 0)

    run(main())


def test_a_message_that_nobody_decides_is_given_up_until_an_administrator_has_it_asked_about(
    tmp_path: Path,
) -> None:
    """Counts the questions, looks where the message is then, resumes it and commits it."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock, **FAST) as cluster:
            producer = await Producer(cluster, "p").join()
            sent = await producer.half(b"orphan")
            await clock.advance(20_000)
            await until(lambda: stored(cluster, CHECK_MAX_TIME_TOPIC, 0))
            await clock.advance(1000)
            assert [record.properties["TRANSACTION_CHECK_TIMES"] for _, record in producer.asked] == ["1", "2", "3"]
            (given_up,) = stored(cluster, CHECK_MAX_TIME_TOPIC, 0)
            assert given_up.body == b"orphan"
            assert given_up.properties["REAL_TOPIC"] == "Orders"
            assert positions(cluster)[0] == cluster.broker.store.max_offset(HALF_TOPIC, 0)
            assert await producer.end(sent, COMMIT) == 0
            assert stored(cluster) == []
            id_ = encode_offset_message_id(cluster.broker.store_host, given_up.log_offset)
            await producer.client.call(ResumeCheckHalfMessage(id_))
            await clock.advance(2000)
            assert producer.asked[3][1].properties["TRANSACTION_CHECK_TIMES"] == "1"
            await clock.advance(20_000)
            assert len(producer.asked) == 6
            await producer.client.call(ResumeCheckHalfMessage(id_))
            # What the producer was sent first names it as well as a question does.
            await producer.end(sent, COMMIT)
            await producer.answer(3, COMMIT)
            assert [record.body for record in stored(cluster)] == [b"orphan"]
            await clock.advance(4000)
            assert len(producer.asked) == 6

    run(main())


def test_a_message_that_would_be_deleted_soon_is_given_up_unasked(tmp_path: Path) -> None:
    """It was born just within the time that files are kept, and crosses it."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock, **FAST, file_reserved_time=72) as cluster:
            producer = await Producer(cluster, "p").join()
            await producer.half(b"old", key="id-old", born_ms=SENT_MS - 72 * 3_600_000 + 3000)
            await clock.advance(2000)
            assert len(producer.asked) == 1
            await clock.advance(2000)
            await until(lambda: stored(cluster, CHECK_MAX_TIME_TOPIC, 0))
            assert len(producer.asked) == 1
            assert [record.body for record in stored(cluster, CHECK_MAX_TIME_TOPIC, 0)] == [b"old"]

    run(main())


def test_only_what_was_given_up_can_be_asked_about_again(tmp_path: Path) -> None:
    """Names an ordinary message, a committed one, its half, nothing, and no message id at all."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            producer = await Producer(cluster, "p").join()
            half = await producer.half()
            await producer.end(half, COMMIT)
            committed = encode_offset_message_id(cluster.broker.store_host, stored(cluster)[0].log_offset)
            plain = (await producer.client.send("Orders", b"plain")).header.msg_id
            for id_ in (plain, committed, half.msg_id, plain[:-2] + "FF", "7F", None):
                with pytest.raises(BrokerError) as refused:
                    await producer.client.call(ResumeCheckHalfMessage(id_))
                assert refused.value.code == ResponseCode.SYSTEM_ERROR
            assert cluster.broker.store.max_offset(HALF_TOPIC, 0) == 1

    run(main())


def test_any_live_member_of_the_group_is_asked(tmp_path: Path) -> None:
    """The sender is gone; two others of its group share the questions, and one of another group gets none."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock, **FAST) as cluster:
            sender = await Producer(cluster, "sender").join()
            for number in range(4):
                await sender.half(key=f"id-{number}")
            others = [await Producer(cluster, f"other-{number}").join() for number in range(2)]
            stranger = await Producer(cluster, "stranger", "Strangers").join()
            await sender.client.channel.close()
            await clock.advance(2000)
            assert [len(other.asked) for other in others] == [2, 2]
            assert stranger.asked == []

    run(main())


def test_nobody_is_asked_before_a_messages_own_time_is_over(tmp_path: Path) -> None:
    """A message asks for ten seconds; decisions in time count, later ones must be answers to a question."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        own_time: dict[str, Any] = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "10"}
        async with broker_cluster(tmp_path, clock=clock, **FAST) as cluster:
            producer = await Producer(cluster, "p").join()
            early = await producer.half(b"early", key="id-1", **own_time)
            late = await producer.half(b"late", key="id-2", **own_time)
            await clock.advance(10_000)
            assert producer.asked == []
            await producer.end(early, COMMIT)
            await clock.advance(2000)
            with pytest.raises(BrokerError) as refused:
                await producer.end(late, COMMIT)
            assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
            assert [question.msg_id for question, _ in producer.asked] == ["id-2"]
            await producer.answer(0, COMMIT)
            assert [record.body for record in stored(cluster)] == [b"early", b"late"]
            await clock.advance(4000)
            assert len(producer.asked) == 1

    run(main())


def test_a_transaction_with_a_delay_is_delivered_after_its_commit_and_delay(tmp_path: Path) -> None:
    """The delay begins with the commit."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            producer = await Producer(cluster, "p").join()
            sent = await producer.half(b"both", DELAY="1")
            await clock.advance(3000)
            assert cluster.broker.store.max_offset(SCHEDULE_TOPIC, 0) == 0
            await producer.end(sent, COMMIT)
            await clock.advance(999)
            assert stored(cluster) == []
            await clock.advance(1)
            (record,) = stored(cluster)
            assert (record.body, record.sys_flag) == (b"both", COMMIT)

    run(main())


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_decided_before_a_restart_is_not_asked_about(tmp_path: Path, is_killed: bool) -> None:
    """Restarts with an undecided message in front of decided ones, and with an old copy beside a newer one."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        image = tmp_path / "image" / "broker-a"
        async with broker_cluster(tmp_path / "run", clock=clock, **FAST) as cluster:
            producer = await Producer(cluster, "p").join()
            await producer.half(b"open", key="id-open")
            await clock.advance(2000)
            assert len(producer.asked) == 1
            decided = [await producer.half(b"%d" % number, key=f"id-{number}") for number in range(4)]
            for number, sent in enumerate(decided):
                await producer.end(sent, ROLLBACK if number % 2 else COMMIT)
            if is_killed:
                # A kill before the offsets were ever saved: everything must be read from the queues.
                shutil.copytree(tmp_path / "run" / "broker-a", image)
                (image / "config" / "consumerOffset.json").unlink(missing_ok=True)
        root = tmp_path / ("image" if is_killed else "run")
        async with broker_cluster(root, clock=clock, **FAST) as cluster:
            assert len(stored(cluster)) == 2
            producer = await Producer(cluster, "p").join()
            await clock.advance(2000)
            assert [question.msg_id for question, _ in producer.asked] == ["id-open"]
            end = cluster.broker.store.log.end
            await producer.end(decided[0], COMMIT)
            assert cluster.broker.store.log.end == end
            await producer.answer(0, COMMIT)
            assert Counter(record.body for record in stored(cluster)) == Counter([b"0", b"2", b"open"])

    run(main())


def test_after_a_kill_a_decision_about_an_old_copy_still_decides_the_newest(tmp_path: Path) -> None:
    """Commits what was sent first, before anybody is asked again, and then answers the question of before."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path / "run", clock=clock, **FAST) as cluster:
            producer = await Producer(cluster, "p").join()
            sent = await producer.half(b"once")
            await clock.advance(2000)
            assert len(producer.asked) == 1
            shutil.copytree(tmp_path / "run" / "broker-a", tmp_path / "image" / "broker-a")
        async with broker_cluster(tmp_path / "image", clock=clock, **FAST) as cluster:
            again = await Producer(cluster, "p").join()
            await again.end(sent, COMMIT)
            again.asked = producer.asked
            await again.answer(0, COMMIT)
            await clock.advance(4000)
            assert len(again.asked) == 1
            assert len(stored(cluster)) == 1

    run(main())


def test_a_decision_right_after_the_send_finds_its_message_with_sync_flush(tmp_path: Path) -> None:
    """The half message does not wait for the disk, so its answer comes before readers can see it."""

    async def main() -> None:
        async with broker_cluster(tmp_path, flush_disk_type="SYNC_FLUSH") as cluster:
            producer = await Producer(cluster, "p").join()
            for number in range(10):
                sent = await producer.half(b"%d" % number, key=f"id-{number}", WAIT="false")
                assert await producer.end(sent, COMMIT) == 0
            await cluster.broker.durable(cluster.broker.store.log.end)
            assert len(stored(cluster)) == 10

    run(main())


def test_a_question_is_asked_only_when_its_answer_can_be_understood(tmp_path: Path) -> None:
    """With SYNC_FLUSH the copy that is asked about becomes readable late; the producer answers at once."""

    async def main() -> None:
        often: dict[str, Any] = {"transaction_check_interval": 20, "transaction_time_out": 1}
        often["file_reserved_time"] = 1_000_000
        async with broker_cluster(tmp_path, flush_disk_type="SYNC_FLUSH", **often) as cluster:
            producer = await Producer(cluster, "p").join()
            producer.answers_with = COMMIT
            for number in range(5):
                await producer.half(b"%d" % number, key=f"id-{number}")
                await until(lambda: len(stored(cluster)) > number)  # noqa: B023
            assert Counter(question.msg_id for question, _ in producer.asked) == Counter(
                [f"id-{number}" for number in range(5)]
            )

    run(main())


def test_a_half_message_that_could_not_be_committed_is_refused(tmp_path: Path) -> None:
    """One with a time of delivery, which no commit could keep."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            producer = await Producer(cluster, "p").join()
            with pytest.raises(BrokerError):
                await producer.half(TIMER_DELAY_SEC="5")
            assert cluster.broker.store.max_offset(HALF_TOPIC, 0) == 0

    run(main())


def test_a_refused_commit_leaves_the_message_undecided(tmp_path: Path) -> None:
    """The disk is full when the commit comes; when there is room again the producer is asked and commits."""

    async def main() -> None:
        clock = ManualClock(SENT_MS)
        async with broker_cluster(tmp_path, clock=clock, **FAST) as cluster:
            producer = await Producer(cluster, "p").join()
            sent = await producer.half()
            retention = cluster.broker.store.retention
            retention.is_disk_full = True
            for decision in (COMMIT, ROLLBACK):
                with pytest.raises(BrokerError) as refused:
                    await producer.end(sent, decision)
                assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
            await clock.advance(2000)
            assert producer.asked == []
            retention.is_disk_full = False
            await clock.advance(2000)
            await producer.answer(0, COMMIT)
            assert len(stored(cluster)) == 1

    run(main())


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if "normal" in name or "killed" in name])
def test_the_decisions_in_a_store_of_apaches_are_understood(tmp_path: Path, name: str) -> None:
    """Reads them from the beginning of the queues, in both forms, and compares with what the bodies say."""
    golden = unpack_golden(name, tmp_path)
    store = MessageStore(golden.settings())
    store.open()
    named = {
        int(text)
        for op in records_of(store, OP_HALF_TOPIC, 0)
        for text in op.body.decode().replace(",", " ").split()
    }
    book = read_decisions(store, -1, -1)
    count = store.max_offset(HALF_TOPIC, 0)
    assert count > 0
    assert named
    assert {offset for offset in range(count) if book.is_decided(offset)} == named
    positions = golden.answers["consumerOffsets"]
    half = positions.get(f"{HALF_TOPIC}@{TRANSACTION_GROUP}", {}).get("0", -1)
    op = positions.get(f"{OP_HALF_TOPIC}@{TRANSACTION_GROUP}", {}).get("0", -1)
    later = read_decisions(store, half, op)
    undecided = {offset for offset in range(max(half, 0), count) if not later.is_decided(offset)}
    assert undecided == set(range(max(half, 0), count)) - named
    store.close()

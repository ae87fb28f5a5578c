"""Transactions over real brokers: what becomes visible, who is asked, and what user code may do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client.blocking.transactions import TransactionProducer as BlockingTransactionProducer
from rmq_core.client.received import ReceivedMessage
from rmq_core.client.send_hooks import SendContext, SendKind
from rmq_core.client.send_results import SendStatus
from rmq_core.client.transactions import (
    CHECKS_WAITING_MAX,
    Check,
    HalfMessage,
    TransactionDecision,
    TransactionProducer,
    TransactionRole,
)
from rmq_core.errors import ClientClosedError, ConnectError
from rmq_core.protocol.message import Message
from rmq_core.protocol.record import Host, StoredRecord
from rmq_core.protocol.requests import CheckTransactionState
from support.brokers import Cluster, broker_cluster, run
from support.producing import create, names_of, stored
from support.scripted import scripted
from support.threaded import threaded_cluster, until

COMMIT, ROLLBACK, UNKNOWN = TransactionDecision
FAST: dict[str, Any] = {"transaction_check_interval": 50, "transaction_time_out": 50}


def unasked(message: ReceivedMessage) -> TransactionDecision:
    raise AssertionError(f"{message} must not be asked about")


@contextlib.asynccontextmanager
async def transacting(cluster: Cluster, **arguments: Any) -> AsyncIterator[TransactionProducer]:
    given = {"topics": ["Orders"], "check": unasked, "name_server": names_of(cluster), **arguments}
    async with TransactionProducer("pay", **given) as producer:
        yield producer


async def visible(cluster: Cluster, topic: str = "Orders") -> list[bytes]:
    return sorted(record.body for records in (await stored(cluster, topic)).values() for record in records)


async def until_visible(cluster: Cluster, *bodies: bytes, topic: str = "Orders") -> None:
    while await visible(cluster, topic) != sorted(bodies):
        await asyncio.sleep(0.01)


def test_only_committed_messages_become_visible(tmp_path: Path) -> None:
    """Commits, rolls back and leaves open ten messages each on two brokers, by functions and by coroutines."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster:
            await create(cluster, "Orders")
            async with transacting(cluster) as producer:
                assert "TransactionProducer" in repr(producer)
                for number in range(30):
                    decision = TransactionDecision([8, 12, 0][number % 3])

                    def decide(half: HalfMessage, decision: TransactionDecision = decision) -> TransactionDecision:
                        return decision

                    async def decide_later(
                        half: HalfMessage, decision: TransactionDecision = decision
                    ) -> TransactionDecision:
                        await asyncio.sleep(0)
                        return decision

                    message = Message("Orders", b"%02d" % number)
                    result = await producer.send(message, execute=decide_later if number % 2 else decide)
                    assert result.decision is decision
                    assert result.ok
                    assert result.transaction_id == result.msg_id
                await until_visible(cluster, *(b"%02d" % number for number in range(0, 30, 3)))

    run(main())


def test_the_local_transaction_sees_what_it_decides_about(tmp_path: Path) -> None:
    """Looks at the message within execute: it is stored, has its transaction id, and nobody can read it yet."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, transacting(cluster) as producer:
            await create(cluster, "Orders")
            seen: list[HalfMessage] = []

            async def execute(half: HalfMessage) -> TransactionDecision:
                seen.append(half)
                assert await visible(cluster) == []
                return COMMIT

            message = Message("Orders", b"x", tags="paid", keys=["42"], properties={"shop": "s7"})
            result = await producer.send(message, execute=execute)
            (half,) = seen
            assert half.transaction_id == half.msg_id == result.msg_id
            assert (half.topic, half.body, half.tags, half.keys) == ("Orders", b"x", "paid", ("42",))
            assert half.properties == {"shop": "s7"}
            await until_visible(cluster, b"x")

    run(main())


def test_what_is_left_open_is_asked_about_and_decided(tmp_path: Path) -> None:
    """Leaves messages open by None, by an exception and by a wrong answer; two producers check, in both manners."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2, **FAST) as cluster:
            await create(cluster, "Orders")
            asked: list[ReceivedMessage] = []
            threads: set[str] = set()

            def check(message: ReceivedMessage) -> TransactionDecision:
                asked.append(message)
                threads.add(threading.current_thread().name)
                return COMMIT if message.keys == ("yes",) else ROLLBACK

            async with transacting(cluster, check=check) as producer:
                for number in range(3):
                    keys = "no" if number == 1 else "yes"
                    result = await producer.send(
                        Message("Orders", b"%d" % number, keys=keys), execute=lambda _: None
                    )
                    assert result.decision is UNKNOWN
                with pytest.raises(ZeroDivisionError):
                    await producer.send(Message("Orders", b"3", keys="yes"), execute=lambda _: 1 // 0)  # type: ignore[arg-type, return-value]
                with pytest.raises(TypeError, match="TransactionDecision"):
                    await producer.send(Message("Orders", b"4", keys="yes"), execute=lambda _: True)  # type: ignore[arg-type, return-value]
                await until_visible(cluster, b"0", b"2", b"3", b"4")
            assert {message.topic for message in asked} == {"Orders"}
            assert all(message.transaction_id == message.msg_id for message in asked)
            assert {message.queue.broker_name for message in asked} <= {"broker-a", "broker-b"}
            assert threads == {"rmq-transaction-check-pay_0"}

            async def check_later(message: ReceivedMessage) -> TransactionDecision:
                await asyncio.sleep(0)
                return COMMIT

            async with transacting(cluster, check=check_later) as producer:
                await producer.send(Message("Orders", b"5"), execute=lambda _: None)
                await until_visible(cluster, b"0", b"2", b"3", b"4", b"5")

    run(main())


def test_another_producer_of_the_group_is_asked_before_it_has_sent_anything(tmp_path: Path) -> None:
    """Closes the producer of an open message, and starts one that never sends."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2, **FAST) as cluster:
            await create(cluster, "Orders")
            async with transacting(cluster, check=lambda _: None) as producer:
                for number in range(4):
                    await producer.send(Message("Orders", b"%d" % number), execute=lambda _: None)
            while any(app.broker.clients.producer_group("pay") for app in cluster.apps):
                await asyncio.sleep(0.001)
            async with transacting(cluster, check=lambda _: COMMIT):
                assert all(app.broker.clients.producer_group("pay") for app in cluster.apps)
                await until_visible(cluster, b"0", b"1", b"2", b"3")

    run(main())


def test_a_check_that_fails_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Raises at the first question, answers nonsense at the second and commits at the third."""
    answers: list[Any] = []

    def check(message: ReceivedMessage) -> Any:
        answers.append(message.msg_id)
        if len(answers) == 1:
            raise RuntimeError("the database is away")
        return "commit" if len(answers) == 2 else COMMIT

    async def main() -> None:
        async with (
            broker_cluster(tmp_path, **FAST) as cluster,
            transacting(cluster, check=check) as producer,
        ):
            await create(cluster, "Orders")
            result = await producer.send(Message("Orders", b"x"), execute=lambda _: UNKNOWN)
            await until_visible(cluster, b"x")
            assert answers[:3] == [result.msg_id] * 3

    run(main())
    assert "the database is away" in caplog.text
    assert "not by 'commit'" in caplog.text


def test_transactions_work_in_a_namespace_and_with_a_first_check_of_their_own(tmp_path: Path) -> None:
    """Leaves a message open in a namespace, to be asked about after a second."""

    async def main() -> None:
        topics: list[str] = []

        def check(message: ReceivedMessage) -> TransactionDecision:
            topics.append(message.topic)
            return COMMIT

        async with (
            broker_cluster(tmp_path, **FAST) as cluster,
            transacting(cluster, check=check, namespace="shop") as producer,
        ):
            later = timedelta(seconds=1)
            await producer.send(Message("Orders", b"x"), execute=lambda _: None, first_check_after=later)
            half = (await cluster.client().messages("RMQ_SYS_TRANS_HALF_TOPIC", 0))[0]
            assert half.properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "1"
            assert half.properties["PGROUP"] == "shop%pay"
            await until_visible(cluster, b"x", topic="shop%Orders")
            assert topics == ["Orders"]

    run(main())


@pytest.mark.parametrize("status", [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE])
def test_what_is_not_stored_safely_is_rolled_back_and_nothing_runs(status: SendStatus) -> None:
    """Lets the broker store the half message less safely than it is set up to."""

    async def main() -> None:
        async with scripted("a") as cluster:
            broker = cluster.brokers["a"]
            broker.codes.append(status.value)

            def execute(half: HalfMessage) -> TransactionDecision:
                raise AssertionError("must not run")

            async with TransactionProducer(
                "pay", topics=["Orders"], check=unasked, name_server=cluster.name_server
            ) as producer:
                result = await producer.send(Message("Orders", b"x"), execute=execute)
                assert (result.status, result.decision) == (status, ROLLBACK)
                while not broker.ends:
                    await asyncio.sleep(0.001)
                (end,) = broker.ends
                assert end.commit_or_rollback == 12
                assert (end.tran_state_table_offset, end.commit_log_offset) == (1, 1)
                assert (end.msg_id, end.transaction_id) == (result.msg_id, "T1")
                assert not end.from_transaction_check

    run(main())


def test_an_outcome_that_cannot_be_told_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Closes the producer while the local transaction runs: the broker will ask another one."""

    async def main() -> None:
        async with scripted("a") as cluster:
            producer = TransactionProducer("pay", topics=["A"], check=unasked, name_server=cluster.name_server)

            async def execute(half: HalfMessage) -> TransactionDecision:
                await producer.close()
                return COMMIT

            result = await producer.send(Message("A", b"x"), execute=execute)
            assert result.decision is COMMIT
            with pytest.raises(ClientClosedError):
                await producer.send(Message("A", b"x"), execute=execute)

    run(main())
    assert "the outcome COMMIT" in caplog.text


def test_more_questions_than_places_are_dropped_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """Asks one question more than may wait."""

    async def main() -> None:
        role = TransactionRole("pay")
        host = Host.of("127.0.0.1", 1)
        half = StoredRecord("Orders", 0, 0, 0, b"x", b"", 0, host, 0, host)
        for number in range(CHECKS_WAITING_MAX + 1):
            role.check_transaction("127.0.0.1:1", CheckTransactionState(number, number), half)
        assert role.questions.qsize() == CHECKS_WAITING_MAX

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "2000 questions" in caplog.text


def test_wrong_arguments_of_a_transaction_are_named() -> None:
    """Gives each argument what it cannot take; nothing is there to be sent to."""

    def make(**changed: Any) -> TransactionProducer:
        given = {"topics": ["A"], "check": unasked, "name_server": "127.0.0.1:1", **changed}
        return TransactionProducer("pay", **given)

    for changed, error, says in (
        ({"topics": "A"}, TypeError, "topics"),
        ({"topics": []}, TypeError, "topics"),
        ({"topics": [3]}, TypeError, "topics"),
        ({"topics": ["a b"]}, ValueError, "topics"),
        ({"check": None}, TypeError, "check"),
        ({"auto_batch": True}, ValueError, "auto_batch"),
        ({"retries": -1}, ValueError, "retries"),
    ):
        with pytest.raises(error, match=says):
            make(**changed)

    async def main() -> None:
        producer = make()
        for call, error, says in (
            (producer.send(Message("A", b"x"), execute=None), TypeError, "execute"),  # type: ignore[arg-type]
            (producer.send(Message("A", b"x", delay_level=1), execute=lambda _: None), ValueError, "delay"),
            (producer.send("x", execute=lambda _: None), TypeError, "message"),  # type: ignore[arg-type]
            (
                producer.send(Message("A", b"x"), execute=lambda _: None, first_check_after=timedelta(0)),
                ValueError,
                "first_check_after",
            ),
            (
                producer.send(Message("A", b"x"), execute=lambda _: None, first_check_after=5),  # type: ignore[arg-type]
                TypeError,
                "first_check_after",
            ),
        ):
            with pytest.raises(error, match=says):
                await call
        with pytest.raises(ConnectError):  # it must be known to brokers before it may start
            await producer.start()
        await producer.close()

    asyncio.run(main())


def test_hooks_see_half_messages(tmp_path: Path) -> None:
    """Looks at the kind that hooks are told."""
    kinds: list[SendKind] = []

    class Look:
        def after_send(self, context: SendContext) -> None:
            kinds.append(context.kind)

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, transacting(cluster, hooks=[Look()]) as producer:
            await producer.send(Message("Orders", b"x"), execute=lambda _: COMMIT)

    run(main())
    assert kinds == [SendKind.HALF]


def test_the_blocking_form_executes_on_the_callers_thread_and_checks_on_another(tmp_path: Path) -> None:
    """Commits, leaves open and raises from a thread; checks by a function and by a coroutine; leaves no thread."""
    before = set(threading.enumerate())
    with threaded_cluster(tmp_path, **FAST) as cluster:
        cluster.create_topic("Orders")
        seen: list[str] = []

        def execute(half: HalfMessage) -> TransactionDecision:
            seen.append(threading.current_thread().name)
            return COMMIT

        def check(message: ReceivedMessage) -> TransactionDecision:
            seen.append(threading.current_thread().name)
            return COMMIT

        async def check_later(message: ReceivedMessage) -> TransactionDecision:
            await asyncio.sleep(0)
            return check(message)

        def read() -> list[bytes]:
            return cluster.do(visible(cluster.cluster))

        checks: tuple[Check, ...] = (check, check_later)
        for number, how in enumerate(checks):
            with BlockingTransactionProducer(
                "pay", topics=["Orders"], check=how, name_server=cluster.name_server
            ) as producer:
                assert "TransactionProducer" in repr(producer)
                result = producer.send(Message("Orders", b"%d now" % number), execute=execute)
                assert result.decision is COMMIT
                with pytest.raises(ZeroDivisionError):
                    producer.send(Message("Orders", b"%d later" % number), execute=lambda _: 1 // 0)  # type: ignore[arg-type, return-value]
                until(lambda number=number: len(read()) == 2 * number + 2, "the check commits")  # type: ignore[misc]
                producer.flush()
                with pytest.raises(TypeError, match="execute"):
                    producer.send(Message("Orders", b"x"), execute=check_later)  # type: ignore[arg-type]
            with pytest.raises(ClientClosedError):
                producer.send(Message("Orders", b"x"), execute=execute)
        assert read() == [b"0 later", b"0 now", b"1 later", b"1 now"]
        assert set(seen) == {threading.current_thread().name, "rmq-transaction-check-pay_0"}
    until(
        lambda: not [each for each in set(threading.enumerate()) - before if "check" in each.name],
        "the threads for checks have ended",
    )

"""Every program of examples/ runs and does what it says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq_core

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def broker() -> Iterator[rmq_core.EmbeddedBroker]:
    """A broker that filters by SQL92 and asks about open transactions soon."""
    settings = {"enablePropertyFilter": True, "transactionTimeOut": 100, "transactionCheckInterval": 200}
    with rmq_core.embedded(**settings) as mq:  # type: ignore[arg-type]
        yield mq


def run(broker: rmq_core.EmbeddedBroker, program: str, *arguments: str) -> list[str]:
    """The lines that a program prints; it must end by itself and without complaint."""
    command = [sys.executable, str(EXAMPLES / program), "--name-server", broker.name_server, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_quick_start(broker: rmq_core.EmbeddedBroker) -> None:
    """Ten messages: every send result is printed, and every message consumed."""
    lines = run(broker, "quick_start.py")
    assert sum("SendResult(status=<SendStatus.OK: 0>" in line for line in lines) == 10
    assert {line for line in lines if line.startswith("TopicQuickStart")} == {
        f"TopicQuickStart TagA Hello RocketMQ {number}" for number in range(10)
    }


def test_async_client(broker: rmq_core.EmbeddedBroker) -> None:
    """A thousand sends at once, and a reader that counts them."""
    assert run(broker, "async_client.py") == ["1000 sent, 1000 stored", "1000 consumed"]


def test_ordered(broker: rmq_core.EmbeddedBroker) -> None:
    """The steps of each order must come in their order, though the first message of all fails once."""
    lines = run(broker, "ordered.py")
    steps = "created, paid, packed, shipped, delivered"
    assert lines[:2] == ["by selector 1: queue 1", "by selector 2: queue 2"]
    assert lines[2:6] == [f"order-{number} {steps}" for number in range(4)]
    assert sorted(lines[6].removeprefix("picked ").split(", ")) == ["by-1", "by-2"]


def test_broadcast(broker: rmq_core.EmbeddedBroker) -> None:
    """Two members of one group: each must get every message."""
    assert run(broker, "broadcast.py") == ["first got 10 of 10", "second got 10 of 10"]


def test_delay(broker: rmq_core.EmbeddedBroker) -> None:
    """The delayed message is sent first and must come last."""
    lines = run(broker, "delay.py")
    assert [line.split(":")[0] for line in lines] == ["at once", "later"]
    assert float(lines[1].split(" ")[-2]) >= 0.9


def test_batch(broker: rmq_core.EmbeddedBroker) -> None:
    """Ten megabytes: more than a request may hold."""
    lines = run(broker, "batch.py")
    assert lines[0].startswith("1000 messages sent to ")
    assert lines[1] == "1000 messages read"


def test_filters(broker: rmq_core.EmbeddedBroker) -> None:
    """By tag and by SQL92: the numbers are exactly those that fit."""
    assert run(broker, "filters.py") == ["paid or shipped: [1, 2, 4, 5, 7, 8]", "large and in the EU: [4, 6, 8]"]


def test_transaction(broker: rmq_core.EmbeddedBroker) -> None:
    """What is rolled back must not be seen; what is left open is seen once the broker has asked."""
    lines = run(broker, "transaction.py")
    assert [line for line in lines if line.startswith("msg-")] == [
        "msg-1: COMMIT",
        "msg-2: ROLLBACK",
        "msg-3: ROLLBACK",
        "msg-4: UNKNOWN",
        "msg-5: UNKNOWN",
    ]
    assert {line for line in lines if line.startswith("asked")} == {"asked about msg-4", "asked about msg-5"}
    assert lines[-1] == "seen: msg-1, msg-4, msg-5"


def test_request_reply(broker: rmq_core.EmbeddedBroker) -> None:
    """Each answer belongs to its question."""
    assert run(broker, "request_reply.py") == ["you said: hello", "you said: goodbye"]


def test_lite_pull(broker: rmq_core.EmbeddedBroker) -> None:
    """All are read twice: once as a member, once from the beginning of each queue."""
    assert run(broker, "lite_pull.py") == [
        "20 read by subscription",
        "20 read from the beginning of 4 queues",
    ]


def test_pull_schedule(broker: rmq_core.EmbeddedBroker) -> None:
    """Every queue is called for until all messages are there."""
    assert run(broker, "pull_schedule.py") == ["20 pulled"]


def test_administration(broker: rmq_core.EmbeddedBroker) -> None:
    """A topic and a group from their making to their end."""
    assert run(broker, "administration.py") == [
        "embedded in DefaultCluster: V5_3_3",
        "TopicAdmin holds 6 messages",
        "the first is 0, 6 have its key",
        "the group is 6 behind, and has let a message wait: True",
        "TopicAdmin is gone: True",
    ]


def test_application(broker: rmq_core.EmbeddedBroker) -> None:
    """A listener and a responder with plain objects."""
    assert run(broker, "application.py") == [
        "billing order 42: 9.50",
        "Quote(currency='EUR', rate=1.25)",
    ]


def test_every_program_is_run_here() -> None:
    """A new example must come with a test of its name."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= {
        name.removeprefix("test_") for name in globals() if name.startswith("test_")
    }

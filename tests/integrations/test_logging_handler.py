"""The logging handler: what is logged arrives, and logging never waits, loops or fails."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import rmq_core
from rmq_core.integrations.logging import RocketMQHandler
from rmq_core.integrations.pytest_plugin import RocketMQ

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger that hands its records to nobody else."""
    logger = logging.getLogger("shop.orders")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def bodies(rocketmq: RocketMQ, topic: str) -> list[rmq_core.ReceivedMessage]:
    """Every message of a topic with one queue."""
    with rmq_core.Admin(name_server=rocketmq.name_server) as admin:
        (queue,) = admin.topic_status(topic).queues
        return [admin.message_at(queue, offset) for offset in range(admin.max_offset(queue))]


def test_records_arrive_with_their_level_and_logger(rocketmq: RocketMQ, log: logging.Logger) -> None:
    """From four threads at once, with one record that is too large and one with an exception."""
    topic = rocketmq.topic(queues=1)
    handler = RocketMQHandler(topic, level="INFO", name_server=rocketmq.name_server)
    log.addHandler(handler)

    def write(name: int) -> None:
        for number in range(50):
            log.info("%d-%d", name, number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.debug("below the level")
    log.warning("x" * (2 << 20))
    try:
        raise KeyError("gone")
    except KeyError:
        log.exception("failed")
    handler.flush(30_000)
    found = bodies(rocketmq, topic)
    assert handler.dropped == 0
    assert {each.body.decode() for each in found if each.tags == "INFO"} == {
        f"{name}-{number}" for name in range(4) for number in range(50)
    }
    assert len(found) == 202
    (large,) = (each for each in found if each.tags == "WARNING")
    assert (len(large.body), large.body[-11:]) == (1 << 20, b"(truncated)")
    (failed,) = (each for each in found if each.tags == "ERROR")
    assert b"KeyError: 'gone'" in failed.body
    assert failed.properties["logger"] == "shop.orders"
    assert failed.properties["at"].endswith("+00:00")


def test_logging_never_waits_for_a_broker_that_is_away(
    log: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody listens: every record above the queue's size is dropped and counted, close() gives up in time."""
    handler = RocketMQHandler("Logs", name_server=NOWHERE, queue_count_max=10, close_timeout_ms=300)
    log.addHandler(handler)
    for number in range(1_000):
        log.info("%d", number)
    assert handler.dropped >= 900
    handler.close()
    handler.close()
    assert handler.dropped == 1_000
    assert "log records were not sent" in capfd.readouterr().err
    log.info("after the end")
    assert handler.dropped == 1_000
    assert "1000 dropped" in repr(handler)


def test_what_sending_logs_itself_is_not_sent(rocketmq: RocketMQ) -> None:
    """The handler hangs at the root, with everything on: records of this package must not come back to it."""
    topic = rocketmq.topic(queues=1)
    handler = RocketMQHandler(topic, name_server=rocketmq.name_server)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    try:
        logging.getLogger("rmq_core.client.producer").error("about sending")
        logging.getLogger("rmq_core").error("about sending")
        logging.getLogger("rmq_corex").error("of somebody else")
        handler.flush(30_000)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
    assert [each.body for each in bodies(rocketmq, topic)] == [b"of somebody else"]


def test_a_record_that_cannot_be_formatted_harms_nobody(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wrong number of arguments: reported as logging does, and the program goes on."""
    handler = RocketMQHandler("Logs", name_server=NOWHERE, close_timeout_ms=100)
    log.addHandler(handler)
    record = log.makeRecord(log.name, logging.INFO, __file__, 1, "%d %d", (1,), None)
    handler.handle(record)
    assert "not enough arguments" in capsys.readouterr().err


def test_wrong_arguments_raise_at_once() -> None:
    """Not when the first record is sent, by a thread that nobody hears."""
    for arguments, kind, match in (
        ({"topic": "a b"}, ValueError, "topic: "),
        ({"topic": "T", "queue_count_max": 0}, ValueError, "queue_count_max"),
        ({"topic": "T", "retries": -1}, ValueError, "retries"),
        ({"topic": "T", "nameserver": "x"}, TypeError, "unknown argument"),
    ):
        with pytest.raises(kind, match=match):
            RocketMQHandler(**arguments)


PROGRAM = """
import logging, sys
from rmq_core.integrations.logging import RocketMQHandler

handler = RocketMQHandler(sys.argv[2], name_server=sys.argv[1])
logging.basicConfig(level="INFO", format="%(message)s", handlers=[handler])
logging.info("the last words")
"""


def test_a_program_that_ends_sends_what_it_logged_last(rocketmq: RocketMQ) -> None:
    """Nobody flushes or closes: the interpreter's end has to."""
    topic = rocketmq.topic(queues=1)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, rocketmq.name_server, topic], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert [each.body for each in bodies(rocketmq, topic)] == [b"the last words"]


FORKING = """
import logging, os, sys
from rmq_core.integrations.logging import RocketMQHandler

handler = RocketMQHandler(sys.argv[2], name_server=sys.argv[1])
logging.basicConfig(level="INFO", format="%(message)s", handlers=[handler])
logging.info("parent")
handler.flush(30_000)
pid = os.fork()
if pid == 0:
    logging.info("child")
    handler.close()
    os._exit(0)
os.waitpid(pid, 0)
logging.info("parent again")
"""


@pytest.mark.skipif(not hasattr(sys.modules["os"], "fork"), reason="there is no fork here")
def test_a_forked_child_logs_by_itself(rocketmq: RocketMQ) -> None:
    """Parent and child both log after the fork; nothing may come twice."""
    topic = rocketmq.topic(queues=1)
    program = [sys.executable, "-c", FORKING, rocketmq.name_server, topic]
    subprocess.run(program, check=True, timeout=60)
    assert sorted(each.body for each in bodies(rocketmq, topic)) == [
        b"child",
        b"parent",
        b"parent again",
    ]

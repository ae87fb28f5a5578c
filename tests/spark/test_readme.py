"""The README, read by somebody new: each block runs as it stands there, in its order, against the program."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_core import Admin, LitePullConsumer, Message, Producer
from support.programs import BrokerProgram, broker_program
from support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
QUICK_START = 5
"""So many blocks are the quick start; they build on each other."""


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProgram]:
    """The program in an empty folder, which the blocks find as if it were on the usual port."""
    with broker_program(tmp_path) as program:
        monkeypatch.setenv("NAMESRV_ADDR", program.name_server)
        monkeypatch.chdir(tmp_path)
        yield program


def block(word: str) -> str:
    """The one block behind the quick start with a word in it."""
    (found,) = (str(each) for each in BLOCKS[QUICK_START:] if word in each)
    return found


def run(text: str, names: dict[str, Any]) -> None:
    """Run a block that uses names of those before it."""
    exec(compile(text, "README.md", "exec"), names)


def test_the_quick_start_works(
    spark: SparkSession, broker: BrokerProgram, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sends a hundred, consumes, streams, and reads the files; looks at what each step prints."""
    names: dict[str, Any] = {"__name__": "block"}
    send, consume, stream, offline, columns = BLOCKS[:QUICK_START]
    run(send, names)
    run(consume, names)
    assert """b'{"id": 42}'""" in capfd.readouterr().out
    run(stream.replace("127.0.0.1:9876", broker.name_server), names)
    assert names["spark"] is spark
    with Admin() as admin:
        assert admin.lag("spark-orders", topic="Orders").count == 0
    run(offline.replace("store/", f"{Path.cwd()}/store/"), names)  # this session began in another folder
    assert re.search(r"\|\s*Orders\|\s*0\|\s*25\|", capfd.readouterr().out)
    run(columns, names)
    assert "queueOffset: int64" in capfd.readouterr().out


def test_an_embedded_broker_tells_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints an address of this machine."""
    run(block("rmq_core.embedded"), {})
    assert "127.0.0.1:" in capsys.readouterr().out


@contextlib.contextmanager
def interrupted_once(condition: Any) -> Iterator[None]:
    """Press Ctrl-C on the main thread as soon as something holds."""
    problems: list[BaseException] = []

    def press() -> None:
        try:
            until(condition)
        except BaseException as error:
            problems.append(error)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    try:
        yield
    finally:
        presser.join()
    assert not problems, problems


def test_a_push_consumer_gets_what_was_sent(broker: BrokerProgram) -> None:
    """It runs until it is interrupted, which happens once it has printed what it was sent."""
    printed: list[tuple[Any, ...]] = []
    with Producer("shop") as producer:
        producer.send(Message("Orders", b'{"id": 7}', tags="paid", keys="7"))
    with interrupted_once(lambda: printed):
        run(block("PushConsumer("), {"__name__": "block", "print": lambda *words: printed.append(words)})
    assert printed == [(("7",), b'{"id": 7}')]


def test_an_application_answers_an_order_with_a_parcel(broker: BrokerProgram) -> None:
    """It runs until it is interrupted, which happens once the parcel can be read."""
    with Producer("shop") as producer, LitePullConsumer("reader", start_from="earliest") as reader:
        producer.send(Message("Orders", b'{"id": 7}', tags="paid"))
        producer.send(Message("Parcels", b"the topic is there"))
        reader.subscribe("Parcels")
        bodies: list[bytes] = []

        def came() -> bool:
            bodies.extend(message.body for message in reader.poll(timeout_ms=10))
            return len(bodies) == 2

        with interrupted_once(came):
            run(block("import App"), {"__name__": "block"})
    assert bodies[1] == b'{"order":7}'


def test_every_block_has_a_test() -> None:
    """A block that nothing here runs is a promise that nobody keeps."""
    words = re.findall(r'block\("([^"]+)"\)', Path(__file__).read_text(encoding="utf-8"))
    assert sorted(map(block, words)) == sorted(BLOCKS[QUICK_START:])

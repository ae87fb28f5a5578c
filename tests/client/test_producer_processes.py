"""Producers in processes of their own: forks, Ctrl-C, exits, and brokers that are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_core.client.blocking.producer import Producer
from rmq_core.client.send_results import SendError
from rmq_core.embedded_broker import EmbeddedBroker, embedded
from rmq_core.protocol.message import Message
from support.sent import arrived, bodies
from support.threaded import until

HEAD = """
import os, sys, threading, time
from rmq_core.client.blocking.producer import Producer
from rmq_core.client.blocking.transactions import TransactionProducer
from rmq_core.protocol.message import Message
name_server, topic = sys.argv[1:3]
"""


@pytest.fixture(scope="module")
def mq() -> Iterator[EmbeddedBroker]:
    with embedded() as broker:
        yield broker


def run_program(text: str, *arguments: str) -> str:
    """What a program of its own prints; it must end by itself."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + text, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_a_forked_child_begins_anew_and_the_parent_goes_on(mq: EmbeddedBroker) -> None:
    """Forks with sends in flight; both processes send on by the same object, with connections of their own."""
    mq.create_topic("Forked", queues=1)
    said = run_program(
        """
producer = Producer("PG", name_server=name_server)
futures = [producer.send_async(Message(topic, b"before")) for _ in range(50)]
child = os.fork()
who = b"parent" if child else b"child"
for _ in range(20):
    producer.send(Message(topic, who))
line = who.decode() + " " + producer._inner.parts.instance.client_id + os.linesep
os.write(1, line.encode())
if child:
    assert all(future.result(30).ok for future in futures)
    assert os.waitpid(child, 0)[1] == 0
producer.send(Message(topic, who + b" last"))
producer.close()
if not child:
    os._exit(0)
""",
        mq.name_server,
        "Forked",
    )
    ids = dict(line.split() for line in said.splitlines())
    assert ids["parent"] != ids["child"]
    assert bodies(mq.name_server, "Forked") == sorted(
        [b"before"] * 50 + [b"parent"] * 20 + [b"child"] * 20 + [b"parent last", b"child last"]
    )
    records = [record for each in arrived(mq.name_server, "Forked").values() for record in each]
    assert len({record.properties["UNIQ_KEY"] for record in records}) == 92


def test_processes_of_a_pool_may_share_what_was_made_before(mq: EmbeddedBroker) -> None:
    """Makes producers before workers are forked, as a preloading server does; two of them have been started."""
    mq.create_topic("Preloaded")
    run_program(
        """
import multiprocessing
from rmq_core.client.transactions import TransactionDecision
fresh = Producer("PG", name_server=name_server)
used = Producer("PG2", name_server=name_server).start()
paying = TransactionProducer("PG3", topics=[topic], check=lambda _: None, name_server=name_server).start()

def work(number):
    fresh.send(Message(topic, b"fresh"))
    used.send(Message(topic, b"used"))
    paying.send(Message(topic, b"paid"), execute=lambda half: TransactionDecision.COMMIT)
    for producer in (fresh, used, paying):
        producer.close()
    return number

with multiprocessing.get_context("fork").Pool(4) as pool:
    assert pool.map(work, range(4), chunksize=1) == list(range(4))
""",
        mq.name_server,
        "Preloaded",
    )
    until(
        lambda: bodies(mq.name_server, "Preloaded") == sorted([b"fresh", b"used", b"paid"] * 4),
        "everything arrived",
    )


def test_a_closed_producer_stays_closed_in_a_child(mq: EmbeddedBroker) -> None:
    """Closes before the fork, and uses it after."""
    run_program(
        """
from rmq_core.errors import ClientClosedError
producer = Producer("PG", name_server=name_server)
producer.send(Message(topic, b"x"))
producer.close()
child = os.fork()
try:
    producer.send(Message(topic, b"x"))
except ClientClosedError:
    code = 0
else:
    code = 1
if not child:
    os._exit(code)
assert os.waitpid(child, 0)[1] == code == 0
""",
        mq.name_server,
        "Closed",
    )


def test_the_coroutine_form_says_that_a_fork_ends_it(mq: EmbeddedBroker) -> None:
    """Uses it in a child, on a loop of its own."""
    run_program(
        """
import asyncio
from rmq_core.client.producer import Producer
from rmq_core.errors import ForkedError
producer = Producer("PG", name_server=name_server)

async def main():
    await producer.send(Message(topic, b"x"))
    await producer.close()

asyncio.run(main())
other = Producer("PG", name_server=name_server)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    try:
        asyncio.run(other.send(Message(topic, b"x")))
    except ForkedError:
        os._exit(0)
    os._exit(1)
""",
        mq.name_server,
        "Coroutines",
    )


def test_ctrl_c_ends_a_send_that_waits(mq: EmbeddedBroker) -> None:
    """Interrupts a process that sends to a broker which never answers; it must end at once."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        text = """
import signal
from rmq_core.client.send_results import SendError
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background has it ignored
producer = Producer("PG", name_server=name_server, broker_address_map={sys.argv[3]: sys.argv[4]})
print("sending", flush=True)
try:
    producer.send(Message(topic, b"x"), timeout_ms=600_000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
        port = silent.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-c", HEAD + text, mq.name_server, "CtrlC", mq.address, f"127.0.0.1:{port}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "sending\n"
            connection, _ = silent.accept()
            with connection:
                connection.recv(1 << 16)
                process.send_signal(signal.SIGINT)
                assert process.stdout.read() == "interrupted\n"
                assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_program_that_forgets_to_close_ends_all_the_same(mq: EmbeddedBroker) -> None:
    """Ends with sends in flight, with call-backs to come, and with a thread that waits for an answer."""
    run_program(
        """
from rmq_core.errors import RocketMQError
producer = Producer("PG", name_server=name_server)
producer.send(Message(topic, b"x"))
for _ in range(100):
    producer.send_async(Message(topic, b"x")).add_done_callback(lambda future: None)

def send_on():
    try:
        while True:
            producer.send(Message(topic, b"x"))
    except RocketMQError:
        pass

threading.Thread(target=send_on, daemon=True).start()
""",
        mq.name_server,
        "Forgotten",
    )


@contextlib.contextmanager
def broker_process(folder: Path, port: int, names_port: int) -> Iterator[subprocess.Popen[str]]:
    command = [
        *(sys.executable, "-m", "rmq_core.broker", f"listenPort={port}", "--namesrvPort", str(names_port)),
        *("mappedFileSizeCommitLog=16777216", "diskMaxUsedSpaceRatio=99", f"storePathRootDir={folder / 'store'}"),
    ]
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if "boot success" in line:
                break
        else:
            raise AssertionError("".join(said))
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_what_was_acknowledged_survives_a_killed_broker_and_producers_come_back(tmp_path: Path) -> None:
    """Kills the only broker twice under four threads and futures, starts it again, and looks for every message."""
    port, names_port = free_port(), free_port()
    name_server = f"127.0.0.1:{names_port}"
    acknowledged: list[str] = []
    is_over = threading.Event()

    with Producer("PG", name_server=name_server, timeout_ms=2_000) as producer:

        def work() -> None:
            while not is_over.is_set():
                future = producer.send_async(Message("Killed", b"f"))
                for is_async in (False, True):
                    try:
                        sent = future.result(30) if is_async else producer.send(Message("Killed", b"s"))
                        acknowledged.append(sent.msg_id)
                    except (SendError, ConnectionError, TimeoutError):
                        time.sleep(0.01)  # as a program would before its own next try

        threads = [threading.Thread(target=work) for _ in range(4)]
        try:
            for number in range(3):
                with broker_process(tmp_path, port, names_port) as broker:
                    if not number:
                        for thread in threads:
                            thread.start()
                    before = len(acknowledged)
                    until(lambda before=before: len(acknowledged) > before + 500, "messages go")  # type: ignore[misc]
                    if number == 2:
                        is_over.set()
                        for thread in threads:
                            thread.join(60)
                        keys = {
                            record.properties["UNIQ_KEY"]
                            for records in arrived(name_server, "Killed").values()
                            for record in records
                        }
                        assert set(acknowledged) <= keys
                    else:
                        broker.kill()
        finally:
            is_over.set()
            for thread in threads:
                if thread.is_alive():
                    thread.join(60)
    assert len(acknowledged) > 1500

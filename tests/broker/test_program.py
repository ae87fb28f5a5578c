"""The program, the embedded broker, and what the name servers know of a broker."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rmq_core.embedded_broker import embedded
from rmq_core.errors import BrokerError, RocketMQError
from rmq_core.net.blocking import BlockingChannel
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import TopicRouteData
from rmq_core.protocol.record import decode_pull_body
from support.programs import SMALL_LOG, broker_program


def send(address: str, topic: str, body: bytes) -> Any:
    with contextlib.closing(BlockingChannel(address)) as channel:
        request = r.SendMessageV2("PG", topic, "TBW102", 4, 0, 0, 1, 0, "UNIQ_KEY\x01k\x02")
        return channel.call(request, body, timeout_ms=60_000)


def received(address: str, topic: str) -> list[bytes]:
    with contextlib.closing(BlockingChannel(address)) as channel:
        request = r.PullMessage("CG", topic, 0, 0, 32, 4, 0, 0, 0, "*")
        answer = channel.call(request, timeout_ms=60_000)
        return [each.body for each in decode_pull_body(answer.body)] if answer.code == 0 else []


def test_alone_it_serves_brings_its_name_server_and_keeps_its_messages(tmp_path: Path) -> None:
    """In an empty folder: one line says what to connect to; SIGTERM ends it with 0, and a restart has all."""
    with broker_program(tmp_path) as broker:
        address = broker.address
        assert address.startswith("127.0.0.1:")
        assert (tmp_path / broker.store).resolve() == tmp_path / "store"
        send(address, "Orders", b"kept")
        with contextlib.closing(BlockingChannel(broker.name_server)) as channel:
            route = TopicRouteData.decode(channel.call(r.GetRouteinfoByTopic("Orders")).body)
        assert [list((each.broker_addrs or {}).values()) for each in route.broker_datas or ()] == [[address]]
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(60) == 0
    assert (tmp_path / "store" / "commitlog").is_dir()
    assert not (tmp_path / "store" / "abort").exists()
    with broker_program(tmp_path) as broker:
        assert received(broker.address, "Orders") == [b"kept"]


def test_alone_on_another_address_it_is_found_there(tmp_path: Path) -> None:
    """bindAddress alone: broker and name server listen, register and are announced on that address."""
    with broker_program(tmp_path, "bindAddress=127.0.0.2") as broker:
        assert broker.address.startswith("127.0.0.2:")
        assert broker.name_server.startswith("127.0.0.2:")
        send(broker.address, "Orders", b"kept")
        with contextlib.closing(BlockingChannel(broker.name_server)) as channel:
            route = TopicRouteData.decode(channel.call(r.GetRouteinfoByTopic("Orders")).body)
        assert [list((each.broker_addrs or {}).values()) for each in route.broker_datas or ()] == [[broker.address]]


def test_it_stops_cleanly_while_it_watches_its_input(tmp_path: Path) -> None:
    """SIGTERM while a thread waits for the end of standard input: that must not abort the interpreter."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rmq_core.broker", "listenPort=0", "namesrvPort=0", "stopWithStdin=true", SMALL_LOG],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert b"boot success" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_acknowledged_messages_survive_a_kill(tmp_path: Path) -> None:
    """SIGKILL after the answers: with SYNC_FLUSH all are there, and committed offsets are not above the queue."""
    with broker_program(tmp_path, "flushDiskType=SYNC_FLUSH") as broker:
        for number in range(20):
            send(broker.address, "Orders", b"%d" % number)
        broker.process.kill()
        broker.process.wait()
    assert (tmp_path / "store" / "abort").exists()
    with broker_program(tmp_path, "flushDiskType=SYNC_FLUSH") as broker:
        assert received(broker.address, "Orders") == [b"%d" % number for number in range(20)]


def test_a_second_broker_is_kept_out_of_the_store(tmp_path: Path) -> None:
    """It must say which directory is in use, exit with -3, and leave the first one alone."""
    with broker_program(tmp_path) as broker:
        second = subprocess.run(
            [sys.executable, "-m", "rmq_core.broker", "listenPort=0", "--namesrvPort", "0", SMALL_LOG],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 253
        assert "is in use by another process" in second.stderr
        send(broker.address, "Orders", b"still there")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["-h"], 0, "usage: mqbroker"),
        (["-p"], 0, "brokerClusterName=DefaultCluster"),
        (["flushDiskType=MAYBE"], 255, "flushDiskType=MAYBE"),
        (["-c", "/no/such/file"], 255, "/no/such/file"),
        (["--namesrvPort", "x"], 255, "namesrvPort=x"),
        (["bindAddress=203.0.113.7", "--namesrvPort", "0"], 253, "203.0.113.7"),
    ],
)
def test_the_program_says_what_is_wrong(tmp_path: Path, arguments: list[str], code: int, text: str) -> None:
    """Help, printing, and settings that cannot be used: exit code and one sentence."""
    done = subprocess.run(
        [sys.executable, "-m", "rmq_core.broker", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreadable_table_stops_the_start(tmp_path: Path) -> None:
    """topics.json and its .bak hold rubbish: a broker that forgot its topics must not serve."""
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{rubbish")
    (config / "topics.json.bak").write_text("{rubbish")
    done = subprocess.run(
        [sys.executable, "-m", "rmq_core.broker", "listenPort=0", "--namesrvPort", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 253
    assert "topics.json" in done.stderr
    assert (config / "topics.json").read_text() == "{rubbish"


def test_an_embedded_broker_ends_with_its_block() -> None:
    """Topic made, message sent and received; afterwards nothing listens and no file is left."""
    with embedded() as mq:
        mq.create_topic("Orders", queues=2)
        send(mq.address, "Orders", b"hello")
        assert received(mq.address, "Orders") == [b"hello"]
        assert (mq.store_path / "commitlog").is_dir()
        with contextlib.closing(BlockingChannel(mq.name_server)) as channel:
            route = TopicRouteData.decode(channel.call(r.GetRouteinfoByTopic("Orders")).body)
            assert [each.write_queue_nums for each in route.queue_datas or ()] == [2]
        with pytest.raises(BrokerError):
            mq.create_topic("not a name")
    assert not mq.store_path.exists()
    with pytest.raises(OSError), contextlib.closing(BlockingChannel(mq.address)) as channel:
        channel.call(r.GetBrokerRuntimeInfo())


def test_an_embedded_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    """A setting that is refused must come back as the error's text."""
    with pytest.raises(RocketMQError, match="flushDiskType"), embedded(flushDiskType="MAYBE"):
        pass


def test_an_embedded_broker_ends_with_its_parent(tmp_path: Path) -> None:
    """The parent is killed: the broker must stop by itself, within seconds, and cleanly."""
    code = (
        "import sys, time; from rmq_core.embedded_broker import embedded\n"
        f"mq = embedded({str(tmp_path / 'store')!r}).start(); print(mq.address, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline().startswith("127.0.0.1:")
    assert (tmp_path / "store" / "abort").exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while (tmp_path / "store" / "abort").exists():
        assert time.monotonic() < deadline, "the broker outlives its parent"
        time.sleep(0.05)

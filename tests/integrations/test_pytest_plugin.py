"""The pytest plug-in, in a session of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import os
import pytest
from rmq_core import LitePullConsumer, Message, Producer

seen = {}

@pytest.mark.parametrize("number", [1, 2])
def test_each_has_its_topic(rocketmq, number):
    topic = rocketmq.topic()
    with Producer("shop", name_server=rocketmq.name_server) as producer:
        producer.send(Message(topic, b"%d" % number))
    with LitePullConsumer(rocketmq.group(), name_server=rocketmq.name_server, start_from="earliest") as consumer:
        consumer.subscribe(topic)
        assert [each.body for each in consumer.poll()] == [b"%d" % number]
    seen[topic] = rocketmq.address
    assert rocketmq.store_path.exists()
    print("STORE", rocketmq.store_path)
    assert "each_has_its_topic-" in topic

def test_all_share_one_broker(rocketmq):
    assert len(seen) == 2
    assert set(seen.values()) == {rocketmq.address}
    assert rocketmq.name_server in repr(rocketmq)
"""


def test_a_session_has_one_broker_and_each_test_its_topics(tmp_path: Path) -> None:
    """Runs three tests where the package is only installed; afterwards the broker and its store are gone."""
    (tmp_path / "test_orders.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    (store,) = {Path(line.split(" ", 1)[1]) for line in done.stdout.splitlines() if "STORE" in line}
    assert not store.exists()

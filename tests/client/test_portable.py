"""Clients need nothing that only some systems have: neither uvloop nor forks nor what POSIX adds to Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import rmq_core

ROOT = Path(__file__).parents[2]
_PROGRAM = """
import asyncio, importlib, os, pkgutil, sys

for name in ("uvloop", "fcntl", "resource", "pwd", "grp", "termios", "pty", "tty"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "uname", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)

import rmq_core
from rmq_core import Message, aio

for package in ("rmq_core.client", "rmq_core.client.blocking", "rmq_core.integrations"):
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
        importlib.import_module(module.name)

arguments = {"name_server": sys.argv[1]}
with rmq_core.Admin(**arguments) as admin:
    admin.create_topic("Portable", queues=1)
with rmq_core.Producer("PG", **arguments) as producer:
    assert producer.send(Message("Portable", b"1")).ok
    assert producer.send_async(Message("Portable", b"2")).result(30).ok

async def send():
    async with aio.Producer("PG", **arguments) as producer:
        assert (await producer.send(Message("Portable", b"3"))).ok

asyncio.run(send())
heard = []
consumer = rmq_core.PushConsumer("push", start_from="earliest", **arguments)

@consumer.subscribe("Portable")
def hear(message):
    heard.append(message.body)
    if len(heard) == 3:
        consumer.close()

consumer.run()
with rmq_core.LitePullConsumer("lite", start_from="earliest", **arguments) as lite:
    lite.subscribe("Portable")
    read = [message.body for _, message in zip(range(3), lite)]
assert heard == read == [b"1", b"2", b"3"], (heard, read)
print(type(asyncio.new_event_loop()).__module__)
"""


def test_every_client_works_without_what_only_some_systems_have() -> None:
    """A program from which it is all taken away imports every module of the clients, sends and consumes."""
    with rmq_core.embedded() as mq:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, mq.name_server],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("asyncio.")

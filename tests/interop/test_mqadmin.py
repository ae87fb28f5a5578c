"""Apache's mqadmin on our broker and on Apache's.

Both are in an equal state, and the same commands print the same once what must differ is masked. The tool is of
4.9.7 and of 5.3.3, the broker of 5.3.3, whose answers ours follow.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import rmq_core
from interop.apache import write_logback
from interop.artifacts import ROCKETMQ, java_class_path
from interop.clients import CLIENTS
from interop.driver import Driver, DriverError
from interop.servers import Server, running, wait_until
from rmq_core import Message, MessageQueue, Producer
from rmq_core.errors import BrokerError

HERE: Final = Path(__file__).parent
CASES: Final[dict[str, Any]] = tomllib.loads((HERE / "mqadmin.toml").read_text())
BROKER: Final = "judged"
GROUPS_READ: Final = [(group, topic) for group in ("Orders", "Offline") for topic in ("Orders", f"%RETRY%{group}")]
LISTED_TOPICS: Final = json.dumps(
    [{"topicName": f"Listed{each}", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for each in (1, 2)]
)
LISTED_GROUPS: Final = json.dumps([{"groupName": f"Listed{each}", "retryMaxTimes": each} for each in (1, 2)])


@dataclass(frozen=True, slots=True)
class Pair:
    """Both servers in an equal state, with the tool."""

    version: str
    tool: Driver
    ours: Server
    theirs: Server
    words: dict[str, dict[str, str]]
    """What stands for {name} in a command, by server."""

    def outputs(self, command: str) -> tuple[list[str], list[str]]:
        """What both print, without what may differ."""
        patterns = self._allowed(command, "lines")
        ours, theirs = self._run(command, self.ours), self._run(command, self.theirs)
        assert theirs or command in CASES["silent"], f"{command} printed nothing on Apache's broker"
        return tuple([line for line in lines if not _matches(line, patterns)] for lines in (ours, theirs))  # type: ignore[return-value]

    def _run(self, command: str, server: Server) -> list[str]:
        arguments = [each.format(**self.words[server.name]) for each in command.split()]
        arguments += ["-n", server.name_server]
        try:
            printed = self.tool.ask("mqadmin", arguments=arguments)
        except DriverError as error:
            printed = str(error)
        if "-f" in arguments:
            folder = Path(arguments[arguments.index("-f") + 1])
            printed += "".join(file.read_text() for file in sorted(folder.glob("**/*.json")))
        masks = [*self._allowed(command, "masks"), *CASES["masks"]]
        return masked(printed, self.words[server.name], masks)

    def _allowed(self, command: str, kind: str) -> list[Any]:
        """What of this kind may differ in what a command prints."""
        name = command.split(maxsplit=1)[0]
        found = (CASES["differences"].get(each, {}) for each in (name, f"{name} {self.version}"))
        return [entry for allowed in found for entry in allowed.get(kind, [])]


def _matches(line: str, patterns: list[str]) -> bool:
    return any(re.search(pattern, line) for pattern in patterns)


def masked(printed: str, words: dict[str, str], masks: list[dict[str, str]]) -> list[str]:
    """The lines without what must differ: addresses, times, rates, sizes, ids, the order in a hash map, and the
    tool's own log."""
    lines = [
        line for line in printed.splitlines() if "|-" not in line and not line.startswith(("\tat ", "OpenJDK"))
    ]
    text = "\n".join(lines)
    for name in ("home", "client_id", "offset_msg_id", "msg_id", "broker", "name_server"):
        text = text.replace(words[name], f"<{name}>")
    for mask in masks:
        text = re.sub(mask["pattern"], mask["as"], text)
    text = re.sub(r"\{([^{}=]+=[^{}]*)\}", lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", text)
    return sorted(re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if line.strip())


@pytest.fixture(scope="module", params=ROCKETMQ)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    version = request.param
    home = tmp_path_factory.mktemp(f"mqadmin-{version}")
    write_logback(home)
    java = [
        "java",
        "-Xmx256m",
        "-Djava.security.manager=allow",
        f"-Drocketmq.home.dir={home}",
        f"-Duser.home={home}",
    ]
    with (
        running("ours", home / "ours", brokerName=BROKER) as ours,
        running(f"apache-{ROCKETMQ[-1]}", home / "theirs", brokerName=BROKER) as theirs,
        Driver([*java, "-cp", java_class_path(version), "Mqadmin"], folder=home) as tool,
        CLIENTS[f"java-{version}-json"].start(ours.name_server) as our_member,
        CLIENTS[f"java-{version}-json"].start(theirs.name_server) as their_member,
    ):
        words = {
            server.name: prepare(server, member) for server, member in ((ours, our_member), (theirs, their_member))
        }
        yield Pair(version, tool, ours, theirs, words)


def prepare(server: Server, member: Driver) -> dict[str, str]:
    """Topics, messages, a group that is online and one that is not, with their progress."""
    for topic in ("Orders", "Idle"):
        server.create_topic(topic, queues=2)
    with Producer("P", name_server=server.name_server) as producer:
        results = [
            producer.send(
                Message("Orders", b"body %d" % number, tags="red", keys=f"key{number}"),
                queue=MessageQueue("Orders", "judged", number % 2),
            )
            for number in range(10)
        ]
    # The group has the topic's name: Apache's 5.3 takes every topic for a group that reads it.
    client_id = member.ask("push", name="Orders", topic="Orders")
    member.wait(lambda events: len(events) >= 10)
    member.ask("push", name="Offline", topic="Orders")
    member.wait(lambda events: len(events) >= 20)
    with rmq_core.Admin(name_server=server.name_server) as admin:
        for group, topic in GROUPS_READ:
            done = functools.partial(_is_done, admin, group, topic)
            # Of a topic without messages it stores it after a long poll and the next of its rounds.
            wait_until(done, f"{group} never stored its progress of {topic}", timeout_s=300)
    # Not before: a consumer that stops stores nothing of what its listener has just been given.
    member.ask("stop", name="Offline")
    member.ask("producer", name="Maker")
    member.ask("send", name="Maker", topic="Idle", body="one")
    (server.home / "topics.list").write_text(LISTED_TOPICS)
    (server.home / "groups.list").write_text(LISTED_GROUPS)
    return {
        "client_id": client_id,
        "broker": server.broker,
        "name_server": server.name_server,
        "home": str(server.home),
        "msg_id": results[0].msg_id,
        "offset_msg_id": results[0].offset_msg_id,
    }


def _is_done(admin: rmq_core.Admin, group: str, topic: str) -> bool:
    try:
        offsets = admin.offsets(group, topic)
        return all(offset == admin.max_offset(queue) for queue, offset in offsets.items())
    except BrokerError:
        return False


def _commands(version: str) -> list[str]:
    more: list[str] = CASES["commands_of"].get(version, {}).get("commands", [])
    return [*CASES["commands"], *more]


@pytest.mark.parametrize(
    "command", list(dict.fromkeys(each for version in ROCKETMQ for each in _commands(version)))
)
def test_mqadmin_prints_the_same(pair: Pair, command: str) -> None:
    """Runs one command on both and compares what it printed, line by line in any order."""
    if command not in _commands(pair.version):
        pytest.skip(f"not applicable: mqadmin {pair.version} lacks this command or this option of it")
    ours, theirs = pair.outputs(command)
    assert ours == theirs, "\n".join(difflib.unified_diff(theirs, ours, "Apache's", "ours", lineterm="", n=0))


@pytest.mark.parametrize("command", CASES["not_applicable"])
def test_mqadmin_command_that_is_not_compared(command: str) -> None:
    """Says why, for the page."""
    pytest.skip(f"not applicable: {CASES['not_applicable'][command]}")


def test_every_command_is_compared_or_not_applicable(pair: Pair) -> None:
    """The tool itself says which commands it has."""
    usage = pair.tool.ask("mqadmin", arguments=[])
    known = set(re.findall(r"^   (\w+) {2,}\S", usage, re.MULTILINE))
    assert len(known) > 50, usage
    compared = {command.split()[0] for command in _commands(pair.version)}
    assert known - compared - CASES["not_applicable"].keys() == set()


def test_every_difference_has_a_reason() -> None:
    """What may differ says why."""
    for command, allowed in CASES["differences"].items():
        assert allowed["reason"], json.dumps(command)

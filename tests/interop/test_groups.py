"""Groups whose members are clients of several languages."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.clients import CLIENTS
from interop.driver import Driver, Event
from interop.servers import SERVERS, Server, running, wait_until

MEMBERS = {name: client for name, client in CLIENTS.items() if not name.endswith("binary")}
ROUND = 48
QUEUES = 8

Drivers = dict[str, Driver]


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@contextlib.contextmanager
def all_clients(server: Server) -> Iterator[Drivers]:
    """One process of each client."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(client.start(server.name_server)) for name, client in MEMBERS.items()}


@pytest.fixture(scope="module")
def drivers(server: Server) -> Iterator[Drivers]:
    with all_clients(server) as drivers:
        yield drivers


def send(driver: Driver, topic: str, bodies: list[str]) -> None:
    driver.ask("producer", name=f"P_{topic}")
    for body in bodies:
        driver.ask("send", name=f"P_{topic}", topic=topic, body=body)
    driver.ask("stop", name=f"P_{topic}")


def received(drivers: Drivers, group: str) -> list[tuple[str, Event]]:
    """Each message with the client that got it."""
    return [(name, event) for name, driver in drivers.items() for event in driver.messages(group)]


def round_with_one_owner_per_queue(drivers: Drivers, topic: str, group: str, members: set[str]) -> None:
    """Sends rounds of messages until each queue has one owner, and each member a queue; all rounds arrive whole."""
    sender = drivers["ours"]

    def is_settled() -> bool:
        bodies = [f"{time.monotonic_ns()}-{number}" for number in range(ROUND)]
        send(sender, topic, bodies)
        wanted = set(bodies)
        wait_until(lambda: wanted <= {event["body"] for _, event in received(drivers, group)}, "a message is lost")
        owners: dict[int, set[str]] = {}
        for name, event in received(drivers, group):
            if event["body"] in wanted:
                owners.setdefault(event["queueId"], set()).add(name)
        has_one = all(len(names) == 1 for names in owners.values())
        return len(owners) == QUEUES and has_one and set.union(*owners.values()) == members

    wait_until(is_settled, "the members never agreed on the owners of the queues", 120)


def test_members_of_five_kinds_share_the_queues_as_they_come_and_go(server: Server, drivers: Drivers) -> None:
    """They join one after the other while messages come, and two leave."""
    topic, group = "Shared", "G_Shared"
    server.create_topic(topic, queues=QUEUES)
    for name, driver in drivers.items():
        driver.ask("push", name=group, topic=topic)
        send(drivers["ours"], topic, [f"while {name} joins {number}" for number in range(10)])
    round_with_one_owner_per_queue(drivers, topic, group, set(drivers))
    leaving = set(list(drivers)[1:3])
    for name in leaving:
        drivers[name].ask("stop", name=group)
        send(drivers["ours"], topic, [f"while {name} leaves {number}" for number in range(10)])
    round_with_one_owner_per_queue(drivers, topic, group, set(drivers) - leaving)
    seen = {event["body"] for _, event in received(drivers, group)}
    for name in drivers:
        assert seen >= {f"while {name} joins {number}" for number in range(10)}
    for name in leaving:
        assert seen >= {f"while {name} leaves {number}" for number in range(10)}
    for driver in drivers.values():
        driver.ask("stop", name=group)
        driver.forget()


def test_each_kind_goes_on_where_another_one_stopped(server: Server, drivers: Drivers) -> None:
    """One after the other they take ten messages of one group; nobody gets what another one had."""
    topic, group = "Handed", "G_Handed"
    server.create_topic(topic, queues=2)
    for turn, (name, driver) in enumerate(drivers.items(), 1):
        send(drivers["ours"], topic, [f"{name} {number}" for number in range(10)])
        driver.ask("push", name=group, topic=topic)
        driver.wait(lambda events: len(events) >= 10)
        server.wait_for_progress(group, topic, 10 * turn)
        driver.ask("stop", name=group)
    for name, driver in drivers.items():
        assert Counter(event["body"] for event in driver.messages(group)) == Counter(
            f"{name} {number}" for number in range(10)
        )
        driver.forget()


@pytest.mark.parametrize("restarted", SERVERS)
def test_progress_outlives_the_broker(restarted: str, tmp_path: Path) -> None:
    """Each client takes four messages with a group of its own; after a restart of the broker, only the fifth."""
    topic = "Kept"
    with running(restarted, tmp_path) as server:
        server.create_topic(topic, queues=1)
        with all_clients(server) as drivers:
            send(drivers["ours"], topic, [f"before {number}" for number in range(4)])
            for name, driver in drivers.items():
                driver.ask("push", name=group_of(name), topic=topic)
            for name, driver in drivers.items():
                driver.wait(lambda events: len(events) >= 4)
                server.wait_for_progress(group_of(name), topic, 4)
    with running(restarted, tmp_path) as server:
        server.wait_for_topic(topic)
        with all_clients(server) as drivers:
            for name in MEMBERS:
                assert server.committed(group_of(name), topic) == [4], name
            send(drivers["ours"], topic, ["after"])
            for name, driver in drivers.items():
                driver.ask("push", name=group_of(name), topic=topic)
                assert [event["body"] for event in driver.wait(lambda events: len(events) >= 1)] == ["after"], name


def group_of(name: str) -> str:
    return "G_" + name.replace(".", "_")

"""Scenarios run by each client.

Clients of several languages on our broker and on Apache's: a scenario is written once and run by all.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from interop.clients import CLIENTS, Client
from interop.driver import Driver, DriverError, Event
from interop.servers import SERVERS, Server, running, wait_until
from rmq_core import Admin

F = TypeVar("F", bound=Callable[..., None])


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture(scope="module", params=CLIENTS.values(), ids=str)
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


@pytest.fixture(scope="module")
def started(client: Client, server: Server) -> Iterator[Driver]:
    with client.start(server.name_server) as driver:
        yield driver


@pytest.fixture
def driver(started: Driver, client: Client, server: Server, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """The client, if it can do this; whatever it started is stopped in the end."""
    scenario = request.node.function.scenario
    if reason := client.reason_against(scenario, server.name):
        pytest.skip(f"not applicable: {reason}")
    yield started
    for name in ("P", "G", "A", "B", "D"):
        started.ask("stop", name=f"{name}_{topic_of(request.node.name)}")
    started.forget()


def topic_of(test_name: str) -> str:
    return re.sub(r"\W", "_", test_name)[-100:]


@pytest.fixture
def topic(request: pytest.FixtureRequest, server: Server) -> str:
    """A topic of this test, client and server alone."""
    name = topic_of(request.node.name)
    server.create_topic(name, queues=1 if request.node.function.scenario == "positions" else 4)
    return name


def scenario(name: str) -> Callable[[F], F]:
    """Give a test the name by which a client says that it cannot do this."""

    def mark(function: F) -> F:
        function.scenario = name  # type: ignore[attr-defined]
        return function

    return mark


def bodies(events: list[Event]) -> Counter[str]:
    return Counter(each["body"] for each in events if each["event"] == "message")


@scenario("send")
def test_what_was_sent_arrives_with_all_it_carries(driver: Driver, topic: str) -> None:
    """Keys, tags, properties, text of several scripts, an empty property left out."""
    driver.ask("producer", name=f"P_{topic}")
    driver.ask("push", name=f"G_{topic}", topic=topic)
    common: dict[str, Any] = {"name": f"P_{topic}", "topic": topic, "tags": "red", "keys": "k1 k2"}
    sent = driver.ask("send", body="eins", properties={"color": "blau", "city": "Åbo 北京"}, **common)
    assert sent["status"] == "SEND_OK"
    [event] = driver.wait(lambda events: len(events) >= 1)
    assert (event["topic"], event["body"], event["tags"], event["keys"]) == (topic, "eins", "red", "k1 k2")
    assert (event["properties"]["color"], event["properties"]["city"]) == ("blau", "Åbo 北京")
    assert event["msgId"] == sent["msgId"]


@scenario("every_send")
def test_every_kind_of_send_arrives(driver: Driver, topic: str, server: Server) -> None:
    """Sync, async, one-way, to a queue, by selector, compressed."""
    driver.ask("producer", name=f"P_{topic}", compressOver=1000)
    driver.ask("push", name=f"G_{topic}", topic=topic)
    common: dict[str, Any] = {"name": f"P_{topic}", "topic": topic}
    driver.ask("send", body="sync", **common)
    driver.ask("send", mode="async", body="async", **common)
    driver.ask("send", mode="oneway", body="oneway", **common)
    at = driver.ask("send", mode="queue", broker=server.broker_name, queueId=2, body="queue", **common)
    assert at["queueId"] == 2
    same = [
        driver.ask("send", mode="selector", argument="customer-7", body=f"s{n}", **common)["queueId"]
        for n in range(3)
    ]
    assert len(set(same)) == 1
    driver.ask("send", size=2000, **common)
    events = driver.wait(lambda events: len(events) >= 8)
    assert set(bodies(events)) == {"sync", "async", "oneway", "queue", "s0", "s1", "s2", "x" * 2000}


@scenario("batch")
def test_a_batch_arrives_as_single_messages(driver: Driver, topic: str) -> None:
    """Three messages in one request."""
    driver.ask("producer", name=f"P_{topic}")
    driver.ask("push", name=f"G_{topic}", topic=topic)
    driver.ask("batch", name=f"P_{topic}", topic=topic, bodies=["b0", "b1", "b2"])
    assert bodies(driver.wait(lambda events: len(events) >= 3)) == Counter(["b0", "b1", "b2"])


@scenario("limit")
def test_a_body_over_the_limit_is_refused(driver: Driver, topic: str) -> None:
    """Sends 3.9 MiB and 5 MiB."""
    driver.ask("producer", name=f"P_{topic}", compressOver=100_000_000)
    assert driver.ask("send", name=f"P_{topic}", topic=topic, size=3_900_000)["status"] == "SEND_OK"
    with pytest.raises(DriverError):
        driver.ask("send", name=f"P_{topic}", topic=topic, size=5 << 20)


@scenario("orderly")
def test_orderly_consumption_keeps_the_order_over_suspensions(driver: Driver, topic: str) -> None:
    """Two members share the topic; each message is refused once."""
    driver.ask("producer", name=f"P_{topic}")
    for number in range(40):
        driver.ask(
            "send", name=f"P_{topic}", topic=topic, mode="selector", argument=str(number % 4), body=f"{number}"
        )
    for _ in range(2):
        driver.ask("push", name=f"G_{topic}", topic=topic, orderly=True, failures=1)
    events = driver.wait(lambda events: sum(each["reconsumeTimes"] >= 1 for each in events) >= 40, 120)
    by_queue: dict[int, list[int]] = {}
    for each in events:
        if each["reconsumeTimes"] == 1:
            by_queue.setdefault(each["queueId"], []).append(each["offset"])
    assert sum(map(len, by_queue.values())) == 40
    assert all(offsets == sorted(offsets) for offsets in by_queue.values())


@scenario("dead_letters")
def test_refused_messages_come_back_and_end_as_dead_letters(driver: Driver, topic: str, server: Server) -> None:
    """Refuses for ever; two retries are allowed; another group reads the dead letter."""
    driver.ask("producer", name=f"P_{topic}")
    driver.ask("push", name=f"G_{topic}", topic=topic, failures=99, maxReconsumeTimes=2)
    driver.ask("send", name=f"P_{topic}", topic=topic, body="poison", keys="bad")
    events = driver.wait(lambda events: len(events) >= 3, 120)
    assert [each["reconsumeTimes"] for each in events] == [0, 1, 2]
    server.wait_for_topic(f"%DLQ%G_{topic}")
    driver.ask("push", name=f"D_{topic}", topic=f"%DLQ%G_{topic}")
    dead = driver.wait(lambda events: any(each["consumer"] == f"D_{topic}" for each in events), 120)[-1]
    assert (dead["body"], dead["keys"]) == ("poison", "bad")


@scenario("delay")
def test_delayed_messages_come_at_their_time(driver: Driver, topic: str) -> None:
    """Levels 4, 3 and 1 are as many seconds here."""
    driver.ask("producer", name=f"P_{topic}")
    driver.ask("push", name=f"G_{topic}", topic=topic)
    for level in (4, 3, 1):
        driver.ask("send", name=f"P_{topic}", topic=topic, body=f"{level}", delayLevel=level)
    events = driver.wait(lambda events: len(events) >= 3)
    assert bodies(events) == Counter(["1", "3", "4"])
    for each in events:
        assert each["receivedAt"] - each["bornTimestamp"] >= int(each["body"]) * 1000


@scenario("transactions")
def test_transactions_are_decided_at_once_or_when_the_broker_asks(driver: Driver, topic: str) -> None:
    """Commits, rolls back, and leaves two open whose checks decide.

    Apache 5.3 writes decisions down in batches, and may ask about a decided message before it has: then the answer
    is unknown.
    """
    driver.ask("producer", name=f"P_{topic}", checks=True, topic=topic)
    driver.ask("push", name=f"G_{topic}", topic=topic)
    for body, decide, check in (
        ("committed", "commit", "unknown"),
        ("rolled back", "rollback", "unknown"),
        ("checked in", "unknown", "commit"),
        ("checked out", "unknown", "rollback"),
    ):
        driver.ask("transaction", name=f"P_{topic}", topic=topic, body=body, decide=decide, check=check)

    def decided(events: list[Event]) -> bool:
        checked = {each["body"] for each in events if each["event"] == "check"}
        return bodies(events).total() >= 2 and checked >= {"checked in", "checked out"}

    events = driver.wait(decided, 180)
    assert bodies(events) == Counter({"committed": 1, "checked in": 1})


@scenario("filters")
def test_filters_by_tag_and_by_sql(driver: Driver, topic: str) -> None:
    """Two groups, one with two tags and one with a condition."""
    driver.ask("producer", name=f"P_{topic}")
    driver.ask("push", name=f"A_{topic}", topic=topic, tags="a || b")
    driver.ask("push", name=f"B_{topic}", topic=topic, sql="n > 5 AND TAGS = 'a'")
    for number in range(12):
        driver.ask(
            "send",
            name=f"P_{topic}",
            topic=topic,
            body=f"{number}",
            tags="abc"[number % 3],
            properties={"n": number},
        )
    driver.wait(lambda events: len(events) >= 10)
    assert {int(each["body"]) for each in driver.messages(f"A_{topic}")} == {n for n in range(12) if n % 3 != 2}
    assert {int(each["body"]) for each in driver.messages(f"B_{topic}")} == {6, 9}


@scenario("broadcast")
def test_every_broadcasting_member_gets_every_message(driver: Driver, topic: str) -> None:
    """Two members, ten messages, twenty deliveries."""
    for _ in range(2):
        driver.ask("push", name=f"G_{topic}", topic=topic, broadcasting=True)
    driver.ask("producer", name=f"P_{topic}")
    driver.ask("send_many", name=f"P_{topic}", topic=topic, body="m", count=10)
    events = driver.wait(lambda events: len(events) >= 20)
    assert set(bodies(events).values()) == {2}


@scenario("progress")
def test_a_group_goes_on_from_its_progress(driver: Driver, topic: str, server: Server) -> None:
    """A first member takes ten messages and leaves; the second one gets only the eleventh."""
    driver.ask("producer", name=f"P_{topic}")
    driver.ask("send_many", name=f"P_{topic}", topic=topic, body="m", count=10)
    driver.ask("push", name=f"G_{topic}", topic=topic)
    driver.wait(lambda events: len(events) >= 10)
    server.wait_for_progress(f"G_{topic}", topic, 10)
    driver.ask("stop", name=f"G_{topic}")
    driver.forget()
    driver.ask("push", name=f"G_{topic}", topic=topic)
    driver.ask("send", name=f"P_{topic}", topic=topic, body="last")
    events = driver.wait(lambda events: "last" in bodies(events))
    assert bodies(events) == Counter(["last"])


@scenario("positions")
def test_a_new_group_starts_where_it_is_told(driver: Driver, topic: str, server: Server) -> None:
    """Three groups, at the first message, at a time and at the end, on a queue with old and newer messages."""
    driver.ask("producer", name=f"P_{topic}")
    driver.ask("send_many", name=f"P_{topic}", topic=topic, body="old", count=3)
    time.sleep(2.1)  # the time is told in whole seconds
    at = time.strftime("%Y%m%d%H%M%S", time.localtime())
    driver.ask("send_many", name=f"P_{topic}", topic=topic, body="new", count=3)
    old, new = {"old0", "old1", "old2"}, {"new0", "new1", "new2"}
    expected = {f"A_{topic}": {*old, *new, "last"}, f"B_{topic}": {*new, "last"}, f"D_{topic}": {"last"}}
    driver.ask("push", name=f"A_{topic}", topic=topic)
    driver.ask("push", name=f"B_{topic}", topic=topic, **{"from": "CONSUME_FROM_TIMESTAMP"}, at=at)
    driver.ask("push", name=f"D_{topic}", topic=topic, **{"from": "CONSUME_FROM_LAST_OFFSET"})
    driver.wait(lambda events: len(events) >= 9)
    wait_until(lambda: server.committed(f"D_{topic}", topic) == [6], "the last group found no place to begin")
    driver.ask("send", name=f"P_{topic}", topic=topic, body="last")
    driver.wait(lambda events: bodies(events)["last"] >= 3)
    assert {name: {each["body"] for each in driver.messages(name)} for name in expected} == expected


@scenario("reset")
def test_a_running_group_goes_back_when_it_is_reset(driver: Driver, topic: str, server: Server) -> None:
    """Takes ten messages, is moved to the first one by our administration, and takes them again."""
    driver.ask("producer", name=f"P_{topic}")
    driver.ask("push", name=f"G_{topic}", topic=topic)
    driver.ask("send_many", name=f"P_{topic}", topic=topic, body="m", count=10)
    driver.wait(lambda events: len(events) >= 10)
    server.wait_for_progress(f"G_{topic}", topic, 10)  # 4.9 resets no group that has not committed yet
    with Admin(name_server=server.name_server) as admin:
        admin.reset_offsets(f"G_{topic}", topic, "earliest")
        events = driver.wait(lambda events: min(bodies(events)[f"m{n}"] for n in range(10)) >= 2)
    assert bodies(events).keys() == {f"m{n}" for n in range(10)}


@scenario("queries")
def test_messages_are_found_by_id_key_unique_key_and_time(driver: Driver, topic: str, server: Server) -> None:
    """Five messages with a key of their own and a common one, found in every way there is."""
    driver.ask("producer", name=f"P_{topic}")
    queue: dict[str, Any] = {"topic": topic, "broker": server.broker_name, "queueId": 0}
    sent = [
        driver.ask("send", name=f"P_{topic}", mode="queue", body=f"q{n}", keys=f"k{n} common", **queue)
        for n in range(5)
    ]

    def found(key: str) -> set[str]:
        return {each["body"] for each in driver.ask("query", name=f"P_{topic}", topic=topic, key=key)}

    wait_until(lambda: _finds(found, "k4"), "the index never had the last key")
    assert found("k2") == {"q2"}
    assert found("common") == {f"q{n}" for n in range(5)}
    for kind in ("offsetMsgId", "msgId"):
        assert driver.ask("view", name=f"P_{topic}", topic=topic, msgId=sent[3][kind])["body"] == "q3"
    last = driver.ask("view", name=f"P_{topic}", topic=topic, msgId=sent[4]["msgId"])
    assert driver.ask("search", name=f"P_{topic}", time=last["storeTimestamp"] - 60_000, **queue) == 0
    at = driver.ask("search", name=f"P_{topic}", time=last["storeTimestamp"], **queue)
    assert at == min(n for n in range(5) if stored_at(driver, topic, sent[n]) == last["storeTimestamp"])
    # Past the end Apache's brokers name the last message or the place behind it.
    assert driver.ask("search", name=f"P_{topic}", time=last["storeTimestamp"] + 60_000, **queue) in (4, 5)


def stored_at(driver: Driver, topic: str, sent: dict[str, Any]) -> int:
    time_ms: int = driver.ask("view", name=f"P_{topic}", topic=topic, msgId=sent["msgId"])["storeTimestamp"]
    return time_ms


def _finds(found: Callable[[str], set[str]], key: str) -> bool:
    try:
        return bool(found(key))
    except DriverError:  # Java's client throws where nothing is found
        return False


@scenario("lite_pull")
@pytest.mark.parametrize("assign", [False, True], ids=["subscribe", "assign"])
def test_lite_pull_reads_everything_and_commits(driver: Driver, topic: str, server: Server, assign: bool) -> None:
    """Polls until all is there, commits, and finds nothing the second time."""
    driver.ask("producer", name=f"P_{topic}")
    driver.ask("send_many", name=f"P_{topic}", topic=topic, body="m", count=20)
    how: dict[str, Any] = {"assign": True} if assign else {}
    driver.ask("lite", name=f"G_{topic}", topic=topic, **how)
    seen: set[str] = set()
    for _ in range(60):
        seen |= {each["body"] for each in driver.ask("poll", name=f"G_{topic}", timeout=1000)}
        if len(seen) == 20:
            break
    assert seen == {f"m{number}" for number in range(20)}
    driver.ask("commit", name=f"G_{topic}")
    driver.ask("stop", name=f"G_{topic}")
    server.wait_for_progress(f"G_{topic}", topic, 20)
    driver.ask("lite", name=f"G_{topic}", topic=topic, **how)
    driver.ask("send", name=f"P_{topic}", topic=topic, body="last")
    again: list[str] = []
    for _ in range(60):
        again += [each["body"] for each in driver.ask("poll", name=f"G_{topic}", timeout=1000)]
        if again:
            break
    assert again == ["last"]


@scenario("pull")
def test_one_queue_is_read_from_its_beginning(driver: Driver, topic: str, server: Server) -> None:
    """Sends 50 messages to a queue and pulls them in order."""
    driver.ask("producer", name=f"P_{topic}")
    queue: dict[str, Any] = {"topic": topic, "broker": server.broker_name, "queueId": 1}
    driver.ask("send_many", name=f"P_{topic}", mode="queue", body="m", count=50, **queue)
    found = driver.ask("pull", name=f"G_{topic}", count=50, **queue)
    assert [each["body"] for each in found] == [f"m{number}" for number in range(50)]


@scenario("request")
def test_a_request_gets_its_reply(driver: Driver, topic: str) -> None:
    """One client answers what another of its kind asks."""
    driver.ask("producer", name=f"P_{topic}")
    driver.ask("push", name=f"G_{topic}", topic=topic, reply=True)
    assert driver.ask("request", name=f"P_{topic}", topic=topic, body="ping", timeout=20_000) == "reply to ping"

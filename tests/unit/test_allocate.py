"""Allocation of queues to members, against what Java's strategies gave for the same queues and members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.client.allocate import (
    NAMES,
    Allocate,
    allocate_strategy,
    average,
    by_config,
    machine_room,
    machine_room_nearby,
)
from rmq_core.protocol.message import MessageQueue

VECTORS = Path(__file__).parent.parent / "data" / "java" / "allocations.txt"
"""strategy|brokers|queues per broker|members|queues of each member: printed by Apache's 4.9.7 and 5.3.3 alike."""

STRATEGIES: dict[str, Allocate] = {
    "average": allocate_strategy("average"),
    "average_by_circle": allocate_strategy("average_by_circle"),
    "consistent_hash": allocate_strategy("consistent_hash"),
    "machine_room": allocate_strategy("machine_room"),
    "machine_room:hz": machine_room(["hz"]),
    "machine_room_nearby": allocate_strategy("machine_room_nearby"),
    "machine_room_nearby:circle": machine_room_nearby("average_by_circle"),
}


def queues_of(brokers: Sequence[str], count: int) -> list[MessageQueue]:
    return sorted(MessageQueue("Orders", broker, number) for broker in brokers for number in range(count))


def vectors(strategy: str) -> Iterator[tuple[list[MessageQueue], list[str], list[str]]]:
    for line in VECTORS.read_text().splitlines():
        name, brokers, count, members, *shares = line.split("|")
        if name == strategy:
            yield queues_of(brokers.split(","), int(count)), members.split(","), shares


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_gives_every_member_what_javas_gives_it(name: str) -> None:
    """Compares every member's queues, in their order, for one to three brokers and members."""
    compared = 0
    for queues, members, shares in vectors(name):
        for member, share in zip(members, shares, strict=True):
            mine = STRATEGIES[name](member, queues, members)
            assert " ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in mine) == share
            compared += 1
    assert compared >= 18


@given(
    st.integers(0, 40),
    st.lists(st.text("abc123.@#", min_size=1, max_size=8), min_size=1, max_size=12, unique=True),
    st.sampled_from(["average", "average_by_circle", "consistent_hash"]),
)
def test_members_share_all_queues_and_none_twice(count: int, members: list[str], name: str) -> None:
    """Draws groups of any size, those with more members than queues among them."""
    queues, members = queues_of(["broker-a"], count), sorted(members)
    strategy = allocate_strategy(name)
    dealt = [queue for member in members for queue in strategy(member, queues, members)]
    assert sorted(dealt) == queues


def test_who_is_not_a_member_gets_nothing() -> None:
    """Asks for a client that the broker does not list, of every strategy that looks at the members."""
    queues = queues_of(["hz@broker-a"], 4)
    for name, strategy in STRATEGIES.items():
        assert list(strategy("10.0.0.9@hz@other", queues, ["10.0.0.1@hz@one"])) == [], name


def test_a_member_told_its_queues_gets_those_of_the_topic_that_is_divided() -> None:
    """Gives queues of two topics, one of which is known to the brokers within a namespace."""
    own = [MessageQueue("Orders", "broker-a", 1), MessageQueue("Bills", "broker-b", 0)]
    strategy = by_config(own)
    assert list(strategy("any", queues_of(["broker-a"], 4), ["other"])) == [own[0]]
    wrapped = [MessageQueue("shop%Bills", "broker-b", number) for number in range(2)]
    assert list(strategy("any", wrapped, ["other"])) == [wrapped[0]]
    assert list(strategy("any", [], ["other"])) == []


def test_a_room_that_is_not_named_is_said() -> None:
    """A broker, then a member, whose name holds no room: an error, so that everyone keeps what he has."""
    nearby = machine_room_nearby()
    with pytest.raises(ValueError, match="broker broker-a is in no machine room"):
        nearby("10.0.0.1@hz@one", queues_of(["broker-a"], 1), ["10.0.0.1@hz@one"])
    with pytest.raises(ValueError, match="instance_name='room@name'"):
        nearby("10.0.0.1@one", queues_of(["hz@broker-a"], 1), ["10.0.0.1@one"])


def test_rooms_may_be_told_by_functions() -> None:
    """Rooms by the last letter of broker and member: b has no member, so both share its queues."""
    strategy = machine_room_nearby(
        average, room_of_queue=lambda queue: queue.broker_name[-1], room_of_member=lambda member: member[-1]
    )
    queues = queues_of(["x-a", "x-b"], 2)
    assert list(strategy("1a", queues, ["1a", "2a"])) == [queues[0], queues[2]]
    assert list(strategy("2a", queues, ["1a", "2a"])) == [queues[1], queues[3]]


def test_a_strategy_is_chosen_by_name_or_given() -> None:
    """Tries each name, a function, and what is neither."""
    for name in NAMES:
        if name != "by_config":
            assert callable(allocate_strategy(name))
    assert allocate_strategy(average) is average
    with pytest.raises(ValueError, match=r"allocate=by_config\("):
        allocate_strategy("by_config")
    with pytest.raises(ValueError, match="allocate must be one of average"):
        allocate_strategy("avg")
    with pytest.raises(TypeError, match="allocate must be a name or a function"):
        allocate_strategy(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rooms must be a list"):
        machine_room("hz")
    with pytest.raises(TypeError, match="queues must be MessageQueue"):
        by_config(["broker-a/0"])  # type: ignore[list-item]

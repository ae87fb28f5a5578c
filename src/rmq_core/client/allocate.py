"""Which queues of a topic each member of a group reads. Pure: every member computes the same table by itself.

All six give what Java's strategies of the same names give, so that Java and Python members share a group. What is
dealt out comes sorted. A member that is not in the list gets nothing.

average              Neighbouring queues, as pages of a book: 8 queues for 3 members make 3, 3 and 2.
average_by_circle    One after another, as cards.
consistent_hash      Ten points of each member on a ring of MD5 hashes: who comes or leaves moves few queues.
machine_room         Queues of brokers named room@broker, of the rooms given, or of every room.
by_config            Always the queues given.
machine_room_nearby  Each room's queues to its own members, by another strategy; where it has none, to all.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, TypeAlias

from rmq_core.protocol.message import MessageQueue, unwrap_namespace

Allocate: TypeAlias = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]
"""(client id, all queues sorted, all members sorted) → the queues of that client."""

VIRTUAL_NODES: Final = 10


def average(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Neighbouring queues; the first members get one more where it does not come out even."""
    if client_id not in members:
        return []
    index = members.index(client_id)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def average_by_circle(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Every n-th queue."""
    if client_id not in members:
        return []
    return list(queues[members.index(client_id) :: len(members)])


def consistent_hash(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """The queues for which this member's points are the next ones on the ring."""
    if client_id not in members:
        return []
    # Of two points with one hash the later one stays, as in Java's map.
    ring = {_hash(f"{member}-{replica}"): member for member in members for replica in range(VIRTUAL_NODES)}
    points = sorted(ring)

    def member_of(queue: MessageQueue) -> str:
        at = bisect.bisect_left(points, _hash(_java_text(queue)))
        return ring[points[at % len(points)]]

    return [queue for queue in queues if member_of(queue) == client_id]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def machine_room(rooms: Collection[str] | None = None) -> Allocate:
    """Even shares of the queues on brokers named room@broker in these rooms; None means any room."""
    wanted = None if rooms is None else frozenset(_checked_names("rooms", rooms))

    def allocate(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if client_id not in members:
            return []
        ours = [queue for queue in queues if _is_in_rooms(queue.broker_name, wanted)]
        index = members.index(client_id)
        share, rest = divmod(len(ours), len(members))
        dealt = ours[index * share : (index + 1) * share]
        if index < rest:
            dealt.append(ours[share * len(members) + index])
        return dealt

    return allocate


def _is_in_rooms(broker_name: str, rooms: frozenset[str] | None) -> bool:
    parts = broker_name.split("@")
    return len(parts) == 2 and (rooms is None or parts[0] in rooms)


def by_config(queues: Collection[MessageQueue]) -> Allocate:
    """Always these queues, of the topic that is divided; for groups whose members are told what to read."""
    own = list(queues)
    for queue in own:
        if not isinstance(queue, MessageQueue):
            raise TypeError(f"queues must be MessageQueue, not {type(queue).__name__}")

    def allocate(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        topic = queues[0].topic if queues else ""
        # Users write bare names; what is divided is named as on the wire, namespace included.
        mine = [queue for queue in own if queue.topic in (topic, unwrap_namespace(topic))]
        return [replace(queue, topic=topic) for queue in mine]

    return allocate


def broker_room(queue: MessageQueue) -> str:
    """The room in a broker's name, room@broker; empty where it names none."""
    room, separator, _ = queue.broker_name.partition("@")
    return room if separator else ""


def member_room(client_id: str) -> str:
    """The room in a client id whose instance_name is room@name; empty where it names none."""
    parts = client_id.split("@")
    return parts[1] if len(parts) > 2 else ""


def machine_room_nearby(
    inner: str | Allocate = "average",
    *,
    room_of_queue: Callable[[MessageQueue], str] = broker_room,
    room_of_member: Callable[[str], str] = member_room,
) -> Allocate:
    """Queues to members of their own room by another strategy, and those of rooms without members to all members.

    The strategy raises ValueError where a broker or a member names no room: then everybody keeps what he has.
    """
    strategy = allocate_strategy(inner)

    def allocate(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if client_id not in members:
            return []
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = _named_room(room_of_queue(queue), f"broker {queue.broker_name}", "name it room@broker")
            queues_by_room.setdefault(room, []).append(queue)
        members_by_room: dict[str, list[str]] = {}
        for member in members:
            room = _named_room(room_of_member(member), f"client {member}", "give instance_name='room@name'")
            members_by_room.setdefault(room, []).append(member)
        own_room = room_of_member(client_id)
        dealt: list[MessageQueue] = []
        if own_room in queues_by_room:
            dealt += strategy(client_id, queues_by_room.pop(own_room), members_by_room[own_room])
        for room in sorted(queues_by_room):
            if room not in members_by_room:
                dealt += strategy(client_id, queues_by_room[room], members)
        return dealt

    return allocate


def _named_room(room: str, what: str, advice: str) -> str:
    if not room:
        raise ValueError(f"{what} is in no machine room; {advice}")
    return room


def _checked_names(what: str, names: Collection[str]) -> Collection[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what} must be a list of str")
    return names


ALLOCATE: Final[Mapping[str, Allocate]] = MappingProxyType(
    {
        "average": average,
        "average_by_circle": average_by_circle,
        "consistent_hash": consistent_hash,
        "machine_room": machine_room(),
    }
)
"""Strategies that need nothing but their name; machine_room_nearby is made when asked for."""

NAMES: Final = (*ALLOCATE, "by_config", "machine_room_nearby")


def allocate_strategy(given: str | Allocate) -> Allocate:
    """The strategy of that name, or the function given. Raises TypeError and ValueError naming the argument."""
    if isinstance(given, str):
        if given == "machine_room_nearby":
            return machine_room_nearby()
        if given == "by_config":
            raise ValueError("allocate='by_config' lacks its queues; write allocate=by_config([MessageQueue(...)])")
        if given not in ALLOCATE:
            raise ValueError(f"allocate must be one of {', '.join(NAMES)}, not {given!r}")
        return ALLOCATE[given]
    if not callable(given):
        raise TypeError(f"allocate must be a name or a function, not {type(given).__name__}")
    return given

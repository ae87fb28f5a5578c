"""Recorded exchanges with Apache's broker, replayed to ours: which there are, and how two answers are compared.

Case       One exchange of each shape: request code, response code, encoding, fields and kind of body.
State      What our broker must be brought into before; which case needs which is in recorded_states.toml.
Compared   The code; each header field, by value unless it is masked; a JSON body by its fields, deeply; stored
           records by what their sender gave; properties by their keys. Remarks are for people.
Different  differences.toml names each allowed difference and its reason.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmq_core.config import parse_properties
from rmq_core.protocol import fastjson
from rmq_core.protocol.command import Command, decode_command
from rmq_core.protocol.record import decode_pull_body
from support.golden import Exchange, exchanges

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
RECORDS = {11, 12, 33, 361}
"""Requests whose answers hold stored records."""


@dataclass(frozen=True, slots=True)
class Case:
    """One exchange to be replayed."""

    exchange: Exchange
    state: str

    def __str__(self) -> str:
        return f"{self.exchange} → {self.answer_code} in the state {self.state}"

    @property
    def answer(self) -> Command:
        assert self.exchange.response is not None
        return decode_command(self.exchange.response.frame)

    @property
    def answer_code(self) -> int | None:
        return None if self.exchange.response is None else self.answer.code


@dataclass(slots=True, eq=False)
class Difference:
    """What may differ, and why. Whatever is not given applies to all."""

    reason: str
    codes: list[int]
    answers: list[int] = field(default_factory=list)
    scenarios: list[str] = field(default_factory=list)
    ours: int | None = None
    """The code of our answer; nothing else is compared then."""
    names: list[str] = field(default_factory=list)
    """Fields of header or body."""
    is_used: bool = False

    def applies_to(self, case: Case) -> bool:
        exchange = case.exchange
        return (
            (not self.codes or exchange.code in self.codes)
            and (not self.answers or case.answer_code in self.answers)
            and (not self.scenarios or any(exchange.scenario.startswith(each) for each in self.scenarios))
        )


def differences() -> list[Difference]:
    """Those that are allowed."""
    listed = tomllib.loads((GOLDEN / "differences.toml").read_text())["difference"]
    return [Difference(**each) for each in listed]


@functools.cache
def _states() -> dict[str, Any]:
    return tomllib.loads((GOLDEN / "recorded_states.toml").read_text())


def state_of(exchange: Exchange, answer: int | None) -> str:
    """The state that a request met when Apache's broker gave this answer."""
    states = _states()["states"]
    for key in (f"{exchange.code}-{answer}", f"{exchange.code}"):
        if key in states:
            return str(states[key])
    return "used"


def masked() -> frozenset[str]:
    """Fields whose values differ from run to run."""
    return frozenset(_states()["masked"])


@functools.cache
def cases() -> tuple[Case, ...]:
    """One exchange of each shape with a 5.3.3 broker; of requests that only 4.9.7 was sent, those with it."""
    found: dict[Any, Case] = {}
    asked: set[Any] = set()
    for exchange in sorted(exchanges(), key=lambda each: each.server, reverse=True):
        if not exchange.server.startswith("broker-") or exchange.is_to_client:
            continue
        if exchange.response is None and not exchange.is_oneway:
            continue  # it was still held when the connection closed
        request = (exchange.code, exchange.request.encoding, *sorted(exchange.request.ext or {}))
        if exchange.server.startswith("broker-5"):
            asked.add(request)
        elif request in asked:
            continue
        answer = None if exchange.response is None else decode_command(exchange.response.frame)
        shape = request if answer is None else (*request, answer.code, *sorted(answer.ext or {}), bool(answer.body))
        code = None if answer is None else answer.code
        found.setdefault(shape, Case(exchange, state_of(exchange, code)))
    return tuple(found.values())


# Comparing


def compare(case: Case, answer: Command) -> Iterator[str]:
    """The names of what differs: "code", header fields, and fields of the body."""
    expected = case.answer
    if answer.code != expected.code:
        yield "code"
        return
    ours, theirs = answer.ext or {}, expected.ext or {}
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs or (name not in masked() and ours[name] != theirs[name]):
            yield name
    yield from dict.fromkeys(_compare_bodies(case.exchange.code, answer.body, expected.body))


def _compare_bodies(code: int, ours: bytes, theirs: bytes) -> Iterator[str]:
    if bool(ours) != bool(theirs):
        yield "body"
    elif not theirs:
        return
    elif code in RECORDS:
        yield from _compare_records(ours, theirs)
    elif theirs[:1] in (b"{", b"["):
        yield from _compare_json(fastjson.loads(ours), fastjson.loads(theirs), "body")
    elif b"=" in theirs[:200] and code == 26:
        missing = parse_properties(theirs.decode()).keys() - parse_properties(ours.decode()).keys()
        yield from sorted(missing)
    elif len(ours) != len(theirs):
        yield "body"


def _compare_records(ours: bytes, theirs: bytes) -> Iterator[str]:
    mine, recorded = decode_pull_body(ours, verify_crc=True)[0], decode_pull_body(theirs, verify_crc=True)[0]
    for name in ("topic", "queue_id", "flag", "reconsume_times"):
        if name not in masked() and getattr(mine, name) != getattr(recorded, name):
            yield name


def _is_table(name: str, value: dict[str, Any]) -> bool:
    """Whether the keys of an object are data: names, numbers, queues."""
    if name in ("queueData", "filterData", "subscriptionData"):
        return False
    by_name = name.lower().endswith(("table", "offsets", "maskmap", "map", "data", "consumestatslist[]"))
    return by_name or bool(value and all(key.isdigit() or key.startswith("{") for key in value))


def _compare_json(ours: Any, theirs: Any, name: str, *, is_same: bool = True) -> Iterator[str]:
    """is_same: both are of the same thing, so that values count; else only their kinds do."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if _is_table(name, theirs):
            yield from _compare_tables(ours, theirs, name, is_same)
            return
        for key in sorted(theirs.keys() | ours.keys()):
            if key not in ours or key not in theirs:
                yield key
            else:
                yield from _compare_json(ours[key], theirs[key], key, is_same=is_same)
    elif isinstance(theirs, list) and isinstance(ours, list):
        for each in theirs:
            if ours:
                yield from _compare_json(ours[0], each, f"{name}[]", is_same=False)
    elif _kind(theirs) is not _kind(ours) or (
        is_same and ours != theirs and not (name in masked() or name.endswith("[]"))
    ):
        yield name


def _kind(value: Any) -> type:
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _compare_tables(ours: dict[str, Any], theirs: dict[str, Any], name: str, is_same: bool) -> Iterator[str]:
    if theirs and all(isinstance(each, str) for each in theirs.values()):
        # Texts by names that are known, but for those that hold a path or a level.
        yield from sorted(key for key in theirs.keys() - ours.keys() if "/" not in key and "Offset_" not in key)
        return
    for key, value in theirs.items():
        if key in ours:
            yield from _compare_json(ours[key], value, f"{name}[]", is_same=is_same)
        elif ours:
            yield from _compare_json(next(iter(ours.values())), value, f"{name}[]", is_same=False)

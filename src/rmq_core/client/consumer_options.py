"""What consumers of every kind are told besides what every client is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypedDict, TypeVar

from rmq_core.client.allocate import Allocate, allocate_strategy
from rmq_core.client.arguments import checked_group, path_or_none, yes_or_no
from rmq_core.client.options import ClientArguments, ClientOptions, own_options
from rmq_core.client.queue_offsets import StartFrom
from rmq_core.protocol.bodies import ConsumeFromWhere
from rmq_core.protocol.message import DEFAULT_CONSUMER_GROUP


class MemberArguments(TypedDict, total=False):
    """Those of `ConsumerOptions`."""

    broadcasting: bool
    offset_dir: str | Path | None
    allocate: str | Allocate


class ConsumerArguments(ClientArguments, MemberArguments, total=False):
    """What every consumer takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """broadcasting    every member gets every message; needs instance_name, under which progress is kept
    offset_dir      the directory of that progress
    allocate        how members divide the queues: one of six names, or a function
    """

    broadcasting: bool = False
    offset_dir: str | Path | None = None
    allocate: str | Allocate = "average"

    def __post_init__(self) -> None:
        yes_or_no("broadcasting", self.broadcasting)
        path_or_none("offset_dir", self.offset_dir)
        allocate_strategy(self.allocate)

    @property
    def strategy(self) -> Allocate:
        """The function that divides the queues."""
        return allocate_strategy(self.allocate)


Own = TypeVar("Own", bound=ConsumerOptions)


def consumer_options(kind: type[Own], arguments: ConsumerArguments) -> tuple[Own, ClientOptions]:
    """Check what the user wrote. Raises TypeError and ValueError naming the argument."""
    own, client = own_options(kind, arguments)
    if own.broadcasting and client.instance_name is None:
        raise ValueError("broadcasting needs an instance_name, by which this member finds its progress again")
    return own, client


def consumer_group(group: str) -> str:
    """The name of a consumer group. Raises TypeError and ValueError."""
    return checked_group(group, reserved=DEFAULT_CONSUMER_GROUP)


def consume_from_where(start_from: StartFrom) -> ConsumeFromWhere:
    """start_from as heartbeats say it."""
    if isinstance(start_from, datetime):
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    if start_from == "earliest":
        return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET

"""Between a master and its replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmq_core.protocol import bodies
from rmq_core.protocol.fields import Int32
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class HaInfo(Header):
    """Where the master is and how far it has flushed."""

    master_ha_address: str | None = None
    master_flush_offset: int | None = None
    master_address: str | None = None


@dataclass(frozen=True, slots=True)
class ExchangeBrokerHaInfo(Request[HaInfo]):
    """A replica asks its master, or is told."""

    code: ClassVar = 906
    reply: ClassVar = HaInfo
    master_ha_address: str | None = None
    master_flush_offset: int | None = None
    master_address: str | None = None


@dataclass(frozen=True, slots=True)
class GetBrokerHaStatus(Request[NoFields]):
    """How replication stands."""

    code: ClassVar = 907
    reply_body: ClassVar = bodies.HARuntimeInfo


@dataclass(frozen=True, slots=True)
class ResetMasterFlushOffset(Request[NoFields]):
    """Told to a replica: how far the master has flushed."""

    code: ClassVar = 908
    master_flush_offset: int


@dataclass(frozen=True, slots=True)
class GetBrokerEpochCache(Request[NoFields]):
    """The stretches of the log by master."""

    code: ClassVar = 1007
    reply_body: ClassVar = bodies.EpochEntryCache


@dataclass(frozen=True, slots=True)
class NotifyBrokerRoleChanged(Request[NoFields]):
    """Told by a controller: master and replicas changed."""

    code: ClassVar = 1008
    body: ClassVar = bodies.SyncStateSet
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: int | None = None

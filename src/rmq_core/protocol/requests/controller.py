"""Codes of Apache's controller. A deployment without one never sees them; they are declared so that a frame
of one can be read, and nobody here serves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmq_core.protocol import bodies
from rmq_core.protocol.fields import Int32
from rmq_core.protocol.request import Header, NoFields, Request


@dataclass(frozen=True, slots=True)
class SyncStateSetAltered(Header):
    """The epoch of the set as it is now."""

    new_sync_state_set_epoch: Int32 | None = None


@dataclass(frozen=True, slots=True)
class ControllerAlterSyncStateSet(Request[SyncStateSetAltered]):
    """A master says which replicas hold everything."""

    code: ClassVar = 1001
    reply: ClassVar = SyncStateSetAltered
    body: ClassVar = bodies.SyncStateSet
    broker_name: str | None = None
    master_broker_id: int | None = None
    master_epoch: Int32 | None = None
    invoke_time: int | None = None


@dataclass(frozen=True, slots=True)
class MasterElected(Header):
    """The new master."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


@dataclass(frozen=True, slots=True)
class ControllerElectMaster(Request[MasterElected]):
    """Choose a master."""

    code: ClassVar = 1002
    reply: ClassVar = MasterElected
    cluster_name: str
    broker_name: str
    broker_id: int
    designate_elect: bool
    invoke_time: int | None = None


@dataclass(frozen=True, slots=True)
class RegisteredWithController(Header):
    """The master of the broker's group."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


@dataclass(frozen=True, slots=True)
class ControllerRegisterBroker(Request[RegisteredWithController]):
    """A broker with an id says where it is."""

    code: ClassVar = 1003
    reply: ClassVar = RegisteredWithController
    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: int | None = None
    broker_address: str | None = None
    invoke_time: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaInfo(Header):
    """The master of a broker name."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


@dataclass(frozen=True, slots=True)
class ControllerGetReplicaInfo(Request[ReplicaInfo]):
    """Who is master under a broker name?"""

    code: ClassVar = 1004
    reply: ClassVar = ReplicaInfo
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class ControllerMetadata(Header):
    """The controllers and their leader."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool | None = None
    peers: str | None = None


@dataclass(frozen=True, slots=True)
class ControllerGetMetadataInfo(Request[ControllerMetadata]):
    """Who leads the controllers?"""

    code: ClassVar = 1005
    reply: ClassVar = ControllerMetadata


@dataclass(frozen=True, slots=True)
class ControllerGetSyncStateData(Request[NoFields]):
    """The replicas that hold everything, of the broker names listed in the body."""

    code: ClassVar = 1006


@dataclass(frozen=True, slots=True)
class UpdateControllerConfig(Request[NoFields]):
    """Change settings; the body holds properties."""

    code: ClassVar = 1009


@dataclass(frozen=True, slots=True)
class GetControllerConfig(Request[NoFields]):
    """The settings as properties."""

    code: ClassVar = 1010


@dataclass(frozen=True, slots=True)
class CleanBrokerData(Request[NoFields]):
    """Forget brokers."""

    code: ClassVar = 1011
    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool | None = None
    invoke_time: int | None = None


@dataclass(frozen=True, slots=True)
class NextBrokerId(Header):
    """The id that is free."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: int | None = None


@dataclass(frozen=True, slots=True)
class ControllerGetNextBrokerId(Request[NextBrokerId]):
    """Which id is free under a broker name?"""

    code: ClassVar = 1012
    reply: ClassVar = NextBrokerId
    cluster_name: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerIdApplied(Header):
    """The group that the id was taken in."""

    cluster_name: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class ControllerApplyBrokerId(Request[BrokerIdApplied]):
    """Take an id."""

    code: ClassVar = 1013
    reply: ClassVar = BrokerIdApplied
    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: int | None = None
    register_check_code: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerCloseChannelRequest(Request[NoFields]):
    """Between controllers: a broker's connection closed."""

    code: ClassVar = 1014
    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: int | None = None


@dataclass(frozen=True, slots=True)
class CheckNotActiveBrokerRequest(Request[NoFields]):
    """Between controllers: look for brokers that are gone."""

    code: ClassVar = 1015
    check_time_millis: int | None = None


@dataclass(frozen=True, slots=True)
class GetBrokerLiveInfoRequest(Request[NoFields]):
    """Between controllers: when was a broker last heard of?"""

    code: ClassVar = 1016
    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: int | None = None


@dataclass(frozen=True, slots=True)
class GetSyncStateDataRequest(Request[NoFields]):
    """Between controllers: the replicas that hold everything."""

    code: ClassVar = 1017
    invoke_time: int | None = None


@dataclass(frozen=True, slots=True)
class RaftBrokerHeartBeatEventRequest(Request[NoFields]):
    """Between controllers: a broker was heard of."""

    code: ClassVar = 1018
    cluster_name_identity_info: str | None = None
    broker_name_identity_info: str | None = None
    broker_id_identity_info: int | None = None
    broker_name: str | None = None
    broker_addr: str | None = None
    heartbeat_timeout_millis: int | None = None
    broker_id: int | None = None
    last_update_timestamp: int | None = None
    epoch: Int32 | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    election_priority: Int32 | None = None

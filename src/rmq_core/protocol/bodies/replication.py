"""How a broker and its replicas stand."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_core.protocol.body import Body
from rmq_core.protocol.fields import Int32


@dataclass(frozen=True, slots=True)
class HAConnectionRuntimeInfo(Body):
    """One replica as its master sees it."""

    addr: str | None = None
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


@dataclass(frozen=True, slots=True)
class HAClientRuntimeInfo(Body):
    """A replica as it sees itself."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


@dataclass(frozen=True, slots=True)
class HARuntimeInfo(Body):
    """Replication of a broker."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: tuple[HAConnectionRuntimeInfo, ...] = ()
    ha_client_runtime_info: HAClientRuntimeInfo | None = None


@dataclass(frozen=True, slots=True)
class EpochEntry(Body):
    """A stretch of the log that one master wrote."""

    epoch: Int32 = 0
    start_offset: int = 0
    end_offset: int = 9223372036854775807


@dataclass(frozen=True, slots=True)
class EpochEntryCache(Body):
    """The stretches of a broker's log."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: int = 0
    epoch_list: tuple[EpochEntry, ...] = ()
    max_offset: int = 0


@dataclass(frozen=True, slots=True)
class SyncStateSet(Body):
    """The replicas that hold everything."""

    sync_state_set: tuple[int, ...] = ()
    sync_state_set_epoch: Int32 = 0

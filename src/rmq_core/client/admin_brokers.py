"""Administration of brokers: what they are doing, their settings, counters, cleaning, and replication."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import orjson

from rmq_core.client.admin_clients import AdminClients
from rmq_core.client.admin_results import (
    BrokerInfo,
    ClusterMap,
    Counter,
    CounterSpan,
    Replica,
    ReplicationStatus,
    RuntimeInfo,
)
from rmq_core.config import format_properties, parse_properties
from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import bodies as b
from rmq_core.protocol import requests as r
from rmq_core.protocol.codes import ResponseCode

CHECKPOINT: Final = struct.Struct(">7q")
EXPORTS: Final = ("topics", "subscriptionGroups", "consumerOffsets")


class AdminBrokers(AdminClients):
    """Brokers."""

    async def cluster_info(self) -> ClusterMap:
        """All brokers, and the clusters that they are in."""
        info = await self._cluster_info()
        brokers = {
            name: BrokerInfo(name, data.cluster or "", dict(sorted(data.broker_addrs.items())))
            for name, data in sorted((info.broker_addr_table or {}).items())
        }
        clusters = {name: tuple(sorted(names)) for name, names in sorted((info.cluster_addr_table or {}).items())}
        return ClusterMap(brokers, clusters)

    async def broker_members(self, broker: str, *, cluster: str) -> BrokerInfo:
        """The processes of a broker that are alive, as the name server tells its members, 5.x."""
        answer = await self._ask(r.GetBrokerMemberGroup(cluster, broker))
        group = b.GetBrokerMemberGroupResponseBody.decode(answer.body).broker_member_group
        return BrokerInfo(broker, cluster, dict(sorted(group.broker_addrs.items())) if group is not None else {})

    async def runtime_info(self, broker: str) -> RuntimeInfo:
        """What a broker is doing."""
        target = await self._broker(broker)
        answer = await self._call(target.address, r.GetBrokerRuntimeInfo())
        return RuntimeInfo(target.broker_name, b.KVTable.decode(answer.body).table)

    async def stats(
        self, name: str, key: str, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, Counter]:
        """A counter such as TOPIC_PUT_NUMS of a topic, or GROUP_GET_NUMS of topic@group.

        Brokers that have not counted it are left out.
        """
        targets = await self._masters(broker, cluster)
        absent = (ResponseCode.SYSTEM_ERROR,)
        answers = await self._call_some(targets, r.ViewBrokerStatsData(name, key), absent=absent)
        return {each: _counter(b.BrokerStatsData.decode(answer.body)) for each, answer in answers.items()}

    # Settings

    async def broker_config(self, broker: str) -> dict[str, str]:
        """The settings of a broker, by Java's names."""
        answer = await self._call((await self._broker(broker)).address, r.GetBrokerConfig())
        return parse_properties(answer.body.decode())

    async def update_broker_config(
        self, settings: Mapping[str, str | int | bool], *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Change settings while brokers run; they write them into their files too."""
        body = settings_text(settings)
        await self._call_each(await self._masters(broker, cluster), r.UpdateBrokerConfig(), body)

    # Cleaning up

    async def clean_expired_queues(self, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Remove queue files that lie before the oldest message."""
        await self._call_each(await self._masters(broker, cluster), r.CleanExpiredConsumequeue())

    async def delete_expired_log(self, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Delete segments that are old enough now, and not only at the hour that is set."""
        await self._call_each(await self._masters(broker, cluster), r.DeleteExpiredCommitlog())

    # Replication

    async def replication_status(self, broker: str) -> ReplicationStatus:
        """How a broker and its replicas stand."""
        answer = await self._call((await self._broker(broker)).address, r.GetBrokerHaStatus())
        info = b.HARuntimeInfo.decode(answer.body)
        return ReplicationStatus(
            info.master,
            info.master_commit_log_max_offset,
            info.in_sync_slave_nums,
            tuple(
                Replica(
                    each.addr or "",
                    each.slave_ack_offset,
                    each.diff,
                    each.in_sync,
                    each.transferred_byte_in_second,
                )
                for each in info.ha_connection_info
            ),
        )

    async def reset_master_flush_offset(self, broker: str, offset: int) -> None:
        """Tell a replica how far its master has flushed."""
        await self._call((await self._broker(broker)).address, r.ResetMasterFlushOffset(offset))

    async def epochs(self, broker: str) -> tuple[b.EpochEntry, ...]:
        """The stretches of a broker's log by master, where a controller elects them."""
        answer = await self._call((await self._broker(broker)).address, r.GetBrokerEpochCache())
        return b.EpochEntryCache.decode(answer.body).epoch_list

    # Timed messages

    async def timer_checkpoint(self, broker: str) -> tuple[int, ...]:
        """The seven numbers of a broker's timer. Raises BrokerError where it has none."""
        answer = await self._call((await self._broker(broker)).address, r.GetTimerCheckPoint())
        if len(answer.body) < CHECKPOINT.size:
            raise RemoteProtocolError(f"a timer's check point has {CHECKPOINT.size} bytes, not {len(answer.body)}")
        return CHECKPOINT.unpack_from(answer.body)

    async def timer_counts(self, broker: str) -> dict[str, int]:
        """How many timed messages wait, by topic. Raises BrokerError where the broker has no timer."""
        answer = await self._call((await self._broker(broker)).address, r.GetTimerMetrics())
        table = b.TimerMetrics.decode(answer.body).timing_count
        return {name: each.count for name, each in sorted(table.items())}

    # Reads of old messages

    async def cold_read_limits(self, broker: str) -> dict[str, Any]:
        """The limits of groups that read what has left the memory, as the broker shows them."""
        answer = await self._call((await self._broker(broker)).address, r.GetColdDataFlowCtrInfo())
        try:
            found = orjson.loads(answer.body)
        except orjson.JSONDecodeError as error:
            raise RemoteProtocolError(f"the limits are no JSON: {error}") from None
        if not isinstance(found, dict):
            raise RemoteProtocolError("the limits are no JSON object")
        return found

    async def set_cold_read_limits(
        self, limits: Mapping[str, int], *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Limit groups to so many bytes a second of old messages."""
        body = settings_text({self._group(group): limit for group, limit in limits.items()})
        await self._call_each(await self._masters(broker, cluster), r.UpdateColdDataFlowCtrConfig(), body)

    async def remove_cold_read_limit(
        self, group: str, *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Lift the limit of a group."""
        body = self._group(group).encode()
        await self._call_each(await self._masters(broker, cluster), r.RemoveColdDataFlowCtrConfig(), body)

    async def set_read_ahead(self, enabled: bool, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Whether the system reads the log ahead."""
        request = r.SetCommitlogReadMode("0" if enabled else "1")
        await self._call_each(await self._masters(broker, cluster), request)

    # RocksDB of Apache's brokers

    async def export_rocksdb_config(self, *kinds: str, broker: str) -> None:
        """Have a broker write what it keeps in RocksDB as JSON: topics, subscriptionGroups, consumerOffsets."""
        unknown = set(kinds) - set(EXPORTS)
        if unknown or not kinds:
            raise ValueError(f"kinds: name some of {', '.join(EXPORTS)}")
        request = r.ExportRocksdbConfigToJson(";".join(kinds))
        await self._call((await self._broker(broker)).address, request)

    async def check_rocksdb_queues(
        self, broker: str, *, topic: str | None = None, since_ms: int = 0
    ) -> b.CheckRocksdbCqWriteResult:
        """Whether the copy of the consume queues in RocksDB agrees with the files."""
        wanted = None if topic is None else self._topic(topic)
        request = r.CheckRocksdbCqWriteProgress(wanted, since_ms)
        answer = await self._call((await self._broker(broker)).address, request)
        return b.CheckRocksdbCqWriteResult.decode(answer.body)


def settings_text(settings: Mapping[str, str | int | bool]) -> bytes:
    """Settings as the lines that servers read. Raises TypeError and ValueError."""
    if not settings:
        raise ValueError("settings: there is nothing to change")
    text = {}
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, str | int):
            raise TypeError(f"settings: {name!r} must be text and its value text, a number or a truth value")
        text[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return format_properties(text).encode()


def _counter(data: b.BrokerStatsData) -> Counter:
    return Counter(_span(data.stats_minute), _span(data.stats_hour), _span(data.stats_day))


def _span(item: b.BrokerStatsItem | None) -> CounterSpan:
    return CounterSpan(0, 0.0, 0.0) if item is None else CounterSpan(item.sum, item.tps, item.avgpt)

"""A broker's own state: its configuration, statistics, runtime information, and cleaning up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from rmq_core.broker.consume_stats import fall_behind
from rmq_core.broker.runtime_info import runtime_info
from rmq_core.config import parse_properties
from rmq_core.errors import BrokerError, ConfigError
from rmq_core.net.calls import DONE, Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import BrokerStatsData, BrokerStatsItem, CheckRocksdbCqWriteResult, KVTable
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.request import NoFields

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

FALL_BEHIND: Final = ("GROUP_GET_FALL_SIZE", "GROUP_GET_FALL_TIME")
CHECK_NOT_READY: Final = 2
"""Status of a comparison with RocksDB where there is none."""


# Configuration


@handles(r.GetBrokerConfig)
async def get_broker_config(broker: Broker, call: Call[r.GetBrokerConfig]) -> Answer[r.ConfigVersion]:
    configuration = broker.configuration
    return Answer(r.ConfigVersion(configuration.version.encode().decode()), configuration.text().encode())


@handles(r.UpdateBrokerConfig)
async def update_broker_config(broker: Broker, call: Call[r.UpdateBrokerConfig]) -> Answer[NoFields]:
    await broker.configuration.update(_text(call.body))
    return DONE


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from None


# What it is doing


@handles(r.GetBrokerRuntimeInfo)
async def get_broker_runtime_info(broker: Broker, call: Call[r.GetBrokerRuntimeInfo]) -> Answer[NoFields]:
    return Answer(NoFields(), KVTable(await runtime_info(broker)).encode())


@handles(r.ViewBrokerStatsData)
async def view_broker_stats_data(broker: Broker, call: Call[r.ViewBrokerStatsData]) -> Answer[NoFields]:
    name, key = call.header.stats_name, call.header.stats_key
    data = await _fall_behind(broker, name, key) if name in FALL_BEHIND else broker.stats.view(name, key)
    if data is None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    return Answer(NoFields(), data.encode())


async def _fall_behind(broker: Broker, name: str, key: str) -> BrokerStatsData | None:
    """A value of this moment, which stands for all three spans."""
    parts = key.split("@")
    if len(parts) != 3 or not parts[0].isdecimal():
        return None
    found = await fall_behind(broker, parts[2], parts[1], int(parts[0]))
    item = None if found is None else BrokerStatsItem(found[FALL_BEHIND.index(name)])
    return None if item is None else BrokerStatsData(item, item, item)


@handles(r.GetAllDelayOffset)
async def get_all_delay_offset(broker: Broker, call: Call[r.GetAllDelayOffset]) -> Answer[NoFields]:
    return Answer(NoFields(), broker.schedule.encode())


# Cleaning up


@handles(r.DeleteExpiredCommitlog)
async def delete_expired_commitlog(broker: Broker, call: Call[r.DeleteExpiredCommitlog]) -> Answer[NoFields]:
    broker.store.retention.request()
    return DONE


@handles(r.CleanExpiredConsumequeue)
async def clean_expired_consumequeue(broker: Broker, call: Call[r.CleanExpiredConsumequeue]) -> Answer[NoFields]:
    """Remove the files of queues that lie before the log."""
    await broker.run(broker.store.queues.remove_before, broker.store.log.start)
    return DONE


# The timer, which this broker does not have


@handles(r.GetTimerCheckPoint)
async def get_timer_check_point(broker: Broker, call: Call[r.GetTimerCheckPoint]) -> Answer[NoFields]:
    raise BrokerError(ResponseCode.SYSTEM_ERROR, "the timer is not enabled: it has no check point")


@handles(r.GetTimerMetrics)
async def get_timer_metrics(broker: Broker, call: Call[r.GetTimerMetrics]) -> Answer[NoFields]:
    raise BrokerError(ResponseCode.SYSTEM_ERROR, "the timer is not enabled: no message waits in it")


# Reads of old messages: how they are done is settled here, so limits and modes are only kept and shown


@handles(r.UpdateColdDataFlowCtrConfig)
async def update_cold_read_limits(broker: Broker, call: Call[r.UpdateColdDataFlowCtrConfig]) -> Answer[NoFields]:
    try:
        wanted = parse_properties(_text(call.body))
    except ConfigError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from None
    for group, limit in wanted.items():
        if not limit.isdecimal() or len(limit) > 18:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the limit of {group} is a number of bytes, not {limit}")
    broker.configuration.cold_read_limits.update({group: int(limit) for group, limit in wanted.items()})
    return DONE


@handles(r.RemoveColdDataFlowCtrConfig)
async def remove_cold_read_limit(broker: Broker, call: Call[r.RemoveColdDataFlowCtrConfig]) -> Answer[NoFields]:
    broker.configuration.cold_read_limits.pop(_text(call.body).strip(), None)
    return DONE


@handles(r.GetColdDataFlowCtrInfo)
async def get_cold_read_limits(broker: Broker, call: Call[r.GetColdDataFlowCtrInfo]) -> Answer[NoFields]:
    settings = broker.settings
    shown = {
        "runtimeTable": {},
        "configTable": broker.configuration.cold_read_limits,
        "cgColdReadThreshold": settings.cg_cold_read_threshold,
        "globalColdReadThreshold": settings.global_cold_read_threshold,
        "globalAcc": 0,
    }
    return Answer(NoFields(), orjson.dumps(shown))


@handles(r.SetCommitlogReadMode)
async def set_commitlog_read_mode(broker: Broker, call: Call[r.SetCommitlogReadMode]) -> Answer[NoFields]:
    mode = call.header.read_ahead_mode
    if mode not in ("0", "1"):
        raise BrokerError(ResponseCode.INVALID_PARAMETER, f"the mode is 0 (normal) or 1 (random), not {mode}")
    return Answer(NoFields(), remark=f"set commitlog readahead mode success, mode: {mode}")


# RocksDB, which keeps nothing here


@handles(r.CheckRocksdbCqWriteProgress)
async def check_rocksdb_progress(broker: Broker, call: Call[r.CheckRocksdbCqWriteProgress]) -> Answer[NoFields]:
    return Answer(NoFields(), CheckRocksdbCqWriteResult(check_status=CHECK_NOT_READY).encode())


@handles(r.ExportRocksdbConfigToJson)
async def export_rocksdb_config(broker: Broker, call: Call[r.ExportRocksdbConfigToJson]) -> Answer[NoFields]:
    """Topics, groups and offsets are kept as JSON files: there is nothing to export."""
    return Answer(NoFields(), remark="export done.")

"""What a broker says of itself: the keys that Apache's tools and dashboards read, all of them as text.

A missing key makes a broker disappear from their lists, so keys of parts that this broker does not have are there
too: nothing waits in front of a loop, and there is no timer.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Final

from rmq_core.broker.consume_stats import stored_at_ms
from rmq_core.broker.stats import Stats
from rmq_core.protocol.codes import CURRENT_VERSION, version_name
from rmq_core.protocol.message import SCHEDULE_TOPIC
from rmq_core.store.message_store import MessageStore

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker

TRANSIENT_BUFFERS: Final = 2_147_483_647
"""What Apache answers without a pool of buffers: there is always room."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

_ALWAYS_ZERO: Final = (
    "dispatchMaxBuffer",
    "pageCacheLockTimeMills",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "litePullThreadPoolQueueSize",
    "queryThreadPoolQueueSize",
    "ackThreadPoolQueueSize",
    "EndTransactionQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "litePullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueHeadWaitTimeMills",
)


async def runtime_info(broker: Broker) -> dict[str, str]:
    """All keys with their values."""
    settings = broker.settings
    table = dict.fromkeys(_ALWAYS_ZERO, "0")
    table |= {
        "brokerActive": "true",
        "brokerVersion": str(CURRENT_VERSION),
        "brokerVersionDesc": version_name(CURRENT_VERSION),
        "bootTimestamp": str(broker.boot_time_ms),
        "runtime": _duration(broker.now_ms() - broker.boot_time_ms),
        "startAcceptSendRequestTimeStamp": str(settings.start_accept_send_request_time_stamp),
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
        "remainTransientStoreBufferNumbs": str(TRANSIENT_BUFFERS),
        "sendThreadPoolQueueCapacity": str(settings.send_thread_pool_queue_capacity),
        "pullThreadPoolQueueCapacity": str(settings.pull_thread_pool_queue_capacity),
        "litePullThreadPoolQueueCapacity": str(settings.lite_pull_thread_pool_queue_capacity),
        "queryThreadPoolQueueCapacity": str(settings.query_thread_pool_queue_capacity),
        "ackThreadPoolQueueCapacity": str(settings.ack_thread_pool_queue_capacity),
        "EndTransactionThreadPoolQueueCapacity": str(settings.end_transaction_pool_queue_capacity),
    }
    table |= _counted(broker.stats) | _logged(broker.store) | _scheduled(broker)
    return table | await broker.run(_on_disk, broker.store)


def _duration(elapsed_ms: int) -> str:
    minutes, seconds = divmod(max(elapsed_ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _counted(stats: Stats) -> dict[str, str]:
    put, got, size = stats.put_total, stats.got_total, stats.put_size_total
    durations = stats.put_durations()
    transferred = stats.transferred_tps()
    return {
        "putMessageTimesTotal": str(put),
        "putMessageFailedTimes": str(stats.failures),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": f"{size / put if put else 0.0:.3f}",
        "putMessageEntireTimeMax": str(stats.longest_put_ms),
        "getMessageEntireTimeMax": str(stats.longest_get_ms),
        "putMessageDistributeTime": "".join(f"{name}:{count} " for name, count in durations),
        "putLatency99": f"{stats.put_latency_ms(0.99):.2f}",
        "putLatency999": f"{stats.put_latency_ms(0.999):.2f}",
        "putTps": stats.put_tps(),
        "getFoundTps": stats.found_tps(),
        "getMissTps": stats.miss_tps(),
        "getTotalTps": stats.pull_tps(),
        "getTransferredTps": transferred,
        "getTransferedTps": transferred,  # 4.9 spells it so
        "msgPutTotalYesterdayMorning": str(stats.put_yesterday),
        "msgPutTotalTodayMorning": str(stats.put_today),
        "msgPutTotalTodayNow": str(put),
        "msgGetTotalYesterdayMorning": str(stats.got_yesterday),
        "msgGetTotalTodayMorning": str(stats.got_today),
        "msgGetTotalTodayNow": str(got),
    }


def _logged(store: MessageStore) -> dict[str, str]:
    log = store.log
    index_lag = 0 if store.index is None else store.index.lag_bytes
    return {
        "commitLogMinOffset": str(log.start),
        "commitLogMaxOffset": str(log.end),
        "dispatchBehindBytes": str(max(log.end - store.confirmed_offset, index_lag)),
        "remainHowManyDataToCommit": readable(log.end - log.written),
        "remainHowManyDataToFlush": readable(log.end - log.flushed),
    }


def _scheduled(broker: Broker) -> dict[str, str]:
    return {
        f"scheduleMessageOffset_{level}": f"{offset},{broker.store.max_offset(SCHEDULE_TOPIC, level - 1)}"
        for level, offset in sorted(broker.schedule.offsets.items())
    }


def _on_disk(store: MessageStore) -> dict[str, str]:
    retention = store.retention
    ratios = retention.log_ratios() or {store.root: retention.queue_ratio()}
    table = {f"commitLogDiskRatio_{folder}": _hundredths(ratio) for folder, ratio in ratios.items()}
    found = os.statvfs(next(iter(ratios)))
    # What is kept back for the administrator counts as free, as in Java; the ratios leave it out, as there.
    total, free = found.f_blocks * found.f_frsize, found.f_bfree * found.f_frsize
    return table | {
        "commitLogDiskRatio": _hundredths(min(ratios.values())),
        "consumeQueueDiskRatio": _hundredths(retention.queue_ratio()),
        "commitLogDirCapacity": f"Total : {readable(total)}, Free : {readable(free)}.",
        "earliestMessageTimeStamp": str(stored_at_ms(store, store.log.start) or -1),
    }


def _hundredths(ratio: float) -> str:
    """Rounded up, as Apache's broker does."""
    return str(math.ceil(ratio * 100) / 100)


def readable(size: int) -> str:
    """A number of bytes as people read it: 512 B, 1.0 KiB."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{size / 1024**power:.1f} {_UNITS[power]}"

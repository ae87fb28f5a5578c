"""When a broker calls itself busy."""

from __future__ import annotations

from pathlib import Path

from rmq_core.broker.load import LATE_TIMES, Load
from rmq_core.clock import ManualClock
from support.brokers import broker_cluster, run


def test_one_stop_of_the_loop_refuses_no_send(tmp_path: Path) -> None:
    """The loop is late once, then again and again: only the latter is load; once it is in time, all is well."""

    async def scenario() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock, broker_fast_failure_enable=True) as cluster:
            broker = cluster.broker
            load = Load(broker)
            late_ms = load.interval_ms + broker.settings.wait_time_mills_in_send_queue + 1
            for _ in range(3):
                await clock.advance(late_ms)
                load.measure()
                assert broker.busy is None
                await clock.advance(load.interval_ms)
                load.measure()
            for number in range(1, 2 * LATE_TIMES):
                await clock.advance(late_ms)
                load.measure()
                assert (broker.busy is not None) is (number >= LATE_TIMES)
            assert broker.busy is not None
            assert broker.busy.startswith("[TIMEOUT_CLEAN_QUEUE]")
            await clock.advance(load.interval_ms)
            load.measure()
            assert broker.busy is None

    run(scenario())

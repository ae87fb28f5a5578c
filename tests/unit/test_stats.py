"""Counters: windows over the last minute, hour and day, by queue, topic, group and for the whole broker."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.broker.stats import SAMPLE_MS, Stats
from rmq_core.clock import ManualClock
from rmq_core.config import BrokerSettings
from rmq_core.protocol.bodies import BrokerStatsData, BrokerStatsItem


class Steps(ManualClock):
    """A clock for what only looks at the time."""

    def skip(self, by_ms: int) -> None:
        self._now_ms += by_ms


def started() -> tuple[Stats, Steps]:
    clock = Steps()
    return Stats(clock, cluster="C"), clock


def tick(stats: Stats, clock: Steps, count: int = 1) -> None:
    """Let so many sample intervals pass."""
    for _ in range(count):
        clock.skip(SAMPLE_MS)
        stats.sample()


def items(data: BrokerStatsData | None) -> tuple[BrokerStatsItem, BrokerStatsItem, BrokerStatsItem]:
    assert data is not None
    assert data.stats_minute is not None
    assert data.stats_hour is not None
    assert data.stats_day is not None
    return data.stats_minute, data.stats_hour, data.stats_day


def minute(stats: Stats, name: str, key: str) -> BrokerStatsItem:
    return items(stats.view(name, key))[0]


def test_what_a_call_sends_is_counted_for_its_queue_its_topic_and_the_broker() -> None:
    """Two queues of one topic, a batch, and a system topic, looked at under every name."""
    stats, clock = started()
    stats.sent("T", 0, 100)
    stats.sent("T", 1, 300, 3)
    stats.sent("rmq_sys_wheel_timer", 0, 1000)
    tick(stats, clock)
    assert minute(stats, "TOPIC_PUT_NUMS", "T") == BrokerStatsItem(4, 0.4, 2.0)
    assert minute(stats, "TOPIC_PUT_SIZE", "T") == BrokerStatsItem(400, 40.0, 200.0)
    assert minute(stats, "QUEUE_PUT_NUMS", "T@1") == BrokerStatsItem(3, 0.3, 3.0)
    assert minute(stats, "QUEUE_PUT_SIZE", "T@0") == BrokerStatsItem(100, 10.0, 100.0)
    assert minute(stats, "BROKER_PUT_NUMS", "C").sum == 5
    assert minute(stats, "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "C").sum == 4
    assert (stats.put_total, stats.put_size_total) == (5, 1400)


def test_what_a_call_gets_is_counted_for_its_queue_its_group_and_the_broker() -> None:
    """Two groups on one queue, each with its own counters; a message sent back; waits for the disk."""
    stats, clock = started()
    stats.got("G", "T", 2, 32, 6400)
    stats.got("H", "T", 2, 1, 200)
    stats.get_waited("G", "T", 2, 15)
    stats.sent_back("G", "T")
    tick(stats, clock)
    assert minute(stats, "GROUP_GET_NUMS", "T@G") == BrokerStatsItem(32, 3.2, 32.0)
    assert minute(stats, "GROUP_GET_SIZE", "T@H").sum == 200
    assert minute(stats, "QUEUE_GET_NUMS", "T@2@G").sum == 32
    assert minute(stats, "QUEUE_GET_SIZE", "T@2@H").sum == 200
    assert minute(stats, "GROUP_GET_LATENCY", "2@T@G") == BrokerStatsItem(15, 1.5, 15.0)
    assert minute(stats, "SNDBCK_PUT_NUMS", "T@G").sum == 1
    assert minute(stats, "BROKER_GET_NUMS", "C").sum == 33
    assert (stats.got_total, stats.found_total) == (33, 2)
    assert (stats.consume_tps("G", "T"), stats.topic_put_tps("T")) == (3.2, 0.0)


def test_a_counter_that_nothing_was_counted_under_is_none() -> None:
    """Unknown names, keys of other forms, other clusters, and the counters of POP."""
    stats, clock = started()
    stats.sent("T", 0, 1)
    tick(stats, clock)
    for name, key in (
        ("NO_SUCH", "T"),
        ("TOPIC_PUT_NUMS", "U"),
        ("TOPIC_PUT_NUMS", "T@0"),
        ("QUEUE_PUT_NUMS", "T"),
        ("QUEUE_PUT_NUMS", "T@x"),
        ("QUEUE_PUT_NUMS", "T@7"),
        ("TOPIC_PUT_LATENCY", "T"),
        ("GROUP_GET_NUMS", "T@G"),
        ("GROUP_GET_NUMS", "G"),
        ("QUEUE_GET_NUMS", "T@G"),
        ("GROUP_GET_LATENCY", "x@T@G"),
        ("SNDBCK_PUT_NUMS", "T@G"),
        ("SNDBCK_PUT_NUMS", "T"),
        ("BROKER_PUT_NUMS", "D"),
        ("BROKER_ACK_NUMS", "C"),
        ("MISSES", "C"),
    ):
        assert stats.view(name, key) is None, (name, key)


def test_windows_forget_what_is_too_old() -> None:
    """One burst, then silence for a minute and for an hour."""
    stats, clock = started()
    tick(stats, clock)
    stats.sent("T", 0, 10, 600)
    tick(stats, clock)
    assert [each.sum for each in items(stats.view("TOPIC_PUT_NUMS", "T"))] == [600, 600, 600]
    tick(stats, clock, 6)
    assert [each.sum for each in items(stats.view("TOPIC_PUT_NUMS", "T"))] == [0, 600, 600]
    tick(stats, clock, 360)
    assert [each.sum for each in items(stats.view("TOPIC_PUT_NUMS", "T"))] == [0, 0, 600]


def test_the_rate_of_a_young_counter_is_over_its_own_time() -> None:
    """A topic that appears after an hour has 10 messages in 10 seconds, not 10 in a minute."""
    stats, clock = started()
    tick(stats, clock, 360)
    stats.sent("T", 0, 1, 10)
    tick(stats, clock)
    assert [each.tps for each in items(stats.view("TOPIC_PUT_NUMS", "T"))] == [1.0, 1.0, 1.0]


def test_a_removed_topic_leaves_only_the_totals() -> None:
    """Its place is taken by another topic at once: nothing of the old one may show there."""
    stats, clock = started()
    stats.sent("T", 0, 100, 7)
    stats.got("G", "T", 0, 7, 100)
    stats.sent_back("G", "T")
    tick(stats, clock)
    stats.remove_topic("T")
    for name, key in (("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_NUMS", "T@G"), ("SNDBCK_PUT_NUMS", "T@G")):
        assert stats.view(name, key) is None
    stats.sent("U", 0, 1)
    stats.got("G", "U", 0, 1, 1)
    tick(stats, clock)
    assert minute(stats, "TOPIC_PUT_NUMS", "U") == BrokerStatsItem(1, 0.1, 1.0)
    assert minute(stats, "GROUP_GET_NUMS", "U@G").sum == 1
    assert (stats.put_total, stats.got_total) == (8, 8)
    assert minute(stats, "BROKER_PUT_NUMS", "C").sum == 8
    stats.remove_group("G")
    assert stats.view("GROUP_GET_NUMS", "U@G") is None
    assert stats.view("TOPIC_PUT_NUMS", "U") is not None
    assert stats.got_total == 8


def test_idle_counters_are_dropped_if_that_is_wanted() -> None:
    """One topic goes on, one falls silent; the totals stay. By default nothing is dropped."""
    for minutes, is_kept in ((1, False), (-1, True)):
        clock = Steps()
        stats = Stats(clock, cluster="C", settings=BrokerSettings(max_stats_idle_time_in_minutes=minutes))
        stats.sent("Silent", 0, 1)
        stats.got("G", "Silent", 0, 1, 1)
        stats.sent_back("G", "Silent")
        for _ in range(8):
            stats.sent("Live", 0, 1)
            stats.got("G", "Live", 0, 1, 1)
            tick(stats, clock)
        for name, key in (
            ("TOPIC_PUT_NUMS", "Silent"),
            ("GROUP_GET_NUMS", "Silent@G"),
            ("SNDBCK_PUT_NUMS", "Silent@G"),
        ):
            assert (stats.view(name, key) is not None) is is_kept
        assert minute(stats, "TOPIC_PUT_NUMS", "Live").sum == 6
        assert minute(stats, "GROUP_GET_NUMS", "Live@G").sum == 6
        assert (stats.put_total, stats.got_total) == (9, 9)


def test_details_and_light_topics_are_told_only_if_that_is_wanted() -> None:
    """Queues one by one, and a thousand light topics."""
    for is_wanted in (True, False):
        settings_ = BrokerSettings(enable_detail_stat=is_wanted, enable_lmq_stats=is_wanted)
        clock = Steps()
        stats = Stats(clock, cluster="C", settings=settings_)
        stats.sent("T", 0, 1)
        for number in range(1000):
            stats.sent(f"%LMQ%{number}", 0, 1)
            stats.got("G", f"%LMQ%{number}", 0, 1, 1)
        tick(stats, clock)
        assert (stats.view("QUEUE_PUT_NUMS", "T@0") is not None) is is_wanted
        assert (stats.view("GROUP_GET_NUMS", "%LMQ%7@G") is not None) is is_wanted
        assert len(stats.puts()) == (1001 if is_wanted else 2)
        assert (stats.put_total, stats.got_total) == (1001, 1000)


def test_rates_have_three_decimals_and_three_spans() -> None:
    """100 messages in ten seconds, then silence: seen over 10, 60 and 600 seconds."""
    stats, clock = started()
    assert stats.put_tps() == "0.000 0.000 0.000"
    stats.sent("T", 0, 1, 100)
    stats.got("G", "T", 0, 30, 1)
    stats.misses += 5
    tick(stats, clock)
    assert stats.put_tps() == "10.000 10.000 10.000"
    assert stats.transferred_tps() == "3.000 3.000 3.000"
    assert (stats.found_tps(), stats.miss_tps()) == ("0.100 0.100 0.100", "0.500 0.500 0.500")
    assert stats.pull_tps() == "0.600 0.600 0.600"
    tick(stats, clock, 3)
    assert stats.put_tps() == "0.000 2.500 2.500"
    tick(stats, clock, 60)
    assert stats.put_tps() == "0.000 0.000 0.000"


def test_totals_of_the_day_begin_at_midnight() -> None:
    """Messages on three days in a row."""
    stats, clock = started()
    stats.sent("T", 0, 1, 5)
    clock.skip(86_400_000)
    stats.sample()
    assert (stats.put_yesterday, stats.put_today, stats.put_total) == (0, 5, 5)
    stats.sent("T", 0, 1, 2)
    stats.got("G", "T", 0, 3, 1)
    clock.skip(86_400_000)
    stats.sample()
    assert (stats.put_yesterday, stats.put_today, stats.put_total) == (5, 7, 7)
    assert (stats.got_yesterday, stats.got_today, stats.got_total) == (0, 3, 3)


def test_waits_are_told_by_their_length() -> None:
    """Ten calls, of which two waited for the disk."""
    stats, _ = started()
    for _ in range(10):
        stats.sent("T", 0, 1)
    stats.put_waited("T", 0, 7)
    stats.put_waited("T", 0, 700)
    counted = dict(stats.put_durations())
    assert (counted["[<=0ms]"], counted["[0~10ms]"], counted["[500ms~1s]"]) == (8, 1, 1)
    assert sum(counted.values()) == 10
    assert (stats.put_latency_ms(0.5), stats.put_latency_ms(0.9), stats.put_latency_ms(0.99)) == (0, 10, 1000)
    assert stats.longest_put_ms == 700


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 50), st.booleans()), max_size=60))
@settings(deadline=None, max_examples=50)
def test_sums_of_a_minute_agree_with_counting_by_hand(events: list[tuple[int, int, int, bool]]) -> None:
    """Any messages to any queues, with samples anywhere between."""
    stats, clock = started()
    sent: list[tuple[int, int, int]] = []  # (sample they fall before, topic, count)
    sampled = 0
    for topic, queue_id, count, is_sampled in events:
        stats.sent(f"T{topic}", queue_id, 10, count)
        sent.append((sampled, topic, count))
        if is_sampled:
            tick(stats, clock)
            sampled += 1
    tick(stats, clock)
    for topic in range(4):
        expected = sum(count for at, each, count in sent if each == topic and at > sampled - 6)
        data = stats.view("TOPIC_PUT_NUMS", f"T{topic}")
        assert (0 if data is None else items(data)[0].sum) == expected

"""Offsets of the Spark connector as JSON, and the errors it raises."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.protocol.message import MessageQueue
from rmq_spark.errors import Condition, SparkRocketMQError, bad_option
from rmq_spark.offsets import Positions, QueueOffsets, from_json, queue_names, to_json
from rmq_spark.queues import matching_topics

names = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=8)
positions = st.dictionaries(
    st.builds(MessageQueue, names, names, st.integers(0, 2000)), st.integers(0, 2**62), max_size=12
)


@given(positions, positions, positions)
def test_offsets_go_to_json_and_back_unchanged(
    queues: QueueOffsets, start: QueueOffsets, seek: QueueOffsets
) -> None:
    """C133: Spark stores the text and reads it back; every part must survive."""
    text = json.dumps(to_json(queues, start=start, seek=seek))
    assert from_json(json.loads(text)) == Positions(queues, start, seek)


@given(positions, st.randoms())
def test_equal_positions_give_equal_bytes(queues: QueueOffsets, random: Any) -> None:
    """C133: Spark compares text, so another order of the same queues would make batches without end."""
    items = list(queues.items())
    random.shuffle(items)
    assert json.dumps(to_json(dict(items))) == json.dumps(to_json(queues))


def test_queues_are_ordered_by_number_and_written_as_planned() -> None:
    """The form in checkpoints is a promise: one literal holds it."""
    offsets = {MessageQueue("T", "b", 10): 3, MessageQueue("T", "b", 2): 4, MessageQueue("T", "a", 0): 5}
    assert json.dumps(to_json(offsets, start={MessageQueue("T", "a", 0): 1})) == (
        '{"v": 1, "queues": {"T": {"a": {"0": 5}, "b": {"2": 4, "10": 3}}}, "start": {"T": {"a": {"0": 1}}}}'
    )


def test_other_positions_and_other_cases_are_other_offsets() -> None:
    """C134, C135."""
    q0, q1, other = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("T", "a", 0)
    texts = [json.dumps(to_json(each)) for each in ({q0: 1}, {q0: 2}, {q0: 2, q1: 1}, {other: 1})]
    assert len(set(texts)) == 4
    assert [from_json(json.loads(text)).queues for text in texts] == [{q0: 1}, {q0: 2}, {q0: 2, q1: 1}, {other: 1}]


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        {},
        {"v": 2, "queues": {}},
        {"queues": {}},
        {"v": 1, "queues": [], "start": {}},
        {"v": 1, "queues": {"T": {"a": {"0": 1}}}, "later": 1},
        {"v": 1, "queues": {"T": {"0": 1}}},
        {"v": 1, "queues": {"T": {"a": {"zero": 1}}}},
        {"v": 1, "queues": {"T": {"a": {"0": "1"}}}},
        {"v": 1, "queues": {"T": {"a": {"0": True}}}},
        {"v": 1, "queues": {"T": {"a": {"0": 1.0}}}},
        {"v": 1, "queues": {"T": {"a": {"²": 1}}}},
        {"topic": {"0": 12}},
    ],
)
def test_what_is_no_offset_of_ours_is_refused_by_name(value: Any) -> None:
    """C154: checkpoints of other sources, other releases, and damaged ones."""
    with pytest.raises(SparkRocketMQError) as error:
        from_json(value)
    assert error.value.condition is Condition.BAD_OFFSETS


def test_errors_travel_between_processes_with_all_they_hold() -> None:
    """Workers pickle what they raise."""
    error = bad_option("topic", "a b", "why")
    other = pickle.loads(pickle.dumps(error))
    assert (other.condition, other.parameters, str(other)) == (error.condition, error.parameters, str(error))
    assert str(error) == "[ROCKETMQ_BAD_OPTION] option topic='a b': why"


def test_many_queues_are_named_in_short() -> None:
    """Sixteen thousand names would bury the message."""
    assert queue_names([MessageQueue("T", "a", number) for number in range(30)], count_max=2) == (
        "T/a/0, T/a/1 and 28 more"
    )
    assert queue_names([]) == "none"


def test_a_pattern_matches_whole_names_of_users_topics_only() -> None:
    """C094, C097: `.*` meets every kind of topic that RocketMQ makes for itself."""
    own = ["%RETRY%g", "%DLQ%g", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "TBW102",
           "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "BenchmarkTest"]  # fmt: skip
    brokers = ["DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"]
    users = ["orders.eu", "orders", "Orders", "reorders"]
    everything = [*own, *brokers, *users]
    assert matching_topics(everything, ".*", system=brokers) == tuple(sorted(users))
    assert matching_topics(everything, "orders.*", system=brokers) == ("orders", "orders.eu")
    assert matching_topics(everything, "a|orders", system=brokers) == ("orders",)
    assert matching_topics([], ".*") == ()

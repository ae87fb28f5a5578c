"""A name server with 10,000 topics on 50 brokers: routes and registrations, in process.

Baseline of a route: encoding it anew. Baseline of an equal registration: one that changes the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.measure import Ratio, in_turn
from rmq_core.namesrv.routes import Registration, Routes
from rmq_core.protocol.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper

TOPICS, BROKERS, COUNT = 10_000, 50, 2_000


def registration(broker: int, counter: int) -> Registration:
    names = [f"topic-{number}" for number in range(TOPICS)]
    table = TopicConfigSerializeWrapper(
        {name: TopicConfig(name, 8, 8) for name in names}, DataVersion(1, counter, 0)
    )
    return Registration("C", f"broker-{broker}", 0, f"10.0.0.{broker}:10911", f"10.0.0.{broker}:10912", table)


def rate(action: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        action()
    return count / (time.perf_counter() - start)


def run() -> list[Ratio]:
    routes = Routes()
    for broker in range(BROKERS):
        routes.register(registration(broker, 0), 0.0)

    def encode_anew() -> bytes:
        route = routes.route("topic-77")
        assert route is not None
        return route.encode(standard=True)

    cached, anew = in_turn(
        lambda: rate(lambda: routes.encoded_route("topic-77", standard=True), COUNT),
        lambda: rate(encode_anew, 100),
    )
    return [Ratio("cached route, 50 brokers", cached, anew, "routes/s", goal=10)]

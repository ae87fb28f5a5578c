"""Consume only what is wanted: by tag, and by SQL92 over properties (brokers need enablePropertyFilter for it)."""

from __future__ import annotations

import argparse
import threading

from rmq_core import Message, Producer, PushConsumer, ReceivedMessage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicFilter")
    options = parser.parse_args()

    with Producer("filter-producer", name_server=options.name_server) as producer:
        for number in range(10):
            producer.send(
                Message(
                    options.topic,
                    b"%d" % number,
                    tags=("created", "paid", "shipped")[number % 3],
                    properties={"amount": str(number * 50), "region": ("EU", "US")[number % 2]},
                )
            )

    def consume(group: str, expected: int, *, tags: str | None = None, sql: str | None = None) -> list[int]:
        got: list[int] = []
        left = threading.Semaphore(0)
        consumer = PushConsumer(group, start_from="earliest", name_server=options.name_server)

        @consumer.subscribe(options.topic, tags=tags, sql=sql)
        def handle(message: ReceivedMessage) -> None:
            got.append(int(message.body))
            left.release()

        with consumer:
            for _ in range(expected):
                left.acquire()
        return sorted(got)

    print("paid or shipped:", consume("filter-tags", 6, tags="paid || shipped"))
    print("large and in the EU:", consume("filter-sql", 3, sql="amount > 150 AND region = 'EU'"))


if __name__ == "__main__":
    main()

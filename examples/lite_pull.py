"""Read when it suits: as a member of a group, and queue by queue from places of one's own choice."""

from __future__ import annotations

import argparse

from rmq_core import LitePullConsumer, Message, Producer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicLitePull")
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()

    with Producer("lite-pull-producer", name_server=options.name_server) as producer:
        for number in range(options.count):
            producer.send(Message(options.topic, b"%d" % number))

    with LitePullConsumer("lite-pull", start_from="earliest", name_server=options.name_server) as consumer:
        consumer.subscribe(options.topic)
        seen = 0
        for _ in consumer:  # a message counts as done when the next one is asked for
            seen += 1
            if seen == options.count:
                break
        consumer.commit()
        print(f"{seen} read by subscription")

    with LitePullConsumer("lite-pull-again", name_server=options.name_server) as consumer:
        queues = consumer.fetch_queues(options.topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek(queue, 0)
        seen = 0
        while messages := consumer.poll(2_000):
            seen += len(messages)
        print(f"{seen} read from the beginning of {len(queues)} queues")


if __name__ == "__main__":
    main()

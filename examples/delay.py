"""A message that is delivered later: level 1 is one second, unless the broker's table says otherwise."""

from __future__ import annotations

import argparse
import queue
import time

from rmq_core import Admin, Message, Producer, PushConsumer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicDelay")
    parser.add_argument("--level", type=int, default=1)
    options = parser.parse_args()

    with Admin(name_server=options.name_server) as admin:
        admin.create_topic(options.topic, queues=4)  # or let the first message make it, and consumers wait for it

    arrived: queue.Queue[tuple[bytes, float]] = queue.Queue()
    consumer = PushConsumer("delay", start_from="earliest", name_server=options.name_server)
    consumer.subscribe(options.topic, lambda message: arrived.put((message.body, time.monotonic())))
    with consumer, Producer("delay-producer", name_server=options.name_server) as producer:
        started = time.monotonic()
        producer.send(Message(options.topic, b"later", delay_level=options.level))
        producer.send(Message(options.topic, b"at once"))
        for _ in range(2):
            body, moment = arrived.get()
            print(f"{body.decode()}: after {moment - started:.1f} s")


if __name__ == "__main__":
    main()

"""Messages of one order stay in their order: the same sharding key goes to the same queue, read by one listener.

The last two messages go to queues that a selector picks by number, as one may do instead of a key.
"""

from __future__ import annotations

import argparse
import threading
from collections import defaultdict
from collections.abc import Sequence

from rmq_core import Message, MessageQueue, Producer, PushConsumer, ReceivedMessage, SuspendQueue

STEPS = ("created", "paid", "packed", "shipped", "delivered")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicOrder2")
    parser.add_argument("--orders", type=int, default=4)
    options = parser.parse_args()

    with Producer("ordered-producer", name_server=options.name_server) as producer:
        for step in STEPS:
            for order in range(options.orders):
                key = f"order-{order}"
                producer.send(Message(options.topic, f"{key} {step}".encode(), sharding_key=key))
        for number in (1, 2):

            def pick(queues: Sequence[MessageQueue], message: Message, number: int = number) -> MessageQueue:
                return queues[number % len(queues)]

            sent = producer.send(Message(options.topic, f"picked by-{number}".encode()), selector=pick)
            print(f"by selector {number}: queue {sent.queue.queue_id}")

    expected = options.orders * len(STEPS) + 2
    got: dict[str, list[str]] = defaultdict(list)
    seen = 0
    is_first_failure = True
    done = threading.Event()
    one_by_one = threading.Lock()  # queues are read side by side; only within one is there an order
    consumer = PushConsumer("ordered", ordered=True, start_from="earliest", name_server=options.name_server)

    @consumer.subscribe(options.topic)
    def handle(message: ReceivedMessage) -> None:
        nonlocal seen, is_first_failure
        with one_by_one:
            if is_first_failure:
                is_first_failure = False
                raise SuspendQueue(delay_ms=100)  # the same message again, and nothing of its queue before it
            name, step = message.body.decode().split(" ")
            got[name].append(step)
            seen += 1
            if seen == expected:
                done.set()

    with consumer:
        done.wait()
    for name, steps in sorted(got.items()):
        print(name, ", ".join(steps))


if __name__ == "__main__":
    main()

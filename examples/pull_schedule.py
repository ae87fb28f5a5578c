"""Be called for each queue that is ours, pull, and say where to go on."""

from __future__ import annotations

import argparse
import threading

from rmq_core import Message, MessageQueue, Producer, PullConsumer, PullSchedule
from rmq_core.client.pull_schedule import PullContext


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicPull")
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()

    with Producer("pull-producer", name_server=options.name_server) as producer:
        for number in range(options.count):
            producer.send(Message(options.topic, b"%d" % number))

    got: list[bytes] = []
    lock = threading.Lock()
    done = threading.Event()

    def task(queue: MessageQueue, context: PullContext[PullConsumer]) -> None:
        consumer = context.consumer
        offset = consumer.committed(queue) or 0
        result = consumer.pull(queue, offset)
        with lock:
            got.extend(message.body for message in result.messages)
            if len(got) >= options.count:
                done.set()
        consumer.update_offset(queue, result.next_offset)
        context.next_delay_ms = 100

    with PullSchedule("pull", name_server=options.name_server) as schedule:
        schedule.register(options.topic, task)
        done.wait()
    print(f"{len(set(got))} pulled")


if __name__ == "__main__":
    main()

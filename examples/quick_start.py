"""Send ten messages, and consume them."""

from __future__ import annotations

import argparse
import threading
import time

from rmq_core import Message, Producer, PushConsumer, ReceivedMessage, RetryLater, RocketMQError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicQuickStart")
    parser.add_argument("--count", type=int, default=10)
    options = parser.parse_args()

    with Producer("quick-start-producer", name_server=options.name_server) as producer:
        for number in range(options.count):
            message = Message(options.topic, f"Hello RocketMQ {number}".encode(), tags="TagA", keys=f"key-{number}")
            try:
                print(producer.send(message))
            except RocketMQError as error:
                print(f"not sent: {error}")
                time.sleep(1)

    left = threading.Semaphore(0)
    printing = threading.Lock()  # listeners run side by side
    consumer = PushConsumer("quick-start", start_from="earliest", name_server=options.name_server)

    @consumer.subscribe(options.topic, tags="TagA")
    def handle(message: ReceivedMessage) -> None:
        try:
            with printing:
                print(message.topic, message.tags, message.body.decode())
        except UnicodeDecodeError:
            raise RetryLater from None  # any other exception means the same
        left.release()

    with consumer:
        for _ in range(options.count):
            left.acquire()


if __name__ == "__main__":
    main()

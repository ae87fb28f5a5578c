"""Many messages in few requests; what is too large for one is split."""

from __future__ import annotations

import argparse

from rmq_core import BatchSendError, LitePullConsumer, Message, Producer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicBatch")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--size", type=int, default=10_000)
    options = parser.parse_args()

    messages = [
        Message(options.topic, b"%d " % number + b"x" * options.size, tags="TagA")
        for number in range(options.count)
    ]
    with Producer("batch-producer", name_server=options.name_server) as producer:
        try:
            results = producer.send_batch(messages)
        except BatchSendError as error:
            print(f"{len(error.sent)} sent, {len(error.unsent)} not: {error}")
            raise
    print(f"{len(results)} messages sent to {len({result.queue for result in results})} queues")

    with LitePullConsumer("batch", start_from="earliest", name_server=options.name_server) as consumer:
        consumer.subscribe(options.topic)
        numbers: set[bytes] = set()
        while len(numbers) < options.count:
            numbers.update(message.body.split(b" ")[0] for message in consumer.poll())
        consumer.commit()
    print(f"{len(numbers)} messages read")


if __name__ == "__main__":
    main()

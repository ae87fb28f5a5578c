"""Messages that are seen only if their transaction commits; what stays open is asked about by the broker.

Of five messages the first is committed, the second and third are rolled back, and the last two are left open: they
are committed when the broker asks.
"""

from __future__ import annotations

import argparse
import threading

from rmq_core import Admin, Message, PushConsumer, ReceivedMessage, TransactionDecision, TransactionProducer

DECISIONS = {
    "msg-1": TransactionDecision.COMMIT,
    "msg-2": TransactionDecision.ROLLBACK,
    "msg-3": TransactionDecision.ROLLBACK,
}


def check(message: ReceivedMessage) -> TransactionDecision:
    """Asked by the broker, also after a restart: a real program would look into its database."""
    print(f"asked about {message.keys[0]}")
    return TransactionDecision.COMMIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicTransaction")
    options = parser.parse_args()

    with Admin(name_server=options.name_server) as admin:
        admin.create_topic(options.topic, queues=4)  # or let the first message make it, and consumers wait for it

    got: list[str] = []
    left = threading.Semaphore(0)
    consumer = PushConsumer("transaction", start_from="earliest", name_server=options.name_server)

    @consumer.subscribe(options.topic)
    def handle(message: ReceivedMessage) -> None:
        got.extend(message.keys)
        left.release()

    producer = TransactionProducer(
        "transaction-producer", topics=[options.topic], check=check, name_server=options.name_server
    )
    with producer, consumer:
        for number in range(1, 6):
            key = f"msg-{number}"

            def execute(message: object, key: str = key) -> TransactionDecision:
                return DECISIONS.get(key, TransactionDecision.UNKNOWN)  # the local transaction runs here

            result = producer.send(Message(options.topic, b"a transfer", keys=key), execute=execute)
            print(f"{key}: {result.decision.name}")
        for _ in range(3):
            left.acquire()
    print("seen:", ", ".join(sorted(got)))


if __name__ == "__main__":
    main()

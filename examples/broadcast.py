"""Every member of a group gets every message, and keeps its progress in a file of its own."""

from __future__ import annotations

import argparse
import tempfile
import threading

from rmq_core import Message, Producer, PushConsumer, ReceivedMessage


class Member:
    """A consumer that remembers what it got."""

    def __init__(self, name: str, topic: str, count: int, name_server: str, offset_dir: str) -> None:
        self.name = name
        self.got: list[bytes] = []
        self.all_got = threading.Event()
        self._count = count
        self._lock = threading.Lock()
        self.consumer = PushConsumer(
            "broadcast",
            broadcasting=True,
            instance_name=name,  # progress is found under this name at the next start
            offset_dir=offset_dir,
            start_from="earliest",
            name_server=name_server,
        )
        self.consumer.subscribe(topic, self.handle)

    def handle(self, message: ReceivedMessage) -> None:
        with self._lock:
            self.got.append(message.body)
            if len(self.got) == self._count:
                self.all_got.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicBroadcast")
    parser.add_argument("--count", type=int, default=10)
    options = parser.parse_args()

    with Producer("broadcast-producer", name_server=options.name_server) as producer:
        for number in range(options.count):
            producer.send(Message(options.topic, b"%d" % number))
    with tempfile.TemporaryDirectory() as folder:
        members = [
            Member(name, options.topic, options.count, options.name_server, folder) for name in ("first", "second")
        ]
        with members[0].consumer, members[1].consumer:
            for member in members:
                member.all_got.wait()
                print(f"{member.name} got {len(set(member.got))} of {options.count}")


if __name__ == "__main__":
    main()

"""Ask another program over a topic, and wait for its answer."""

from __future__ import annotations

import argparse

from rmq_core import Admin, Message, Producer, PushConsumer, ReceivedMessage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicRequest")
    options = parser.parse_args()

    with Admin(name_server=options.name_server) as admin:
        admin.create_topic(options.topic, queues=4)  # or let the first message make it, and consumers wait for it

    responder = Producer("request-responder", name_server=options.name_server)
    consumer = PushConsumer("request", start_from="earliest", name_server=options.name_server)

    @consumer.subscribe(options.topic)
    def answer(message: ReceivedMessage) -> None:
        responder.reply(message, b"you said: " + message.body)

    with responder, consumer, Producer("request-asker", name_server=options.name_server) as asker:
        for question in ("hello", "goodbye"):
            reply = asker.request(Message(options.topic, question.encode()), timeout_ms=30_000)
            print(reply.body.decode())


if __name__ == "__main__":
    main()

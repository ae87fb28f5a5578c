"""Look after topics and groups."""

from __future__ import annotations

import argparse

from rmq_core import Admin, Message, Producer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicAdmin")
    options = parser.parse_args()

    with Admin(name_server=options.name_server) as admin:
        for name, broker in admin.cluster_info().brokers.items():
            print(f"{name} in {broker.cluster}: {admin.runtime_info(name).version}")
        admin.create_topic(options.topic, queues=2)
        admin.create_group("administration", retries_max=3)
        with Producer("administration-producer", name_server=options.name_server) as producer:
            sent = [producer.send(Message(options.topic, b"%d" % number, keys="all")) for number in range(6)]
        print(f"{options.topic} holds {admin.topic_status(options.topic).count} messages")
        first = admin.view_message(sent[0].offset_msg_id)
        print(
            f"the first is {first.body.decode()}, {len(admin.messages_by_key(options.topic, 'all'))} have its key"
        )

        for queue in admin.topic_route(options.topic).read_queues:
            admin.set_offset("administration", queue, 0)
        lag = admin.lag("administration", topic=options.topic)
        print(f"the group is {lag.count} behind, and has let a message wait: {lag.oldest_unread_age is not None}")
        admin.reset_offsets("administration", options.topic, to="latest")
        admin.delete_group("administration", with_offsets=True)
        admin.delete_topic(options.topic)
        print(f"{options.topic} is gone: {options.topic not in admin.topics()}")


if __name__ == "__main__":
    main()

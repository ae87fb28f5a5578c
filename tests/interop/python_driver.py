"""Our own clients, driven by JSON lines like the others: one command a line on standard input, one answer a line on
standard output with the command's id, and lines with "event" for what consumers receive. Ends with its input."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from rmq_core import (
    Admin,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SendResult,
    TransactionDecision,
    TransactionProducer,
)
from rmq_core.client.options import ClientArguments
from rmq_core.client.queue_offsets import StartFrom
from rmq_core.net.tls import TlsFiles, client_context

STATUS = {"OK": "SEND_OK"}
START_FROM: Final[dict[str, StartFrom]] = {
    "CONSUME_FROM_FIRST_OFFSET": "earliest",
    "CONSUME_FROM_LAST_OFFSET": "latest",
}
DECISIONS = {
    "commit": TransactionDecision.COMMIT,
    "rollback": TransactionDecision.ROLLBACK,
    "unknown": TransactionDecision.UNKNOWN,
}
printing = threading.Lock()

Order = dict[str, Any]


def say(line: dict[str, Any]) -> None:
    with printing:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def described(message: ReceivedMessage) -> dict[str, Any]:
    body = message.body
    return {
        "topic": message.topic,
        "queueId": message.queue.queue_id,
        "offset": message.queue_offset,
        "size": len(body),
        "body": body.decode() if len(body) <= 4096 else None,
        "tags": message.tags,
        "keys": " ".join(message.keys),
        "msgId": message.msg_id,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_time_ms,
        "storeTimestamp": message.stored_time_ms,
        "receivedAt": time.time_ns() // 1_000_000,
        "properties": dict(message.properties),
    }


def sent(result: SendResult) -> dict[str, Any]:
    return {
        "status": STATUS.get(result.status.name, result.status.name),
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
        "queueId": result.queue.queue_id,
        "queueOffset": result.queue_offset,
    }


def message_of(order: Order, **more: Any) -> Message:
    return Message(
        order["topic"],
        b"x" * order["size"] if order.get("size") else order.get("body", "").encode(),
        tags=order.get("tags"),
        keys=order["keys"].split(" ") if order.get("keys") else None,
        properties={name: str(value) for name, value in order.get("properties", {}).items()} | more,
        sharding_key=order.get("argument") if order.get("mode") == "selector" else None,
        delay_level=order.get("delayLevel"),
    )


def started_from(order: Order) -> StartFrom:
    if "at" in order:
        return datetime.strptime(order["at"], "%Y%m%d%H%M%S").astimezone()
    return START_FROM[order.get("from", "CONSUME_FROM_FIRST_OFFSET")]


def checked(message: ReceivedMessage) -> TransactionDecision:
    say({"event": "check", "body": message.body.decode()})
    return DECISIONS[message.properties["check"]]


class Driver:
    """The clients that are running, by the name of their group."""

    def __init__(self, name_server: str, trusted: str) -> None:
        tls = client_context(TlsFiles(trusted=trusted), verify_server=True) if trusted else False
        self._where: ClientArguments = {"name_server": name_server, "tls": tls}
        self._producers: dict[str, Producer] = {}
        self._transactions: dict[str, TransactionProducer] = {}
        self._consumers: dict[str, list[PushConsumer | LitePullConsumer | PullConsumer]] = {}
        self._instances = 0

    def run(self, order: Order) -> Any:
        command: Callable[[Order], Any] = getattr(self, f"do_{order['do']}")
        return command(order)

    def do_producer(self, order: Order) -> None:
        name, over = order["name"], order.get("compressOver", 4096)
        if "checks" in order:
            self._transactions[name] = TransactionProducer(
                name, topics=[order["topic"]], check=checked, **self._where
            ).start()
            return
        self._producers[name] = Producer(
            name, **self._where, timeout_ms=10_000, retries=0, compress_over_bytes=over
        ).start()

    def do_send(self, order: Order) -> Any:
        producer, message = self._producers[order["name"]], message_of(order)
        mode = order.get("mode", "sync")
        if mode == "oneway":
            return producer.send_oneway(message)
        if mode == "async":
            return sent(producer.send_async(message).result(20))
        if mode == "queue":
            return sent(producer.send(message, queue=self._queue(order)))
        return sent(producer.send(message))

    def do_send_many(self, order: Order) -> list[Any]:
        return [self.do_send({**order, "body": f"{order['body']}{number}"}) for number in range(order["count"])]

    def do_batch(self, order: Order) -> Any:
        messages = [message_of({**order, "body": body}) for body in order["bodies"]]
        return [sent(result) for result in self._producers[order["name"]].send_batch(messages)]

    def do_transaction(self, order: Order) -> Any:
        message = message_of(order, check=order.get("check", "commit"))
        decision = DECISIONS[order["decide"]]
        result = self._transactions[order["name"]].send(message, execute=lambda _: decision)
        return {"msgId": result.msg_id}

    def do_request(self, order: Order) -> str:
        producer = self._producers[order["name"]]
        return producer.request(message_of(order), timeout_ms=order["timeout"]).body.decode()

    def do_push(self, order: Order) -> None:
        name = order["name"]
        self._instances += 1
        where = self._where.copy()
        if "broadcasting" in order:
            where["instance_name"] = f"driver-{id(self)}-{self._instances}"
        consumer = PushConsumer(
            name,
            **where,
            start_from=started_from(order),
            ordered="orderly" in order,
            broadcasting="broadcasting" in order,
            reconsume_times_max=order.get("maxReconsumeTimes", 16),
            suspend_ms=100,
        )

        def handle(message: ReceivedMessage) -> None:
            say({"event": "message", "consumer": name, **described(message)})
            if "reply" in order:
                next(iter(self._producers.values())).reply(message, b"reply to " + message.body)
            if message.reconsume_times < order.get("failures", 0):
                raise RetryLater

        consumer.subscribe(order["topic"], handle, tags=order.get("tags"), sql=order.get("sql"))
        self._consumers.setdefault(name, []).append(consumer.start())

    def do_lite(self, order: Order) -> None:
        name, topic = order["name"], order["topic"]
        consumer = LitePullConsumer(name, **self._where, start_from="earliest", auto_commit=False)
        if "assign" in order:
            consumer.start()
            consumer.assign(consumer.fetch_queues(topic))
        else:
            consumer.subscribe(topic, tags=order.get("tags", "*"))
            consumer.start()
        self._consumers.setdefault(name, []).append(consumer)

    def do_poll(self, order: Order) -> list[Any]:
        return [described(message) for message in self._lite(order).poll(order["timeout"])]

    def do_commit(self, order: Order) -> None:
        self._lite(order).commit()

    def do_pull(self, order: Order) -> list[Any]:
        """Everything in one queue from an offset on, asked for again until so many have come."""
        name = order["name"]
        if name not in self._consumers:
            self._consumers[name] = [PullConsumer(name, **self._where).start()]
        [consumer] = self._consumers[name]
        assert isinstance(consumer, PullConsumer)
        found: list[Any] = []
        offset = order.get("offset", 0)
        while len(found) < order["count"]:
            result = consumer.pull(self._queue(order), offset)
            if not result.messages:
                break
            found += map(described, result.messages)
            offset = result.next_offset
        return found

    def do_view(self, order: Order) -> Any:
        with self._admin() as admin:
            return described(admin.view_message(order["msgId"], topic=order["topic"]))

    def do_query(self, order: Order) -> list[Any]:
        with self._admin() as admin:
            return [described(each) for each in admin.messages_by_key(order["topic"], order["key"])]

    def do_search(self, order: Order) -> int:
        with self._admin() as admin:
            return admin.offset_by_time(self._queue(order), datetime.fromtimestamp(order["time"] / 1000, UTC))

    def do_stop(self, order: Order) -> None:
        name = order["name"]
        producers = [self._producers.pop(name, None), self._transactions.pop(name, None)]
        for client in [*producers, *self._consumers.pop(name, [])]:
            if client is not None:
                client.close()

    def _admin(self) -> Admin:
        return Admin(**self._where)

    def _lite(self, order: Order) -> LitePullConsumer:
        [consumer] = self._consumers[order["name"]]
        assert isinstance(consumer, LitePullConsumer)
        return consumer

    def _queue(self, order: Order) -> MessageQueue:
        return MessageQueue(order["topic"], order["broker"], order["queueId"])


def main() -> None:
    *options, name_server = sys.argv[1:]
    driver = Driver(name_server, "".join(option.removeprefix("--trust=") for option in options))
    say({"event": "ready"})
    for line in sys.stdin:
        order = json.loads(line)
        try:
            say({"id": order["id"], "result": driver.run(order)})
        except Exception as error:
            say({"id": order["id"], "error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()

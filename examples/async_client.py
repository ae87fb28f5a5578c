"""Send and consume with coroutines: everything is in rmq_core.aio under the same names."""

from __future__ import annotations

import argparse
import asyncio

from rmq_core.aio import LitePullConsumer, Message, Producer


async def run(name_server: str, topic: str, count: int) -> None:
    async with Producer("async-producer", name_server=name_server) as producer:
        results = await asyncio.gather(*(producer.send(Message(topic, b"%d" % number)) for number in range(count)))
        print(f"{len(results)} sent, {sum(result.ok for result in results)} stored")

    async with LitePullConsumer("async-reader", start_from="earliest", name_server=name_server) as consumer:
        await consumer.subscribe(topic)
        seen = 0
        async for _ in consumer:  # a message counts as done when the next one is asked for
            seen += 1
            if seen == count:
                await consumer.commit()  # so that the last one is done too
                break
        print(f"{seen} consumed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="TopicAsync")
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    asyncio.run(run(options.name_server, options.topic, options.count))


if __name__ == "__main__":
    main()

"""An application by decorators: listeners get plain objects, the template sends them."""

from __future__ import annotations

import argparse
import threading
from dataclasses import dataclass

from rmq_core import Admin
from rmq_core.integrations import App


@dataclass(frozen=True)
class Order:
    number: int
    amount: float


@dataclass(frozen=True)
class Quote:
    currency: str
    rate: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    options = parser.parse_args()

    with Admin(name_server=options.name_server) as admin:
        for topic in ("AppOrders", "AppQuotes"):
            admin.create_topic(topic, queues=4)  # or let the first message make it, and consumers wait for it

    app = App(name_server=options.name_server)
    billed = threading.Event()

    @app.listener("AppOrders", group="app-billing", tags="paid", start_from="earliest")
    def bill(order: Order) -> None:
        print(f"billing order {order.number}: {order.amount:.2f}")
        billed.set()

    @app.responder("AppQuotes", group="app-quotes", start_from="earliest")
    def quote(currency: str) -> Quote:
        return Quote(currency, 1.25)

    with app:  # or app.run(), which ends with SIGINT or SIGTERM
        app.template.send("AppOrders", Order(42, 9.5), tags="paid")
        billed.wait()
        print(app.template.request("AppQuotes", "EUR", into=Quote, timeout_ms=30_000))


if __name__ == "__main__":
    main()

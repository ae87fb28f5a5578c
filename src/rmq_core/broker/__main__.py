"""`python -m rmq_core.broker [-n ADDRESSES] [-c FILE] [--store DIR] [key=value]...`, also `mqbroker`.

Alone     Where no name server is named, one is started in this process (--namesrvPort, 9876). Without a file
          either, everything binds and announces 127.0.0.1 and the store is ./store.
Exit      0 after a clean stop, -1 for arguments or settings that cannot be used, -3 where the broker cannot start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rmq_core.broker import logs
from rmq_core.broker.app import BrokerApp, own_name_server
from rmq_core.broker.hosts import from_here
from rmq_core.config import (
    BROKER_DEFAULTS,
    USAGE,
    Arguments,
    BrokerSettings,
    ClientSettings,
    ServerSettings,
    StoreSettings,
    format_properties,
    load,
    parse_arguments,
)
from rmq_core.errors import ConfigError, RocketMQError
from rmq_core.net.loop import run

log = logging.getLogger("rmq_core.broker")

NAMESRV_PORT: Final = 9876
SWITCH_INTERVAL_S: Final = 0.0002
"""A busy second thread gives the loop its turn back after so long."""
PROGRAM_USAGE: Final = """\
  --stopWithStdin true          stop when standard input ends, as it does when the parent process ends
  --store DIR                   directory of the store; the same as storePathRootDir
  --loggingConfig FILE          how to log, such as conf/logging.toml; otherwise lines of text on standard error
  --namesrvPort PORT            port of the name server started where none is named; 9876, 0 takes a free one
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    settings: BrokerSettings
    store: StoreSettings
    server: ServerSettings
    client: ClientSettings
    namesrv_port: int | None
    """None where name servers are named."""
    stops_with_stdin: bool
    """Whether the end of standard input means stop: it comes when the parent process ends, however it ends."""
    unknown: list[str]


def plan_of(arguments: Arguments) -> Plan:
    """Settings from a command line and its file. Raises ConfigError."""
    properties = dict(arguments.properties)
    store_dir = properties.pop("store", None)
    port_text = properties.pop("namesrvPort", str(NAMESRV_PORT))
    if not port_text.isdecimal() or int(port_text) > 65535:
        raise ConfigError("namesrvPort", port_text, "must be a port, 0 to 65535")
    stops_with_stdin = properties.pop("stopWithStdin", "false") == "true"
    if "namesrvAddr" not in properties and os.environ.get("NAMESRV_ADDR"):
        properties["namesrvAddr"] = os.environ["NAMESRV_ADDR"]
    is_alone = not properties.get("namesrvAddr")
    if arguments.file is not None:
        properties.setdefault("brokerConfigPath", arguments.file)
    elif is_alone:
        host = properties.get("bindAddress", "127.0.0.1")
        properties = {
            "bindAddress": host,
            "brokerIP1": from_here(host),
            "metricsBindAddress": from_here(host),
            "storePathRootDir": "./store",
            **properties,
        }
    if store_dir is not None:
        properties["storePathRootDir"] = store_dir
    settings, store, server, client, unknown = load(
        properties, BrokerSettings, StoreSettings, ServerSettings, ClientSettings, defaults=BROKER_DEFAULTS
    )
    port = int(port_text) if is_alone else None
    return Plan(settings, store, server, client, port, stops_with_stdin, [str(each) for each in unknown])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a broker until SIGINT or SIGTERM and return the exit code."""
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
        logs.configure(arguments.properties.pop("loggingConfig", None))
        if arguments.is_help_wanted:
            sys.stdout.write(USAGE.format(program="mqbroker") + PROGRAM_USAGE)
            return 0
        plan = plan_of(arguments)
        if arguments.is_print_wanted:
            parts = plan.client, plan.server, plan.settings, plan.store
            sys.stdout.write(format_properties({k: v for each in parts for k, v in each.to_properties().items()}))
            return 0
        for key in plan.unknown:
            log.warning("%s", key)
        return run(_serve(plan))
    except ConfigError as error:
        sys.stderr.write(f"mqbroker: {error}\n")
        return -1
    except (RocketMQError, OSError) as error:
        sys.stderr.write(f"mqbroker: {error}\n")
        return -3


async def _serve(plan: Plan) -> int:
    name_server = None
    if plan.namesrv_port is not None:
        name_server = own_name_server(plan.store.store_path_root_dir, plan.namesrv_port, plan.server)
    app = BrokerApp(plan.settings, plan.store, plan.server, client_settings=plan.client, name_server=name_server)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    if plan.stops_with_stdin:
        threading.Thread(target=_watch_stdin, args=(asyncio.get_running_loop(), stopping), daemon=True).start()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    await app.start()
    # What exists now lives as long as the broker: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    sys.stdout.write(
        f"The broker[{app.settings.broker_name}, {app.broker.address}] boot success. Connect to name server "
        f"{app.settings.namesrv_addr}; the store is {app.store_settings.store_path_root_dir}\n"
    )
    sys.stdout.flush()
    await stopping.wait()
    await app.close()
    log.info("stopped")
    return 0


def _watch_stdin(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    # Without Python's buffer: a thread that holds its lock when the program ends makes the interpreter abort.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    with contextlib.suppress(RuntimeError):  # the loop has ended by itself
        loop.call_soon_threadsafe(stopping.set)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m rmq_core.namesrv [-c FILE] [-p] [--listenPort 9876] [--key value]`, also `mqnamesrv`.

Exit codes are Apache's: 0 after a clean stop, -1 for arguments or settings that cannot be used, -3 where the
server cannot start. (-2, a missing home directory, cannot happen here.)
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from rmq_core.config import (
    NAMESRV_DEFAULTS,
    USAGE,
    NamesrvSettings,
    ServerSettings,
    format_properties,
    load,
    parse_arguments,
)
from rmq_core.errors import ConfigError, RocketMQError
from rmq_core.namesrv.app import NameServer
from rmq_core.net.loop import run

logger = logging.getLogger("rmq_core.namesrv")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a name server until SIGINT or SIGTERM and return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
        if arguments.is_help_wanted:
            sys.stdout.write(USAGE.format(program="mqnamesrv"))
            return 0
        properties = dict(arguments.properties)
        if arguments.file is not None:
            properties["configStorePath"] = arguments.file
        settings, server, unknown = load(properties, NamesrvSettings, ServerSettings, defaults=NAMESRV_DEFAULTS)
    except ConfigError as error:
        sys.stderr.write(f"mqnamesrv: {error}\n")
        return -1
    if arguments.is_print_wanted:
        sys.stdout.write(format_properties(server.to_properties() | settings.to_properties()))
        return 0
    for key in unknown:
        logger.warning("%s", key)
    try:
        return run(_serve(settings, server))
    except (RocketMQError, OSError) as error:
        sys.stderr.write(f"mqnamesrv: {error}\n")
        return -3


async def _serve(settings: NamesrvSettings, server: ServerSettings) -> int:
    name_server = NameServer(settings, server)
    name_server.start()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    address = f"{server.bind_address}:{name_server.port}"
    sys.stdout.write(f"The Name Server boot success. serializeType=JSON, address {address}\n")
    sys.stdout.flush()
    await stopping.wait()
    await name_server.close()
    logger.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())

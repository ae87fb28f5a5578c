"""`python -m rmq_spark doctor`: checks what a query needs, and says what to do where something is missing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where all is well."""
    parser = argparse.ArgumentParser(prog="python -m rmq_spark", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="check Java, PySpark, the format's look-up, and a cluster")
    doctor.add_argument("-n", "--name-server", help="host:port;host:port of the cluster to check")
    doctor.add_argument("-t", "--topic", help="a topic of which every broker must answer")
    doctor.add_argument(
        "--broker-address-map", default="", help="announced=reachable,…, as the option brokerAddressMap"
    )
    doctor.add_argument("--without-spark", action="store_true", help="start no Spark session")
    given = parser.parse_args(arguments)
    from rmq_spark import doctor as checks

    return checks.run(
        name_server=given.name_server,
        topic=given.topic,
        broker_address_map=given.broker_address_map,
        with_spark=not given.without_spark,
    )


if __name__ == "__main__":
    sys.exit(main())

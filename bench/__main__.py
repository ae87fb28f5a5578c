"""Runs the benchmarks, prints their ratios, and writes them to bench/results with machine and commit."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from pathlib import Path

from bench import (
    broker_join,
    broker_polls,
    broker_pull,
    broker_send,
    client_push,
    client_send,
    columnar,
    decoder,
    frames,
    queue_drain,
    routes,
    spark_read,
    spark_sink,
    spark_trigger,
    store_append,
    store_flush,
    store_queues,
    store_recovery,
    store_verify,
)
from bench.measure import Ratio

BENCHMARKS = {
    "frames": frames.run,
    "decoder": decoder.run,
    "routes": routes.run,
    "columnar": columnar.run,
    "append": store_append.run,
    "flush": store_flush.run,
    "recovery": store_recovery.run,
    "verify": store_verify.run,
    "queues": store_queues.run,
    "send": broker_send.run,
    "pull": broker_pull.run,
    "client_send": client_send.run,
    "polls": broker_polls.run,
    "join": broker_join.run,
    "drain": queue_drain.run,
    "push": client_push.run,
    "spark_read": spark_read.run,
    "spark_sink": spark_sink.run,
    "spark_trigger": spark_trigger.run,
}


def main() -> int:
    wanted = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in wanted if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
        return 2
    ratios: list[Ratio] = []
    for name in wanted:
        print(f"{name} …", flush=True)
        ratios += BENCHMARKS[name]()
    width = max(len(ratio.name) for ratio in ratios)
    for ratio in ratios:
        print(ratio.line(width))
    write(ratios)
    return 0


def write(ratios: list[Ratio]) -> None:
    """Keep the figures with what they were measured on."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "ratios": [ratio.as_dict() for ratio in ratios],
    }
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

"""A broker under half of the load that it can take, for minutes: nothing fails, nothing is lost, memory stays flat.

`python -m bench.soak [--minutes 10] [--idle 10000]` starts a broker in an empty directory, finds out how many
messages a second this machine's clients get through it, and goes on at half of that rate with plain, delayed,
retried and transactional messages and thousands of connections that only wait. Exit code 1 where anything is amiss.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from bench.soak_load import Clients

SETTINGS: Final = (
    "listenPort=0",
    "namesrvPort=0",
    "stopWithStdin=true",
    "mappedFileSizeCommitLog=67108864",
    "transactionCheckInterval=5000",
    "transactionTimeOut=3000",
    "diskSpaceWarningLevelRatio=100",
    "diskSpaceCleanForciblyRatio=100",
)
READY: Final = re.compile(r"broker\[[^,]+, ([\d.]+:\d+)\]")
CALIBRATE_S: Final = 10
SAMPLE_S: Final = 5
SETTLE_S: Final = 90
"""What is still to come after the last message was sent must come within this time."""
FILES_FOR_OTHERS: Final = 1000
GROWTH_MAX: Final = 0.05
GROWTH_MAX_MB: Final = 4
"""Memory of the last quarter may be so much over that of the second one, whichever is more."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process had taken at a time."""

    at_s: float
    resident_mb: float
    anonymous_mb: float
    """Without the mapped files of the store."""
    processor_s: float
    files: int


def sample(pid: int) -> Sample:
    """Look at a process."""
    kilobytes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        kilobytes[name] = int(rest.split()[0])
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    processor_s = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return Sample(time.monotonic(), kilobytes["Rss"] / 1024, kilobytes["Anonymous"] / 1024, processor_s, files)


def start_broker(store: Path) -> tuple[subprocess.Popen[str], str, Path]:
    """A broker, its address and the file of what it logs."""
    log = store.with_name("broker.log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "rmq_core.broker", "--store", str(store), *SETTINGS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    found = READY.search(process.stdout.readline())
    if found is None:
        process.kill()
        raise SystemExit("the broker does not start:\n" + log.read_text())
    return process, found[1], log


def idle_max() -> int:
    """So many connections may be open at most."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard - FILES_FOR_OTHERS if hard != resource.RLIM_INFINITY else 1 << 20


async def soak(address: str, pid: int, *, minutes: float, idle: int) -> tuple[Clients, list[Sample]]:
    """Load a broker; returns the clients, closed, with what they counted, and samples of the broker."""
    clients = Clients(address)
    await clients.start()
    clients.produce(None)
    await asyncio.sleep(2)
    before, started = clients.books.sent.total(), time.monotonic()
    await asyncio.sleep(CALIBRATE_S)
    full_rate = (clients.books.sent.total() - before) / (time.monotonic() - started)
    rate = full_rate / 2
    print(
        f"full load: {full_rate:,.0f} messages a second; from now on half of it for {minutes:g} minutes", flush=True
    )
    clients.produce(rate)
    await clients.idle(idle)
    print(f"{idle} more connections wait", flush=True)
    clients.books.latencies_ms.clear()
    samples = [sample(pid)]
    counted = clients.books.sent.total()
    end = samples[0].at_s + minutes * 60
    while time.monotonic() < end and not clients.books.errors:
        await asyncio.sleep(SAMPLE_S)
        now, last = sample(pid), samples[-1]
        samples.append(now)
        sent, counted = clients.books.sent.total() - counted, clients.books.sent.total()
        seconds = now.at_s - last.at_s
        processor = (now.processor_s - last.processor_s) / seconds
        print(
            f"{now.at_s - samples[0].at_s:6.0f} s  {sent / seconds:8,.0f}/s  "
            f"{len(clients.books.outstanding):6} to come  resident {now.resident_mb:7.1f} MB, "
            f"without files {now.anonymous_mb:6.1f} MB  processor {processor:4.0%}  files {now.files}",
            flush=True,
        )
    await clients.rest(SETTLE_S)
    await clients.close()
    return clients, samples


def slope(samples: Sequence[Sample]) -> float:
    """Growth of the memory without files, in MB a minute."""
    if len(samples) < 2:
        return 0.0
    times = [each.at_s / 60 for each in samples]
    return statistics.linear_regression(times, [each.anonymous_mb for each in samples]).slope


def growth(samples: Sequence[Sample]) -> tuple[float, float]:
    """Memory without files in the second and in the last quarter of the time."""
    quarter = max(len(samples) // 4, 1)
    second, last = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    return statistics.mean(each.anonymous_mb for each in second), statistics.mean(
        each.anonymous_mb for each in last
    )


def report(clients: Clients, samples: list[Sample], log: str, code: int) -> list[str]:
    """Print the figures; returns what is amiss."""
    books = clients.books
    print("sent " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(books.sent.items())))
    print("received " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(books.received.items())))
    print(f"refused as busy {books.refused}, lost {len(books.outstanding)}, unexpected {len(books.unexpected)}")
    if len(books.latencies_ms) > 1:
        cuts = statistics.quantiles(books.latencies_ms, n=1000)
        print(f"sends took {cuts[499]:.2f} ms (median), {cuts[989]:.2f} ms (99 %), {cuts[998]:.2f} ms (99.9 %)")
    early, late = growth(samples)
    later = samples[len(samples) // 4 :]
    print(
        f"memory without files {early:.1f} MB in the second quarter, {late:.1f} MB in the last; "
        f"{slope(later):+.2f} MB a minute since the first quarter"
    )
    amiss = list(dict.fromkeys(books.errors))
    if books.outstanding:
        amiss.append(
            f"{len(books.outstanding)} messages did not come, such as {list(books.outstanding.items())[:5]}"
        )
    if books.unexpected:
        amiss.append(f"unexpected messages came, such as {list(books.unexpected.items())[:5]}")
    if late > early + max(early * GROWTH_MAX, GROWTH_MAX_MB):
        amiss.append("memory grows")
    if code:
        amiss.append(f"the broker ended with {code}")
    amiss += [line for line in log.splitlines() if "ERROR" in line or "CRITICAL" in line][:20]
    return amiss


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--idle", type=int, default=10_000, help="connections that only wait")
    arguments = parser.parse_args()
    idle = max(min(arguments.idle, idle_max()), 0)
    with tempfile.TemporaryDirectory(prefix="rmq-soak-") as folder:
        process, address, log = start_broker(Path(folder, "store"))
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                clients, samples = runner.run(soak(address, process.pid, minutes=arguments.minutes, idle=idle))
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
        finally:
            process.kill()
            process.communicate()
        amiss = report(clients, samples, log.read_text(), code)
    print("\n".join(amiss) or "nothing is amiss")
    return 1 if amiss else 0


if __name__ == "__main__":
    sys.exit(main())

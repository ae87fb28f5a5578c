"""`python -m rmq_core.columnar.compiling FOLDER`: compile the loops into a cache, beside a program that goes on.

Priority  As low as the system has it.
End       With its input, which whoever starts this keeps open for as long as it lives.
"""

from __future__ import annotations

import os
import sys
import threading

from rmq_core.columnar import kernels


def main() -> int:
    """Exit code 0: the cache is complete."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(19)
    return not kernels.load(sys.argv[1])


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())

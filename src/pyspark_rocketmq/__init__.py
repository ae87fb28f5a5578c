"""The module by which Spark finds the format `rocketmq`: it imports every `pyspark_…` in every session.

So it imports nothing of its own and cannot fail: a broken module here would hide everybody's formats.
"""

from __future__ import annotations

from typing import Any

try:
    from pyspark.sql.datasource import DataSource
except ImportError:  # Spark 3 does not look here; whoever imports this by hand is told below
    DataSource = object  # type: ignore[assignment, misc]

OLDEST = (4, 2)


class DefaultSource(DataSource):
    """The format; Spark makes an instance of it for every use and gets the real one."""

    def __new__(cls, options: Any) -> Any:
        import pyspark

        found = pyspark.__version__
        if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
            raise RuntimeError(f"the format rocketmq needs PySpark 4.2 or newer, and this is {found}")
        from rmq_spark.source import RocketMQDataSource

        return RocketMQDataSource(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

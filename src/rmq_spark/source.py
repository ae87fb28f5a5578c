"""The format `rocketmq`: which rows it has, who reads them and who writes.

Spark makes a DataSource for every load() and every write, pickles it, and asks it for readers and writers in other
processes; nothing is connected here. What a load() can know is checked then, the rest when a query starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rmq_spark.option_checks import check_loaded
from rmq_spark.options import Scope, Settings, parse
from rmq_spark.shipping import Shippable

if TYPE_CHECKING:
    from collections.abc import MutableMapping

NAME = "rocketmq"


class RocketMQDataSource(Shippable, DataSource):
    """What `format("rocketmq")` means."""

    def __init__(self, options: MutableMapping[str, str] | Mapping[str, str]) -> None:
        self.options = dict(options)
        self.settings: Settings = parse(self.options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        from rmq_spark.rows import spark_schema

        check_loaded(self.settings)
        return spark_schema(self.settings)

    def reader(self, schema: StructType) -> DataSourceReader:
        from rmq_spark.rows import checked_columns

        settings = parse(self.options, Scope.READ)
        columns = checked_columns(schema, settings)
        if settings.scope is Scope.OFFLINE:
            from rmq_spark.file_reader import RocketMQFileReader

            return RocketMQFileReader(settings, columns)
        from rmq_spark.batch_reader import RocketMQBatchReader

        return RocketMQBatchReader(settings, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from rmq_spark.rows import checked_columns
        from rmq_spark.stream_reader import RocketMQStreamReader

        settings = parse(self.options, Scope.STREAM)
        return RocketMQStreamReader(settings, checked_columns(schema, settings))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rmq_spark.writer import RocketMQBatchWriter

        return RocketMQBatchWriter(parse(self.options, Scope.WRITE), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from rmq_spark.writer import RocketMQStreamWriter

        return RocketMQStreamWriter(parse(self.options, Scope.STREAM_WRITE), schema, overwrite)

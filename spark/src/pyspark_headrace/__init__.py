"""Where Spark finds `format("headrace")` by itself: it imports installed modules `pyspark_*` and
takes their `DefaultSource`. It doesn't look into `--py-files`; there, and always safely:

    from pyspark_headrace import HeadraceDataSource
    spark.dataSource.register(HeadraceDataSource)

`lag` and `LagExporter` tell how far queries are behind. They are loaded when first used: Spark
imports this module in every session, also in those that never read a topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.spark.source import HeadraceDataSource
from headrace.spark.source import HeadraceDataSource as DefaultSource

if TYPE_CHECKING:
    from headrace.spark.lag import LagExporter, lag

__all__ = ["DefaultSource", "HeadraceDataSource", "LagExporter", "lag"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headrace.spark import lag as module

    return getattr(module, name)

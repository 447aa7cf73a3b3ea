"""Where Spark finds `format("headrace")` by itself: it imports installed modules `pyspark_*` and
takes their `DefaultSource`. It doesn't look into `--py-files`; there, and always safely:

    from pyspark_headrace import HeadraceDataSource
    spark.dataSource.register(HeadraceDataSource)
"""

from headrace.spark.source import HeadraceDataSource
from headrace.spark.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource", "HeadraceDataSource"]

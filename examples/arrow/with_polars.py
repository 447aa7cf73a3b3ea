"""A topic as a polars DataFrame: JSON values parsed, grouped by key.

pip install 'headrace[arrow]' polars
python with_polars.py http://127.0.0.1:9420 flights
"""

import sys

import polars as pl

from headrace.sdk import arrow


def main(bootstrap: str, topic: str) -> None:
    frame = pl.from_arrow(arrow.read_table(bootstrap, topic, columns=["key", "value"]))
    delays = frame.select(
        carrier=pl.col("key").cast(pl.String),
        delay=pl.col("value").cast(pl.String).str.json_path_match("$.arr_delay").cast(pl.Int64),
    )
    print(delays.group_by("carrier").agg(pl.len(), pl.col("delay").mean()).sort("carrier"))


if __name__ == "__main__":
    main(*sys.argv[1:])

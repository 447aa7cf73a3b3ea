"""SQL over a topic with DuckDB, streaming: the topic is never in memory as a whole.

pip install 'headrace[arrow]' duckdb
python with_duckdb.py http://127.0.0.1:9420 flights
"""

import sys

import duckdb

from headrace.sdk import arrow


def main(bootstrap: str, topic: str) -> None:
    records = arrow.open_reader(bootstrap, topic, columns=["partition", "key", "value"])
    connection = duckdb.connect()
    connection.register("records", records)
    print(
        connection.sql(
            "SELECT decode(key) AS key, count(*) AS records, sum(octet_length(value)) AS bytes"
            " FROM records GROUP BY ALL ORDER BY key"
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A topic as a pandas DataFrame: values by partition and hour.

pip install 'headrace[arrow]' pandas
python with_pandas.py http://127.0.0.1:9420 flights
"""

import sys

from headrace.sdk import arrow


def main(bootstrap: str, topic: str) -> None:
    table = arrow.read_table(bootstrap, topic, columns=["partition", "timestamp", "value"])
    frame = table.to_pandas()
    frame["size"] = frame["value"].str.len()
    by_hour = frame.groupby(["partition", frame["timestamp"].dt.floor("h")])["size"]
    print(by_hour.agg(["count", "sum"]))


if __name__ == "__main__":
    main(*sys.argv[1:])

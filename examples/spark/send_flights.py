"""Sends the demo's flights to the topic `flights`: key the carrier, value JSON.

pip install 'headrace[demo]'
python send_flights.py http://127.0.0.1:9420
"""

import sys

from headrace.demo.flights import load_flights
from headrace.sdk.sync import Producer


def main(bootstrap: str) -> None:
    flights = load_flights()
    with Producer(bootstrap) as producer:
        producer.send_many("flights", flights.values, keys=flights.keys)
    print(f"{len(flights.keys):,} flights sent")


if __name__ == "__main__":
    main(*sys.argv[1:])

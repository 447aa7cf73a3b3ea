"""An in-memory cluster for tests: the HTTP API's meaning without sockets, processes and files.

    async def test_orders_are_sent() -> None:
        async with InMemoryCluster() as cluster:
            cluster.create_topic("orders", partitions=3)
            await my_program(bootstrap=cluster.url)          # memory://..., taken by every client
            assert [record.value for record in cluster.records("orders")] == [b"first"]

With pytest the fixture `headrace_cluster` is there without any import. Clients run unchanged, down
to the bytes; `inject` makes requests fail the way brokers and networks do.
"""

from headrace.sdk.testing.cluster import InMemoryCluster, transport_of

__all__ = ["InMemoryCluster", "transport_of"]

"""The broker: one asyncio process that keeps logs, serves HTTP and takes part in coordination.

In the order of a record's way: `api` (HTTP) → `partition` (a log with a role) → `log` (files).
Beside it: `controller` (who leads what, over `store`), `groups` (committed offsets), `core` (the
decisions, pure), `assembly` (the one place that builds and wires everything).
"""

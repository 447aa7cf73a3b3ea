"""`headrace bench`: how fast, measured so that the figures can be compared and repeated.

`stats` (pure) makes medians and percentiles, `report` the output, `workload` topics and values,
`throughput` and `latency` measure, `commands` reads the flags. bench/README.md says how to read it.
"""

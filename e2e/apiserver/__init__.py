"""An API server for tests: Kubernetes' HTTP API over a state in memory, with faults on demand."""

"""An API server in one process, for tests where no Kubernetes can run: it keeps state, tells
watchers, checks schemas, and can be told to fail."""

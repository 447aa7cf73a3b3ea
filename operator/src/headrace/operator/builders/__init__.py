"""From a BrokerCluster to the Kubernetes objects it consists of: one pure builder a file."""

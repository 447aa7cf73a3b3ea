"""What the scenarios are written with: a Kubernetes of either kind, clusters and clients in it."""

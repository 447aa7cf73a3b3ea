"""What Kubernetes has around its API server, small: controllers, a scheduler, and nodes that run
pods as real processes of this machine."""

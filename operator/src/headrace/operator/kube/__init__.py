"""The Kubernetes API as the operator uses it: credentials, requests with deadlines, events."""

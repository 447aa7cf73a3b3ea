"""The fixture that users get from the entry point, whether or not it is installed here."""

from headrace.sdk.pytest_plugin import headrace_cluster

__all__ = ["headrace_cluster"]

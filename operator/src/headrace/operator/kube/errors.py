"""What can go wrong between the operator and the Kubernetes API."""

from __future__ import annotations


class KubernetesError(Exception):
    """The API server said no, or nothing. `status` 0: no answer, and nobody knows whether the
    request was carried out."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def is_conflict(self) -> bool:
        """Somebody else wrote first, or made it, or it is another one by now: look again."""
        return self.status == 409

    @property
    def is_absent(self) -> bool:
        """There is no such object."""
        return self.status == 404

    @property
    def is_refusal(self) -> bool:
        """What was sent can't be: the same request would be refused again."""
        return self.status in (400, 403, 413, 422)

    @property
    def is_passing(self) -> bool:
        """It goes away by itself: no answer, too many requests, the server's own trouble."""
        return self.status in (0, 401, 429) or self.status >= 500

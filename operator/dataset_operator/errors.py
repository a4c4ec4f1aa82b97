"""The exceptions of `dataset_operator`, and how a pass handles each.

    OperatorError
    ├── KubeUnavailable     the API server did not answer, or is overloaded: retry the pass
    ├── KubeConflict        something changed since it was observed: observe again
    ├── KubeRefused         the API server refuses it (quota, policy, schema): report it to the user
    ├── RayRefused          Ray refuses the content of a submission: the attempt has failed
    ├── RayUnreachable      the head's Jobs API did not answer: the pass goes on without it
    ├── MetricsUnreachable  a Prometheus did not answer: its metrics are unknown
    └── UserError           a command cannot do what was asked; the message says what to do

`handlers` maps them to Kopf's.
"""

from __future__ import annotations


class OperatorError(Exception):
    """Base class of all exceptions that the operator raises on purpose.

    Attributes:
        retry_after_seconds: pause that an overloaded server asks for; 0: none.
    """

    retry_after_seconds: float = 0.0


class KubeUnavailable(OperatorError):
    """The API server did not answer in time, is overloaded, or failed."""


class KubeConflict(OperatorError):
    """A write had an old resourceVersion, or another manager owns one of its fields."""


class KubeRefused(OperatorError):
    """The API server refuses a request for good; the message is the server's.

    Attributes:
        is_invalid: True if the content is refused, not the caller (RBAC) or the amount (quota).
    """

    def __init__(self, message: str, *, is_invalid: bool = False) -> None:
        super().__init__(message)
        self.is_invalid = is_invalid


class RayRefused(OperatorError):
    """Ray refuses the content of a submission; the message is Ray's."""


class RayUnreachable(OperatorError):
    """A cluster's Jobs API did not answer."""


class MetricsUnreachable(OperatorError):
    """A Prometheus gave no answer or no usable one; the message says what to check."""


class UserError(OperatorError):
    """A command, an option or a setting is wrong or cannot be carried out."""

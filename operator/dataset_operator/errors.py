"""The exceptions of `dataset_operator`; what each means for the pass that meets it.

    OperatorError
    ├── KubeUnavailable     the API server did not answer, or not now: the pass is tried again
    ├── KubeConflict        something changed since it was observed: observe again
    ├── KubeRefused         the API server refuses it (quota, policy, schema): said to the user
    ├── RayRefused          Ray refuses a submission for what it says: the attempt has failed
    ├── RayUnreachable      the head's Jobs API did not answer: the pass goes on without it
    ├── MetricsUnreachable  a Prometheus did not answer: what it would tell is not known
    └── UserError           what a person asked of a command cannot be done; it says what to do

`handlers` maps them to Kopf's.
"""

from __future__ import annotations


class OperatorError(Exception):
    """Base of everything that the operator raises on purpose.

    Attributes:
        retry_after_seconds: for how long a server that is too busy asks to be left alone.
    """

    retry_after_seconds: float = 0.0


class KubeUnavailable(OperatorError):
    """The API server did not answer in time, is overloaded, or failed."""


class KubeConflict(OperatorError):
    """A write carried a resourceVersion that is not the newest, or another owns the field."""


class KubeRefused(OperatorError):
    """A request that the API server refuses for good; the message is the server's.

    Attributes:
        is_invalid: it is refused for what it says, not for who asks or how much there is already.
    """

    def __init__(self, message: str, *, is_invalid: bool = False) -> None:
        super().__init__(message)
        self.is_invalid = is_invalid


class RayRefused(OperatorError):
    """A submission that Ray refuses for what it says; the message is Ray's."""


class RayUnreachable(OperatorError):
    """No answer from a cluster's Jobs API."""


class MetricsUnreachable(OperatorError):
    """No answer, or none of use, from a Prometheus; the message says what to look at."""


class UserError(OperatorError):
    """A command, an option or a setting that cannot be followed."""

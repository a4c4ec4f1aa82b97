"""Errors of a cluster in a box.

BoxError
├── ComponentError   a process did not become ready, with the end of its log
│   └── PortTakenError   another process took its port in the meantime: try again with other ports
├── RequestError     the API server refused what brings a box up
├── KubectlError     kubectl failed, with what it said
└── NotRunningError  there is no box in that folder
"""

from pathlib import Path

LOG_LINES = 20  # of a failed component's log: the cause is among the last ones


class BoxError(Exception):
    """Something about a cluster in a box failed; says what to do."""


class ComponentError(BoxError):
    """A component did not become ready.

    Args:
        name: of the component.
        what: the end of the sentence that begins with its name.
        log: its log, whose end is shown.
    """

    def __init__(self, name: str, what: str, log: Path) -> None:
        self.component = name
        tail = "\n".join(read_log(log).splitlines()[-LOG_LINES:]) or "(it wrote nothing)"
        super().__init__(f"{name} {what}; the end of {log}:\n{tail}")


class PortTakenError(ComponentError):
    """A component ended because its port was taken since it was picked."""


class RequestError(BoxError):
    """The API server refused a request.

    Args:
        request: its method and path.
        status: the HTTP status.
        said: the server's answer.
    """

    def __init__(self, request: str, status: int, said: str) -> None:
        super().__init__(f"{request} was answered with {status}: {said.strip()}")


class KubectlError(BoxError):
    """kubectl ended with a code other than 0.

    Args:
        arguments: of kubectl.
        said: its standard error.
    """

    def __init__(self, arguments: tuple[str, ...], said: str) -> None:
        self.said = said
        super().__init__(f"`kubectl {' '.join(arguments)}` failed: {said.strip()}")


class NotRunningError(BoxError):
    """There is no box in that folder."""


def read_log(log: Path) -> str:
    """Return the log's text; a component that never started has none."""
    try:
        return log.read_text(errors="replace")
    except FileNotFoundError:
        return ""

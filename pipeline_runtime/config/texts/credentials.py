"""Recognizes credentials: names and values that a manifest must not hold and a message not show.

A manifest lands in etcd, in ConfigMaps, in run reports and in git, so it may only refer to secrets.
The models ask this module before they accept a value, and `wording` before it prints one. Everyday
words of machine learning are no secrets: `padToken`, `tokenizer`, `maxTokens`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from urllib.parse import parse_qsl, urlsplit

from pydantic import JsonValue

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
SECRET_WORDS = {"secret", "secrets", "password", "passwords", "passwd", "pwd", "passphrase"}
SECRET_WORDS |= {"credential", "credentials"}
# `key` and `token` alone are everyday words; after one of these they are secrets.
KEY_OWNERS = {"access", "account", "api", "private", "secret", "shared", "storage"}
TOKEN_OWNERS = {"access", "api", "auth", "bearer", "github", "gitlab", "hf", "hub", "identity"}
TOKEN_OWNERS |= {"oauth", "refresh", "sas", "security", "session"}
# A name with such an ending refers to the place of a secret, which is what a manifest should do.
REFERENCE_ENDINGS = {"arn", "column", "columns", "dir", "file", "name", "path", "ref"}
QUERY_KEY = re.compile(
    r"secret|passw|token|credential|access[_-]?key|api[_-]?key|account[_-]?key|^sig$|signature",
    re.I,
)
KEY_VALUE = re.compile(
    r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS access key ids
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\b(ghp|gho|ghs|github_pat|glpat|hf)[_-]\w{20,}"  # GitHub, GitLab, Hugging Face
    r"|\bxox[abprs]-\w{10,}"  # Slack
    # JSON web tokens. Tried only at the start of a run of their characters, so that the time is
    # linear in the length of the text; without lookbehind, since the CRD's RE2 runs it too.
    r"|(^|[^\w-])eyJ[\w-]{10,}\.[\w-]{10,}\."
)
_HEADER = re.compile(r"\bBearer [^\s'\"]+")
# A name ends where the next one may begin; otherwise, a text of separators takes quadratic time.
_QUERY_PAIR = re.compile(r"([?&;][^=&?;\s]*)=([^&\s]*)")
# Tried only at the start of a run of a scheme's characters; otherwise, a long text takes seconds.
_USER_IN_URI = re.compile(
    r"(?<![A-Za-z0-9+.-])[0-9+.-]*(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<user>[^/@\s'\"]*)@"
)
# In these the part before '@' is a container, not a user (Azure's Hadoop drivers).
CONTAINER_SCHEMES = frozenset({"abfs", "abfss", "wasb", "wasbs"})


def is_secret_name(name: str) -> bool:
    """Return whether a field, option or variable of this name holds a secret itself."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in REFERENCE_ENDINGS:
        return False
    if SECRET_WORDS.intersection(words) or words == ["token"]:
        return True
    return any(
        (second == "key" and first in KEY_OWNERS) or (second == "token" and first in TOKEN_OWNERS)
        for first, second in pairwise(words)
    )


def is_secret_env(name: str) -> bool:
    """Return whether an environment variable of this name holds a secret; any `…_TOKEN` does."""
    words = [word.lower() for word in _WORD.findall(name)]
    return is_secret_name(name) or words[-1:] == ["token"]


def holds_secret(name: str, value: str) -> bool:
    """Return whether an environment variable of this name and value holds a secret itself."""
    # GOOGLE_APPLICATION_CREDENTIALS=/var/run/… names a file on a volume.
    is_secret = value != "" and is_secret_env(name) and not value.startswith("/")
    return is_secret or find_uri_credential(value) is not None


def is_secret_value(value: str) -> bool:
    """Return whether a text holds a well-known kind of key, whatever the name beside it."""
    return KEY_VALUE.search(value) is not None


def find_uri_credential(text: str) -> str | None:
    """Describe the credential in a text with a URI, without showing it; None if it has none."""
    for match in _USER_IN_URI.finditer(text):
        plain = match["scheme"].lower() in CONTAINER_SCHEMES and ":" not in match["user"]
        if match["user"] and not plain and match["user"] != "git":  # git@ stands for ssh
            return f"a user or password before '@' in {match['scheme']}://…@"
    for key, _ in parse_qsl(_query_of(text)):
        if QUERY_KEY.search(key) and " " not in key:
            return f"the query parameter {key!r}"
    return "what looks like a key" if is_secret_value(text) else None


def _query_of(text: str) -> str:
    try:
        return urlsplit(text).query
    except ValueError:  # a misplaced bracket, which is reported when the URI is opened
        return text.partition("?")[2]


def find_option_credentials(value: JsonValue, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and a description of everything below `value` that looks like a credential."""
    if isinstance(value, dict):
        for key, item in value.items():
            below = f"{path}.{key}" if path else key
            if isinstance(item, str) and item and is_secret_name(key):
                yield below, "a name that holds a secret"
            else:
                yield from find_option_credentials(item, below)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_option_credentials(item, f"{path}[{index}]")
    elif isinstance(value, str) and (what := find_uri_credential(value)):
        yield path, what


def hide_credentials(text: str) -> str:
    """Return the text without users, passwords and keys, for messages."""
    text = _USER_IN_URI.sub(lambda match: f"{match['scheme']}://…@", text)
    text = _QUERY_PAIR.sub(_hide_query_value, text)
    text = _HEADER.sub("Bearer …", text)
    return KEY_VALUE.sub("…", text)


def _hide_query_value(match: re.Match[str]) -> str:
    return f"{match[1]}=…" if QUERY_KEY.search(match[1][1:]) else match[0]

"""One document before an API server and before the models, and where the two may differ."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubernetes import client, config

from pipeline_runtime.config import GROUP, VERSION
from pipeline_runtime.config.reading.validation import judge
from pipeline_runtime.config.texts.yaml_documents import format_path
from tools.cluster.box import Box
from tools.crd import PLURAL

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A rule that one side checks and the other cannot.

    Attributes:
        reason: why the other side cannot check it.
        problem: a pattern of the error of the side that does.
        example: a spec that shows that the entry is still needed.
    """

    reason: str
    problem: str
    example: Document


DATASET = {"dataset": {"parquet": {"uri": "x/"}}}

TWO_TO_ONE = [{"name": "a", "newName": "c"}, {"name": "b", "newName": "c"}]

TWO_MODELS = [
    {"name": name, "onnx": {"uri": "x.onnx"}, "outputs": [{"name": "y", "type": "float32"}]}
    for name in "ab"
]

ONLY_MODELS_SEE = {
    "credentials in free-form options": Difference(
        reason="`options` and `config` have no schema, and CEL sees only fields with a schema",
        problem=r"^spec\.(pipeline\[\d+\]\.(map\.options|generate\.engineArgs)|training\.config)\b"
        ".* must not carry",
        example=DATASET | {"training": {"config": {"apiKey": "x"}}},
    ),
    "a secret by the name of its argument": Difference(
        reason="the name may be the argument before, and a list of texts has no place for that",
        problem=r"^spec\.training\.args\[\d+\]: must not carry",
        example=DATASET | {"training": {"script": "train.py", "args": ["--api-key", "x"]}},
    ),
    "how deep something is nested": Difference(
        reason="only a schema could bound it, and these fields have none",
        problem=r"\bnested\b",
        example=DATASET | {"training": {"config": json.loads('{"a":' * 70 + "0" + "}" * 70)}},
    ),
    "most of a pod template": Difference(
        reason="a template is Kubernetes' own, of any version: the operator judges it by a dry run",
        problem=r"^spec\.(head|trainers|dataWorkers|inferenceWorkers\[\d+\])\.template\b",
        example=DATASET
        | {"head": {"template": {"spec": {"volumes": [{"hostPath": {"path": "/"}}]}}}},
    ),
    "two columns renamed to one": Difference(
        reason="comparing every new name with every other is over the CEL budget",
        problem=r"\.rename\.columns: .*\btwo columns\b",
        example=DATASET | {"pipeline": [{"rename": {"columns": TWO_TO_ONE}}]},
    ),
    "a group of inference workers that is missing or unused": Difference(
        reason="comparing every model of every step with every group is over the CEL budget",
        problem=r"^spec\.(pipeline\[\d+\]\.predict\.models\[\d+\]\.workerGroup: must be the name"
        r"|inferenceWorkers\[\d+\]\.name: must be the workerGroup)",
        example=DATASET | {"inferenceWorkers": [{"name": "large"}]},
    ),
    "one output of two models": Difference(
        reason="comparing every output with those of all models is over the CEL budget",
        problem=r"\.predict\.models\[\d+\]\.outputs\[\d+\]\.name: .*\bone of several\b",
        example=DATASET | {"pipeline": [{"predict": {"models": TWO_MODELS}}]},
    ),
    "a repeated column of a key": Difference(
        reason="an item of `keys`, a text or a mapping, has no type, so CEL does not see the list",
        problem=r"\.keys\[\d+\]: must not repeat\b",
        example=DATASET
        | {
            "pipeline": [
                {"antiJoin": {"parquet": {"uri": "x/"}, "keys": ["a", {"left": "a", "right": "b"}]}}
            ]
        },
    ),
    "a null in the key of a join": Difference(
        reason="the API server checks no keyword but type and enum of a null, and a key, a text or "
        "a mapping, has neither",
        problem=r"\.keys\[\d+\]: .*\(null\)",
        example=DATASET | {"pipeline": [{"antiJoin": {"parquet": {"uri": "x/"}, "keys": [None]}}]},
    ),
    "null": Difference(
        reason="the API server takes nulls out before it looks: a field is absent, or its default",
        problem=r"^(?!\S*\[\d+\]: ).*\(null\)",
        example=DATASET | {"suspend": None},
    ),
    "a whole number with a decimal point": Difference(
        reason="JSON knows one kind of number, and the API server takes 7.0 for an integer",
        problem=r"\binteger\b.* -?\d+\.0 \(a number\)",
        example=DATASET | {"training": {"epochs": 7.0}},
    ),
    "a request over its limit, of rarer resources": Difference(
        reason="quantities are expensive in CEL, so it compares only the three usual resources",
        problem=r"resources\.requests\.(?!cpu|memory|ephemeral-storage).*\blimits\b",
        example=DATASET
        | {
            "head": {
                "resources": {"requests": {"example.com/x": 2}, "limits": {"example.com/x": 1}}
            }
        },
    ),
    "a request over its limit by less than a billionth": Difference(
        reason="Kubernetes rounds quantities up to billionths",
        problem=r"\blimits\.\S+ .*\dn\b.*\dn\b",
        example=DATASET
        | {"head": {"resources": {"requests": {"cpu": "0.6n"}, "limits": {"cpu": "0.5n"}}}},
    ),
    "a secret's name in mixed case": Difference(
        reason="finding the words of `dbPassword` takes look-ahead, which RE2 lacks",
        problem=r"^spec\.env\[\d+\]\.value: must not hold a secret, got a value for "
        r"(?=\S*[a-z])(?=\S*[A-Z])",
        example=DATASET | {"env": [{"name": "dbPassword", "value": "x"}]},
    ),
    "a store's URI with more than a location": Difference(
        reason="a newer rule, which must not make the API server refuse older objects",
        problem=r"\b(uris?(\[\d+\])?|root|warehouse): must (have a scheme of|be like|not have)",
        example=DATASET | {"artifacts": {"uri": "gs://b/p?endpoint_override=h"}},
    ),
    "a percent-encoded key in a query": Difference(
        reason="a pattern does not decode",
        problem=r"\bcredentials\b.*\bquery\b",
        example=DATASET | {"artifacts": {"uri": "https://h/p?%74oken=1"}},
    ),
}


class Api:
    """The API server's experiments in one namespace."""

    def __init__(self, box: Box, namespace: str) -> None:
        self._objects = client.CustomObjectsApi(config.new_client_from_config(str(box.kubeconfig)))
        self._place = {
            "group": GROUP,
            "version": VERSION,
            "namespace": namespace,
            "plural": PLURAL,
        }

    def create(self, document: Document, *, strict: bool = True, dry_run: bool = True) -> Document:
        """Create an experiment, by default in a dry run; return it as stored."""
        options = {"dry_run": "All"} if dry_run else {}
        mode = "Strict" if strict else "Ignore"
        return self._objects.create_namespaced_custom_object(
            **self._place, body=document, field_validation=mode, **options
        )

    def refusal(self, document: Document) -> str:
        """Return why the API server refuses a document; empty if it accepts it."""
        try:
            self.create(document)
        except client.ApiException as error:
            if error.status not in (400, 422):
                raise
            return str(json.loads(error.body)["message"])
        return ""

    def patch(self, name: str, body: Document) -> str:
        """Change an experiment; return why the API server refuses it, or ""."""
        return self._patch(self._objects.patch_namespaced_custom_object, name, body)

    def set_status(self, name: str, status: Document) -> str:
        """Replace an experiment's status; return why the API server refuses it, or ""."""
        call = self._objects.patch_namespaced_custom_object_status
        return self._patch(call, name, [{"op": "add", "path": "/status", "value": status}])

    def _patch(self, call: Callable[..., Any], name: str, body: Any) -> str:
        kind = "json-patch" if isinstance(body, list) else "merge-patch"
        strict = {"field_validation": "Strict", "_content_type": f"application/{kind}+json"}
        try:
            call(**self._place, name=name, body=body, **strict)
        except client.ApiException as error:
            return str(json.loads(error.body)["message"])
        return ""

    def get(self, name: str) -> Document:
        """Return an experiment as it is stored."""
        return self._objects.get_namespaced_custom_object(**self._place, name=name)

    def exists(self, name: str) -> bool:
        """Return whether an experiment of this name exists."""
        listed = self._objects.list_namespaced_custom_object(**self._place)
        return name in {item["metadata"]["name"] for item in listed["items"]}


def experiment(name: str = "first", **spec: Any) -> Document:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "DatasetExperiment",
        "metadata": {"name": name},
        "spec": copy.deepcopy(DATASET | spec),
    }


def problems(document: Document) -> list[str]:
    """Return the problems that the models find in a document."""
    return [f"{format_path(path)}: {message}" for path, message in judge(document).found]


def is_listed(said: list[str], differences: dict[str, Difference]) -> bool:
    """Return whether the differences list every problem that the models name.

    The models name 50 problems of a document, and count the others in one more.
    """
    patterns = [re.compile(difference.problem, re.DOTALL) for difference in differences.values()]
    patterns.append(re.compile(r"^: breaks [\d,]+ more rules"))
    return all(any(pattern.search(problem) for pattern in patterns) for problem in said)


def check_equal(api: Api, document: Document) -> str:
    """Fail unless both sides agree; return the problems that the models find."""
    ours, theirs = problems(document), api.refusal(document)
    if bool(ours) != bool(theirs):
        listed = bool(ours) and is_listed(ours, ONLY_MODELS_SEE)
        assert listed, f"models: {ours or 'good'}\nAPI server: {theirs or 'good'}"
    return "\n".join(ours)

"""Defines the CEL rules of the CRD, which tie several fields of a model together.

Each mirrors a rule in pipeline_runtime/config, which it names; `tools.crd` adds it to the CRD. A
rule iterates over bounded values only: the API server sums the worst-case costs of all rules, and
refuses a CRD above 10 million per rule or 100 million in all (apiextensions-apiserver; these need
about 70 million). What a keyword of the schema expresses is in `tools.crd_schemas` instead.

Rules that neither can express are listed in tests/integration/cluster/stages/crd_agreement.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic.alias_generators import to_camel

from pipeline_runtime.config import (
    Dataset,
    DatasetExperiment,
    DataWorkers,
    EnvFromSource,
    EnvVar,
    Evaluation,
    ExperimentSpec,
    IcebergTarget,
    InferenceWorkers,
    Output,
    ParquetSource,
    Resources,
    S3Options,
    SourceChoice,
    SpecModel,
    Step,
    Training,
)
from pipeline_runtime.config.base import MAX_INT32, ConsumerModel
from pipeline_runtime.config.cluster import EnvSource
from pipeline_runtime.config.experiment import MAX_NAME_CHARS, NAME_PATTERN
from pipeline_runtime.config.introspect import find_model
from pipeline_runtime.config.pods.pod_template import (
    GPU_VENDORS,
    OWN_ENV_PREFIXES,
    TUNING_ENV_PREFIXES,
)
from pipeline_runtime.config.step_registry import load_models
from pipeline_runtime.config.steps import list_kinds
from pipeline_runtime.config.texts.credentials import (
    KEY_OWNERS,
    REFERENCE_ENDINGS,
    SECRET_WORDS,
    TOKEN_OWNERS,
)
from pipeline_runtime.config.training import BUILT_IN_ENTRYPOINT
from pipeline_runtime.steps.generate.model import GenerateStep
from pipeline_runtime.steps.measure.model import Metric
from pipeline_runtime.steps.predict.model import (
    MAX_SCORINGS,
    Ablation,
    PredictModel,
    PredictStep,
)
from tools.crd_schemas import Schema

_BUILT_IN_LOOP = f"self.entrypoint == '{BUILT_IN_ENTRYPOINT}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A CEL rule on one model, and the Python rule that it mirrors.

    Attributes:
        mirrors: the Python rule, to change with this one.
        rule: true for a valid object; `self` is the model's mapping.
        message: the rule and what to do, without the numbers found: formatting them is over the
            cost budget.
        field: the field of the mapping that the API server reports.
    """

    mirrors: str
    rule: str
    message: str
    field: str = ""

    def to_schema(self) -> Schema:
        """Return an item of x-kubernetes-validations."""
        schema = {"rule": self.rule, "message": self.message}
        if self.field:
            schema["fieldPath"] = f".{self.field}"
        return schema


def consumer_rules(spec: type[ExperimentSpec]) -> Iterator[Rule]:
    """Yield the rules of the sections that take the rows in place of a training."""
    models = {to_camel(n): find_model(f.annotation) for n, f in spec.model_fields.items()}
    names = [n for n, model in models.items() if model and issubclass(model, ConsumerModel)]
    mirrors = "ExperimentSpec._check_consumer"
    for index, name in enumerate(names):
        for other in ("training", *names[:index]):
            yield Rule(
                mirrors=mirrors,
                rule=f"!has(self.{name}) || !has(self.{other})",
                message=f"must not come with {other}; keep one of them",
                field=name,
            )
        yield Rule(
            mirrors=mirrors,
            rule=f"!has(self.{name}) || !has(self.trainers)",
            message=f"must not come with {name}, which no trainer takes; remove it",
            field="trainers",
        )
        yield Rule(
            mirrors=mirrors,
            rule=f"!has(self.{name}) || !has(self.autoscaling) || "
            "!has(self.autoscaling.signal) || self.autoscaling.signal == 'Rows'",
            message=f"must be Rows with {name}, which uses no GPU; remove it",
            field="autoscaling.signal",
        )


def _exactly_one(mirrors: str, *fields: str) -> Rule:
    given = ", ".join(f"has(self.{field})" for field in fields)
    return Rule(
        mirrors=mirrors,
        rule=f"[{given}].filter(given, given).size() == 1",
        message=f"must have exactly one of {', '.join(fields)}; keep one or add one",
    )


def _needs(mirrors: str, field: str, needs: str, message: str) -> Rule:
    return Rule(
        mirrors=mirrors,
        rule=f"!has(self.{field}) || has(self.{needs})",
        message=message,
        field=field,
    )


def _any_of(test: str, words: Sequence[str]) -> str:
    """Return a CEL disjunction of the test for each word."""
    return " || ".join(test.format(f"'{word}'") for word in words)


def _build_secret_name() -> str:
    """Build the pattern of credentials.is_secret_env for names in upper or lower case.

    Only the models check names in mixed case: finding their words takes look-ahead.
    """
    secret = "|".join(sorted(SECRET_WORDS))
    keys, tokens = "|".join(sorted(KEY_OWNERS)), "|".join(sorted(TOKEN_OWNERS))
    return f"(^|[^A-Za-z])({secret}|({keys})[-._]+key|({tokens})[-._]+token)([^A-Za-z]|$)"


_ONE_CASE = "^([-._A-Z0-9]+|[-._a-z0-9]+)$"
_ENDING = f"(^|[^A-Za-z])({'|'.join(sorted(REFERENCE_ENDINGS))})[-._]*$"
_TOKEN_ENDING = "(^|[^A-Za-z])token[-._]*$"
_NAMES_SECRET = (
    f"self.name.matches('{_ONE_CASE}') && (self.name.matches('(?i){_TOKEN_ENDING}') || "
    f"(self.name.matches('(?i){_build_secret_name()}') && "
    f"!self.name.matches('(?i){_ENDING}')))"
)

_STORED_ROOT = "has({0}.storage) && has({0}.storage.root)"
_QUANTITY_OF = "quantity(string(self.{0}['{1}']))"
# Only these, since the API server assumes that a quantity is a text of any length.
_LIMITED = ("cpu", "memory", "ephemeral-storage")


def _build_resource_rules() -> list[Rule]:
    """Build the rules of cluster.Resources.rules."""
    gpu = _any_of("name.startsWith({})", GPU_VENDORS)
    no_gpus = [
        Rule(
            mirrors="Resources.rules",
            rule=f"!has(self.{field}) || self.{field}.all(name, !({gpu}))",
            message="must not count GPUs; remove them and set trainers.gpusPerReplica",
            field=field,
        )
        for field in ("requests", "limits")
    ]
    within = [
        Rule(
            mirrors="Resources._check_within_limit",
            rule=f"!has(self.requests) || !('{name}' in self.requests) || !has(self.limits) || "
            f"!('{name}' in self.limits) || {_QUANTITY_OF.format('requests', name)}.compareTo("
            f"{_QUANTITY_OF.format('limits', name)}) <= 0",
            message=f"requests.{name} must be ≤ limits.{name}",
            field="requests",
        )
        for name in _LIMITED
    ]
    return [*no_gpus, *within]


def _build_catalog_rules() -> Iterator[tuple[str, str]]:
    """Yield the field and the rule for the tables of a spec, which name their catalogs."""
    known = (
        "has(self.catalogs) && self.catalogs.exists(catalog, catalog.name == {}.iceberg.catalog)"
    )
    yield "dataset", f"!has(self.dataset.iceberg) || ({known.format('self.dataset')})"
    is_other = "!has(self.output) || !has(self.output.iceberg)"
    yield "output", f"{is_other} || ({known.format('self.output')})"
    models = load_models().values()
    for model in (m for m in models if issubclass(m, SourceChoice) or "iceberg" in m.model_fields):
        side = f"step.{model.kind()}"
        is_other = f"!has({side})"
        if not model.model_fields["iceberg"].is_required():
            is_other += f" || !has({side}.iceberg)"
        rule = f"self.pipeline.all(step, {is_other} || ({known.format(side)}))"
        yield "pipeline", f"!has(self.pipeline) || {rule}"


RULES: Mapping[type[SpecModel], Sequence[Rule]] = {
    DatasetExperiment: [
        Rule(
            mirrors="experiment.Name",
            rule=f"self.metadata.name.size() <= {MAX_NAME_CHARS}",
            message=f"metadata.name must have at most {MAX_NAME_CHARS} characters, since pods and "
            "Services derive theirs from it; shorten it",
        ),
        Rule(
            mirrors="experiment.Name",
            rule=f"self.metadata.name.matches('{NAME_PATTERN}')",
            message="metadata.name must be lower-case letters, digits and '-', begin with a "
            "letter, not end with '-' (DNS-1035); rename it",
        ),
    ],
    ExperimentSpec: [
        Rule(
            mirrors="experiment._check_names",
            rule="!has(self.pipeline) || self.pipeline.all(step, !has(step.name) || "
            "self.pipeline.exists_one(other, has(other.name) && other.name == step.name))",
            message="must have steps of unique names; rename or remove one",
            field="pipeline",
        ),
        Rule(
            mirrors="nothing: only the API server knows the previous spec",
            rule=f"({_STORED_ROOT.format('self')}) == ({_STORED_ROOT.format('oldSelf')}) && "
            f"(!({_STORED_ROOT.format('self')}) || self.storage.root == oldSelf.storage.root)",
            message="storage.root must not change, be added or be removed, since checkpoints lie "
            "below it; make another experiment",
            field="storage.root",
        ),
        *(
            Rule(
                mirrors="ExperimentSpec._check_catalogs",
                rule=rule,
                message="must be the name of a catalog in spec.catalogs; add it there",
                field=field,
            )
            for field, rule in _build_catalog_rules()
        ),
        Rule(
            mirrors="ExperimentSpec._check_materialized",
            rule="!has(self.pipeline) || "
            "self.pipeline.filter(step, has(step.materialize)).size() <= 1",
            message="must have at most one step materialize; remove one",
            field="pipeline",
        ),
        Rule(
            mirrors="ExperimentSpec._check_materialized",
            rule="!has(self.pipeline) || has(self.dataset.rowKey) || "
            "!self.pipeline.exists(step, has(step.materialize))",
            message="must come with a step materialize; add it",
            field="dataset.rowKey",
        ),
        Rule(
            mirrors="ExperimentSpec._check_measured",
            rule="!has(self.pipeline) || !has(self.output) || !has(self.output.mode) || "
            "self.output.mode != 'OverwritePartitions' || "
            "!self.pipeline.exists(step, has(step.measure))",
            message="measure must not come with output.mode OverwritePartitions; choose another",
            field="pipeline",
        ),
        Rule(
            mirrors="ExperimentSpec._check_measured",
            rule="!has(self.pipeline) || has(self.output) && (!has(self.output.mode) || "
            "self.output.mode != 'OverwritePartitions') || "
            "!self.pipeline.exists(step, has(step.generate) || has(step.predict) && "
            "has(step.predict.ablation))",
            message="generate and predict.ablation must come with output, in mode Fail or "
            "Overwrite; add it",
            field="pipeline",
        ),
        Rule(
            mirrors="ExperimentSpec._check_deadlines",
            rule="!has(self.activeDeadlineSeconds) || !has(self.preRunningDeadlineSeconds) || "
            "self.preRunningDeadlineSeconds < self.activeDeadlineSeconds",
            message="must be < activeDeadlineSeconds, which counts that too",
            field="preRunningDeadlineSeconds",
        ),
        Rule(
            mirrors="ExperimentSpec.rules",
            rule="!has(self.training) || !has(self.training.shuffle) || "
            "!has(self.training.shuffle.unit) || self.training.shuffle.unit != 'Request' || "
            "has(self.dataset.requestKey)",
            message="must come with dataset.requestKey to be 'Request'; add it",
            field="training.shuffle.unit",
        ),
        *consumer_rules(ExperimentSpec),
    ],
    SourceChoice: [_exactly_one("SourceChoice.rules", *SourceChoice.source_models())],
    GenerateStep: [
        Rule(
            mirrors="GenerateStep.rules",
            rule="!has(self.errorColumn) || !self.outputs.exists(o, o.name == self.errorColumn)",
            message="must be another column than the one in outputs; rename it",
            field="errorColumn",
        ),
    ],
    PredictStep: [
        Rule(
            mirrors="PredictStep.batch_size",
            rule="!has(self.batchSize) || (type(self.batchSize) == int ? "
            f"self.batchSize >= 1 && self.batchSize <= {MAX_INT32} : self.batchSize == 'Auto')",
            message=f"must be Auto, or a number of rows of 1 to {MAX_INT32}",
            field="batchSize",
        ),
    ],
    Ablation: [
        Rule(
            mirrors="Ablation.rules",
            rule=f"self.groups.size() * (has(self.repeats) ? self.repeats : 5) <= {MAX_SCORINGS}",
            message=f"must be at most {MAX_SCORINGS} times with all groups together; lower it, or "
            "remove groups",
            field="repeats",
        ),
    ],
    PredictModel: [
        _exactly_one("PredictModel.rules", "experimentRef", "checkpoint", "onnx", "function"),
        *(
            Rule(
                mirrors="PredictModel.rules",
                rule=f"has(self.function) || !has(self.{field}){unless}",
                message=f"must come with function{advice}; remove it",
                field=field,
            )
            for field, unless, advice in (
                ("options", "", ", whose arguments they are"),
                ("format", " || self.format == 'Torch'", " unless it is Torch"),
            )
        ),
        Rule(
            mirrors="PredictModel.rules",
            rule="!has(self.function) || has(self.inputs)",
            message="must name the columns that the function's model reads; add them",
            field="inputs",
        ),
    ],
    Output: [
        _exactly_one("Output.rules", "parquet", "iceberg"),
        Rule(
            mirrors="Output.rules",
            rule="!has(self.layout) || self.layout == 'Columns' || !has(self.columns)",
            message="must be absent with layout KeyAndScore, which names them; remove it",
            field="columns",
        ),
        Rule(
            mirrors="Output.rules",
            rule="!has(self.mode) || self.mode != 'OverwritePartitions' || has(self.iceberg)",
            message="must be Fail or Overwrite without iceberg; write an Iceberg table, or choose "
            "another mode",
            field="mode",
        ),
    ],
    IcebergTarget: [
        Rule(
            mirrors="IcebergTarget.rules",
            rule="has(self.bucketBy) == has(self.buckets)",
            message="must come together with buckets; add the other one",
            field="bucketBy",
        ),
    ],
    ParquetSource: [_exactly_one("ParquetSource.rules", "uri", "uris")],
    S3Options: [
        Rule(
            mirrors="S3Options.rules",
            rule="!has(self.endpoint) || self.endpoint.startsWith('http://') || "
            "self.endpoint.startsWith('https://')",
            message="must be an http:// or https:// address; add the scheme",
            field="endpoint",
        )
    ],
    Dataset: [
        _needs("Dataset.rules", "requestColumns", "requestKey", "must come with requestKey; add it")
    ],
    Step: [_exactly_one("Step.rules", *list_kinds())],
    Metric: [
        _exactly_one("Metric.rules", *map(to_camel, Metric.KINDS)),
        Rule(
            mirrors="Metric.rules",
            rule="!has(self.per) || has(self.auc) || has(self.ndcg)",
            message="must come with auc or ndcg; remove it",
            field="per",
        ),
        Rule(
            mirrors="Metric.rules",
            rule="!has(self.ndcg) || has(self.per)",
            message="must come with ndcg; name the column of a user or a request",
            field="per",
        ),
        Rule(
            mirrors="Metric.rules",
            rule="!has(self.per) || !has(self.auc) || !has(self.auc.weight)",
            message="must not come with per, which weighs groups by their rows; remove it",
            field="auc.weight",
        ),
    ],
    Evaluation: [
        _exactly_one("Evaluation.rules", "where", "holdoutPercent"),
        _needs("Evaluation.rules", "by", "holdoutPercent", "must come with holdoutPercent; add it"),
    ],
    Training: [
        Rule(
            mirrors="Training.rules",
            rule=f"!has(self.script) || {_BUILT_IN_LOOP}",
            message="must not come with script; keep one",
            field="entrypoint",
        ),
        Rule(
            mirrors="Training.rules",
            rule="!has(self.script) || self.precision == 'float32'",
            message="must not come with script, which chooses its own; remove it",
            field="precision",
        ),
        Rule(
            mirrors="Training.rules",
            rule="!has(self.args) || self.args.size() == 0 || has(self.script)",
            message="must come with script; add it, or use config",
            field="args",
        ),
        Rule(
            mirrors="Training._check_model",
            rule=f"!has(self.model) || !has(self.script) && {_BUILT_IN_LOOP}",
            message="must come with neither script nor entrypoint; keep one",
            field="model",
        ),
        Rule(
            mirrors="Training._check_model",
            rule="!has(self.model) || has(self.labelColumn)",
            message="must come with model; name the column to predict",
            field="labelColumn",
        ),
        Rule(
            mirrors="Training._check_model",
            rule=f"has(self.script) || !({_BUILT_IN_LOOP}) || has(self.evaluation) || "
            "!has(self.checkpoint) || !has(self.checkpoint.keepBest) || "
            "!self.checkpoint.keepBest.metric.startsWith('eval_')",
            message="must come with evaluation, whose metric it is; add it",
            field="checkpoint.keepBest",
        ),
    ],
    Resources: _build_resource_rules(),
    DataWorkers: [
        Rule(
            mirrors="DataWorkers.rules",
            rule="self.minReplicas <= self.maxReplicas",
            message="must be ≥ minReplicas",
            field="maxReplicas",
        )
    ],
    InferenceWorkers: [
        Rule(
            mirrors="InferenceWorkers.rules",
            rule="(has(self.minReplicas) ? self.minReplicas : 1) <= "
            "(has(self.maxReplicas) ? self.maxReplicas : 1)",
            message="must be ≥ minReplicas",
            field="maxReplicas",
        )
    ],
    EnvSource: [
        _exactly_one(
            "EnvSource.rules",
            *(field.alias or n for n, field in EnvSource.model_fields.items()),
        )
    ],
    EnvVar: [
        Rule(
            mirrors="EnvVar.rules",
            rule="!has(self.value) || !has(self.valueFrom)",
            message="must not come with value; keep one",
            field="valueFrom",
        ),
        Rule(
            mirrors="pod_template.check_env_name",
            rule=f"!({_any_of('self.name.startsWith({})', OWN_ENV_PREFIXES)}) || "
            f"{_any_of('self.name.startsWith({})', TUNING_ENV_PREFIXES)}",
            message="must not be one of Ray's or Lastmile's own variables; remove it",
            field="name",
        ),
        Rule(
            mirrors="EnvVar._holds_secret",
            rule="!has(self.value) || self.value == '' || self.value.startsWith('/') || "
            f"!({_NAMES_SECRET})",
            message="must not hold a secret; use valueFrom.secretKeyRef",
            field="value",
        ),
    ],
    EnvFromSource: [_exactly_one("EnvFromSource.rules", "secretRef", "configMapRef")],
}

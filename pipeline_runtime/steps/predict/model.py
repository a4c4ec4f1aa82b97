"""The fields of the step `predict`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, JsonValue

from pipeline_runtime.config.base import (
    CelRule,
    Column,
    Columns,
    ImportPath,
    Label,
    PositiveInt,
    Seed,
    SpecModel,
    StoreUri,
    Text,
    check_one_of,
    check_options,
    check_unique_names,
)
from pipeline_runtime.config.step_model import Arguments, StepModel, TypedColumn

# Each model is in the memory of every data worker.
MAX_MODELS = 64
MAX_OUTPUTS = 64
# Groups of an ablation, and how often the model scores each row for all of them.
MAX_GROUPS = 64
MAX_SCORINGS = 200


class ExperimentRef(SpecModel):
    """An experiment whose artifacts are in the same place as those of this one."""

    name: Label
    """Name of the experiment."""
    run: Text | None = None
    """Name of the run's folder; the newest run that is complete if absent."""
    checkpoint: Literal["Last", "Best"] = "Last"
    """The last checkpoint, or the best one by `training.checkpoint.keepBest`."""


class ModelFile(SpecModel):
    """A model in a store."""

    uri: StoreUri
    """Place of the model; without a scheme, below the storage root."""


class PredictModel(SpecModel):
    """A model, and the columns that it makes."""

    name: Label
    """Name of the model, unique in the step."""
    experiment_ref: ExperimentRef | None = None
    """The model and the preprocessing of a run, which is chosen once and recorded."""
    checkpoint: ModelFile | None = None
    """The same, by the folder of a run or of one checkpoint."""
    onnx: ModelFile | None = None
    """A file for onnxruntime. Inputs are columns of the same names; outputs are taken by name, or
    in order."""
    function: ImportPath | None = None
    """`package.module:function`, called once per process with `options`. It returns the model: a
    torch module or another callable, which takes a batch of tensors by column and returns a tensor,
    several in the order of `outputs`, or a dict by their names."""
    options: dict[str, JsonValue] | None = None
    """Keyword arguments of the function; no credentials."""
    format: Literal["Torch", "Arrow"] = "Torch"
    """Format of batches. `Arrow`: the model takes a `pyarrow.Table` and returns arrays, of any
    type."""
    inputs: Columns | None = None
    """Columns that the model reads; required with `function`."""
    outputs: Annotated[
        tuple[TypedColumn, ...],
        Field(min_length=1, max_length=MAX_OUTPUTS),
        AfterValidator(check_unique_names),
    ]
    """Columns that the model makes, in order or by their names."""
    preprocessing: Literal["Run", "None"] = "Run"
    """`Run`: the model's inputs are computed by the steps of the run's pipeline that change no
    rows. `None`: the step's input has them."""
    activation: Literal["Auto", "None", "Sigmoid"] = "Auto"
    """Function of the output. `Auto`: `Sigmoid` for a model of a run, whose loop trains logits;
    else `None`."""
    precision: Literal["Float32", "BFloat16", "Float16"] = "Float32"
    """Precision of the model's arithmetic, where torch allows a lower one."""
    on_invalid: Literal["Fail", "SetNull"] = "Fail"
    """Rows with a null that the model cannot take, or a NaN in an output, fail the run, or get
    nulls."""
    worker_group: Label | None = None
    """Group of `inferenceWorkers` that calls the model; data workers call it if absent."""

    def rules(self) -> Iterator[tuple[str, str]]:
        kinds = {
            "experimentRef": self.experiment_ref,
            "checkpoint": self.checkpoint,
            "onnx": self.onnx,
            "function": self.function,
        }
        given = [name for name, value in kinds.items() if value is not None]
        if message := check_one_of(list(kinds), given):
            yield "", message
        if self.function is None and self.options is not None:
            yield "options", "must come with function, whose arguments they are; remove them"
        if self.function is None and self.format != "Torch":
            yield "format", f"must be Torch without function, but is {self.format}; remove it"
        if self.function is not None and self.inputs is None:
            yield "inputs", "must name the columns that the function's model reads; add them"
        yield from check_options("options", self.options or {})

    @property
    def source(self) -> str:
        """The model's place, for people."""
        if self.experiment_ref is not None:
            run = f"/{self.experiment_ref.run}" if self.experiment_ref.run else ""
            return f"{self.experiment_ref.name}{run}"
        file = self.checkpoint or self.onnx
        return file.uri if file is not None else str(self.function)


class AblationGroup(SpecModel):
    """Inputs of a model whose importance is measured together."""

    name: Label
    """Name of the group in the results."""
    columns: Columns
    """Columns that the model, or the run's preprocessing, reads."""


class Ablation(SpecModel):
    """The importance of a model's inputs: how much a metric drops when rows exchange them."""

    model: Label
    """Name of the model in the step."""
    groups: Annotated[
        tuple[AblationGroup, ...],
        Field(min_length=1, max_length=MAX_GROUPS),
        AfterValidator(check_unique_names),
    ]
    """Groups of inputs; groups times `repeats` is at most 200 scorings of each row."""
    label: Column
    """Column of the step's input with the label: booleans, or 0 and 1."""
    score: Column | None = None
    """Output of the model that is its score; its first output if absent."""
    weight: Column | None = None
    """Column of the rows' weights; 1 if absent."""
    metric: Literal["AUC", "LogLoss"] = "AUC"
    """Metric that drops: the area under the ROC curve, or the log-loss, whose rise is a drop."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 5
    """Permutations of each group, over which the interval is."""
    seed: Seed = 0
    """The same seed permutes the rows in the same way."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if (num_scorings := len(self.groups) * self.repeats) > MAX_SCORINGS:
            yield (
                "repeats",
                f"must be at most {MAX_SCORINGS} times with all groups together, got "
                f"{self.repeats} for {len(self.groups)} groups, which is {num_scorings:,}; lower "
                "it, or remove groups",
            )


class PredictStep(StepModel):
    """Add the outputs of models as columns; the models receive only the columns that they read."""

    unhashed_fields: ClassVar[tuple[str, ...]] = ("batchSize", "device")
    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            rule="!has(self.ablation) || self.models.exists(m, m.name == self.ablation.model)",
            message="must be the name of a model of the step; correct it",
            field="ablation.model",
        ),
    )

    models: Annotated[
        tuple[PredictModel, ...],
        Field(min_length=1, max_length=MAX_MODELS),
        AfterValidator(check_unique_names),
    ]
    """The models. They share one read of the table."""
    batch_size: PositiveInt | Literal["Auto"] = "Auto"
    """Rows of a batch. `Auto`: each process measures a few sizes, and takes the fastest."""
    device: Literal["Auto", "CPU", "CUDA"] = "Auto"
    """Device of torch models; `Auto` is a GPU if the process has one."""
    ablation: Ablation | None = None
    """Permutation importance of a model's inputs, over the same read."""

    def rules(self) -> Iterator[tuple[str, str]]:
        names = Counter(output.name for model in self.models for output in model.outputs)
        for index, model in enumerate(self.models):
            for place, output in enumerate(model.outputs):
                if names[output.name] > 1 and index:
                    yield (
                        f"models[{index}].outputs[{place}].name",
                        f"must be the name of one output, but {output.name!r} is one of several "
                        "models; rename it",
                    )
        known = [model.name for model in self.models]
        if self.ablation is not None and self.ablation.model not in known:
            yield (
                "ablation.model",
                f"must be the name of a model of the step, got {self.ablation.model!r}; there are: "
                f"{', '.join(known)}",
            )

    @classmethod
    def from_python(cls, *models: Mapping[str, Any], **options: Any) -> Arguments:
        """Return the fields.

        Args:
            models: Models, each with the fields of a manifest.
            options: `batch_size`, `device` and `ablation`.
        """
        return {"models": list(models), **options}

    @classmethod
    def shorten(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leave out who calls the models, which changes no row."""
        models = [
            {name: value for name, value in model.items() if name != "workerGroup"}
            for model in fields["models"]
        ]
        return {**fields, "models": models}

    def describe(self) -> str:
        text = ", ".join(f"{model.name} ({model.source})" for model in self.models)
        if self.ablation is None:
            return text
        groups = ", ".join(group.name for group in self.ablation.groups)
        return f"{text}; ablation of {self.ablation.model} by {groups}"

    def find_measured(self) -> str | None:
        return "predict.ablation" if self.ablation is not None else None

    def find_functions(self) -> Iterator[str]:
        yield from (model.function for model in self.models if model.function is not None)

    def find_inputs(self) -> Iterable[str]:
        for model in self.models:
            yield from model.inputs or ()
        if self.ablation is not None:
            yield from filter(None, (self.ablation.label, self.ablation.weight))
            for group in self.ablation.groups:
                yield from group.columns

    def find_outputs(self) -> frozenset[str]:
        return frozenset(output.name for model in self.models for output in model.outputs)

    def find_worker_groups(self) -> Iterator[tuple[str, str]]:
        for index, model in enumerate(self.models):
            if model.worker_group is not None:
                yield f"models[{index}].workerGroup", model.worker_group

    def find_scores(self) -> tuple[str, ...]:
        return tuple(output.name for model in self.models for output in model.outputs)

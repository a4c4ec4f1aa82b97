"""The fluent Python form of a manifest; both make the same plan.

    pipeline = (
        Pipeline.read_parquet("data/impressions/", where="day >= '2026-01-01'")
        .anti_join("data/spam_users/", on="user_id")
        .downsample(50, where="not clicked", seed=17, weight_column="weight")
    )
    pipeline.head(5)                                         # here, without Ray
    pipeline.train("quick-look", batch_size=1024, label_column="clicked")   # as `lastmile run`
    pipeline.write_parquet("kept/", partition_by="day")      # likewise, without Ray

A pipeline is a value: every method returns a new one. It is kept as the document that a manifest
would hold, so that there is one definition of what is valid and one planner.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa
import yaml

from pipeline_runtime.config import (
    API_VERSION,
    KIND,
    Catalog,
    Dataset,
    DatasetExperiment,
    IcebergSource,
    InferenceWorkers,
    Output,
    Step,
    Training,
    parse_experiment,
)
from pipeline_runtime.config.step_model import Names, build_parquet, to_list
from pipeline_runtime.errors import ManifestError, Problem, StepError
from pipeline_runtime.feed.making.work import run_group
from pipeline_runtime.plan import Plan, StreamPlan, build_plan, explain
from pipeline_runtime.spelling import to_manifest, to_options
from pipeline_runtime.step_methods import StepMethods

if TYPE_CHECKING:
    import torch

    from pipeline_runtime.loader import Loader
    from pipeline_runtime.run.options import RunOptions
    from pipeline_runtime.run.session import Finished

Document = dict[str, Any]
DEFAULT_STORAGE_ROOT = "build/"
# A name for the experiment that only looks at rows.
_LOOK = "look"
_LOADER = "loader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(StepMethods):
    """A table and the steps after it; begin with `Pipeline.read_parquet` or `read_iceberg`.

    `StepMethods` has the methods that add a step.
    """

    dataset: Document
    steps: tuple[Document, ...] = ()
    options: Document = field(default_factory=dict)
    catalogs: tuple[Document, ...] = ()
    inference_workers: tuple[Document, ...] = ()

    @classmethod
    def read_parquet(
        cls,
        uri: Names,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        row_key: Names | None = None,
        request_key: str | None = None,
        request_columns: Names | None = None,
        s3: Mapping[str, Any] | None = None,
    ) -> Self:
        """Start from a Parquet table; a URI without a scheme is relative to the storage root."""
        dataset = {
            "parquet": build_parquet(uri, s3) | {"columns": to_list(columns)},
            "where": where,
            "row_key": to_list(row_key),
            "request_key": request_key,
            "request_columns": to_list(request_columns),
        }
        return cls(dataset=to_manifest(Dataset, dataset))

    @classmethod
    def read_iceberg(
        cls,
        table: str,
        catalog: str | Mapping[str, Any],
        *,
        snapshot_id: int | str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        sample_buckets: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        keep_days: int | None = None,
        where: str | None = None,
        row_key: Names | None = None,
        request_key: str | None = None,
        request_columns: Names | None = None,
    ) -> Self:
        """Start from an Iceberg table, as `namespace.table`, at its newest snapshot or a given one.

        Args:
            catalog: an item of `spec.catalogs`, such as `{"name": "lake", "type": "Sql", "uri":
                "sqlite:///lake.db"}`; or a name, whose properties are in the environment
                (`PYICEBERG_CATALOG__LAKE__URI`) or in `.pyiceberg.yaml`.
            sample_buckets: `percent` and `seed` of a sample of the table's buckets.
            keep_days: a tag keeps the snapshot while a run may go on, and so many days longer.
        """
        given = {"name": catalog} if isinstance(catalog, str) else dict(catalog)
        iceberg = {
            "catalog": given.get("name"),
            "table": table,
            "snapshot_id": None if snapshot_id is None else str(snapshot_id),
            "branch": branch,
            "tag": tag,
            "sample_buckets": sample_buckets,
            "columns": to_list(columns),
            "keep_days": keep_days,
        }
        dataset = {
            "iceberg": to_manifest(IcebergSource, iceberg),
            "where": where,
            "row_key": to_list(row_key),
            "request_key": request_key,
            "request_columns": to_list(request_columns),
        }
        return cls(dataset=to_manifest(Dataset, dataset), catalogs=(to_manifest(Catalog, given),))

    def with_catalog(self, name: str, **fields: Any) -> Self:
        """Add a catalog that a side table or an output names; fields as in `spec.catalogs`."""
        others = tuple(each for each in self.catalogs if each.get("name") != name)
        return replace(self, catalogs=(*others, to_manifest(Catalog, {"name": name} | fields)))

    def with_inference_workers(self, name: str, **fields: Any) -> Self:
        """Add a group of inference workers, which models of `predict` name as their `worker_group`.

        Args:
            fields: as in `spec.inferenceWorkers`, such as `max_replicas=2` and
                `gpus_per_replica=0`. A group of the same name is replaced.
        """
        others = tuple(each for each in self.inference_workers if each.get("name") != name)
        group = to_manifest(InferenceWorkers, {"name": name} | fields)
        return replace(self, inference_workers=(*others, group))

    def named(self, name: str) -> Self:
        """Give the last step a name, for people and for `--set` on the manifest."""
        if not self.steps:
            raise StepError(f"named: must follow a step, got {name!r} before the first; move it")
        *before, last = self.steps
        return replace(self, steps=(*before, {"name": name} | last))

    def with_options(self, **options: Any) -> Self:
        """Set options of the planner and the feed, the switches of `debug` among them:
        `with_options(feed="threads", fusion=False)`.
        """
        new = to_options(options)
        debug = self.options.get("debug", {}) | new.get("debug", {})
        return replace(self, options=self.options | new | ({"debug": debug} if debug else {}))

    def _with(self, kind: str, **fields: Any) -> Self:
        step = to_manifest(Step, {kind: fields})
        return replace(self, steps=(*self.steps, step))

    # --- what it is good for ----------------------------------------------------------------------

    def document(self, name: str, **training: Any) -> Document:
        """Return the same as a manifest; `training` takes the fields of spec.training.

        Raises ManifestError if the entrypoint is a function: only `train` takes one.
        """
        spec: Document = {"dataset": self.dataset, "pipeline": list(self.steps)}
        if self.catalogs:
            spec["catalogs"] = list(self.catalogs)
        if self.inference_workers:
            spec["inferenceWorkers"] = list(self.inference_workers)
        if self.options:
            spec["pipelineOptions"] = self.options
        if callable(training.get("entrypoint")):
            name_found = getattr(training["entrypoint"], "__name__", "") or "it"
            message = (
                "must be a text module:function in a manifest, but is a Python function, which no "
                f"manifest can hold. Write {name_found} to a file beside the manifest, and give "
                f"its name as 'FILE:{name_found}'. `Pipeline.train` takes the function itself"
            )
            raise ManifestError([Problem(path="spec.training.entrypoint", message=message)])
        if training:
            spec["training"] = to_manifest(Training, training)
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}

    def to_yaml(self, name: str, **training: Any) -> str:
        """The manifest as text, ready for `lastmile run -f` and `kubectl apply -f`."""
        return _to_text(self.document(name, **training))

    def experiment(self, name: str, **training: Any) -> DatasetExperiment:
        """The checked experiment. Raises ManifestError with every broken rule."""
        return parse_experiment(self.document(name, **training))

    def plan(self, storage_root: str = DEFAULT_STORAGE_ROOT) -> Plan:
        """The optimised plan, without what measures rows, which only a written table has.

        Raises ManifestError or SourceError.
        """
        looked = replace(self, steps=tuple(_drop_measures(self.steps)))
        if not any("generate" in step for step in looked.steps):
            return build_plan(looked.experiment(_LOOK, shuffle={"unit": "None"}), storage_root)
        document = looked.document(_LOOK)  # texts come with a table alone
        document["spec"]["output"] = {"parquet": {"uri": f"{_LOOK}/"}}
        return build_plan(parse_experiment(document), storage_root)

    def explain(self, storage_root: str = DEFAULT_STORAGE_ROOT) -> str:
        """The plan as text, as `lastmile explain` prints it."""
        return explain(self.plan(storage_root))

    def tables(self, storage_root: str = DEFAULT_STORAGE_ROOT) -> Iterator[pa.Table]:
        """The resulting rows in the table's order, in this process, without Ray."""
        yield from iter_tables(self.plan(storage_root).main)

    def head(self, num_rows: int = 10, storage_root: str = DEFAULT_STORAGE_ROOT) -> pa.Table:
        """The first resulting rows; reads no more than it needs."""
        stream = self.plan(storage_root).main
        found = stream.output_schema.empty_table()
        for table in iter_tables(stream):
            found = pa.concat_tables([found, table.slice(0, num_rows - found.num_rows)])
            if found.num_rows == num_rows:
                break
        return found

    def to_table(self, storage_root: str = DEFAULT_STORAGE_ROOT) -> pa.Table:
        """All resulting rows in memory; for tables that fit."""
        stream = self.plan(storage_root).main
        return pa.concat_tables([stream.output_schema.empty_table(), *iter_tables(stream)])

    def loader(
        self,
        batch_size: int,
        columns: Names | None = None,
        *,
        shuffle: bool | str | Mapping[str, Any] | None = False,
        seed: int = 0,
        last_batch: Literal["keep", "drop", "pad"] | None = None,
        device: str | torch.device | None = None,
        deduplicated: bool = False,
        num_threads: int | None = None,
        distributed: bool = True,
        storage_root: str = DEFAULT_STORAGE_ROOT,
        **others: Any,
    ) -> Loader:
        """Return batches for a loop of your own, in place of a torch DataLoader.

        Args:
            batch_size: rows of a batch.
            columns: columns of the batches; None for all. Each becomes a tensor (docs/training.md).
            shuffle: True mixes rows; `request` mixes whole requests; a mapping as in the manifest,
                such as `{"window_rows": 100_000}`.
            seed: seed of the shuffle; with the number of the epoch, it decides the order.
            last_batch: `keep` it short, `drop` it, or `pad` each batch to `batch_size` with rows
                of zeros, whose `row_weight` is 0. None: `keep` on one rank, `pad` on several.
            device: device of the tensors; a GPU's come through pinned memory, ahead of time.
            deduplicated: deliver the columns of a request once per request.
            num_threads: reader threads; None for this rank's share of the machine's cores.
            distributed: share the rows among the ranks of torch.distributed, if it is initialised.

        Raises what `plan` raises, TypeError for other arguments, TypeError or ValueError for a
        wrong value, and LoaderError for steps that need workers of their own.
        """
        from pipeline_runtime.loader import (
            naming_arguments,
            open_loader,
            parse_count,
            parse_flag,
            parse_options,
            refuse_arguments,
        )

        refuse_arguments(others, known=list(inspect.signature(self.loader).parameters)[:-1])
        mixing = _shuffle(shuffle)
        options = parse_options(
            last_batch=last_batch, device=device, num_threads=num_threads, distributed=distributed
        )
        pipeline = replace(
            self, options={"preserveOrder": mixing.get("unit") in ("none", "None")} | self.options
        )
        arguments = {
            "batch_size": parse_count(
                "batch_size", batch_size, least=1, advice=". Rows come in batches, never one by one"
            ),
            "columns": _list_columns(columns),
            "shuffle": mixing,
            "seed": parse_count("seed", seed, least=0),
            "deduplicated": parse_flag("deduplicated", deduplicated),
        }
        with naming_arguments(shuffle):
            experiment = pipeline.experiment(_LOADER, **arguments)
            return open_loader(experiment, storage_root, options)

    def train(
        self,
        name: str,
        *,
        storage_root: str = DEFAULT_STORAGE_ROOT,
        output: str | Path | None = None,
        resume: bool = False,
        **training: Any,
    ) -> Finished:
        """Run it to a trained model and a report, as `lastmile run` does.

        Args:
            output: folder of the report, which must not hold another run; `build/NAME/RUN` by
                default, to which `build/NAME/latest` is a link.
            resume: continue from the last whole checkpoint.
            training: the fields of spec.training. `entrypoint` may also be a function, such as one
                of a notebook: its source is part of the run's hash, and so are its defaults, and
                the plain values, functions and classes of the notebook that it uses.

        Raises what `run_experiment` raises if it cannot start, and TrainingError for a function
        whose source does not say all that it does; look at `.outcome` for how the run ended.
        """
        from pipeline_runtime.run.session import run_experiment
        from pipeline_runtime.training.entrypoint import check_function

        options = _choose_options(output, name, storage_root, resume)
        if not callable(training.get("entrypoint")):
            document = self.document(name, **training)
            return run_experiment(parse_experiment(document), _to_text(document), options)
        given = check_function(training["entrypoint"])
        # Only the function itself can be run, so no document that names it is valid.
        document = self.document(name, **training | {"entrypoint": "module:function"})
        experiment = parse_experiment(document)
        document["spec"]["training"]["entrypoint"] = given.path
        lines = "".join(f"# {line}".rstrip() + "\n" for line in given.source.splitlines())
        text = f"# The entrypoint was this Python function:\n#\n{lines}{_to_text(document)}"
        options = replace(options, function=given.function)
        return run_experiment(_with_entrypoint(experiment, given.path), text, options)

    def write_parquet(
        self,
        uri: str,
        *,
        name: str = "write",
        mode: str = "fail",
        columns: Names | None = None,
        partition_by: Names | None = None,
        target_file_size_bytes: int | None = None,
        compression: str | None = None,
        s3: Mapping[str, Any] | None = None,
        storage_root: str = DEFAULT_STORAGE_ROOT,
        output: str | Path | None = None,
        resume: bool = False,
    ) -> Finished:
        """Write the resulting rows to a Parquet table, as `lastmile run` with `output` does.

        Args:
            uri: folder of the table; without a scheme, below the storage root.
            name: name of the experiment.
            mode: `fail` keeps a table of another run, `overwrite` replaces it.
            partition_by: columns whose values become names of folders.
            output: folder of the report, which must not hold another run; `build/NAME/RUN` by
                default.
            resume: continue an attempt that was stopped: of the run in `output`, or the newest.

        Raises what `run_experiment` raises if it cannot start; look at `.outcome` for how it ended.
        """
        target = {
            "uri": uri,
            "target_file_size_bytes": target_file_size_bytes,
            "compression": compression,
            "s3": s3,
        }
        table = {
            "mode": mode,
            "columns": to_list(columns),
            "partition_by": to_list(partition_by),
            "parquet": {field: value for field, value in target.items() if value is not None},
        }
        return self._write(table, name, _choose_options(output, name, storage_root, resume))

    def write_iceberg(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, Any],
        name: str = "write",
        mode: str = "fail",
        columns: Names | None = None,
        partition_by: Names | None = None,
        bucket_by: str | None = None,
        buckets: int | None = None,
        sort_by: Names | None = None,
        target_file_size_bytes: int | None = None,
        compression: str | None = None,
        storage_root: str = DEFAULT_STORAGE_ROOT,
        output: str | Path | None = None,
        resume: bool = False,
    ) -> Finished:
        """Write the resulting rows to an Iceberg table, as `lastmile run` with `output` does.

        Args:
            table: the table, as `namespace.table`. The commit creates it if there is none.
            catalog: an item of `spec.catalogs`, as for `read_iceberg`; or the name of one that the
                pipeline has, or whose properties are in the environment.
            name: name of the experiment.
            mode: `fail` refuses a table with rows, `overwrite` replaces them by one snapshot.
            partition_by: columns whose values are partitions.
            bucket_by: column by whose hash rows are put into `buckets`.
            sort_by: columns by which the rows of each file are sorted.
            output, resume: as for `write_parquet`.

        Raises what `run_experiment` raises if it cannot start; look at `.outcome` for how it ended.
        """
        given = {"name": catalog} if isinstance(catalog, str) else dict(catalog)
        target = {
            "catalog": given.get("name"),
            "table": table,
            "bucket_by": bucket_by,
            "buckets": buckets,
            "sort_by": to_list(sort_by),
            "target_file_size_bytes": target_file_size_bytes,
            "compression": compression,
        }
        fields = {
            "mode": mode,
            "columns": to_list(columns),
            "partition_by": to_list(partition_by),
            "iceberg": {field: value for field, value in target.items() if value is not None},
        }
        known = [each["name"] for each in self.catalogs]
        pipeline = self if catalog in known else self.with_catalog(**given)
        return pipeline._write(fields, name, _choose_options(output, name, storage_root, resume))

    def _write(self, table: Mapping[str, Any], name: str, options: RunOptions) -> Finished:
        """Run the pipeline with `output`, whose fields are given."""
        from pipeline_runtime.run.session import run_experiment

        document = self.document(name)
        document["spec"]["output"] = to_manifest(Output, table)
        return run_experiment(parse_experiment(document), _to_text(document), options)


def _choose_options(
    output: str | Path | None, name: str, storage_root: str, resume: bool
) -> RunOptions:
    """Return the options of a run of this process's code."""
    from pipeline_runtime.run.options import RunOptions, choose_output

    return RunOptions(
        output=choose_output(output, name),
        folder_per_run=output is None,
        storage_root=storage_root,
        resume=resume,
        code_paths=(str(Path.cwd()),),
    )


def _to_text(document: Document) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _with_entrypoint(experiment: DatasetExperiment, entrypoint: str) -> DatasetExperiment:
    """Return an experiment with another entrypoint."""
    training = experiment.spec.training.model_copy(update={"entrypoint": entrypoint})
    spec = experiment.spec.model_copy(update={"training": training})
    return experiment.model_copy(update={"spec": spec})


def iter_tables(stream: StreamPlan) -> Iterator[pa.Table]:
    """Yield a stream's rows in the table's order, with the columns of its batches."""
    stream = replace(stream, request_columns=())
    chunk_rows = stream.chunk_rows
    for group in stream.groups(0, chunk_rows):
        for chunk in run_group(stream, group, chunk_rows):
            yield chunk.table.select(stream.output_schema.names)


def _drop_measures(steps: Iterable[Document]) -> Iterator[Document]:
    """Yield the steps without what measures rows."""
    for step in steps:
        predict = step.get("predict", {})
        if "ablation" in predict:
            fields = {name: value for name, value in predict.items() if name != "ablation"}
            yield step | {"predict": fields}
        elif "measure" not in step:
            yield step


def _shuffle(shuffle: bool | str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return `training.shuffle` for a loader's argument; None is False, as in a DataLoader."""
    if shuffle is None or isinstance(shuffle, bool):
        return {"unit": "Row" if shuffle else "None"}
    if isinstance(shuffle, str) and shuffle.lower() in ("row", "request", "none"):
        return {"unit": shuffle}
    if isinstance(shuffle, Mapping):
        return shuffle
    kind = ValueError if isinstance(shuffle, str) else TypeError
    raise kind(
        "shuffle: must be True, False, 'request' or a mapping such as {'window_rows': 100_000}, "
        f"but is {shuffle!r}"
    )


def _list_columns(columns: object) -> Any:
    """Return a loader's columns as a list; None for all. Raises TypeError for no names."""
    if columns is None or isinstance(columns, str):
        return to_list(columns)
    names = list(columns) if isinstance(columns, Iterable) else [columns]
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"columns: must be a name, a list of names or None, but is {columns!r}")
    return names

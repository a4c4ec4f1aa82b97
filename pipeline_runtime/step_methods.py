"""The methods of the fluent API that add a step. Written by `make steps` from the steps' models.

`pipeline.Pipeline` inherits them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from pipeline_runtime.config.step_model import Keys, Names, Side, to_list
from pipeline_runtime.steps.anti_join.model import AntiJoinStep
from pipeline_runtime.steps.join.model import JoinStep
from pipeline_runtime.steps.map.model import MapStep
from pipeline_runtime.steps.materialize.model import MaterializeStep
from pipeline_runtime.steps.measure.model import MeasureStep
from pipeline_runtime.steps.predict.model import PredictStep
from pipeline_runtime.steps.rename.model import RenameStep


class StepMethods:
    """A method for each kind of step."""

    __slots__ = ()

    def _with(self, kind: str, **fields: Any) -> Self:
        """Return the pipeline with one more step. Fields that are None are left out."""
        raise NotImplementedError

    def anti_join(
        self,
        uri: Side,
        on: Keys | None = None,
        *,
        left_on: Names | None = None,
        right_on: Names | None = None,
        keys: Keys | None = None,
        s3: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Drop the rows whose key is in the side table (SQL's NOT EXISTS: a null key is kept).

        Args:
            uri: The side table: one or several files, directories or globs; or the fields of
                `iceberg`, such as `{"catalog": "lake", "table": "db.users"}`.
            on: The key: columns by name, or a mapping of the rows' columns to the side table's.
            left_on: The key's columns in the rows, with `right_on` instead of `on`.
            right_on: The key's columns in the side table.
            keys: The same as `on`, as a manifest names it.
            s3: Access to an S3-compatible store, as in a manifest.
            options: `where`, `max_bytes` and `strategy` of a manifest.

        Raises:
            StepError: the key is not given in exactly one way.
        """
        return self._with(
            "anti_join",
            **AntiJoinStep.from_python(
                uri, on, left_on=left_on, right_on=right_on, keys=keys, s3=s3, **options
            ),
        )

    def cast(self, columns: Mapping[str, str] | None = None, /, **more: str) -> Self:
        """Convert columns to a type, named as Arrow names it (`int64`, `float32`, …).

        Args:
            columns: Columns to convert, by name.
            more: The same, as keywords.
        """
        return self._with("cast", columns={**(columns or {}), **more})

    def derive(self, columns: Mapping[str, str] | None = None, /, **more: str) -> Self:
        """Add or replace columns, each from an expression over the step's input columns.

        Args:
            columns: Columns to add or replace, by name.
            more: The same, as keywords.
        """
        return self._with("derive", columns={**(columns or {}), **more})

    def downsample(
        self,
        keep_percent: float | str,
        *,
        where: str | None = None,
        seed: int = 0,
        weight_column: str | None = None,
        apply_to: str = "training",
    ) -> Self:
        """Keep a share of the rows, or of those in `where`, by a hash of the seed and row identity.

        Args:
            keep_percent: Percentage of the rows that is kept, 0 to 100: an integer, or a decimal
                number as a text, such as `"0.5"`.
            where: Condition for the rows that are thinned; all others are kept.
            seed: The same seed keeps the same rows.
            weight_column: Column that is multiplied by 100 / keepPercent in thinned rows; created
                as 1.0 if absent.
            apply_to: `Training`: all rows evaluate the model, with the weights that they had
                before; `All`: the rows of the evaluation are thinned too.
        """
        return self._with(
            "downsample",
            keep_percent=keep_percent,
            where=where,
            seed=seed,
            weight_column=weight_column,
            apply_to=apply_to,
        )

    def drop(self, *columns: str) -> Self:
        """Drop these columns.

        Args:
            columns: The columns to drop.
        """
        return self._with("drop", columns=list(columns))

    def embed(
        self,
        outputs: Mapping[str, str] | None = None,
        /,
        *,
        engine: str,
        source: str,
        column: str,
        tokenizer: str | None = None,
        pooling: str = "mean",
        normalize: bool = True,
        max_tokens: int = 256,
        batch_size: int = 64,
        **more: str,
    ) -> Self:
        """Add a vector that an embedding model computes of a text column.

        Args:
            outputs: The column of the vector, of type `fixed_size_list<float32>[N]`.
            engine: Library that runs the model.
            source: Folder with `model.onnx`, or as `save_pretrained` writes it, or an ONNX file.
                Nothing is downloaded from a hub.
            column: Column of the text. A null has a null vector.
            tokenizer: Folder with `tokenizer.json`, or that file; by default the model's.
            pooling: Vector of a text: the mean of those of its tokens, or the first one.
            normalize: `true`: each vector has length 1, so that a dot product is the cosine.
            max_tokens: Tokens of a text that count, special tokens included; the rest is cut off.
            batch_size: Texts of a batch.
            more: The same, as keywords.
        """
        return self._with(
            "embed",
            engine=engine,
            source=source,
            tokenizer=tokenizer,
            column=column,
            outputs={**(outputs or {}), **more},
            pooling=pooling,
            normalize=normalize,
            max_tokens=max_tokens,
            batch_size=batch_size,
        )

    def fill_null(
        self, columns: Mapping[str, bool | float | str] | None = None, /, **more: bool | float | str
    ) -> Self:
        """Replace nulls of columns by a constant.

        Args:
            columns: Columns whose nulls are replaced, by name.
            more: The same, as keywords.
        """
        return self._with("fill_null", columns={**(columns or {}), **more})

    def filter(self, where: str) -> Self:
        """Keep the rows for which `where` is true (false and null are dropped).

        Args:
            where: A boolean expression.
        """
        return self._with("filter", where=where)

    def generate(
        self,
        outputs: Mapping[str, str] | None = None,
        /,
        *,
        engine: str,
        source: str,
        prompt: str,
        format: str = "plain",
        error_column: str | None = None,
        max_error_percent: float | str = 0,
        max_tokens: int = 128,
        temperature: float | str = 0,
        seed: int = 0,
        batch_size: int | None = None,
        engine_args: Mapping[str, Any] | None = None,
        **more: str,
    ) -> Self:
        """Add a text that a language model generates from a prompt for each row.

        Args:
            outputs: Column of the text, `string` or `large_string`; null in an error row.
            engine: Library that runs the model; `VLLM` needs GPUs.
            source: Folder as `save_pretrained` writes it, or a GGUF file. Nothing is downloaded
                from a hub.
            prompt: Prompt, with names of columns in braces; `{{` and `}}` are braces.
            format: `Chat` puts the prompt into the chat template of the model; `Plain` continues
                it.
            error_column: Column of the reason why a row has no text; none if absent.
            max_error_percent: Largest share of error rows, in percent; with 0 the first one fails
                the run.
            max_tokens: Largest number of tokens to generate per row.
            temperature: Temperature of sampling, such as `"0.7"`. With 0, the likeliest token is
                taken.
            seed: Seed of sampling: each row draws by it and its own identity.
            batch_size: Rows of a batch; if absent, 16 with `Transformers`, all at hand with `VLLM`.
            engine_args: Further arguments of the engine, for sampling or loading, by their names;
                no credentials.
            more: The same, as keywords.
        """
        return self._with(
            "generate",
            engine=engine,
            source=source,
            prompt=prompt,
            format=format,
            outputs={**(outputs or {}), **more},
            error_column=error_column,
            max_error_percent=max_error_percent,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            batch_size=batch_size,
            engine_args=engine_args,
        )

    def hash_bucket(self, *columns: str, buckets: int, seed: int = 0) -> Self:
        """Replace ids (integers, strings, lists of them) by a hash in [0, buckets); null stays
        null.

        Args:
            columns: Integer or string columns, or lists of them.
            buckets: Number of buckets; ids become 0 to `buckets` - 1.
            seed: Different seeds give different hashes.
        """
        return self._with("hash_bucket", columns=list(columns), buckets=buckets, seed=seed)

    def join(
        self,
        uri: Side,
        on: Keys | None = None,
        *,
        left_on: Names | None = None,
        right_on: Names | None = None,
        keys: Keys | None = None,
        how: str = "left",
        columns: Names | None = None,
        s3: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Add columns of the side table to the rows whose key is in it (a null key never matches).

        Args:
            uri: The side table: one or several files, directories or globs; or the fields of
                `iceberg`, such as `{"catalog": "lake", "table": "db.users"}`.
            on: The key: columns by name, or a mapping of the rows' columns to the side table's.
            left_on: The key's columns in the rows, with `right_on` instead of `on`.
            right_on: The key's columns in the side table.
            keys: The same as `on`, as a manifest names it.
            how: `left` keeps rows without a match, `inner` drops them.
            columns: Columns of the side table; all but the key if absent.
            s3: Access to an S3-compatible store, as in a manifest.
            options: `where`, `max_bytes` and `strategy` of a manifest.

        Raises:
            StepError: the key is not given in exactly one way.
        """
        return self._with(
            "join",
            **JoinStep.from_python(
                uri,
                on,
                left_on=left_on,
                right_on=right_on,
                keys=keys,
                how=how,
                columns=columns,
                s3=s3,
                **options,
            ),
        )

    def map(self, function: str | Callable[..., Any], **options: Any) -> Self:
        """Call the user's function on each table; a step with resources runs as tasks of its own.

        Args:
            function: A function of an importable module, or its `package.module:function`.
            options: The other fields of a manifest, such as `input_columns`, `output_columns`,
                `changes_rows`, and the function's arguments as `options`.
        """
        return self._with("map", **MapStep.from_python(function, **options))

    def materialize(
        self,
        catalog: str,
        table: str,
        *,
        bucket_by: str,
        buckets: int,
        sort_by: Names | None = None,
    ) -> Self:
        """Keep the rows in an Iceberg table, from which a later run reads them.

        Args:
            catalog: The catalog, by its name in `spec.catalogs`.
            table: The beginning of the tables' names, as `namespace.table`.
            bucket_by: Column by whose hash rows are put into buckets.
            buckets: Number of buckets.
            sort_by: Columns by which the rows of a file are sorted.
        """
        return self._with(
            "materialize",
            **MaterializeStep.from_python(
                catalog, table, bucket_by=bucket_by, buckets=buckets, sort_by=sort_by
            ),
        )

    def measure(self, *metrics: Mapping[str, Any]) -> Self:
        """Measure the rows, which pass unchanged: metrics of scores, labels and other columns.

        Args:
            metrics: Each metric as a manifest has it, such as `{"name": "ctr", "mean": {"column":
                "click"}}`.
        """
        return self._with("measure", **MeasureStep.from_python(*metrics))

    def pad_sequence(self, *columns: str, length: int, value: float | str = 0) -> Self:
        """Make every list of the columns exactly `length` long: cut its end, or pad it with
        `value`.

        Args:
            columns: List columns.
            length: Length of every list: longer ones lose their end, shorter ones are padded.
            value: Value that pads the lists: an integer, or a number as a text, such as `"0.5"`.
        """
        return self._with("pad_sequence", columns=list(columns), length=length, value=value)

    def predict(self, *models: Mapping[str, Any], **options: Any) -> Self:
        """Add the outputs of models as columns; the models receive only the columns that they read.

        Args:
            models: Models, each with the fields of a manifest.
            options: `batch_size`, `device` and `ablation`.
        """
        return self._with("predict", **PredictStep.from_python(*models, **options))

    def rename(self, columns: Mapping[str, str]) -> Self:
        """Rename columns, all at once.

        Args:
            columns: New names by present names; no two new names may be equal.
        """
        return self._with("rename", **RenameStep.from_python(columns))

    def sample(
        self,
        keep_percent: float | str,
        *,
        by: Names | None = None,
        seed: int = 0,
        apply_to: str = "all",
    ) -> Self:
        """Keep a share of the rows or, with `by`, of a key's values with all their rows.

        Args:
            keep_percent: Percentage of the rows, or of the key's values, that is kept, 0 to 100: an
                integer, or a decimal number as a text, such as `"0.5"`.
            by: The key whose rows stay together.
            seed: The same seed keeps the same rows.
            apply_to: `All`: the rows that evaluate the model are sampled too; `Training`: all of
                them remain.
        """
        return self._with(
            "sample", keep_percent=keep_percent, by=to_list(by), seed=seed, apply_to=apply_to
        )

    def select(self, *columns: str) -> Self:
        """Keep these columns, in this order.

        Args:
            columns: The columns to keep, in this order.
        """
        return self._with("select", columns=list(columns))

    def truncate(self, *columns: str, length: int, keep: str = "head") -> Self:
        """Cut lists of the columns to at most `length` items, from their head or their tail.

        Args:
            columns: List columns.
            length: Largest number of items to keep.
            keep: The end to keep.
        """
        return self._with("truncate", columns=list(columns), length=length, keep=keep)

    def weight(self, column: str, by: str) -> Self:
        """Multiply a weight column, created as 1.0 if absent, by an expression (null counts as 0).

        Args:
            column: The weight column; created as 1.0 if absent.
            by: A numeric expression.
        """
        return self._with("weight", column=column, by=by)

"""The last-mile steps: one folder a kind, and what they share.

A folder declares everything about its step, and nothing else in the project lists the steps:

1. `model.py` has the fields with their limits and docstrings, a label for people, the expressions,
   the columns that it reads and makes: a `config.step_model.StepModel` named after the folder. It
   needs pydantic only, so the operator, the CRD and `lastmile validate` import it.
2. `transform.py` has the work on Arrow tables and its capabilities: a `base.Transform` named after
   the folder. `binding` imports it when a pipeline is bound to a table, and not before.
3. `guide.md` has the step's section of docs/steps.md; its examples are tests.
4. `config.step_registry` finds the folders here, and the models that the environment variable
   `LASTMILE_STEPS` names.
5. `make steps` and `make crd` write the CRD, the reference and the methods of the fluent API from
   the models; tests fail if the committed files differ. Hints and completion read the models.
6. This module imports neither pyarrow nor numpy, since the models are imported through it.

The planner binds the steps of a manifest with `binding.bind_pipeline`, and orders and fuses them.
No step depends on Ray, so it runs the same in a notebook, a test, a worker or in serving.
"""

# Models import parts of the config, and the config imports the models: it must come first.
import pipeline_runtime.config  # noqa: F401

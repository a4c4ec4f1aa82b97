"""Builds the environment of all pages: of reports, sheets, profiles and comparisons."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def build_environment(*packages: str) -> Environment:
    """Build an environment that escapes texts, and fails for names without a value.

    Args:
        packages: packages with templates of their own, besides those of reports, of which one is
            the style sheet.
    """
    return Environment(
        loader=ChoiceLoader(
            [PackageLoader(package) for package in (*packages, "pipeline_runtime.report")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

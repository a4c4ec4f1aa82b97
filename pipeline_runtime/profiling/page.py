"""The page and the file of a profile: `profile.html` and `profile.json` in one folder."""

from __future__ import annotations

from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline_runtime.files import write_atomically
from pipeline_runtime.profiling import view
from pipeline_runtime.profiling.document import PROFILE_FILE, Profile
from pipeline_runtime.profiling.figures import draw_supply

PAGE_FILE = "profile.html"
_TEMPLATE = "profile.html.j2"


def write_profile(directory: Path, profile: Profile) -> Path:
    """Write both files into `directory`, made if missing; the page's path."""
    document = profile.model_dump_json(by_alias=True, indent=2)
    write_atomically(directory / PROFILE_FILE, document + "\n")
    path = directory / PAGE_FILE
    write_atomically(path, build_page(profile))
    return path


def build_page(profile: Profile) -> str:
    """A page of one file that asks nothing of any network."""
    # The report's style sheet serves both.
    loaders = [
        PackageLoader("pipeline_runtime.profiling"),
        PackageLoader("pipeline_runtime.report"),
    ]
    environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE).render(
        profile=profile,
        binding=view.BINDING_WORDS[profile.binding.what],
        rates=view.build_rates(profile),
        steps=view.build_steps(profile),
        hops=view.build_hops(profile),
        shares=view.build_shares(profile),
        trainer=view.describe_trainer(profile),
        sample=view.describe_sample(profile),
        supply=Markup(draw_supply(profile)),  # its one text of the user's is escaped there
    )

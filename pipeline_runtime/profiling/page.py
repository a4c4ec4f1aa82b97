"""The page and the file of a profile: `profile.html` and `profile.json` in one folder."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from pipeline_runtime.files import write_atomically
from pipeline_runtime.profiling import view
from pipeline_runtime.profiling.document import PROFILE_FILE, Profile
from pipeline_runtime.profiling.figures import draw_supply
from pipeline_runtime.report.templating import build_environment

PAGE_FILE = "profile.html"
_TEMPLATE = "profile.html.j2"


def write_profile(directory: Path, profile: Profile) -> Path:
    """Write both files into `directory`, which is made if missing; return the page's path."""
    document = profile.model_dump_json(by_alias=True, indent=2)
    write_atomically(directory / PROFILE_FILE, document + "\n")
    path = directory / PAGE_FILE
    write_atomically(path, build_page(profile))
    return path


def build_page(profile: Profile) -> str:
    """Build a page that is a single file and needs no network."""
    environment = build_environment("pipeline_runtime.profiling")
    return environment.get_template(_TEMPLATE).render(
        profile=profile,
        binding=view.BINDING_WORDS[profile.binding.what],
        rates=view.build_rates(profile),
        steps=view.build_steps(profile),
        hops=view.build_hops(profile),
        shares=view.build_shares(profile),
        trainer=view.describe_trainer(profile),
        sample=view.describe_sample(profile),
        supply=Markup(draw_supply(profile)),  # which escapes the user's text in it
    )

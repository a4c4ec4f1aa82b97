"""A profile as a person sees it in the terminal."""

from __future__ import annotations

from rich.console import Console

from pipeline_runtime.profiling import view
from pipeline_runtime.profiling.document import Profile
from pipeline_runtime.report.drawing.painter import Justify, Painter

_COLUMNS: dict[str, Justify] = {
    "step": "left",
    "per row": "right",
    "kept": "right",
    "bytes per row": "right",
    "share": "right",
}
# On a narrow terminal the bars go: the shares stand beside them.
_WIDE_CELLS = 90


def print_profile(console: Console, profile: Profile) -> None:
    """Print what binds, the headline, a reader's work, bytes on the way, and what to change."""
    painter = _ProfilePainter(console)
    binding = profile.binding
    painter.print_line(
        f"{profile.experiment.name}: {view.BINDING_WORDS[binding.what]}: ", "bold", binding.reason
    )
    painter.print_headline(profile)
    painter.print_steps(profile)
    painter.print_hops(profile)
    painter.print_shares(profile)
    painter.print_line("", "", view.describe_trainer(profile))
    painter.print_line("Measured on ", "", view.describe_sample(profile) + ".")
    painter.print_advice(profile)
    for warning in profile.warnings:
        painter.print_line("warning: ", "yellow", warning)


class _ProfilePainter(Painter):
    """A profile, part by part."""

    @property
    def _is_wide(self) -> bool:
        return self.console.width >= _WIDE_CELLS

    @property
    def _bar_columns(self) -> list[tuple[str, Justify]]:
        return [("", "left")] if self._is_wide else []

    def print_headline(self, profile: Profile) -> None:
        table = self.table(
            "Rates", ("", "left"), ("median", "right"), ("lowest to highest", "right"), ("", "left")
        )
        for rate in view.build_rates(profile):
            table.add_row(
                self.text(rate.title),
                self.text(rate.value, "bold"),
                self.text(rate.spread),
                self.text(rate.what),
            )
        self.console.print(table)

    def print_steps(self, profile: Profile) -> None:
        table = self.table("A reader's work, by one core", *_COLUMNS.items(), *self._bar_columns)
        for row in view.build_steps(profile):
            texts = (row.name, row.cost, row.kept, row.size, row.share_text)
            bars = [self.bar(row.share)] if self._is_wide else []
            table.add_row(*map(self.text, texts), *bars)
        self.console.print(table)

    def print_hops(self, profile: Profile) -> None:
        table = self.table(
            "Bytes per sample",
            ("where", "left"),
            ("per sample", "right"),
            ("at the intake", "right"),
            *self._bar_columns,
        )
        for row in view.build_hops(profile):
            bars = [self.bar(row.share)] if self._is_wide else []
            table.add_row(*map(self.text, (row.name, row.size, row.rate)), *bars)
        self.console.print(table)

    def print_shares(self, profile: Profile) -> None:
        table = self.table(
            "Trainer's time", ("stage", "left"), ("share", "right"), *self._bar_columns
        )
        for name, share, text in view.build_shares(profile):
            bars = [self.bar(share)] if self._is_wide else []
            table.add_row(self.text(name), self.text(text), *bars)
        self.console.print(table)

    def print_advice(self, profile: Profile) -> None:
        if not profile.advice:
            self.print_line("What to change: ", "bold", "nothing that these figures would pay for.")
            return
        self.print_line("What to change:", "bold", "")
        for number, advice in enumerate(profile.advice, start=1):
            self.print_line(f"  {number}. {advice.field}: ", "bold", advice.text)

"""The settings of a training run, with their sources, as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from st_contrastive.methods import METHODS


@dataclass(frozen=True)
class Setting:
    """A value and its source: a table or section of a paper, a file of its authors' code, or "ours"."""

    value: Any
    source: str


def cite(source: str, **values: Any) -> dict[str, Setting]:
    """Settings of one source."""
    return {name: Setting(value, source) for name, value in values.items()}


@dataclass(frozen=True)
class Difference:
    """A difference from the paper, or what it leaves open; left out if one of the settings ``of`` is changed."""

    text: str
    of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """The settings of one row of a paper's table.

    Args:
        name: as ``st-contrastive train --recipe`` takes it.
        title: what the row is about.
        method: the loss, as ``--method`` takes it.
        run: options of ``st-contrastive train`` by their names.
        loss: arguments of the loss.
        augmentation: how the second column is made: "antonyms", "repetition" or None.
        translations: whether translations are needed.
        stage1: options of InfoCSE's first stage, or None.
        stage1_loss: arguments of that stage's loss, ``AuxiliaryMLMPretrainingLoss``.
        differs: differences from the paper; "stage1" in their settings means the whole first stage.
        reported: the paper's result.

    Raises:
        ValueError: there is no such method.
    """

    name: str
    title: str
    method: str
    run: Mapping[str, Setting]
    loss: Mapping[str, Setting] = field(default_factory=dict)
    augmentation: str | None = None
    translations: bool = False
    stage1: Mapping[str, Setting] | None = None
    stage1_loss: Mapping[str, Setting] = field(default_factory=dict)
    differs: tuple[Difference, ...] = ()
    reported: str = ""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(
                f"recipe {self.name!r}: there is no method {self.method!r}; give one of {', '.join(METHODS)}."
            )

    @property
    def options(self) -> dict[str, Any]:
        """Options of the command line, without the loss's."""
        return {name: setting.value for name, setting in self.run.items()}

    @property
    def loss_arguments(self) -> dict[str, Any]:
        """Arguments of the loss."""
        return {name: setting.value for name, setting in self.loss.items()}

    @property
    def stage1_loss_arguments(self) -> dict[str, Any]:
        """Arguments of the first stage's loss."""
        return {name: setting.value for name, setting in self.stage1_loss.items()}

    def describe(
        self,
        given: Mapping[str, Any] | None = None,
        given_to_loss: Mapping[str, Any] | None = None,
        given_to_stage1: Mapping[str, Any] | None = None,
        *,
        stage1: bool = True,
    ) -> str:
        """The recipe as text: every number with its source, and the differences from the paper.

        Args:
            given: options of a run; those that differ from the recipe's are marked as given.
            given_to_loss: arguments of the run's loss.
            given_to_stage1: options of the run's first stage.
            stage1: whether the first stage, if there is one, is run.
        """
        lines = [f"{self.name}: {self.title}"]
        changed = set() if stage1 else {"stage1"}
        for group, settings, present in (
            ("run", self.run, given or {}),
            ("loss", self.loss, given_to_loss or {}),
            ("stage 1", (self.stage1 or {}) if stage1 else {}, (given_to_stage1 or {}) if stage1 else {}),
            ("stage 1", self.stage1_loss if stage1 else {}, {}),
        ):
            for name, one in settings.items():
                value, source = present.get(name, one.value), one.source
                if value != one.value:
                    changed.add(name)
                    source = f"given; the recipe has {one.value}, {source}"
                lines.append(f"  {group:7} {name} = {value}  ({source})")
            more = [name for name in present if name not in settings]
            lines += [f"  {group:7} {name} = {present[name]}  (given)" for name in more]
            changed.update(more)
        lines += [f"  differs: {one.text}" for one in self.differs if not changed.intersection(one.of)]
        if self.reported:
            lines.append(f"  reported: {self.reported}")
        return "\n".join(lines)

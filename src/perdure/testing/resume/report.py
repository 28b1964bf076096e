"""What the suite has found: by property and store, and the counts that say how hard it has looked."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

Property: TypeAlias = Literal[
    "prefix continuation",
    "effect once",
    "fork determinism",
    "checkpoint validity",
    "consume once",
    "recovery determinism",
    "recovery from an export",
    "directed points",
]

PROPERTIES: Final[tuple[Property, ...]] = (
    "prefix continuation",
    "effect once",
    "fork determinism",
    "checkpoint validity",
    "consume once",
    "recovery determinism",
    "recovery from an export",
    "directed points",
)
"""The six, the last of them in two parts, and that every point which a life comes by was hit.

A check that can't fail proves nothing.
"""

_FINDINGS: Final = ("violations", "not_shown")


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that does not hold: what was done, and what came out of it."""

    property: Property
    store: str
    what: str


@dataclass(slots=True)
class Report:
    """The findings, and the counts."""

    seed: int
    stores: tuple[str, ...]
    checks: Counter[str] = field(default_factory=Counter[str])
    """How often a property was looked at, by `property/store`."""
    lives: Counter[str] = field(default_factory=Counter[str])
    kills: Counter[str] = field(default_factory=Counter[str])
    """Processes that died, by `random/store` or `directed/store`."""
    windows: Counter[str] = field(default_factory=Counter[str])
    """Directed kills, by `window/store`."""
    violations: list[Violation] = field(default_factory=list[Violation])
    not_shown: list[Violation] = field(default_factory=list[Violation])
    """What could not be looked at, and why: a check that checks nothing must not look like one that has passed."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was violated, and all was shown that was to be."""
        return not self.violations and not self.not_shown

    def checked(self, property_: Property, store: str, what: str | None, how: str = "") -> None:
        """Note a look at a property: nothing wrong, or what is, after what was done."""
        self.checks[f"{property_}/{store}"] += 1
        if what is not None:
            self.violations.append(Violation(property_, store, f"{how}: {what}" if how else what))

    def missed(self, property_: Property, store: str, why: str) -> None:
        """Note that a property could not be shown."""
        self.not_shown.append(Violation(property_, store, why))

    def table(self) -> str:
        """Property by store, then the counts, then each violation and what was not shown."""
        cells = [["", *self.stores]]
        cells += [[name, *(self._verdict(name, store) for store in self.stores)] for name in PROPERTIES]
        cells.append(["lives", *(str(self.lives[store]) for store in self.stores)])
        cells += [
            [f"{how} kills", *(str(self.kills[f"{how}/{s}"]) for s in self.stores)] for how in ("directed", "random")
        ]
        windows = dict.fromkeys(name.rpartition("/")[0] for name in self.windows)
        cells += [[f"  {name}", *(str(self.windows[f"{name}/{s}"]) for s in self.stores)] for name in windows]
        told = [_line(row, cells) for row in cells]
        told += [f"VIOLATED {each.property} ({each.store}): {each.what}" for each in self.violations]
        told += [f"NOT SHOWN {each.property} ({each.store}): {each.what}" for each in self.not_shown]
        return "\n".join([*told, f"seed {self.seed}"])

    def _verdict(self, name: Property, store: str) -> str:
        violated = sum(each.property == name and each.store == store for each in self.violations)
        checks = self.checks[f"{name}/{store}"]
        if violated:
            return f"VIOLATED {violated} of {checks}"
        if any(each.property == name and each.store == store for each in self.not_shown):
            return "NOT SHOWN"
        return f"passed {checks}" if checks else "not tried"

    def to_json(self) -> str:
        """All of it as JSON."""
        members = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        for name in _FINDINGS:
            members[name] = [dataclasses.asdict(each) for each in members[name]]
        return json.dumps(members)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report of `to_json`."""
        found: dict[str, Any] = json.loads(text)
        for name in ("checks", "lives", "kills", "windows"):
            found[name] = Counter(found[name])
        found["stores"] = tuple(found["stores"])
        for name in _FINDINGS:
            found[name] = [Violation(**each) for each in found[name]]
        return cls(**found)


def _line(row: list[str], cells: list[list[str]]) -> str:
    widths = [max(len(each[column]) for each in cells) for column in range(len(row))]
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

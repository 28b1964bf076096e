"""What the world tells of a storm: which work was done again, and whether it had to be.

Work that has returned to its handler is recorded, and must never be done again. Work that was in flight when its host
was killed may be, and so may work of a host that was frozen: what such a host was about to do when it was stopped
nobody can take from it. What it did then is not accepted by the store any more.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.hosting.chaos.world import Fact, What

Numbered: TypeAlias = "tuple[int, Fact]"
Work: TypeAlias = tuple[str, str]
Whose: TypeAlias = tuple[int, int]

_CUTS_OFF: frozenset[What] = frozenset({"killing", "ending", "frozen", "stalled"})
"""What makes others do work again that a host had in flight."""

_LETS_GO_ON: frozenset[What] = frozenset({"thawing", "stalled"})
"""What makes a host do work that others have done meanwhile."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The facts in their order, looked at from several sides."""

    facts: Sequence[Fact]
    born: Mapping[Whose, int]
    """By life when it began."""
    fates: Mapping[int, Sequence[Numbered]]
    """By process what was done to it."""
    works: Mapping[Work, Sequence[Numbered]]
    """By work its effects and returns."""

    @classmethod
    def of(cls, facts: Sequence[Fact]) -> Trial:
        born: dict[Whose, int] = {}
        fates: defaultdict[int, list[Numbered]] = defaultdict(list)
        works: defaultdict[Work, list[Numbered]] = defaultdict(list)
        for number, fact in enumerate(facts):
            match fact.what:
                case "born":
                    born[fact.whose] = number
                case "stalled" | "killing" | "frozen" | "thawing" | "ending":
                    fates[fact.pid].append((number, fact))
                case "effect" | "returned":
                    works[fact.work].append((number, fact))
                case _:
                    pass
        return cls(facts, born, fates, works)

    def effects(self, work: Work) -> list[Numbered]:
        return [(number, fact) for number, fact in self.works[work] if fact.what == "effect"]

    @property
    def repeats(self) -> int:
        """How many effects there were beyond the first of each work."""
        return sum(max(len(self.effects(work)) - 1, 0) for work in self.works)

    @property
    def takeovers(self) -> int:
        """How often a run was claimed that another process had claimed and not given free."""
        leases: dict[str, Fact] = {}
        count = 0
        for fact in self.facts:
            before = leases.get(fact.run)
            if fact.what == "claimed":
                count += before is not None and before.pid != fact.pid
                leases[fact.run] = fact
            elif fact.what == "released" and before is not None and before.token == fact.token:
                del leases[fact.run]
        return count

    def count(self, what: What) -> int:
        return sum(fact.what == what for fact in self.facts)

    def violations(self, expected: Iterable[Work]) -> Iterator[str]:
        """Whatever is not as it must be."""
        wanted = set(expected)
        for work in sorted(wanted - self.works.keys()):
            yield f"{work} was never done"
        for work in sorted(self.works.keys() - wanted):
            yield f"{work} was not to be done"
        for work in sorted(wanted & self.works.keys()):
            yield from self._wrongs(work)
        yield from self._written_late()

    def _written_late(self) -> Iterator[str]:
        """Writes that were begun when the claim had been replaced, and accepted."""
        tokens: dict[str, int] = {}
        late = set[str]()
        for fact in self.facts:
            match fact.what:
                case "claimed":
                    tokens[fact.run] = max(fact.token, tokens.get(fact.run, 0))
                case "writing" if fact.token < tokens.get(fact.run, 0):
                    late.add(fact.key)
                case "wrote" if fact.key in late:
                    yield f"{fact.pid} wrote to {fact.run!r} under token {fact.token}, which had been replaced"
                case _:
                    pass

    def _wrongs(self, work: Work) -> Iterator[str]:
        keys = {fact.key for _, fact in self.effects(work)}
        if len(keys) != 1:
            yield f"{work} has {len(keys)} keys, so it would be counted so often: {sorted(keys)}"
        yield from self._done_again(work)
        yield from self._repeated_idly(work)
        yield from self._kept_twice(work)

    def _done_again(self, work: Work) -> Iterator[str]:
        """Effects after the work had returned, but for those of a host that was frozen with it."""
        returned: Numbered | None = None
        for number, fact in self.works[work]:
            if fact.what == "returned":
                returned = returned or (number, fact)
                continue
            if returned is None:
                continue
            at, by = returned
            if self.born[fact.whose] > at:
                yield f"{work} was finished by {by.whose} (line {at}), and done again by {fact.whose} (line {number})"
            elif not self._was_disturbed(fact, before=number, by=_LETS_GO_ON):
                yield f"{work} was finished by {by.whose}, and done again by {fact.whose}, which nobody had frozen"

    def _repeated_idly(self, work: Work) -> Iterator[str]:
        """Effects that follow another of a life that nobody had disturbed."""
        effects = self.effects(work)
        for (_, earlier), (number, later) in itertools.pairwise(effects):
            disturbed = (self._was_disturbed(each, before=number, by=_CUTS_OFF) for each in (earlier, later))
            if not any(disturbed):
                yield f"{work} was done by {earlier.whose} and by {later.whose} (line {number}), undisturbed"

    def _kept_twice(self, work: Work) -> Iterator[str]:
        """Lives that did the work and had its result recorded: there is one at most."""
        done, kept = set[Whose](), set[Whose]()
        for _, fact in self.works[work]:
            if fact.what == "effect":
                done.add(fact.whose)
            elif fact.whose in done:
                kept.add(fact.whose)
        if len(kept) > 1:
            yield f"{work} was recorded by more than one life: {sorted(kept)}"

    def _was_disturbed(self, fact: Fact, *, before: int, by: frozenset[What]) -> bool:
        """Whether something of that kind was done to the process of a life, in its time and before a moment."""
        began = self.born[fact.whose]
        for number, fate in self.fates.get(fact.pid, ()):
            if fate.what not in by:
                continue
            match fate.what:
                case "killing" | "ending":
                    # A process may still begin something between the line and the signal that ends it.
                    is_in_time = number < before
                case "stalled":
                    # It notices that only when it is over.
                    is_in_time = number > began
                case _:
                    is_in_time = began < number < before
            if is_in_time:
                return True
        return False

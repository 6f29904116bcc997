"""What is on record after a class was forgotten: what is gone, what cannot be taken apart, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from protocore.config import plural
from protocore.errors import printable
from protocore.learn.membership import FALSE_ALARMS, Membership


@dataclass(frozen=True)
class Certificate:
    """A class that a learner has forgotten. Shares are between 0 and 1; None: there was nothing to measure it with."""

    name: str  # of the class
    when: str  # UTC
    version: str  # of protocore
    method: str
    classes_left: int
    gone: tuple[str, ...]  # in words
    mixed: tuple[str, ...]  # what stays of it together with other classes, in words
    searched: int  # byte strings of the class (exemplars, prototype, row of the classifier) that were looked for
    found: int  # how many of them are still in what is saved
    pictures: int  # of the class, that the next two were measured on
    own_exemplars: bool  # whether these were the exemplars that were in the memory, else pictures that were given
    accuracy_before: float | None
    accuracy_after: float | None
    membership_before: Membership | None
    membership_after: Membership | None
    others: int  # exemplars of the other classes, that the next two were measured on
    others_before: float | None  # among the classes that are left
    others_after: float | None
    unlearn_steps: int
    file_before: str | None = None  # sha256, where the learner lives in a file
    file_after: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """For people, a line a fact."""
        return "\n".join(printable(line) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"The class {self.name!r} was forgotten on {self.when} (protocore {self.version}, method {self.method})."
        yield f"{plural(self.classes_left, 'class')} {'is' if self.classes_left == 1 else 'are'} left."
        yield "Gone:"
        yield from (f"  - {words}" for words in self.gone)
        same = ": another class has the same" if self.found else ""
        yield f"  - looked for in what is saved: {plural(self.searched, 'byte string')}; found: {self.found}{same}"
        yield "Cannot be taken apart from other classes, and stays:" if self.mixed else "Nothing of it stays mixed in."
        yield from (f"  - {words}" for words in self.mixed)
        if self.unlearn_steps:
            yield f"The network then took {plural(self.unlearn_steps, 'step')} to unlearn its pictures."
        if self.accuracy_before is not None:
            what = "exemplars that were kept of it" if self.own_exemplars else "pictures of it"
            yield (f"Recognised of {self.pictures} {what}: {_percent(self.accuracy_before)} before, "
                   f"{_percent(self.accuracy_after)} after.")
        yield from self._membership()
        if self.others_before is not None:
            yield (f"Recognised of {self.others} exemplars of the other classes, told among these: "
                   f"{_percent(self.others_before)} before, {_percent(self.others_after)} after.")
        if self.file_before or self.file_after:
            yield f"File before: sha256 {self.file_before or 'not told'}"
            yield f"File after:  sha256 {self.file_after or 'not told'}"
        yield "Copies of the file made before, packs and exported models still hold the class: delete or renew them."

    def _membership(self) -> Iterator[str]:
        before, after = self.membership_before, self.membership_after
        if before is None:
            yield "Whether its pictures can be told from others that were not learned was not tested: give some."
            return
        yield (f"Membership test, {before.members} pictures that were learned against {before.strangers} that were not "
               "(0.5 is guessing, 1 is certain):")
        for word, found in (("before", before), ("after", after)):
            if found is not None:
                caught = "" if found.caught is None else \
                    f"; {_percent(found.caught)} caught at {FALSE_ALARMS:.0%} false alarms"
                verdict = "more than chance" if found.told else "no more than chance"
                yield f"  {word}: AUC {found.auc:.2f}, {verdict} (0.5 ± {found.chance:.2f}){caught}"


def _percent(share: float | None) -> str:
    return "not measured" if share is None else f"{100 * share:.1f} %"

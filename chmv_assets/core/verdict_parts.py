"""What comparing two objects finds: differences, and clauses whose secrets the server does not show.

The words of `Difference.what` are listed in `core.compare`; others build on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from chmv_assets.core.secrets import HIDDEN
from chmv_assets.core.spelling import BUILTIN, Form, Vocabulary, same, spell, spell_parts

State = Literal["equal", "changed", "missing", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One property that is not the same."""

    what: str
    declared: str
    live: str
    is_type: bool = False  # both are types of one column, which may be two spellings of the same

    def __str__(self) -> str:
        return f"{self.what}: declared {self.declared or 'nothing'}, live {self.live or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict on one object; `hidden` names clauses that are equal as far as the server shows them.

    `tuned` are settings that our tuner has changed for a while (`core.tunings`): they are no differences.
    """

    state: State
    differences: tuple[Difference, ...] = ()
    hidden: tuple[str, ...] = ()
    tuned: tuple[Difference, ...] = ()


@dataclass(slots=True)
class Findings:
    """Collects differences while two objects are compared."""

    database: str  # what unqualified names mean
    vocabulary: Vocabulary = BUILTIN
    differences: list[Difference] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    def form(self, text: str) -> Form:
        return spell(text, self.database, self.vocabulary)

    def parts(self, text: str) -> tuple[Form, ...]:
        return spell_parts(text, self.database, self.vocabulary)

    def differ(self, what: str, mine: str, theirs: str, *, is_type: bool = False) -> None:
        self.differences.append(Difference(what, mine, theirs, is_type))

    def judge(self, what: str, mine: str, theirs: str, *, is_type: bool = False) -> None:
        """Compare two texts by their forms."""
        if mine != theirs or HIDDEN in mine:
            self.judge_forms(what, mine, theirs, self.form(mine), self.form(theirs), is_type=is_type)

    def judge_forms(self, what: str, mine: str, theirs: str, one: Form, two: Form, *, is_type: bool = False) -> None:
        sameness = same(one, two)
        if sameness == "hidden":
            self.hidden.append(what)
        elif sameness == "different":
            self.differ(what, mine, theirs, is_type=is_type)

    def judge_lists(self, what: str, mine: str, theirs: str, one: tuple[Form, ...], two: tuple[Form, ...]) -> None:
        """Compare lists of forms, in order."""
        if len(one) != len(two):
            self.differ(what, mine, theirs)
            return
        joined = [tuple(word for form in forms for word in (*form, ",")) for forms in (one, two)]
        self.judge_forms(what, mine, theirs, joined[0], joined[1])

    def verdict(self) -> Comparison:
        return Comparison(
            "changed" if self.differences else "equal", tuple(self.differences), tuple(dict.fromkeys(self.hidden))
        )

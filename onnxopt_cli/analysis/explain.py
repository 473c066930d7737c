"""Which known mistakes reproduce what a failing backend returned.

An explanation rests on wrong values. It is a cover: as few mistakes as reproduce as many of the
failing cases as any do, each alone or with others, and none that fails a case which the backend
passes. An error may have any reason: a mistake beside one that values support may account for
errors too, and errors alone are never explained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice, product
from operator import attrgetter, itemgetter
from random import Random
from time import monotonic, process_time

import numpy as np

from onnxopt_cli.analysis.failure_conditions import (
    Sample,
    failure_condition,
    sample,
)
from onnxopt_cli.analysis.further_inputs import further
from onnxopt_cli.analysis.lowered_nodes import (
    Submit,
    WrongNode,
    wrong_nodes,
)
from onnxopt_cli.analysis.reproduce import (
    Observation,
    agrees_with,
    conforms,
    observe,
    refuses,
    reproduces,
    returned_arrays,
    returns,
)
from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.record import (
    UNEXPLAINED,
    Cause,
    Explanation,
)
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import some_of
from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import InvalidCase, NodeError
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation, both
from onnxopt_cli.mutation.known_mistakes import all_known_mistakes, distinct
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.run.rerun import Questioning, node_question

#: Cases with larger outputs are not read: reading alone may take longer than all the rest.
_MOST_ELEMENTS = 1 << 20
#: So many implementations that are known to do so are named.
_SEEN = 2
#: Of the cases that passed, or failed, so many are tried before the others; of those that failed,
#: more for likely mistakes.
_FIRST, _FIRST_LIKELY = 12, 36
#: So many mistakes are added to one that reproduces something.
_DEPTH = 2
#: Where so many times as many cases are left, what reproduces the others may do so by chance.
_CHANCE = 3
#: For so many seconds of work a backend may be asked further inputs, at any rate.
_ASKING = 10
#: A known mistake is put to so many further inputs that it gets wrong, of so many drawn.
_PUT_SAMPLES, _DRAWN_SAMPLES = 24, 96
#: It is not named if the backend is right in a larger share of them, or seldom wrong as it is.
_MOST_RIGHT, _LEAST_ALIKE = 0.1, 0.5
#: Of mistakes that do the same so many are compared.
_ALIKE = 12


def least_seconds(run: float) -> float:
    """Return for how long to look for mistakes after a run of so many seconds."""
    return max(10.0, run / 5)


def explain(
    results: Sequence[Result],
    cases: Mapping[str, Case],
    judging: Judging | None = None,
    *,
    seconds: float = float("inf"),
    progress: Callable[[str], None] = lambda _: None,
    ask: Questioning | None = None,
) -> list[Explanation]:
    """Explain the failures of each backend in each operator with a formula.

    Likely mistakes are tried first, one by one for all of them, then several at once; then all
    others so; at last it is asked what the cases have in common that nothing reproduces. In each
    part all have an equal time.

    Args:
        results: all results of a run.
        cases: the cases by id.
        judging: how the run judged outputs.
        seconds: how long to look; the explanations say what was left.
        progress: called now and then with what is going on.
        ask: asks a backend, given by its name, for a model's outputs; None for what returns none.
            Without it, further inputs cannot tell what failing cases have in common.
    """
    end = monotonic() + seconds
    searches = list(_searches(results, cases, judging or Judging(), progress))
    _share([search.lowered(ask) for search in searches if ask], end)
    for likely in (True, False):
        _share([search.alone(likely=likely) for search in searches], end)
        _share([search.together(likely=likely) for search in searches], end)
    end = max(end, monotonic() + _ASKING)
    for search in searches:
        if monotonic() < end:
            search.describe(ask)
    stopped = f"stopped after {round(seconds, 1 if seconds > 1 else 3):g} s"
    return [*filter(None, (search.explanation(stopped) for search in searches))]


def _share(tasks: Sequence[Iterator[None]], end: float) -> None:
    """Go on with each task in turn, each for an equal part of the time that is left."""
    while tasks and monotonic() < end:
        unfinished = []
        for place, task in enumerate(tasks):
            now = monotonic()
            until = now + (end - now) / (len(tasks) - place)
            if any(monotonic() >= until for _ in task):
                unfinished.append(task)
        tasks = unfinished


def _searches(
    results: Sequence[Result],
    cases: Mapping[str, Case],
    judging: Judging,
    progress: Callable[[str], None],
) -> Iterator[_Search]:
    known: dict[tuple[str, ...], Operator] = {
        (operator.name,): operator for operator in registry().operators
    }
    groups: dict[tuple[str, Operator], list[Result]] = {}
    for result in results:
        case = cases.get(result.case)
        operator = known.get(result.operators or (case and case.operators) or ())
        if operator is not None:
            groups.setdefault((result.backend, operator), []).append(result)
    for (backend, operator), group in groups.items():
        if any(it.outcome is Outcome.FAIL and returned_arrays(it) for it in group):
            yield _Search(backend, operator, group, cases, judging, progress)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A mistake, or several at once, and the failing cases that it reproduces.

    Attributes:
        names: of the mistakes.
        mistake: all of them in one implementation.
        cases: those of the wrong cases.
    """

    names: tuple[str, ...]
    mistake: Implementation
    cases: frozenset[Observation] = frozenset()

    def beside(self, base: _Found | None) -> _Found | None:
        """Return these mistakes after those of a base; None if they cannot be made at once."""
        if base is None:
            return self
        names, mistake = (*base.names, *self.names), both(base.mistake, self.mistake)
        return _Found(names, mistake) if mistake and len({*names}) == len(names) else None


@dataclass(eq=False)
class _Search:
    """The search for what explains the failures of a backend in an operator.

    What takes long is an iterator over small steps.

    Attributes:
        backend: the backend's name.
        operator: the operator.
        results: those of the backend in the operator.
        cases: the cases by id.
        judging: how the run judged outputs.
        progress: called with what is going on.
    """

    backend: str
    operator: Operator
    results: Sequence[Result]
    cases: Mapping[str, Case]
    judging: Judging
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        passed = sorted(filter(_is_right, self.results), key=_elements)
        self._passed = [it for it in passed if _elements(it) <= _MOST_ELEMENTS]
        self._wrong: list[Observation] = []
        self._refused: list[Observation] = []
        self._right: list[Observation] = []
        self._untried: Counter[str] = Counter()
        # Of lowered models by what their wrong nodes return: the failing cases.
        self._of_nodes: dict[WrongNode, list[str]] = {}
        self._found: list[_Found] = []
        self._possible: list[_Found] = []
        self._ground: tuple[str, frozenset[Observation]] = ("", frozenset())
        self._began = False
        self._tried_alone = False
        self._complete = False

    def _tell(self, what: str) -> None:
        self.progress(f"explaining {self.operator.name}: {what}")

    @property
    def _all(self) -> frozenset[Observation]:
        return frozenset(self._wrong)

    def lowered(self, ask: Questioning) -> Iterator[None]:
        """Find the primitive nodes that are wrong where a backend runs lowered models.

        What they account for is no mistake of the operator's.
        """
        failing = [it for it in self.results if it.failing and it.lowered and returned_arrays(it)]
        failing.sort(key=_elements)
        submit = partial(ask, self.backend)
        example: dict[str, WrongNode] = {}
        for number, result in enumerate(failing):
            # The smallest cases show which operators are wrong; the others are asked for these.
            if number >= _FIRST and not example:
                return
            self._tell(f"{number} of {len(failing)} lowered models")
            yield
            case = self.cases.get(result.case)
            only = frozenset(example) if number >= _FIRST else frozenset[str]()
            for found in self._wrong_nodes(case, submit, only):
                known = example.setdefault(found.operator, found)
                self._of_nodes.setdefault(known, []).append(result.case)
                break

    def _wrong_nodes(
        self, case: Case | None, submit: Submit, only: frozenset[str]
    ) -> Iterator[WrongNode]:
        try:
            problem = case.load() if case else None
        except (InvalidCase, NodeError, MemoryError):
            return
        if problem and problem.trajectory is None:
            arrays = {k: it for k, it in problem.inputs.items() if isinstance(it, np.ndarray)}
            yield from wrong_nodes(problem.model, arrays, submit, only)

    def alone(self, *, likely: bool) -> Iterator[None]:
        """Read the failing cases, and try each known mistake alone.

        Args:
            likely: whether to try those that a person would name, or all others.
        """
        if likely:
            yield from self._read_failing()
            self._began = True
        known = [it for it in all_known_mistakes(self.operator) if self._is_likely(it) is likely]
        for number, mistake in enumerate(known if self._wrong else ()):
            self._tell(f"{number} of {len(known)} mistakes")
            yield
            if (yield from self._agrees(mistake, _FIRST)):
                self._possible.append(_Found((mistake.name,), mistake))
                first = _FIRST_LIKELY if likely else _FIRST
                yield from self._try(self._possible[-1], self._all, first)
        if not likely:
            self._tried_alone = True
            self._complete = not self._left(self._found)

    def _is_likely(self, mistake: Implementation) -> bool:
        """Tell whether a mistake is the operator's own, or one of what many programs lack."""
        own = mistake.name in {it.name for it in self.operator.known_mistakes}
        return own or mistake.name.startswith(self._unread) or mistake.precision == np.float32

    @property
    def _unread(self) -> tuple[str, ...]:
        """How the names begin of mistakes that never read an attribute."""
        return tuple(f"{it.name} taken as" for it in self.operator.attributes)

    def together(self, *, likely: bool) -> Iterator[None]:
        """Try several known mistakes at once, where single ones leave something unexplained."""
        if not self._wrong or not (likely or self._tried_alone):
            return
        if not self._found and not likely:
            yield from self._try_beside([None], self._pairs(), "pairs")
        for _ in range(_DEPTH):
            before = len(self._found)
            bases = self._cover()
            # What reproduces few cases may have been overlooked while there were many.
            yield from self._try_beside([*bases, None] if bases else [], self._possible, "mistakes")
            if len(self._found) == before:
                break
        if self._found and self._left(self._found) and not likely:
            # Beside others, only what programs are known to do.
            pairs = self._pairs(seen=True)
            yield from self._try_beside([None, *self._cover()[:1]], pairs, "pairs")
        self._complete = not likely

    def _pairs(self, *, seen: bool = False) -> list[_Found]:
        """Return pairs of possible mistakes that a person would name.

        Args:
            seen: whether only those of its own mistakes count that programs are known to make.
        """
        own = {it.name for it in self.operator.known_mistakes if it.seen_in or not seen}
        chosen = [it for it in self._possible if it.mistake.name in own]
        unread = [it for it in self._possible if it.mistake.name.startswith(self._unread)]
        couples = [*product(unread, chosen), *combinations(chosen, 2)]
        return [*filter(None, (second.beside(first) for first, second in couples))]

    def _try_beside(
        self, bases: Sequence[_Found | None], mistakes: Sequence[_Found], what: str
    ) -> Iterator[None]:
        """Try mistakes, alone or beside what reproduces something, on what is left."""
        for base in bases:
            for number, mistake in enumerate(mistakes):
                self._tell(f"{number} of {len(mistakes)} more {what}")
                yield
                left = self._left(self._found)
                if left and (both_at_once := mistake.beside(base)):
                    yield from self._try(both_at_once, left)

    def describe(self, ask: Questioning | None) -> None:
        """Put known mistakes to further inputs, then look for what other failures have in common.

        Args:
            ask: asks a backend; None if it cannot be asked.
        """
        began, waited = process_time(), 0.0

        def asked(call: Call[Array]) -> Sequence[Array] | None:
            nonlocal waited
            if ask is None or process_time() - began + waited > _ASKING:
                return None
            start, busy = monotonic(), process_time()
            returned = ask(self.backend, *node_question(call))
            waited += max(0.0, monotonic() - start - (process_time() - busy))
            return returned

        cover = self._supported() if self._wrong else []
        while untrue := self._contradicted(cover, asked if ask else None):
            self._found = [it for it in self._found if not untrue.intersection(it.names)]
            cover = self._supported()
        left = self._in_order(self._left(cover))
        if not left:
            return

        def asking(call: Call[Array]) -> Sequence[Array] | None:
            """Ask the backend; what is explained is nothing more to explain, and as if right."""
            returned = asked(call)
            if returned and any(returns(it.mistake, call, returned) for it in cover):
                return evaluate(call)
            return returned

        self._tell("what failing cases have in common")
        samples: list[Sample] = []
        for seen in (*left, *self._read_passed(), *self._in_order(self._all.difference(left))):
            returned = seen.returned if len(samples) < len(left) else None
            samples.append(sample(seen.call, seen.right, returned))
        words, says = failure_condition(samples, asking if ask else None)
        if says is not None:
            left = [seen for seen, it in zip(left, samples, strict=False) if says(it)]
        self._ground = (words, frozenset(left) if words else frozenset())

    def _contradicted(
        self, cover: Sequence[_Found], ask: Callable[[Call[Array]], Sequence[Array] | None] | None
    ) -> frozenset[str]:
        """Return the names of the first mistakes of a cover that further inputs speak against."""
        for found in cover:
            if found.mistake.rounds:
                if not self._rounds_alike(found):
                    return frozenset(found.names)
                continue
            # What is computed in a coarser type may come out right by another order.
            if ask is None or found.mistake.precision is not None:
                continue
            counts = Counter(self._put(found, cover, ask))
            total, wrong = counts.total(), counts["alike"] + counts["other"]
            if counts["right"] > _MOST_RIGHT * total or counts["alike"] < _LEAST_ALIKE * wrong:
                return frozenset(found.names)
        return frozenset()

    def _put(
        self,
        found: _Found,
        cover: Sequence[_Found],
        ask: Callable[[Call[Array]], Sequence[Array] | None],
    ) -> Iterator[str]:
        """Yield how a backend does on inputs that a mistake gets wrong: right, alike or other."""
        random = Random(0)  # noqa: S311 - no secret
        bases = [it.call for it in (*self._in_order(found.cases), *self._right)]
        left = _PUT_SAMPLES
        for _ in range(_DRAWN_SAMPLES):
            call = further(random, random.choice(bases), (1, 1, 2, 3))
            mistaken = found.mistake.run(call) if call else []
            if call is None or not mistaken:
                continue
            right = [it.branch for it in bound(call)]
            if not _is_wrong(right, mistaken):
                continue
            returned = ask(call)
            if returned is None:
                continue
            left -= 1
            if not _is_wrong(right, returned):
                yield "right"
            else:
                alike = any(returns(it.mistake, call, returned) for it in cover)
                yield "alike" if alike else "other"
            if not left:
                return

    def _rounds_alike(self, found: _Found) -> bool:
        """Tell whether what a backend returned is nearer to a mistake than to what is right.

        The limits of a mistake that rounds are as wide as what its roundings change.
        """
        shares: list[float] = []
        for seen in self._in_order(found.cases):
            for right, mine, theirs in zip(
                seen.right, found.mistake.run(seen.call), seen.returned, strict=False
            ):
                if mine.shape != theirs.shape:
                    continue
                wrong = right.wrong(theirs) & np.isfinite(theirs) & np.isfinite(mine)
                wide, other = (it[wrong].astype(np.float64) for it in (theirs, mine))
                off = np.abs(wide - right.expected[wrong])
                shares += (np.abs(wide - other) / off).tolist()
        return not shares or float(np.median(shares)) <= 0.5  # noqa: PLR2004 - nearer

    def explanation(self, stopped: str) -> Explanation | None:
        """Return what the search has found; None if there was nothing to look for.

        Args:
            stopped: says when the search was stopped, if it was.
        """
        if not self._began:
            failing = Counter(str(it.outcome) for it in self.results if it.failing)
            others = {"not tried": failing}
            note = f"{UNEXPLAINED}, {stopped}"
            return Explanation(self.backend, self.operator.name, (), others, note, False)
        of_nodes = tuple(
            Cause(f"the lowered model's node {it.operator} is wrong: {it.shows}", tuple(cases))
            for it, cases in self._of_nodes.items()
        )
        if not self._wrong:
            others = {"not tried": +self._untried} if self._untried else {}
            note = "each node was run alone" if of_nodes else ""
            return (
                Explanation(self.backend, self.operator.name, of_nodes, others, note)
                if of_nodes
                else None
            )
        cover = self._supported()
        causes, errors = self._causes(cover)
        left = self._left(cover)
        words, common = self._ground
        if common:
            causes = (*causes, Cause(words, _ids(self._in_order(common))))
            left -= common
        others = {UNEXPLAINED: Counter({"fail": len(left)})} if left else {}
        if cover:
            others |= {"not reproduced": errors, "not tried": self._untried}
        else:
            others["not tried"] = self._untried + errors
        if cover:
            note = "" if self._complete else f"{stopped}, not all others tried"
        elif common:
            note = "no known mistake, nor two at once, does that"
            if not self._complete:
                note = f"{stopped}, not all known mistakes tried"
        elif self._complete:
            note = "none of the known mistakes, nor two of them, reproduces"
        elif self._tried_alone:
            note = f"{stopped}, before all pairs of mistakes were tried; no single one reproduces"
        else:
            note = f"{stopped}, before all known mistakes were tried; none so far reproduces"
        causes = (*of_nodes, *causes)
        return Explanation(self.backend, self.operator.name, causes, others, note, self._complete)

    def _read_failing(self) -> Iterator[None]:
        """Read the cases that failed, and count those that nothing can be tried on."""
        self._tell("reading failing cases")
        accounted = {case for cases in self._of_nodes.values() for case in cases}
        for result in filter(attrgetter("failing"), self.results):
            if result.case in accounted:
                continue
            seen: Observation | str = str(result.outcome)
            if _elements(result) > _MOST_ELEMENTS:
                seen = "large"
            elif result.outcome in (Outcome.FAIL, Outcome.ERROR):
                seen = self._evidence(result)
            if isinstance(seen, str):
                self._untried[seen] += 1
            else:
                (self._wrong if seen.returned else self._refused).append(seen)
            yield
        # Small cases first: they cost least.
        self._wrong.sort(key=lambda it: it.call.size)

    def _evidence(self, result: Result) -> Observation | str:
        seen = observe(result, self.cases.get(result.case), self.judging)
        strange = isinstance(seen, Observation) and seen.call.operator is not self.operator
        return "without formula" if strange else seen

    def _try(
        self, trial: _Found, cases: Iterable[Observation], first: int = _FIRST
    ) -> Iterator[None]:
        """Take note of what reproduces failing cases, and agrees with those that passed.

        Args:
            trial: the mistakes.
            cases: failing cases of which they must reproduce some.
            first: how many of these are looked at; the others only if one of them is reproduced.
        """
        found = []
        # Where something reproduces everything, only its equals are worth naming beside it.
        whole = any(len(it.cases) == len(self._wrong) for it in self._found)
        few = self._few(self._in_order(cases), first)
        for seen in (*few, *self._in_order(self._all.difference(few))):
            if reproduces(trial.mistake, seen, self.judging):
                found.append(seen)
            elif whole:
                return
            elif seen is few[-1] and not found:
                break
            yield
        if found and (yield from self._agrees(trial.mistake)):
            self._found.append(replace(trial, cases=frozenset(found)))

    def _few(self, cases: Sequence[Observation], count: int) -> Sequence[Observation]:
        """Return a few cases: what reproduces none of them, is not tried on others.

        They are of all sorts in the smaller half, where a case costs least.
        """
        small = cases[: max(count, len(cases) // 2)]
        return small[:: -(-len(small) // count)]

    def _agrees(
        self, mistake: Implementation, most: int | None = None
    ) -> Generator[None, None, bool]:
        """Tell whether a mistake fails nothing that the backend has passed."""
        for seen in islice(self._read_passed(), most):
            if not agrees_with(mistake, seen, self.judging):
                return False
            yield
        return True

    def _read_passed(self) -> Iterator[Observation]:
        """Yield the cases that passed and that something can be tried on."""
        yield from self._right
        while self._passed:
            seen = self._evidence(self._passed.pop(0))
            if isinstance(seen, Observation):
                self._right.append(seen)
                yield seen

    def _in_order(self, cases: Iterable[Observation]) -> list[Observation]:
        """Return some of the wrong cases, the smallest first."""
        chosen = frozenset(cases)
        return [it for it in self._wrong if it in chosen]

    def _left(self, found: Iterable[_Found]) -> frozenset[Observation]:
        """Return the wrong cases that none of these reproduces."""
        return self._all.difference(*(it.cases for it in found))

    def _cover(self, without: frozenset[str] = frozenset()) -> list[_Found]:
        """Return few mistakes that reproduce as many cases as all do, the largest share first.

        Each has the cases that no earlier one has. Of equal ones the first is taken that has the
        fewest parts, rounds least, and refuses most of what the backend refused.
        """
        cover: list[_Found] = []
        left = self._all
        usable = [it for it in self._found if not without.intersection(it.names)]
        while best := max((len(it.cases & left) for it in usable), default=0):
            alike = [it for it in usable if len(it.cases & left) == best]
            chosen = min(alike, key=self._cost)
            cover.append(replace(chosen, cases=chosen.cases & left))
            left -= chosen.cases
        return cover

    def _cost(self, found: _Found) -> tuple[int, bool, int]:
        refused = sum(refuses(found.mistake, it) for it in self._refused)
        rounds = found.mistake.rounds or found.mistake.precision is not None
        return len(found.names), rounds, -refused

    def _supported(self) -> list[_Found]:
        """Return the cover without mistakes that most cases speak against.

        A mistake is always there: where it has an effect, it should be in what reproduces the case.
        """
        without: frozenset[str] = frozenset()
        while True:
            cover = self._cover(without)
            doubtful = {name for it in cover for name in it.names if not self._shows(name)}
            if not doubtful:
                left = len(self._left(cover))
                return cover if left <= _CHANCE * (len(self._wrong) - left) else []
            without |= doubtful

    def _shows(self, name: str) -> bool:
        mine = [it for it in self._found if name in it.names]
        not_alone = self._left(it for it in mine if len(it.names) == 1)
        if 2 * len(not_alone) <= len(self._wrong):
            # All of these are affected.
            return True
        having = self._all - self._left(mine)
        run = next(it.mistake.run for it in self._possible if it.names == (name,))
        affected = {it for it in self._wrong if not conforms(run(it.call), it, self.judging)}
        return 2 * len(having & affected) >= len(affected)

    def _causes(self, cover: Sequence[_Found]) -> tuple[tuple[Cause, ...], Counter[str]]:
        """Return what a cover says, and the errors that nothing in it accounts for."""
        causes: list[Cause] = []
        errors = list(self._refused)

        def add(words: str, found: _Found) -> None:
            mine = [seen for seen in errors if refuses(found.mistake, seen)]
            errors[:] = [seen for seen in errors if seen not in mine]
            causes.append(Cause(words, _ids([*self._in_order(found.cases), *mine]), found.names))

        for it in cover:
            words, seen_in = " and ".join(map(repr, it.names)), it.mistake.seen_in
            known = f", as in {some_of(seen_in, _SEEN)}" if seen_in else ""
            add(words + known + self._alike(it), it)
        if cover and (refusing := self._refusing(errors)):
            add(repr(*refusing.names), refusing)
        return tuple(causes), +Counter({str(Outcome.ERROR): len(errors)})

    def _alike(self, found: _Found) -> str:
        """Say how many other mistakes do the same in the failing cases."""
        same = [
            it.mistake
            for it in self._found
            if it.names != found.names
            and len(it.names) == len(found.names)
            and it.mistake.precision is found.mistake.precision
            and found.cases <= it.cases
        ]
        others = len(distinct(self.operator, [found.mistake, *same[:_ALIKE]])) - 1
        return f" (or {others} more that do the same here)" if others and self._complete else ""

    def _refusing(self, errors: Sequence[Observation]) -> _Found | None:
        """Return the mistake that refuses most of what the backend refused, and nothing else."""
        counts = [(sum(refuses(it.mistake, seen) for seen in errors), it) for it in self._possible]
        for count, trial in sorted(counts, key=itemgetter(0), reverse=True):
            mistake = trial.mistake
            if count <= 1 or any(refuses(mistake, seen) for seen in self._wrong):
                continue
            if all(agrees_with(mistake, seen, self.judging) for seen in self._read_passed()):
                return trial
        return None


def _ids(seen: Iterable[Observation]) -> tuple[str, ...]:
    return tuple(it.case for it in seen)


def _is_wrong(right: Sequence[Branch], outputs: Sequence[Array]) -> bool:
    """Tell whether outputs are not those of a node, in structure or in values."""
    return len(outputs) != len(right) or any(
        (it.expected.dtype, it.expected.shape) != (output.dtype, output.shape)
        or bool(it.wrong(output).any())
        for it, output in zip(right, outputs, strict=True)
    )


def _is_right(result: Result) -> bool:
    """Tell whether a backend returned what is right, whatever else it did."""
    values = bool(result.diffs) and not result.wrong
    return result.outcome is Outcome.PASS or values


def _elements(result: Result) -> int:
    return sum(diff.elements for diff in result.diffs)

"""The settings of ``onnxopt run`` and ``onnxopt locate``.

Settings that are passed on together, such as the limits of a worker, form a group. To add a
setting, declare it in this module; no other module has to change. The help lists the settings in
the order of their declarations.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any

from onnxopt_cli.config.settings import (
    File,
    Flag,
    JobCount,
    Number,
    OneOf,
    Settings,
    Size,
    Text,
    group,
    setting,
)
from onnxopt_cli.errors import UsageError

#: The default ratio of a derived tolerance to the error bound.
FACTOR = 4.0
#: Describes the default limits of the searches for causes, for the help of ``--explain-time``.
EXPLAIN_TIME_DEFAULTS = (
    "[default: 5 or, if longer, a fifth of the run for known mistakes; 12 for each operator for "
    "other causes; 60 for each operator without a formula, 120 for all of them]"
)
#: The report formats. For each format, the module in ``report/``, which is imported on first use,
#: and the function of this module that renders a run.
REPORT_FORMATS = {
    "json": ("saved_run", "json_report"),
    "junit": ("junit", "junit_report"),
    "xunit": ("junit", "xunit_report"),
    "markdown": ("markdown", "markdown_report"),
    "github": ("github", "github_report"),
    "badge": ("badge", "badge_report"),
    "html": ("html", "html_report"),
}
_SECONDS = Number(beyond=True, most=1e6)
_COUNT = Number(least=1, whole=True)
_MAX_JOBS = 1024
_MAX_SHARDS = 1_000_000
# Settings that select cases, backends or expectations. In a resumed or merged run, they may be
# written in another way, as long as the selected cases, backends and expectations agree.
_COMPARED: dict[str, Any] = {"may_differ": True, "from_log": True}
# Settings that may change a verdict.
_VERDICTS: dict[str, Any] = {"from_log": True, "repeated": True}


class Isolation(StrEnum):
    """The processes in which backends run."""

    PROCESS = "process"
    NONE = "none"


class LoweringMode(StrEnum):
    """When a backend receives primitive operators in place of the operators that have a formula."""

    AUTO = "auto"
    NEVER = "never"
    ALWAYS = "always"


class ToleranceRule(StrEnum):
    """A rule for all tolerances. The rule takes precedence over the tolerances that cases state."""

    CONDITIONED = "conditioned"
    DERIVED = "derived"
    ONNX = "onnx"


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` of ``count`` parts of the cases; the first part has the index 1.

    The part to which a case belongs depends only on the id of the case. Therefore, adding or
    removing cases moves no other case to another part.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``I/N``.

        Raises:
            UsageError: if the text is not two whole numbers with 1 <= I <= N.
        """
        numbers = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
        if numbers is None:
            raise UsageError(f"--shard takes I/N, as in 1/4, not {text!r}")
        return cls(*map(int, numbers.groups()))

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: if the index or the count is out of range.
        """
        if not 1 <= self.index <= self.count <= _MAX_SHARDS:
            shard = f"{self.index}/{self.count}"
            raise UsageError(f"invalid --shard {shard}: expected 1 <= I <= N <= {_MAX_SHARDS}")

    def holds(self, case: str) -> bool:
        """Return whether the case with the given id belongs to the shard."""
        name = case.encode("utf-8", "surrogatepass")
        digest = blake2b(name, digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.count == self.index - 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class _ShardText(Text):
    """A shard in the form I/N."""

    __slots__ = ()

    def check(self, value: object) -> Any:
        if isinstance(value, Shard):
            return value
        if not isinstance(value, str):
            raise ValueError("I/N")  # noqa: TRY004 - one error for all wrong values
        return Shard.parse(value)


@dataclass(frozen=True)
class ModelInputs(Settings):
    """The inputs of a model file without test data.

    Attributes:
        inputs: a directory with ``input_<i>.pb``, or a .npz, .npy or .pb file; None for random
            inputs.
        dims: sizes of symbolic dimensions, each ``NAME=SIZE``.
        seed: the seed from which inputs are drawn.
    """

    inputs: Path | None = setting(
        None,
        "--inputs PATH",
        "Inputs of a model file: a data set directory, .npz, .npy or .pb.  "
        "[default: random, with the declared types and shapes]",
        File(exists=True),
        **_VERDICTS,
    )
    dims: tuple[str, ...] = setting(
        (),
        "--dim NAME=SIZE",
        "Size of a symbolic dimension of a model file; INPUT:AXIS if it has no name. "
        "May be given several times.",
        many=True,
        **_VERDICTS,
    )
    seed: int = setting(
        0,
        "--seed N",
        "Seed of the inputs of a model file.",
        Number(whole=True, most=2**32 - 1),
        **_VERDICTS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sizes  # noqa: B018 - raises an error for an invalid size

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of symbolic dimensions by name.

        Raises:
            UsageError: if a size is invalid.
        """
        sizes: dict[str, int] = {}
        for text in self.dims:
            name, _, size = text.rpartition("=")
            if not (name and re.fullmatch(r"[1-9]\d{0,9}", size, re.ASCII)):
                raise UsageError(f"invalid --dim {text}: expected NAME=SIZE, SIZE at least 1")
            if sizes.setdefault(name, int(size)) != int(size):
                raise UsageError(f"two sizes for --dim {name}: {sizes[name]} and {size}")
        return sizes


#: The inputs of a model file, drawn from the default seed.
DRAWN_INPUTS = ModelInputs()


@dataclass(frozen=True)
class Filters(Settings):
    """The filters that select cases; a selected case passes all filters.

    Attributes:
        patterns: patterns of ids; the case must match one of them. A pattern is the whole id of a
            case, a glob, or a part of an id (without ``*?[``). Patterns can be combined by ``and``,
            ``or``, ``not`` and parentheses.
        operators: names of operators; the model must contain one of them.
        tags: tags; the case must have one of them.
        without: capabilities that the case must not need.
    """

    patterns: tuple[str, ...] = setting(
        (),
        "-k PATTERN",
        "Only cases whose id matches PATTERN: an id, a part of an id, a glob, or an expression "
        "such as 'adam and not (double or T_0)'. If given several times, one matching pattern "
        "suffices.",
        Text("pattern"),
        many=True,
        **_COMPARED,
    )
    operators: tuple[str, ...] = setting(
        (),
        "--operator NAME",
        "Only cases whose model contains this operator. If given several times, one of the "
        "operators suffices.",
        Text("operator"),
        many=True,
        **_COMPARED,
    )
    tags: tuple[str, ...] = setting(
        (),
        "--tag TAG",
        "Only cases with this tag. If given several times, one of the tags suffices.",
        many=True,
        **_COMPARED,
    )
    without: tuple[str, ...] = setting(
        (),
        "--without CAPABILITY",
        "Leave out cases that need this capability: double, many-tensors, ... May be given several "
        "times.",
        Text("capability"),
        many=True,
        from_log=True,
    )


@dataclass(frozen=True)
class Limits(Settings):
    """Limits of a backend's processes.

    Attributes:
        timeout: maximum time of a case in seconds.
        startup_timeout: maximum time in seconds for the start of a backend.
        memory: maximum memory in bytes of a backend's process, and of all processes of a worker
            together; 0 for no limit. The values of a case in a case file must also fit into this
            memory.
    """

    timeout: float = setting(
        60.0, "--timeout SECONDS", "Time limit of a case.", _SECONDS, **_VERDICTS
    )
    startup_timeout: float = setting(
        60.0,
        "--startup-timeout SECONDS",
        "Time limit for a backend to start.",
        _SECONDS,
        **_VERDICTS,
    )
    memory: int = setting(
        4 << 30,
        "--memory SIZE",
        "Memory limit of a backend's process, and of a case from a case file; none for no limit.",
        Size(),
        **_VERDICTS,
    )


@dataclass(frozen=True)
class Execution(Settings):
    """How backends are run.

    Attributes:
        lowering: when operators with a formula are replaced by primitive operators.
        isolation: where backends run. With None, backends run in workers, but cases that ``numpy``
            computes by a formula run in this process.
        limits: limits of each worker.
        jobs: number of workers of each backend.
    """

    lowering: LoweringMode = setting(
        LoweringMode.AUTO,
        "--lower",
        "When to replace training operators by primitive ones.",
        OneOf(members=LoweringMode),
        **_VERDICTS,
    )
    isolation: Isolation | None = setting(
        None,
        "--isolation",
        "Run backends in processes of their own, or all of them in this process.  "
        "[default: process, but none for formulas that numpy computes]",
        OneOf(members=Isolation),
        # A log may come from another user and must not weaken isolation, so from_log is False.
        repeated=True,
    )
    limits: Limits = group(Limits)
    jobs: int = setting(
        1,
        "-j, --jobs N|auto",
        "Number of processes.",
        JobCount(least=1, most=_MAX_JOBS, whole=True),
        typed_default="auto",
        may_differ=True,
    )


@dataclass(frozen=True)
class ClusterConfig(Settings):
    """The cluster that runs the backends, if any.

    Attributes:
        cluster: ``local``, ``local:N``, the address of a scheduler, or the path of a scheduler
            file; None for no cluster.
        ship: files and folders to send to every worker.
        tls: files of the trusted certificates, of the client's certificate, and of its key; empty
            to use Dask's configuration.
        insecure: whether to connect to other machines without TLS.
    """

    cluster: str | None = setting(
        None,
        "--cluster WHERE",
        "Use the workers of a Dask cluster: local, local:N, tcp://HOST:PORT, tls://HOST:PORT "
        "or a scheduler file.",
        may_differ=True,
    )
    ship: tuple[Path, ...] = setting(
        (),
        "--ship PATH",
        "Send this file or folder to every worker. May be given several times.",
        File(exists=True),
        many=True,
        may_differ=True,
    )
    tls: tuple[Path, ...] = setting(
        (),
        "--tls CA CERT KEY",
        "PEM files: trusted certificates, client certificate, client key.  "
        "[default: Dask's configuration]",
        File(exists=True, folder=False),
        many=3,
        may_differ=True,
    )
    insecure: bool = setting(
        False, "--insecure", "Connect to other machines without TLS.", Flag(), may_differ=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cluster is None and (self.ship or self.tls or self.insecure):
            raise UsageError("--ship, --tls and --insecure require --cluster")


@dataclass(frozen=True)
class Judging(Settings):
    """How outputs are judged.

    A tolerance in the settings takes precedence over the tolerances of cases.

    Attributes:
        tolerance: the rule for the tolerances of all cases; None for the cases' tolerances.
        rtol: relative tolerance; None for the tolerances of the cases.
        atol: absolute tolerance; None for the tolerances of the cases.
        ulp: distance in ulp; None for the tolerances of the cases.
        error_bound: the ratio of a derived tolerance to the error bound.
        signed_zeros: whether 0.0 and -0.0 differ.
        examine: whether elements that are bitwise equal to their expected values can also count as
            inconclusive. ``examine`` has no option of its own; ``--verbose`` sets it to true.
    """

    tolerance: ToleranceRule | None = setting(
        None,
        "--tolerance",
        "Judge all cases by this rule instead of their own tolerances.",
        OneOf(members=ToleranceRule),
        **_VERDICTS,
    )
    rtol: float | None = setting(
        None, "--rtol", "Judge by this relative tolerance.", Number(), **_VERDICTS
    )
    atol: float | None = setting(
        None, "--atol", "Judge by this absolute tolerance.", Number(), **_VERDICTS
    )
    ulp: int | None = setting(
        None, "--ulp N", "Judge by this distance in ulp.", Number(whole=True), **_VERDICTS
    )
    error_bound: float = setting(
        FACTOR,
        "--error-bound FACTOR",
        "Multiple of the error bound that a derived tolerance allows.",
        Number(),
        **_VERDICTS,
    )
    signed_zeros: bool = setting(
        False, "--signed-zeros", "Treat 0.0 and -0.0 as different.", Flag(), **_VERDICTS
    )
    examine: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        alternatives = (
            (self.rtol, self.atol) != (None, None),
            self.ulp is not None,
            self.tolerance is not None,
        )
        if sum(alternatives) > 1:
            raise UsageError("--rtol and --atol, --ulp, and --tolerance exclude each other")


@dataclass(frozen=True)
class RunConfig(Settings):
    """The settings of a run.

    Attributes:
        targets: files, folders, suites and ids of cases; empty for the default.
        filters: filters of the cases of these targets.
        failed_only: whether to run only cases that failed in their last run in this folder.
        failed_first: whether cases that failed in their last run in this folder run before all
            other cases.
        shard: the part of the selected cases to run; None for all.
        model_inputs: the inputs of targets that are model files without test data.
        backends: the backends under test.
        execution: how backends are run.
        machines: the cluster on which backends run, if any.
        judging: how outputs are judged.
        expect: expectation files; a later file takes precedence over an earlier one.
        update_expect: the expectation file to update; None for none.
        max_fail: the run stops after this number of cases that do not conform; None for no limit.
        rerun: number of reruns of each case that does not conform; None for no reruns.
        log: the log to write; None for none.
        resume: the log to resume; None for none.
        verbose: whether to show every output.
        quiet: whether to show only failing cases and the summary.
        durations: number of the slowest cases to show; None for none.
        explain: whether to search for known mistakes that reproduce failures.
        explain_time: time limit in seconds for each of four searches: for known mistakes, for other
            causes, for causes in operators without a formula, and for the first wrong node. None
            for the default of each search, which is at least 5 s.
        reports: reports to write, each ``FORMAT=PATH``.
        label: text by which reports identify the version under test; None for no text.
        artifacts: the folder for failing cases as ONNX test directories; None for none.
    """

    targets: tuple[str, ...] = setting(
        (),
        "[PATH|SUITE|ID]...",
        "",
        Text("target"),
        many=True,
        section="Which cases",
        **_COMPARED,
    )
    filters: Filters = group(Filters)
    failed_only: bool = setting(
        False,
        "--lf",
        "Run only cases that failed when they last ran here.",
        Flag(),
        may_differ=True,
    )
    failed_first: bool = setting(
        False, "--ff", "Run previously failing cases first.", Flag(), may_differ=True
    )
    shard: Shard | None = setting(
        None,
        "--shard I/N",
        "Only part I of N of the cases; a hash of the id assigns a case to a part.",
        _ShardText(),
        **_COMPARED,
    )
    model_inputs: ModelInputs = group(ModelInputs)
    backends: tuple[str, ...] = setting(
        ("numpy",),
        "-b, --backend BACKEND",
        "What to test: numpy, onnxruntime, onnx-reference, python:MODULE:ATTRIBUTE, ..., with a "
        "name as in acme=python:.... May be given several times.",
        Text("backend"),
        many=True,
        section="Backends",
        **_COMPARED,
    )
    execution: Execution = group(Execution)
    machines: ClusterConfig = group(ClusterConfig, "Other machines")
    judging: Judging = group(Judging, "Judging")
    expect: tuple[Path, ...] = setting(
        (),
        "--expect FILE",
        "Expectation file; a later file takes precedence over an earlier one.",
        File(),
        many=True,
        section="Expectations",
        **_COMPARED,
    )
    update_expect: Path | None = setting(
        None,
        "--update-expect FILE",
        "Update an expectation file to the outcomes of this run; its earlier entries apply to the "
        "run, as with --expect.",
        File(),
        may_differ=True,
    )
    max_fail: int | None = setting(
        None,
        "--max-fail N",
        "Stop after this number of cases that do not conform.",
        _COUNT,
        section="Stopping and resuming",
        from_log=True,
        shorthand=("-x", 1, "Stop after the first case that does not conform."),
    )
    rerun: int | None = setting(
        None,
        "--rerun N",
        "Rerun each case that does not conform N times, to distinguish flaky from failing cases.",
        Number(least=1, most=1000, whole=True),
        from_log=True,
    )
    log: Path | None = setting(
        None,
        "--log FILE",
        "Write a log to this new file: each result as soon as it is available.",
        File(),
        may_differ=True,
    )
    resume: Path | None = setting(
        None,
        "--resume LOG",
        "Resume from a log; run only missing cases. Without targets, cases and settings are taken "
        "from the log, but a backend that is not built in must be given again.",
        File(),
        may_differ=True,
    )
    verbose: bool = setting(
        False,
        "-v, --verbose",
        "Show every output, and all details of each failure.",
        Flag(),
        section="Output",
        may_differ=True,
    )
    quiet: bool = setting(
        False,
        "-q, --quiet",
        "Show only which cases fail, and the summary.",
        Flag(),
        may_differ=True,
    )
    durations: int | None = setting(
        None,
        "--durations N",
        "Show the N cases that took the backends longest.",
        _COUNT,
        may_differ=True,
    )
    explain: bool = setting(
        True,
        "--explain/--no-explain",
        "Look for a known mistake that reproduces the failures.",
        Flag(),
        may_differ=True,
    )
    explain_time: float | None = setting(
        None,
        "--explain-time SECONDS",
        "Limit of each search: for known mistakes, for other causes, for causes in operators "
        "without a formula, and for the first wrong node. Counts the processor time of the search "
        f"and the time of the backends.  {EXPLAIN_TIME_DEFAULTS[:-1]}; 10 for the first wrong "
        "node]",
        Number(most=1e6),
        may_differ=True,
    )
    reports: tuple[str, ...] = setting(
        (),
        "--report FORMAT=PATH",
        f"Also write the results; FORMAT is one of {', '.join(REPORT_FORMATS)}; PATH may be - for "
        "standard output.",
        Text("report"),
        many=True,
        may_differ=True,
    )
    label: str | None = setting(
        None,
        "--label TEXT",
        "Text that identifies the version under test in reports, such as a commit.",
        Text(),
        may_differ=True,
    )
    artifacts: Path | None = setting(
        None,
        "--artifacts DIR",
        "Write each failing case as an ONNX test directory, with the outputs of the backend.",
        File(),
        may_differ=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shard and self.update_expect:
            raise UsageError("--update-expect requires a whole run, but --shard runs a part of it")
        if self.log and self.resume and not _is_same(self.log, self.resume):
            raise UsageError("--resume appends to the log that it reads; --log names another file")
        if self.verbose and not self.judging.examine:
            object.__setattr__(self, "judging", replace(self.judging, examine=True))

    @property
    def log_file(self) -> Path | None:
        """The log that the run writes, whether new or resumed."""
        return self.resume or self.log

    def expectation_files(self) -> tuple[Path, ...]:
        """Return the expectation files to read.

        The last of them is the expectation file to update, if this file exists.
        """
        update = self.update_expect
        if update is None:
            return self.expect
        other_files = [path for path in self.expect if not _is_same(path, update)]
        return (*other_files, update) if update.exists() else (*other_files,)


@dataclass(frozen=True)
class LocateConfig(Settings):
    """The settings of the search for the wrong node of a model.

    Attributes:
        backends: the backends under test.
        filters: filters of the target's cases; exactly one case must remain.
        model_inputs: the inputs of a model file without test data.
        execution: how backends are run.
        judging: how outputs are judged.
        output: the folder for test directories that reproduce the findings.
        json: the file for the result; None for none.
        html: the page with the graph around each wrong node; None for none.
    """

    backends: tuple[str, ...] = setting(
        (),
        "-b, --backend BACKEND",
        "The backend to test, as for onnxopt run. May be given several times.",
        Text("backend"),
        many=True,
    )
    filters: Filters = group(Filters)
    model_inputs: ModelInputs = group(ModelInputs)
    execution: Execution = group(Execution)
    judging: Judging = group(Judging)
    output: Path = setting(
        Path("located"), "-o, --output DIR", "Folder for the test directories of findings.", File()
    )
    json: Path | None = setting(
        None, "--json FILE", "Also write the result as JSON; - for standard output.", File()
    )
    html: Path | None = setting(
        None, "--html FILE", "Also write a page with the graph around each wrong node.", File()
    )


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)

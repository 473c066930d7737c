"""The commit and the job of a run on a CI server, from the variables that servers document.

Sources: https://docs.github.com/actions/reference/workflows-and-actions/variables,
https://docs.gitlab.com/ci/variables/predefined_variables, https://circleci.com/docs/variables,
https://learn.microsoft.com/azure/devops/pipelines/build/variables,
https://buildkite.com/docs/pipelines/configure/environment-variables,
https://www.jenkins.io/doc/book/pipeline/jenkinsfile/#using-environment-variables
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_COMMITS = (
    "GITHUB_SHA",
    "CI_COMMIT_SHA",
    "CIRCLE_SHA1",
    "BUILD_SOURCEVERSION",
    "BUILDKITE_COMMIT",
    "GIT_COMMIT",
)
_BRANCHES = (
    "GITHUB_REF_NAME",
    "CI_COMMIT_REF_NAME",
    "CIRCLE_BRANCH",
    "BUILD_SOURCEBRANCHNAME",
    "BUILDKITE_BRANCH",
    "GIT_BRANCH",
)
_JOBS = ("CI_JOB_URL", "CIRCLE_BUILD_URL", "BUILDKITE_BUILD_URL", "BUILD_URL")
_MAX_VALUE_CHARS = 300


def ci_origin(environment: Mapping[str, str]) -> dict[str, str]:
    """Return commit, branch and job of the run, as far as the environment states them."""

    def first_of(names: Iterable[str]) -> str:
        return next(filter(None, map(environment.get, names)), None) or ""

    origin = {
        "commit": first_of(_COMMITS),
        "branch": first_of(_BRANCHES),
        "job": first_of(_JOBS),
    }
    server, repository, run = map(
        environment.get, ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    )
    if not origin["job"] and server and repository and run:
        origin["job"] = f"{server}/{repository}/actions/runs/{run}"
    return {name: value[:_MAX_VALUE_CHARS] for name, value in origin.items() if value}

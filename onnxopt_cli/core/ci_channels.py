"""Withhold the environment variables through which a step of a CI job controls the job.

These variables name files and contain tokens. With them, a backend could set ``PATH`` for the next
step, write the job's summary, or request a signature from the server. Backends do not need the
variables. The module is not a security boundary: a backend that runs as the same user may find the
files in other ways.

Sources: https://docs.github.com/actions/reference/workflows-and-actions/variables,
https://docs.gitlab.com/ci/variables/predefined_variables, https://circleci.com/docs/variables,
https://learn.microsoft.com/azure/devops/pipelines/build/variables,
https://buildkite.com/docs/pipelines/configure/environment-variables,
https://cirrus-ci.org/guide/writing-tasks, https://support.atlassian.com/bitbucket-cloud/docs,
https://docs.drone.io/pipeline/environment, https://forgejo.org/docs/latest/user/actions,
https://docs.codemagic.io, https://docs.bitrise.io, https://cloud.google.com/build/docs
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SUMMARY = "GITHUB_STEP_SUMMARY"
# Names of the variables with paths of files that the CI server reads after the step has ended.
_FILES = re.compile(
    r"(GITHUB|GITEA|FORGEJO|GITLAB|CIRRUS)_(ENV|PATH|OUTPUT|STATE|STEP_SUMMARY)"
    r"|BASH_ENV|BITBUCKET_PIPELINES_VARIABLES_PATH|BUILDER_OUTPUT|BUILDKITE_ENV_FILE|CM_ENV"
    r"|DRONE_CARD_PATH|DRONE_OUTPUT|ENVMAN_ENVSTORE_PATH|PLUGIN_OUTPUT_FILE"
    r"|TEAMCITY_BUILD_PROPERTIES_FILE"
)
# Names of the variables with addresses of the CI server or with credentials.
_ACCESS = re.compile(
    r"ACTIONS_\w*(URL|TOKEN)"
    r"|(GH|GITHUB|GITEA|FORGEJO|CI|GITLAB|CIRCLE|BUILDKITE|BITBUCKET|SYSTEM|AZP|VSTS|AGENT|APPVEYOR"
    r"|CIRRUS|DRONE|HARNESS|SEMAPHORE|TRAVIS|TEAMCITY|JENKINS|CODEBUILD|WOODPECKER)"
    r"_(\w*_)?(\w*TOKEN\w*|JWT\w*|PASSWORD|SECRET\w*|NETRC\w*|API_URL)"
    r"|SYSTEM_ACCESSTOKEN|CI_REPOSITORY_URL|CI_SERVER_TLS_KEY_FILE|BITBUCKET_SSH_KEY_FILE"
)

_withheld: dict[str, str] = {}


def without_ci_channels(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a backend, without the variables that control a CI job."""
    return {name: value for name, value in environment.items() if not _is_channel(name)}


def withhold_ci_channels() -> None:
    """Remove the variables that control a CI job from the environment of this process."""
    for name in filter(_is_channel, list(os.environ)):
        _withheld[name] = os.environ.pop(name)


def step_summary() -> str:
    """Return the path of the file for the summary of a step on GitHub; empty on other servers."""
    return os.environ.get(_SUMMARY) or _withheld.get(_SUMMARY, "")


def _is_channel(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_FILES, _ACCESS))

"""Backends cannot use the channels by which a step of a CI job affects later steps."""

from __future__ import annotations

import sys

import pytest
from isolated import run_to_end, write_cases

from onnxopt_cli.core.ci_channels import without_ci_channels

CHANNELS = (
    "GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STATE", "GITHUB_STEP_SUMMARY",
    "GITHUB_TOKEN", "GH_TOKEN", "ACTIONS_RUNTIME_TOKEN", "ACTIONS_RUNTIME_URL",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_RESULTS_URL", "ACTIONS_CACHE_URL", "BASH_ENV",
    "CI_JOB_TOKEN", "CI_JOB_JWT_V2", "CI_REGISTRY_PASSWORD", "CI_REPOSITORY_URL",
    "SYSTEM_ACCESSTOKEN", "CIRCLE_TOKEN",
    "CIRCLE_OIDC_TOKEN_V2", "BUILDKITE_ENV_FILE", "BUILDKITE_AGENT_ACCESS_TOKEN", "CIRRUS_ENV",
    "BITBUCKET_STEP_OIDC_TOKEN", "DRONE_OUTPUT", "APPVEYOR_API_URL",
    "TEAMCITY_BUILD_PROPERTIES_FILE", "GITLAB_ENV", "FORGEJO_ENV", "FORGEJO_STEP_SUMMARY",
    "CM_ENV", "ENVMAN_ENVSTORE_PATH", "BUILDER_OUTPUT", "CI_SERVER_TLS_KEY_FILE",
    "BITBUCKET_SSH_KEY_FILE",
)  # fmt: skip
KEPT_VARIABLES = (
    "PATH", "HOME", "LD_LIBRARY_PATH", "CI", "GITHUB_ACTIONS", "GITHUB_WORKSPACE", "GITHUB_SHA",
    "RUNNER_TEMP", "CUDA_VISIBLE_DEVICES", "HF_TOKEN", "CIRCLE_SHA1", "SYSTEM_TEAMPROJECT",
    "BUILDKITE_BUILD_NUMBER",
)  # fmt: skip
TELLS = """\
import os, pathlib
from onnxopt_cli.backends.resolve import resolve_backend
pathlib.Path(__file__).with_name("seen").write_text("\\n".join(os.environ))

class Tells:
    def run(self, model, inputs):
        return resolve_backend("numpy").prepare(model).run(inputs)
"""
COMMAND = '#!/bin/sh\nenv | cut -d= -f1 > "$(dirname "$0")/seen"\n'


def test_only_channels_and_tokens_of_ci_servers_are_removed():
    environment = dict.fromkeys((*CHANNELS, *KEPT_VARIABLES), "x")
    assert without_ci_channels(environment).keys() == set(KEPT_VARIABLES)


@pytest.mark.skipif(sys.platform == "win32", reason="needs /bin/sh")
@pytest.mark.parametrize("isolation", ["process", "none"])
@pytest.mark.parametrize("backend", ["python:{}/tells.py:Tells", "exec:{}/tells"])
def test_backends_do_not_see_ci_channels_and_summary_is_written(
    tmp_path, monkeypatch, isolation, backend
):
    (tmp_path / "tells.py").write_text(TELLS)
    (tmp_path / "tells").write_text(COMMAND)
    (tmp_path / "tells").chmod(0o755)
    for name in CHANNELS:
        monkeypatch.setenv(name, str(tmp_path / name))
    write_cases(tmp_path, {"good": 0.25})
    run = run_to_end(tmp_path, backend.format(tmp_path), "--isolation", isolation)
    variables = (tmp_path / "seen").read_text().split("\n")
    assert "PATH" in variables
    assert not set(variables) & set(CHANNELS)
    assert (tmp_path / "GITHUB_STEP_SUMMARY").exists() is (run.code == 0)

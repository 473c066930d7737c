"""The script fuzz_files.py detects each kind of violation."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from places import REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the script forks")

# The script tries each mutated file in a folder whose name is a number. The number selects the
# injected defect.
INJECTED = """
import os, sys, time
sys.path.insert(0, "scripts")
import fuzz_files

def defective(arguments):
    number, is_run = os.path.basename(os.getcwd()), arguments[0] == "run"
    if number == "0":
        raise RuntimeError("injected")
    if number == "1" and is_run:
        print("internal error: injected")
        sys.exit(3)
    if number == "2":
        print("invalid: somewhere in some file")
        sys.exit(2)
    if number == "3" and is_run:
        bytearray(b"x") * fuzz_files._MEMORY_BYTES
    if number == "4" and is_run:
        time.sleep(1.5 * fuzz_files._SECONDS)
    if number == "5":
        print("\\x1b[31m")
    if number == "6" and is_run:
        os.abort()
    if number == "7":
        print("invalid fuzz/case.yaml:3: as it should be")
        sys.exit(2)
    sys.exit(0)

fuzz_files.onnxopt = defective
fuzz_files._warm_up = lambda work: None
fuzz_files._SECONDS, fuzz_files._MEMORY_BYTES = 2, 1 << 28
sys.argv = ["fuzz_files.py", "--count", "9", "--jobs", "1"]
sys.exit(fuzz_files.main())
"""


@pytest.mark.slow
def test_every_violation_is_reported_and_nothing_else():
    done = subprocess.run(
        [sys.executable, "-c", INJECTED],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = re.findall(r"^violation: input (\d): (.*)$", done.stdout, re.MULTILINE)
    violations = [(number, re.sub(r"[\d.]+", "_", message)) for number, message in lines]
    assert violations == [
        ("0", "list reported an internal error"),
        ("0", "list exited with -_"),
        ("0", "run reported an internal error"),
        ("0", "run exited with -_"),
        ("1", "run reported an internal error"),
        ("1", "run exited with _"),
        ("2", "list names no file and line"),
        ("2", "run names no file and line"),
        ("3", "took _ MiB"),
        ("4", "took _ s, _ s of them computing"),
        ("5", "list printed a control character"),
        ("5", "run printed a control character"),
        ("6", "the process died with status _"),
    ]
    assert done.returncode == 1

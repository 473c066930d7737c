"""Backends with a planted mistake, and whether the search finds it, shrinks it and keeps it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest
import yaml
from places import PLUGINS

PLANTED = PLUGINS / "planted.py"
COUNTS = """
from pathlib import Path
from onnxopt_cli.backends.resolve import resolve_backend

class Counts:
    def run(self, model, inputs):
        with Path("count").open("a") as file:
            file.write(".")
        return resolve_backend("numpy").prepare(model).run(inputs)
"""


def planted(name):
    return f"python:{PLANTED}:{name}"


def kept(folder):
    """Return the only case of each kept file, by the file's stem."""
    files = sorted(Path(folder).glob("*.yaml"))
    return {path.stem: yaml.safe_load(path.read_text())["cases"][0] for path in files}


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


@pytest.fixture
def fuzz(onnxopt, workplace):
    def call(backend, *options, explain=False):
        # Explaining takes longer than all the rest.
        if not explain:
            options = (*options, "--no-explain")
        return onnxopt("fuzz", "-b", backend, "--operator", "Momentum", *options)

    return call


def test_shards_share_the_examples_and_each_finds_what_its_own_show(fuzz):
    tried = []
    for part in ("1/2", "2/2"):
        answer = fuzz(planted("WrongBeyondFive"), "--isolation", "none", "--examples", "280",
                      "--shard", part, "-o", part[0])  # fmt: skip
        tried += map(int, re.findall(r"in (\d+) examples", answer.out))
        assert answer.code == 1
        assert kept(part[0])["momentum_wrong_numbers"]["inputs"]["T"] == 6
    # What has to be refused is tried by the first.
    assert sum(tried) == 280
    assert tried[0] > tried[1] > 0
    assert fuzz("numpy", "--shard", "3/2").code == 2


def test_numbers_that_are_wrong_beyond_a_count_shrink_to_that_count(fuzz, onnxopt):
    backend = planted("WrongBeyondFive")
    answer = fuzz(backend, "--isolation", "none", "--examples", "40", explain=True)
    assert answer.code == 1, answer.text
    assert "fail Momentum  X_new: 1 of 1 element is off" in answer.out
    assert "known mistakes, nor two of them, reproduces 2 of 2 failing cases" in answer.out
    assert "1 distinct failure in 40 examples, seed 0" in answer.out
    (found,) = kept("fuzz").values()
    assert found["inputs"] == {"R": 1.0, "T": 6, "X": 0.0, "G": 0.0, "V": 0.0}
    assert found["about"].startswith("Found by fuzzing: X_new: 1 of 1 element is off: ")
    assert found["source"] == f"onnxopt fuzz --operator Momentum -b {backend} --seed 0"
    again = onnxopt("run", "fuzz", "-b", backend, "--isolation", "none", "--no-explain")
    assert again.code == 1
    assert "X_new  float32[]  1 of 1 off" in again.out


def test_findings_are_not_explained_where_nobody_asks_for_it(fuzz):
    run = (planted("WrongType"), "--isolation", "none", "--examples", "20")
    for option in (["--no-explain"], ["--explain-time", "0"]):
        answer = fuzz(*run, *option, explain=True)
        assert "X_new is float64[], expected float32[]; V_new is float64[]" in answer.out
        assert "consistent" not in answer.out


def test_an_operator_can_be_left_out(onnxopt, workplace):
    run = ("fuzz", "-b", planted("WrongType"), "--isolation", "none", "--examples", "40")
    others = ["Adagrad", "AdmmPenalty", "AdmmGradient", "AdmmUpdate", "MagnitudePrune"]
    left_out = [word for name in others for word in ("--exclude-operator", name)]
    answer = onnxopt(*run, *left_out, "--exclude-operator", "adam", "--no-explain")
    assert "fail Momentum" in answer.out
    assert "Ad" not in answer.out
    (found,) = kept("fuzz").values()
    assert found["source"].count("--exclude-operator ") == 6
    answer = onnxopt(*run, *left_out, "--operator", "Adam", "--exclude-operator", "Adam")
    assert answer.code == 5
    assert "every operator is excluded" in answer.err
    assert "no operator 'Lion'" in onnxopt(*run, "--exclude-operator", "Lion").err


def test_a_known_mistake_is_named_and_found_once(fuzz, onnxopt):
    backend = planted("WrongType")
    answer = fuzz(backend, "--isolation", "none", "--examples", "20", explain=True)
    assert answer.code == 1
    assert "X_new is float64[], expected float32[]; V_new is float64[], " in answer.out
    assert "consistent with 'results come back in double'" in answer.out
    assert list(kept("fuzz")) == ["momentum_float64_for_float32"]
    run = ("run", "fuzz", "--isolation", "none", "--no-explain")
    assert onnxopt(*run, "-b", backend).code == 1
    assert onnxopt(*run).code == 0


def test_a_crash_is_shrunk_to_what_kills_the_backend(fuzz, onnxopt):
    backend = planted("DiesOfEmptiness")
    answer = fuzz(backend, "--examples", "60")
    assert answer.code == 1
    assert "crash Momentum  the worker ended with exit code 11" in answer.out
    (found,) = kept("fuzz").values()
    assert found["inputs"] == {"R": 1.0, "T": 0, "X": [], "G": [], "V": []}
    again = onnxopt("run", "fuzz", "-b", backend)
    assert again.code == 1
    assert "crash" in again.out


def test_a_hang_is_shrunk_within_the_timeout_of_each_try(fuzz, onnxopt):
    backend = planted("HangsAtThree")
    answer = fuzz(backend, "--examples", "60", "--timeout", "1")
    assert answer.code == 1
    assert "timeout Momentum" in answer.out
    (found,) = kept("fuzz").values()
    assert found["inputs"] == {"R": 1.0, "T": 3, "X": 0.0, "G": 0.0, "V": 0.0}
    assert onnxopt("run", "fuzz", "-b", backend, "--timeout", "1", "--no-explain").code == 1


def test_a_crash_at_a_special_element_is_shrunk_to_that_element(fuzz):
    answer = fuzz(planted("DiesAtNaN"), "--examples", "60")
    assert answer.code == 1, answer.text
    (found,) = kept("fuzz").values()
    assert sorted(map(str, found["inputs"].values())) == ["0", "0.0", "0.0", "1.0", "nan"]


def test_a_crash_at_an_element_of_many_is_shrunk_to_that_element(fuzz, onnxopt):
    backend = planted("DiesAtLargeElements")
    answer = fuzz(backend, "--examples", "30")
    assert "crash Momentum  the worker was killed by SIGABRT" in answer.out
    (found,) = kept("fuzz").values()
    assert found["inputs"].pop("G") > 100
    assert found["inputs"] == {"R": 1.0, "T": 0, "X": 0.0, "V": 0.0}
    assert onnxopt("run", "fuzz", "-b", backend).code == 1


def test_a_wrong_type_and_a_wrong_shape_are_two_failures_even_if_they_come_together(fuzz):
    answer = fuzz(planted("WrongTypeAndShape"), "--isolation", "none", "--examples", "150")
    assert "2 distinct failures" in answer.out
    found = kept("fuzz")
    assert list(found) == ["momentum_another_shape", "momentum_float64_for_float32"]
    # At the end both are listed by their cause.
    listed = answer.out.partition("2 distinct failures")[2]
    assert sorted(re.findall(r"momentum_\w+", listed)) == list(found)
    assert re.search(r"Momentum, .+: [12] \(momentum_", listed), listed
    assert found["momentum_another_shape"]["inputs"]["R"] == [1.0]
    typed = found["momentum_float64_for_float32"]["inputs"]["R"]
    assert typed == {"dtype": "float64", "data": 1.0}


def test_what_a_right_backend_must_refuse_is_kept_as_such(fuzz, onnxopt):
    # So few that each refusal is tried once, and nothing else.
    answer = fuzz(planted("TakesAnyMode"), "--isolation", "none", "--examples", "7")
    said = "accepted what a right backend must refuse: mode has an unknown value"
    assert f"fail Momentum  {said}" in answer.out
    (found,) = kept("fuzz").values()
    assert found["rejects"] is True
    assert found["attributes"]["mode"] == "bogus"
    assert onnxopt("run", "fuzz").code == 0


def test_a_crash_at_what_must_be_refused_is_found_as_surely(fuzz):
    answer = fuzz(planted("DiesAtUnknownMode"), "--examples", "7")
    assert "crash Momentum  the worker was killed by SIGABRT: mode has an unknown" in answer.out
    (found,) = kept("fuzz").values()
    assert found["rejects"] is True
    assert found["attributes"]["mode"] == "bogus"


def test_a_backend_that_never_returns_is_not_waited_for_at_every_refusal(fuzz):
    answer = fuzz(planted("NeverReturns"), "--examples", "7", "--timeout", "0.5")
    (found,) = kept("fuzz").values()
    assert "rejects" not in found, answer.out


def test_a_model_of_several_nodes_is_kept_with_the_model_beside_it(onnxopt, workplace):
    backend = planted("WrongInCompany")
    here = ("--isolation", "none", "--no-explain")
    answer = onnxopt("fuzz", "-b", backend, *here, "--examples", "200")
    assert "fail several nodes" in answer.out
    ((stem, found),) = kept("fuzz").items()
    assert found["model"] == f"{stem}.onnx"
    alone = onnxopt("fuzz", "-b", backend, *here, "--examples", "200", "--single-nodes", "-o", "a")
    assert alone.code == 0, alone.out
    again = onnxopt("run", "fuzz", "-b", backend, *here)
    assert again.code == 1
    assert onnxopt("run", "fuzz", *here).code == 0
    assert onnxopt("run", "fuzz", "-b", "onnxruntime", *here).code == 0


def test_the_same_seed_gives_the_same_files(fuzz):
    backend = planted("WrongBeyondFive")
    options = ("--isolation", "none", "--examples", "30", "--seed", "3")
    answers = [fuzz(backend, *options, "-o", folder) for folder in ("one", "two", "three")]
    # The first run loads modules whose constants hypothesis tries in the others.
    assert contents("two") == contents("three")
    assert answers[1].out.splitlines()[0] == answers[2].out.splitlines()[0]


def test_earlier_failures_are_replayed_first_and_no_file_is_overwritten(fuzz):
    backend = planted("WrongType")
    fuzz(backend, "--isolation", "none", "--examples", "20")
    before = contents("fuzz")
    answer = fuzz(backend, "--isolation", "none", "--examples", "1", "--seed", "9")
    assert "(seen before)" in answer.out
    assert contents("fuzz") == before
    (path,) = Path("fuzz").glob("*.yaml")
    path.write_text(path.read_text() + "# mine\n")
    fuzz(backend, "--isolation", "none", "--examples", "1")
    assert path.read_text().endswith("# mine\n")
    assert len(contents("fuzz")) == 2


def test_what_comes_between_looking_and_writing_is_not_replaced(fuzz):
    backend = planted("WrongType")
    fuzz(backend, "--isolation", "none", "--examples", "20")
    (path,) = Path("fuzz").glob("*.yaml")
    path.unlink()
    # Looking for it finds nothing, as if another run wrote it just after.
    path.symlink_to("nowhere.yaml")
    answer = fuzz(backend, "--isolation", "none", "--examples", "20")
    assert answer.code == 1
    assert path.is_symlink()
    assert path.with_stem(f"{path.stem}_2").is_file()


def test_a_right_backend_leaves_no_file_behind(fuzz):
    answer = fuzz("numpy", "--examples", "40")
    assert answer.code == 0
    assert "0 distinct failures in 40 examples" in answer.out
    assert not kept("fuzz")


def test_the_time_limit_ends_the_search(fuzz):
    answer = fuzz("numpy", "--time", "0.5")
    assert answer.code == 0
    assert "0 distinct failures" in answer.out


def test_as_many_examples_are_said_as_the_backend_was_given_in_the_time(fuzz, workplace):
    (workplace / "counts.py").write_text(COUNTS)
    answer = fuzz("python:counts.py:Counts", "--time", "1", "--isolation", "none")
    (said,) = re.findall(r"in (\d+) examples", answer.out)
    assert int(said) == len((workplace / "count").read_text()), answer.text


def test_a_hang_does_not_outlast_the_time_limit_by_more_than_itself(fuzz):
    began = monotonic()
    answer = fuzz(planted("HangsAtThree"), "--time", "1")
    assert answer.code == 1
    assert "no answer within 1 s" in answer.out
    assert monotonic() - began < 9


def test_ctrl_c_ends_the_search_with_what_was_found(workplace):
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxopt_cli", "fuzz", "-b", planted("WrongType"),
         "--operator", "Momentum", "--time", "600"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert any("kept as" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "1 distinct failure in" in out
    assert list(kept("fuzz")) == ["momentum_float64_for_float32"]


def test_a_missing_hypothesis_is_said_with_what_to_install(fuzz, monkeypatch):
    monkeypatch.setattr("onnxopt_cli.fuzz.cluster_search.find_spec", lambda _: None)
    answer = fuzz("numpy")
    assert answer.code == 2
    assert 'pip install "onnxopt[fuzz]"' in answer.err


def test_an_unknown_operator_selects_nothing(onnxopt, workplace):
    answer = onnxopt("fuzz", "-b", "numpy", "--operator", "Adma")
    assert answer.code == 5
    assert "Adma" in answer.err


def test_a_backend_that_does_not_start_is_no_finding(onnxopt, workplace):
    assert onnxopt("fuzz", "-b", "onnxruntime,provider=Nowhere").code == 4


@pytest.mark.slow
def test_the_mistakes_of_the_reference_of_onnx_are_found_and_named(onnxopt, workplace):
    reference = ("-b", "onnx-reference", "--isolation", "none")
    adam = onnxopt("fuzz", *reference, "--operator", "Adam", "--examples", "60")
    shapes, doubles = (
        adam.out.partition(f"kept as fuzz/{stem}")[0].rpartition("fail Adam")[2]
        for stem in ("adam_another_shape", "adam_float64_for_float32")
    )
    assert "as in onnx.reference" in shapes
    assert "as in onnx.reference" in doubles
    assert "'several tensors come back in float32', as in onnx.reference" in adam.out
    # What is found of Momentum docs/mutation-analysis.md shows, which tests/test_documents.py runs.
    onnxopt("fuzz", *reference, "--operator", "Momentum", "--examples", "7", "--no-explain")
    found = kept("fuzz")
    assert {"adam_float64_for_float32", "adam_float32_for_float64"} <= set(found)
    assert "bogus" in [case.get("attributes", {}).get("mode") for case in found.values()]
    onnxopt("run", "fuzz", *reference, "-q", "--no-explain", "--report", "json=run.json")
    again = json.loads(Path("run.json").read_text())["results"]
    assert [it["outcome"] for it in again] == ["fail"] * len(found)
    assert onnxopt("run", "fuzz", "--isolation", "none").code == 0

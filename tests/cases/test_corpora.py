"""The named sets of cases that the installed onnx package contains."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test.case import node
from onnx.backend.test.case.test_case import TestCase
from onnx_directories import same

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx import corpora
from onnxopt_cli.cases.onnx.corpora import (
    CORPORA,
    corpus,
    node_contents,
)
from onnxopt_cli.cli import console
from onnxopt_cli.core import cache as cache_module
from onnxopt_cli.core.cache import CACHE_VARIABLE
from onnxopt_cli.core.tolerance import Provenance, Relative
from onnxopt_cli.errors import UsageError
from onnxopt_cli.operators.nodes import operator_names


def read_all(name):
    cases, problems = corpus(name)
    assert problems == []
    return {case.id: case.load() for case in cases}


@pytest.mark.parametrize("name", [name for name in CORPORA if name != "onnx-node"])
def test_all_cases_of_the_installed_corpora_are_valid(name):
    contents = read_all(name)
    assert contents
    assert all(case_id.startswith(f"{name}/") for case_id in contents)
    assert all(content.inputs is not None and content.stored for content in contents.values())


def test_light_corpus_has_the_tolerances_of_the_test_runner_of_onnx():
    contents = read_all("onnx-light")
    densenet = contents["onnx-light/light_densenet121/0"]
    assert densenet.tolerance == Relative(2e-3, 1e-7, Provenance.DIRECTORY)
    (image,) = densenet.inputs.values()
    assert image.shape == (1, 3, 224, 224)
    assert image.ravel()[1] == np.float32(1 / image.size)


def test_cases_state_the_version_of_onnx():
    assert corpus("onnx-simple")[0][0].source == f"onnx {onnx.__version__}"


def test_each_corpus_has_a_description_of_one_line():
    assert all(0 < len(text) < 80 and "\n" not in text for text in CORPORA.values())


def test_unknown_corpus_is_rejected_with_the_valid_names():
    with pytest.raises(UsageError) as caught:
        corpus("onnx-nodes")
    assert "onnx-node, onnx-simple" in caught.value.hint


def stand_in(*cases):
    """Return a replacement for onnx's slow collector of node cases, and a log of its calls."""
    collected = []

    def collect():
        collected.append(threading.get_ident())
        return [
            TestCase(
                name=name,
                model_name=name,
                url=None,
                model_dir=None,
                model=model,
                data_sets=[(inputs, outputs)],
                kind="node",
                rtol=rtol,
                atol=1e-7,
            )
            for name, model, inputs, outputs, rtol in cases
        ]

    return collect, collected


@pytest.fixture
def node_collections(monkeypatch, tmp_path):
    """Let onnx collect two node cases; yield a list with one entry for each time onnx does so."""

    kind = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    text = helper.make_tensor_type_proto(onnx.TensorProto.STRING, [1])

    def model(declared):
        return helper.make_model(
            helper.make_graph(
                [helper.make_node("Identity", ["x"], ["y"])],
                "g",
                [helper.make_value_info("x", declared)],
                [helper.make_value_info("y", declared)],
            )
        )

    scalar, words = np.float32(2), np.array(["a"])
    message = onnx.numpy_helper.from_array(np.array(2, np.float32))
    collect, log = stand_in(
        ("test_a", model(kind), (scalar,), [message], 1e-3),
        ("test_b", model(text), [words], [words.astype(object)], 0.5),
    )
    monkeypatch.setattr(node, "collect_testcases", collect)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    # The sources of onnx name other tests, which would be missing in the cache.
    monkeypatch.setattr(corpora, "_SOURCES", tmp_path / "sources")
    corpora._origin.cache_clear()
    yield log
    corpora._origin.cache_clear()


@pytest.mark.usefixtures("node_collections")
def test_values_in_memory_are_converted_to_arrays():
    (_, a), (_, b) = node_contents()
    assert same(dict(a.inputs), {"x": np.array(2, np.float32)})
    assert same(dict(a.stored), {"y": np.array(2, np.float32)})
    assert same(dict(b.inputs), {"x": np.array(["a"], object)})


@pytest.mark.usefixtures("node_collections")
def test_node_case_has_a_tolerance_only_if_it_differs_from_the_default():
    (_, a), (_, b) = node_contents()
    assert a.tolerance is None
    assert b.tolerance == Relative(0.5, 1e-7, Provenance.DIRECTORY)


def test_node_cases_are_collected_once_and_then_cached(node_collections):
    first, second = corpus("onnx-node"), corpus("onnx-node")
    assert len(node_collections) == 1
    assert [case.id for case in first[0]] == ["onnx-node/test_a/0", "onnx-node/test_b/0"]
    assert [case.id for case in second[0]] == [case.id for case in first[0]]
    assert second[0][1].load().tolerance.rtol == 0.5


def test_making_node_cases_shows_progress(node_collections, tmp_path, onnxopt, monkeypatch):
    (tmp_path / "sources").mkdir()
    for name in ("abs", "neg"):
        (tmp_path / "sources" / f"{name}.py").touch()
    monkeypatch.setattr(console, "TELL_SECONDS", 0.0)
    arguments = ("run", "onnx-node/test_a", "--isolation", "none", "--no-explain")
    progress = r"making onnx's node cases: 2 of 2, [\d.e+-]+ files/s, 0 s left"
    assert re.search(progress, onnxopt(*arguments).err)
    assert "making" not in onnxopt(*arguments).err
    assert len(node_collections) == 1


@pytest.mark.usefixtures("node_collections")
def test_cache_contains_no_temporary_files(tmp_path):
    corpus("onnx-node")
    (only,) = (tmp_path / "cache").iterdir()
    assert only.name.startswith(f"onnx-node-{onnx.__version__}-")


@pytest.mark.parametrize("lost", ["cases", "index.json"])
def test_incomplete_cache_is_rebuilt(node_collections, tmp_path, lost):
    corpus("onnx-node")
    (cache,) = (tmp_path / "cache").iterdir()
    (cache / lost).unlink()
    for _ in range(2):
        assert len(corpus("onnx-node")[0]) == 2
        assert len(node_collections) == 2


def alter_unseen(cache):
    """Change a byte of an expected output without changing the modification time."""
    path = cache / "cases"
    before, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def sign(cache):
    """Change an entry, and write its new times and digest into the index."""
    alter_unseen(cache)
    status, data = (cache / "cases").stat(), (cache / "cases").read_bytes()
    (cache / "cases").write_bytes(data)
    row = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, sha256(data).hexdigest()]
    (cache / "index.json").write_text(json.dumps({"cases": row}))


def replace_entry(cache, replacement):
    (cache / "cases").rename(cache.parent.parent / "cases")
    replacement(cache / "cases")


def replace_all_by_copy(cache):
    shutil.copytree(cache, f"{cache}.copy", copy_function=shutil.copy2)
    cache.rename(cache.parent.parent / "original")
    Path(f"{cache}.copy").rename(cache)
    cache.chmod(0o700)


def replace_index(cache, text):
    (cache / "index.json").write_text(text)


@pytest.mark.skipif(sys.platform == "win32", reason="needs owners, modes and pipes")
@pytest.mark.parametrize(
    "attack",
    [
        alter_unseen,
        sign,
        replace_all_by_copy,
        lambda cache: (cache / "cases").write_bytes(b""),
        lambda cache: os.link(cache / "cases", cache.parent.parent / "other"),
        lambda cache: replace_entry(cache, os.mkfifo),
        lambda cache: replace_entry(cache, lambda entry: entry.symlink_to("/dev/zero")),
        lambda cache: replace_index(cache, '{"cases"'),
        lambda cache: replace_index(cache, "[" * 100_000),
        lambda cache: replace_index(cache, "[]"),
        lambda cache: replace_index(cache, '{"cases": [1e999, 1, 1, "x"]}'),
        lambda cache: os.truncate(cache / "index.json", 1 << 40),
        lambda cache: ((cache / "index.json").unlink(), os.mkfifo(cache / "index.json")),
    ],
)
def test_modified_cache_is_rebuilt(node_collections, tmp_path, attack):
    before = read_all("onnx-node")
    (cache,) = (tmp_path / "cache").iterdir()
    attack(cache)
    after = read_all("onnx-node")
    assert len(node_collections) == 2
    assert list(after) == list(before)
    assert all(same(dict(after[test].stored), dict(before[test].stored)) for test in before)
    # The second reading uses the rebuilt cache.
    read_all("onnx-node")
    assert len(node_collections) == 2
    assert sorted(path.name for path in cache.iterdir()) == ["cases", "index.json"]


def link_to_elsewhere(cache):
    cache.rename(cache.parent.parent / "elsewhere")
    cache.symlink_to(cache.parent.parent / "elsewhere")


@pytest.mark.skipif(sys.platform == "win32", reason="needs owners and modes")
@pytest.mark.parametrize(
    ("expose", "reason"),
    [
        (link_to_elsewhere, "it is not a folder"),
        (lambda cache: cache.chmod(0o777), "everybody may write to it"),
        (lambda cache: cache.chmod(0o750), "other users have access to it"),
        (lambda cache: cache.parent.chmod(0o777), "everybody may write to its folder"),
    ],
)
def test_cache_that_others_can_write_to_is_not_used(
    node_collections, tmp_path, monkeypatch, caplog, expose, reason
):
    monkeypatch.setattr(cache_module, "_reported", set())
    before = read_all("onnx-node")
    (cache,) = (tmp_path / "cache").iterdir()
    expose(cache)
    assert list(read_all("onnx-node")) == list(before)
    assert len(node_collections) == 2
    assert reason in caplog.text


def test_cache_that_lacks_a_test_of_onnx_is_rebuilt(node_collections, tmp_path):
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "abs.py").write_text('expect(node, name="test_lost")')
    corpora._origin.cache_clear()
    for collections in (1, 2):
        read_all("onnx-node")
        assert len(node_collections) == collections


@pytest.mark.skipif(sys.platform == "win32", reason="needs modes")
def test_cache_is_accessible_only_to_its_user(node_collections, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "new" / "cache"))
    read_all("onnx-node")
    (cache,) = (tmp_path / "new" / "cache").iterdir()
    modes = [stat.S_IMODE(parent.stat().st_mode) for parent in (cache, *cache.parents[:2])]
    assert modes == [0o700, 0o700, 0o700]


def test_lock_that_is_never_released_does_not_block(node_collections, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(cache_module, "_LOCK_SECONDS", 0.2)
    read_all("onnx-node")
    (cache,) = cache_module.cache_folder().iterdir()
    alter_unseen(cache)
    descriptor = os.open(cache, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert len(read_all("onnx-node")) == 2
    finally:
        os.close(descriptor)


def test_sources_of_onnx_name_most_of_its_tests():
    corpora._origin.cache_clear()
    _, named = corpora._origin()
    names = {case.id.split("/")[1] for case in corpus("onnx-node")[0]}
    assert named <= names
    assert len(named) > len(names) / 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs a device")
def test_missing_cache_is_reported_once(node_collections, onnxopt, monkeypatch, caplog):
    monkeypatch.setenv(CACHE_VARIABLE, "/dev/null")
    monkeypatch.setattr(cache_module, "_reported", set())
    answer = onnxopt("list", "onnx-node/test_a", "onnx-node/test_b")
    assert answer.code == 0
    assert answer.out.split() == ["onnx-node/test_a/0", "onnx-node/test_b/0"]
    assert caplog.text.count("made without a cache") == 1
    assert "ONNXOPT_CACHE_DIR" in caplog.text


@pytest.mark.usefixtures("node_collections")
def test_unwritable_cache_keeps_the_cases_in_memory(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder would be")
    cases, problems = corpus("onnx-node")
    assert problems == []
    assert [case.id for case in cases] == ["onnx-node/test_a/0", "onnx-node/test_b/0"]
    assert isinstance(cases[0].load(), Problem)
    assert cases[1].load().tolerance.rtol == 0.5


def test_concurrent_runs_share_one_cache(node_collections, tmp_path, monkeypatch):
    # The barrier makes all runs start to write before any run has finished.
    barrier = threading.Barrier(4)
    write = corpora._write_cases

    def write_together():
        barrier.wait(10)
        return write()

    monkeypatch.setattr(corpora, "_write_cases", write_together)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: corpus("onnx-node"), range(4)))
    assert {tuple(case.id for case in cases) for cases, _ in results} == {
        ("onnx-node/test_a/0", "onnx-node/test_b/0")
    }
    assert len(list((tmp_path / "cache").iterdir())) == 1
    read_all("onnx-node")
    assert len(node_collections) == 4


@pytest.mark.usefixtures("node_collections")
def test_output_of_onnx_during_collection_is_suppressed(monkeypatch, capfd):

    def noisy():
        sys.stdout.write("out")
        sys.stderr.write("err")
        warnings.warn("overflow", RuntimeWarning, stacklevel=1)
        return []

    monkeypatch.setattr(node, "collect_testcases", noisy)
    assert list(node_contents()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_cached_node_cases_equal_those_of_onnx():
    cases, problems = corpus("onnx-node")
    assert problems == []
    in_memory = dict(node_contents())
    assert len(cases) == len(in_memory) > 1000
    for case in cases:
        expected, found = in_memory[case.id.split("/")[1]], case.load()
        assert found.model == expected.model
        assert same(dict(found.inputs), dict(expected.inputs)), case.id
        assert same(dict(found.stored), dict(expected.stored)), case.id
        assert found.tolerance == expected.tolerance
        assert case.operators == operator_names(expected.model)

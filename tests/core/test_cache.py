"""The cache returns only entries that onnxopt wrote, and keeps the entries of other runs."""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256

import pytest

from onnxopt_cli.core import cache as cache_module
from onnxopt_cli.core.cache import CACHE_VARIABLE, Cache
from onnxopt_cli.errors import UsageError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "_reported", set())
    return tmp_path / "cache" / "numbers"


def opened():
    return Cache("numbers", "numbers are computed")


def stored(**entries):
    cache = opened()
    for key, data in entries.items():
        cache.put(key, data)
    cache.close()


def test_full_disk_loses_no_entry_of_an_earlier_run(folder, monkeypatch, caplog):
    stored(first=b"1")
    cache = opened()
    cache.put("second", b"2")
    with monkeypatch.context() as patch:
        message = "cannot write it: No space left on device"
        patch.setattr(cache_module, "write_atomically", lambda *_: fail(message))
        cache.put("third", b"3")
    cache.close()
    assert [opened().get(key) for key in ("first", "second", "third")] == [b"1", b"2", None]
    assert "No space left on device" in caplog.text


def test_user_without_a_home_folder_has_no_cache(folder, monkeypatch, caplog):
    for variable in (CACHE_VARIABLE, "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    # The password database has no user with this number, and therefore no home folder.
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    stored(key=b"1")
    assert opened().get("key") is None
    assert "numbers are computed" in caplog.text


def fail(message):
    raise UsageError(message)


def test_entry_without_the_digest_of_the_index_is_not_used(folder):
    stored(key=b"1")
    index = json.loads((folder / "index.json").read_text())
    *signature, _ = index["key"]
    (folder / "index.json").write_text(json.dumps({"key": [*signature, sha256(b"2").hexdigest()]}))
    assert opened().get("key") is None


def test_entry_of_a_killed_run_is_not_used(folder):
    opened().put("key", b"1")
    assert (folder / "key").exists()
    assert opened().get("key") is None


def test_concurrent_runs_keep_the_entries_of_both_runs(folder):
    first, second = opened(), opened()
    first.put("a", b"1")
    second.put("b", b"2")
    first.put("both", b"3")
    second.put("both", b"3")
    first.close()
    second.close()
    assert [opened().get(key) for key in ("a", "b", "both")] == [b"1", b"2", b"3"]


def test_entries_remain_after_the_removal_of_another_entry(folder):
    cache = opened()
    cache.put("removed", b"1")
    cache.put("kept", b"2")
    (folder / "removed").unlink()
    cache.close()
    assert [opened().get(key) for key in ("removed", "kept")] == [None, b"2"]


def test_folder_that_is_removed_during_a_run_is_created_again(folder, caplog):
    cache = opened()
    cache.put("removed", b"1")
    shutil.rmtree(folder)
    cache.put("kept", b"2")
    cache.close()
    assert [opened().get(key) for key in ("removed", "kept")] == [None, b"2"]
    assert caplog.text == ""


@pytest.mark.parametrize("key", ["../../precious", "index.json", "\\u0000", "\\ud800", ""])
def test_forged_name_of_an_entry_removes_no_file(folder, tmp_path, monkeypatch, key):
    stored(first=b"1")
    (tmp_path / "precious").touch()
    (row,) = json.loads((folder / "index.json").read_text()).values()
    (folder / "index.json").write_text(f'{{"{key}": {json.dumps(row)}}}')
    monkeypatch.setattr(cache_module, "_MAX_ENTRIES", 1)
    stored(second=b"2")
    assert (tmp_path / "precious").exists()
    assert opened().get("second") == b"2"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid(), reason="only root changes owners")
@pytest.mark.parametrize("place", ["numbers", ".", "numbers/key", "numbers/index.json"])
def test_files_of_another_user_are_not_used(folder, place):
    stored(key=b"1")
    os.chown(folder.parent / place, 12345, -1)
    assert opened().get("key") is None


def test_folder_that_is_exposed_during_a_run_gets_no_index(folder):
    cache = opened()
    cache.put("key", b"1")
    folder.chmod(0o777)
    cache.close()
    assert not (folder / "index.json").exists()


def test_reason_for_an_unusable_folder_is_stated_once(folder, caplog):
    folder.parent.write_text("a file where the folder would be")
    cache = opened()
    cache.put("key", b"1")
    cache.close()
    assert cache.get("key") is None
    assert caplog.text.count("numbers are computed without a cache") == 1
    assert "Errno" not in caplog.text

"""Memory is counted once, even if it is in files in memory or shared by several processes."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from isolated import run_to_end, write_cases
from onnx import onnx_cpp2py_export

from onnxopt_cli.workers import resources
from onnxopt_cli.workers.processes import read_proc
from onnxopt_cli.workers.resources import held_bytes, memory_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SIZE = 32 << 20
BACKENDS = """\
import ctypes, mmap, os, subprocess, sys, threading, time
import numpy as np
from onnxopt_cli.backends.resolve import resolve_backend

MIB = 1 << 20

def filled(descriptor, mebibytes):
    for _ in range(mebibytes):
        os.write(descriptor, bytes(MIB))
    return descriptor

def unlinked():
    path = f"/dev/shm/onnxopt-test-{os.getpid()}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.unlink(path)
    return descriptor

class Backend:
    def run(self, model, inputs):
        self.act()
        return resolve_backend("numpy").prepare(model).run(inputs)

class Memfd(Backend):
    def act(self):
        self.held = filled(os.memfd_create("x"), 500)
        time.sleep(5)

class Unlinked(Backend):
    def act(self):
        self.held = filled(unlinked(), 500)
        time.sleep(5)

class Child(Backend):
    def act(self):
        descriptor = filled(os.memfd_create("x"), 500)
        subprocess.Popen(["sleep", "5"], pass_fds=[descriptor])
        os.close(descriptor)
        time.sleep(5)

class ThreadOfItsOwn(Backend):
    # A thread that does not share its table of descriptors.
    def hold(self):
        assert not ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES
        filled(os.memfd_create("x"), 500)
        time.sleep(5)
    def act(self):
        thread = threading.Thread(target=self.hold)
        thread.start()
        thread.join()

class EndedFirstThread(Backend):
    # Processes whose first thread ends while another thread holds memory.
    def hold(self):
        time.sleep(0.2)
        held = np.ones(150 * MIB, np.uint8)
        time.sleep(5)
        os._exit(0)
    def act(self):
        for _ in range(4):
            if not os.fork():
                threading.Thread(target=self.hold).start()
                ctypes.CDLL(None).pthread_exit(None)
        time.sleep(5)

class OwnMount(Backend):
    # A file in a tmpfs that only a child process sees.
    def begin_namespace(self):
        user, group = os.getuid(), os.getgid()
        assert not ctypes.CDLL(None).unshare(0x10000000)  # CLONE_NEWUSER
        maps = {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    def mount(self):
        libc, folder = ctypes.CDLL(None), os.environ["TMPDIR"].encode()
        assert not libc.unshare(0x20000)  # CLONE_NEWNS
        assert not libc.mount(b"none", folder, b"tmpfs", 0, None)
        with open(folder + b"/held", "wb", buffering=0) as file:
            filled(file.fileno(), 500)
            time.sleep(5)
    def hold(self):
        self.begin_namespace()
        self.mount()
    def act(self):
        child = os.fork()
        if not child:
            try:
                self.hold()
            finally:
                os._exit(0)
        os.waitpid(child, 0)

class MountOfThread(OwnMount):
    # A file in a tmpfs that only a thread sees.
    def hold(self):
        self.begin_namespace()
        thread = threading.Thread(target=self.mount)
        thread.start()
        thread.join()

class Grows(Backend):
    held = None
    def act(self):
        self.held = self.held or os.memfd_create("x")
        filled(self.held, 40)

class GrowsInShm(Backend):
    held = None
    def act(self):
        self.held = self.held or unlinked()
        filled(self.held, 40)

class Pool(Backend):
    held = None
    def act(self):
        if self.held is None:
            self.held = np.ones(150 * MIB, np.uint8)
        children = []
        for _ in range(6):
            child = os.fork()
            if not child:
                self.held.sum()
                time.sleep(20)
                os._exit(0)
            children.append(child)
        time.sleep(1)
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
"""


OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]
needs_user_namespaces = pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run([*OWN_MOUNTS, "true"], check=False).returncode,
    reason="needs user namespaces",
)


@contextmanager
def forked(count):
    """Fork processes that share the memory of this process; kill them on exit."""
    children = []
    for _ in range(count):
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        children.append(child)
    try:
        yield children
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_pages_shared_by_forks_count_once():
    held = bytearray(os.urandom(1 << 10)) * (SIZE >> 10)
    bytes_without_children = held_bytes([os.getpid()])
    with forked(5) as children:
        bytes_with_children = held_bytes([os.getpid(), *children])
    assert len(held) < bytes_with_children < bytes_without_children + 2 * SIZE


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_file_in_memory_counts_once(mapped, closed):
    before = held_bytes([os.getpid()])
    with ExitStack() as stack:
        descriptor = os.memfd_create("x")
        os.write(descriptor, bytes(SIZE))
        if mapped:
            view = stack.enter_context(mmap.mmap(descriptor, SIZE))
            assert sum(view[place] for place in range(0, SIZE, 4096)) == 0
        status = os.fstat(descriptor)
        assert memory_files(os.getpid())[status.st_dev, status.st_ino] == SIZE
        if closed:
            os.close(descriptor)
        with forked(3) as children:
            more = held_bytes([os.getpid(), *children]) - before
        foreign_bytes = {(status.st_dev, status.st_ino): SIZE}
        less = held_bytes([os.getpid()], foreign_bytes=foreign_bytes) - before
        if not closed:
            os.close(descriptor)
    expected = SIZE if mapped or not closed else 0
    assert expected - (SIZE >> 2) < more < expected + (SIZE >> 1)
    if not closed:
        assert less < SIZE >> 2


def test_information_on_a_descriptor_may_contain_lines_without_a_value(monkeypatch):
    # The driver of /dev/net/tun adds such a line.
    def read_with_line(path, folder=None):
        return read_proc(path, folder) + (b"iff:\t\n" if folder is not None else b"")

    monkeypatch.setattr(resources, "read_proc", read_with_line)
    descriptor = os.memfd_create("x")
    try:
        os.write(descriptor, bytes(SIZE))
        status = os.fstat(descriptor)
        assert memory_files(os.getpid())[status.st_dev, status.st_ino] == SIZE
    finally:
        os.close(descriptor)


def test_file_with_a_name_counts_if_it_is_open_for_writing():
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(SIZE))
        file.flush()
        status = os.fstat(file.fileno())
        key = status.st_dev, status.st_ino
        assert memory_files(os.getpid())[key] == SIZE
        with Path(file.name).open("rb"):
            file.file.close()
            assert key not in memory_files(os.getpid())


MOUNT = """
import os, subprocess, sys
from onnxopt_cli.workers.resources import memory_files

assert not memory_files(os.getpid())
subprocess.run(["mount", "-t", "tmpfs", "none", sys.argv[1]], check=True)
with open(f"{sys.argv[1]}/held", "wb", buffering=0) as file:
    file.write(bytes(4096))
    print([*memory_files(os.getpid()).values()])
"""


@needs_user_namespaces
def test_file_of_a_later_mount_counts(tmp_path):
    command = [*OWN_MOUNTS, sys.executable, "-c", MOUNT, tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "[4096]\n"


def test_mapped_file_on_a_disk_does_not_count():
    descriptor = os.memfd_create("x")
    # The first call needs memory itself, to read all mappings of this process.
    held_bytes([os.getpid()], 1)
    os.close(descriptor)
    before = held_bytes([os.getpid()], 1)
    with (
        Path(onnx_cpp2py_export.__file__).open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages,
    ):
        assert any(pages[:: mmap.PAGESIZE])
        assert held_bytes([os.getpid()], 1) - before < len(pages) // 4
        descriptor = os.memfd_create("x")
        assert held_bytes([os.getpid()], 1) - before < len(pages) // 4
        os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [
        "Memfd",
        "Unlinked",
        "Child",
        "ThreadOfItsOwn",
        "EndedFirstThread",
        pytest.param("OwnMount", marks=needs_user_namespaces),
        pytest.param("MountOfThread", marks=needs_user_namespaces),
    ],
)
def test_memory_of_every_kind_counts_against_the_limit(tmp_path, backend):
    (tmp_path / "memory.py").write_text(BACKENDS)
    write_cases(tmp_path, {"good": 0.25})
    run = run_to_end(tmp_path, f"python:{tmp_path}/memory.py:{backend}", "--memory", "400MiB")
    assert run.outcomes == {"good": "oom"}
    assert "400 MiB are allowed" in run.results["good"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["Grows", "GrowsInShm"])
def test_file_in_memory_that_grows_with_each_case_is_a_leak(tmp_path, backend):
    (tmp_path / "memory.py").write_text(BACKENDS)
    write_cases(tmp_path, {"good": 0.25})
    run = run_to_end(tmp_path, f"python:{tmp_path}/memory.py:{backend}")
    assert run.outcomes == {"good": "leak"}
    assert "MiB of memory" in run.results["good"]["message"]


@pytest.mark.slow
def test_shared_memory_of_a_process_pool_counts_once_against_the_limit(tmp_path):
    (tmp_path / "memory.py").write_text(BACKENDS)
    write_cases(tmp_path, {"good": 0.25})
    run = run_to_end(tmp_path, f"python:{tmp_path}/memory.py:Pool", "--memory", "700MiB")
    assert run.outcomes == {"good": "pass"}, run.results

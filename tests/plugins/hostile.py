"""Backends that misbehave, each in its own way.

A case is one Momentum node. In the bad case, ``R`` is at least BAD. Most backends
misbehave only in the bad case, and compute the right outputs in all other cases.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import mmap
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from functools import cache

import numpy as np

from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.core import codec

BAD = np.float32(0.5)
NUMPY = resolve_backend("numpy")
KEPT_BUFFERS = []
SLEEP = shutil.which("sleep")


class Well:
    """A backend that computes the right outputs."""

    def run(self, model, inputs):
        return NUMPY.prepare(model).run(inputs)


class Misbehaves(Well):
    def run(self, model, inputs):
        if inputs["R"] >= BAD:
            self.misbehave()
        return super().run(model, inputs)


class InTurn(Well):
    """A backend that imitates other backends, one in each bad case.

    The environment variable WAYS lists the names of the other backends. In a bad case, the integer
    part of ``R`` is the number of the imitated backend. The first backend has the number 1.
    """

    backends = globals()

    def __init__(self):
        ways = [self.backends[name] for name in os.environ["WAYS"].split()]
        self.ways = [way() if isinstance(way, type) else way for way in ways]

    def run(self, model, inputs):
        number = int(inputs["R"])
        if number == 0:
            return super().run(model, inputs)
        return self.ways[number - 1].run(model, inputs)


REQUEST_IDS = []
_receive = codec.MessageReader.receive


def receive(reader, read_into):
    """Read a request as the worker does, and keep its number for forged responses."""
    if NeverReads.has_run:
        os.kill(os.getpid(), signal.SIGSTOP)
    message, payload = _receive(reader, read_into)
    REQUEST_IDS.append(message["id"])
    return message, payload


codec.MessageReader.receive = receive


def hello_number():
    """Return the number of the first request, which arrived before the backend was imported."""
    frame = sys._getframe()
    while frame.f_code.co_name != "_serve":
        frame = frame.f_back
    return frame.f_locals["message"]["id"]


def channel():
    """Find the socket to the runner, as a malicious backend would, and return it."""
    for descriptor in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                return socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
    raise AssertionError("no socket")


def frame(message, payload=b""):
    return json.dumps({**message, "bytes": len(payload)}).encode() + b"\n" + payload


def forged_response(number=None):
    """Return a response without outputs, by default to the last request."""
    number = REQUEST_IDS[-1] if number is None else number
    fields = {"outputs": [], "lowered": False, "opset": 0, "changed": [], "seconds": 0.0}
    return {"id": number, **fields}


def segfault():
    os.write(1, b"about to fall\n")
    ctypes.string_at(0)


def trap_sigterm_and_spin():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    spin()


def spin():
    while True:
        pass


def close_channel():
    os.closerange(3, 256)
    time.sleep(60)


def allocate():
    while True:
        KEPT_BUFFERS.append(bytearray(b"x") * (16 << 20))


def allocate_shared():
    while True:
        KEPT_BUFFERS.append(mmap.mmap(-1, 16 << 20))
        KEPT_BUFFERS[-1].write(b"x" * (16 << 20))


def abort_like_cpp():
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def flood():
    for _ in range(400):
        os.write(1, b"y" * (1 << 16))
        os.write(2, b"z" * (1 << 16))


def reserve_too_much():
    """Allocate memory that does not become resident, because nothing is written to it."""
    KEPT_BUFFERS.append(np.zeros(8 << 30, np.uint8))


def leave_child():
    KEPT_BUFFERS.append(subprocess.Popen([SLEEP, "300"]))


def leave_daemon():
    """Start a process that has a session of its own and outlives its parent."""
    start = f"import subprocess; subprocess.Popen([{SLEEP!r}, '300'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", start], check=True)


def leak_thread():
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()


def leak_descriptor():
    KEPT_BUFFERS.append(os.open(os.devnull, os.O_RDONLY))


def grow():
    KEPT_BUFFERS.append(np.ones(64 << 17))


def speak(text):
    channel().sendall(text)


def respond_again_later():
    def late():
        time.sleep(0.3)
        speak(frame(forged_response(number)))

    number = REQUEST_IDS[-1]
    threading.Thread(target=late, daemon=True).start()


class BadText(Exception):
    def __str__(self):
        raise SystemExit(7)


def raise_(error):
    raise error


def misbehaving(action):
    """Return a backend that performs an action in the bad case."""
    backend = Misbehaves()
    backend.misbehave = action
    return backend


exits = misbehaving(lambda: os._exit(0))
segfaults = misbehaving(segfault)
aborts = misbehaving(os.abort)
kills_itself = misbehaving(lambda: os.kill(os.getpid(), signal.SIGKILL))
kills_its_supervisor = misbehaving(lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(60)))
closes_channel = misbehaving(close_channel)
sys_exits = misbehaving(lambda: sys.exit(0))
interrupts = misbehaving(lambda: raise_(KeyboardInterrupt()))
raises_base = misbehaving(lambda: raise_(BaseException("odd\x1b[31m")))
raises_bad_text = misbehaving(lambda: raise_(BadText()))
spins = misbehaving(spin)
stops = misbehaving(lambda: os.kill(os.getpid(), signal.SIGSTOP))
stops_all = misbehaving(
    lambda: [os.kill(process, signal.SIGSTOP) for process in (os.getppid(), os.getpid())]
)
ignores_sigterm = misbehaving(trap_sigterm_and_spin)
allocates = misbehaving(allocate)
allocates_shared = misbehaving(allocate_shared)
allocates_in_cpp = misbehaving(abort_like_cpp)
floods = misbehaving(flood)
leaves_child = misbehaving(leave_child)
leaves_daemon = misbehaving(leave_daemon)
leaks_threads = misbehaving(leak_thread)
leaks_descriptors = misbehaving(leak_descriptor)
grows = misbehaving(grow)
sends_garbage = misbehaving(lambda: speak(b"\x80\x04garbage, or a pickle"))
sends_huge = misbehaving(lambda: speak(b'{"bytes": %d}\n' % (1 << 60)))
sends_bad_json = misbehaving(lambda: speak(b'{"id": ' + b"[" * 100_000 + b"\n"))
responds_to_another = misbehaving(lambda: speak(frame(forged_response(9999))))
responds_to_the_last = misbehaving(lambda: speak(frame(forged_response(REQUEST_IDS[-1] - 1))))
announces_too_much = misbehaving(
    lambda: speak(
        frame({**forged_response(), "outputs": [{"dtype": "float32", "shape": [1 << 40]}]})
    )
)
responds_again_later = misbehaving(respond_again_later)
breaks_numpy = misbehaving(lambda: setattr(np, "array_equal", None))
reserves_too_much = misbehaving(reserve_too_much)
keeps_much_once = misbehaving(cache(lambda: np.ones(160 << 17)))
starts_a_helper_once = misbehaving(cache(leave_child))


class BreaksNumpyLate(Well):
    """A backend that removes a function of NumPy, which onnxopt needs only in the next case."""

    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        if inputs["R"] >= BAD:
            np.frombuffer = None
        return outputs


class DiesAtTeardown(Well):
    def __init__(self):
        atexit.register(os.abort)


class HangsAtTeardown(Well):
    def __init__(self):
        atexit.register(time.sleep, 300)


class SaysWhoItIs(Well):
    """A backend that raises an exception with the id of its process as the message."""

    def run(self, _model, _inputs):
        raise ValueError(os.getpid())


class Waits(Well):
    """A backend that needs 0.2 s for each case."""

    def run(self, model, inputs):
        time.sleep(0.2)
        return super().run(model, inputs)


class DiesAfterTheResponse(Well):
    """A backend that dies after it has responded to the bad case."""

    def run(self, model, inputs):
        if inputs["R"] >= BAD:
            threading.Timer(0.2, os._exit, [3]).start()
        return super().run(model, inputs)


class ReusesItsBuffer(Well):
    """A backend that returns the same arrays each time, with new content."""

    buffers: tuple = ()

    def run(self, model, inputs):
        outputs = super().run(model, inputs)
        if not self.buffers:
            self.buffers = tuple(np.empty_like(output) for output in outputs)
        for buffer, output in zip(self.buffers, outputs, strict=True):
            buffer[...] = output
        return self.buffers


class RespondsAgainMuchLater(Well):
    """A backend that responds to the bad case again during a later case, from another thread."""

    def __init__(self):
        self.bad_case_ran = threading.Event()
        threading.Thread(target=self.speak_late, daemon=True).start()

    def speak_late(self):
        self.bad_case_ran.wait()
        time.sleep(0.3)
        speak(frame(forged_response(self.number)))

    def run(self, model, inputs):
        if inputs["R"] >= BAD:
            self.number = REQUEST_IDS[-1]
            self.bad_case_ran.set()
        elif self.bad_case_ran.is_set():
            time.sleep(0.2)
        return super().run(model, inputs)


class NeverReads(Well):
    """A backend that responds to a case, and stops before it reads the next request."""

    has_run = False

    def run(self, model, inputs):
        NeverReads.has_run = True
        return super().run(model, inputs)


class Hangs(Well):
    """A backend that starts a child process and never responds."""

    def run(self, _model, _inputs):
        subprocess.Popen([SLEEP, "300"], start_new_session=True)
        # If a signal arrives just before a sleep, Python handles it only after the sleep.
        # Therefore, the sleeps are short.
        while True:
            time.sleep(0.02)


class SegfaultsOften(Well):
    """A backend that dies in the 20th case that its process runs."""

    def __init__(self):
        self.calls = 0

    def run(self, model, inputs):
        self.calls += 1
        if self.calls % 20 == 0:
            segfault()
        return super().run(model, inputs)

"""Backends that send false claims, unrequested messages or too much data."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import hostile
import numpy as np
from hostile import BAD, REQUEST_IDS, Misbehaves, Well, forged_response, frame, misbehaving, speak

from onnxopt_cli.workers import worker_messages

MANY_OUTPUTS = 100_000


class ReturnsTooMuch(Misbehaves):
    """A backend that returns additional outputs in the bad case."""

    def __init__(self, surplus):
        self.surplus = surplus

    def run(self, model, inputs):
        outputs = list(Well.run(self, model, inputs))
        return outputs + self.surplus() if inputs["R"] >= BAD else outputs


returns_many = ReturnsTooMuch(lambda: [np.zeros(1, np.float32)] * MANY_OUTPUTS)
returns_too_many = ReturnsTooMuch(lambda: [None] * 3 * MANY_OUTPUTS)
returns_too_much_text = ReturnsTooMuch(lambda: [np.array(["x" * (257 << 20)], object)])
returns_long_text = ReturnsTooMuch(lambda: [np.array(["x" * 5_000_000], object)])


class SpeaksWhileIdle(Well):
    """A backend that sends a byte shortly after the bad case, from another thread."""

    def __init__(self):
        self.is_triggered = threading.Event()
        threading.Thread(target=self.speak_late, daemon=True).start()

    def speak_late(self):
        self.is_triggered.wait()
        time.sleep(0.1)
        speak(b"o")

    def run(self, model, inputs):
        if inputs["R"] >= BAD:
            self.is_triggered.set()
        return super().run(model, inputs)


class SpeaksDuringALaterCase(SpeaksWhileIdle):
    """A backend that sends a byte while the case after the bad case runs."""

    def run(self, model, inputs):
        if self.is_triggered.is_set():
            time.sleep(0.5)
        return super().run(model, inputs)


class SpeaksAtTheEnd(Well):
    """A backend that sends a byte at shutdown."""

    def close(self):
        speak(b"o")

    def __del__(self):
        self.close()


class RespondsAhead(Well):
    """A backend that responds to the next cases before it receives them."""

    def run(self, model, inputs):
        if inputs["R"] >= BAD:
            for number in range(REQUEST_IDS[-1] + 1, REQUEST_IDS[-1] + 9):
                speak(frame(forged_response(number)))
        return super().run(model, inputs)


def forge(**fields):
    return misbehaving(lambda: speak(frame({**forged_response(), **fields})))


def claim(**claims):
    """Return a backend whose response to the bad case contains false claims."""

    def pack_response(number, response, *_):
        worker_messages.pack_response = original
        return original(number, replace(response, **claims))

    original = worker_messages.pack_response
    return misbehaving(lambda: setattr(worker_messages, "pack_response", pack_response))


def strings(count):
    described = {"dtype": "string", "shape": [count], "data": [""] * count}
    speak(frame({**forged_response(), "outputs": [described]}))


claims_changes = claim(changed=("X",) * MANY_OUTPUTS)
claims_other_changes = forge(changed=[f"x{i}" for i in range(MANY_OUTPUTS)])
claims_lowered = claim(lowered=True)
claims_dims = forge(outputs=[{"dtype": "float32", "shape": [1] * MANY_OUTPUTS}])
claims_values = forge(outputs=[None] * 3 * MANY_OUTPUTS)
claims_nesting = forge(outputs=[{"sequence": [{"sequence": []}] * 3 * MANY_OUTPUTS}])
sends_many_parts = misbehaving(lambda: speak(b'{"id": [' + b"[]," * 1_999_999 + b"[]]}\n"))
sends_strings = misbehaving(lambda: strings(10_000_000))
sends_many_strings = misbehaving(lambda: strings(3_000_000))


class InTurn(hostile.InTurn):
    backends = globals()

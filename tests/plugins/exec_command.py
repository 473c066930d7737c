"""A command that speaks onnxopt-exec/1 and copies its inputs; its argument says how it errs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

MODE = sys.argv[1] if len(sys.argv) > 1 else "copies"
HELLO = {
    "protocol": "onnxopt-exec/1",
    "name": "copier",
    "version": "1.0",
    "domains": {"ai.onnx": [1, 21]},
    "dtypes": ["FLOAT", "DOUBLE", "INT64", "STRING"],
    "devices": ["CPU", "GPU:0"],
}


def main():
    """Answer requests until told to end."""
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            request = json.loads(line)
            if request["request"] == "hello":
                answer_hello(request)
            elif request["request"] == "run":
                answer_run(request, Path(request["folder"]))
            elif request["request"] == "shutdown":
                end()


def answer_hello(request):
    hello = {"id": request["id"], **HELLO}
    if MODE == "hello-error":
        hello = {"id": request["id"], "error": "no licence\x1b[31m"}
    elif MODE == "hello-dies":
        sys.exit(3)
    elif MODE == "hello-hangs":
        time.sleep(60)
    elif MODE == "hello-without-version":
        del hello["version"]
    elif MODE == "hello-differs":
        hello["version"] = str(os.getpid())
    elif MODE.startswith("hello="):
        hello |= json.loads(MODE.removeprefix("hello="))
    say(hello)


def answer_run(request, folder):
    number = request["id"]
    if MODE in ANSWERS:
        say({"id": number, **ANSWERS[MODE]})
    elif MODE in LINES:
        sys.stdout.buffer.write(LINES[MODE].replace(b"#", str(number).encode()))
        sys.stdout.flush()
    elif MODE == "hello-differs":
        sys.exit(7)
    elif MODE in DEEDS:
        DEEDS[MODE](request, folder)
    else:
        copy(request, folder)


def copy(request, folder):
    names = []
    for source, target in zip(request["inputs"], request["outputs"], strict=False):
        shutil.copy(folder / source["file"], folder / target["file"])
        names.append(target["file"])
    say({"id": request["id"], "outputs": names})


def say(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def end():
    if MODE == "ends-badly":
        sys.exit(9)
    if MODE == "never-ends":
        time.sleep(60)
    sys.exit(0)


def once(deed):
    """Do something at the first case only, in whichever process that falls."""

    def at_first(request, folder):
        marker = Path(sys.argv[2])
        if marker.exists():
            return copy(request, folder)
        marker.touch()
        return deed(request, folder)

    return at_first


def answer_twice(request, folder):
    copy(request, folder)
    say({"id": request["id"], "outputs": []})


def answer_and_chatter(request, folder):
    copy(request, folder)
    time.sleep(0.05)
    sys.stdout.write("done!\n")
    sys.stdout.flush()


def answer_and_die(request, folder):
    copy(request, folder)
    os._exit(0)


def close_output(_request, _folder):
    os.close(1)
    time.sleep(60)


def write_link(request, folder):
    (folder / "output_0.pb").symlink_to(folder / "input_0.pb")
    say({"id": request["id"], "outputs": ["output_0.pb"]})


def write_pipe(request, folder):
    os.mkfifo(folder / "output_0.pb")
    say({"id": request["id"], "outputs": ["output_0.pb"]})


def write_rubbish(request, folder):
    (folder / "output_0.pb").write_bytes(b"\xff\xff\xff")
    say({"id": request["id"], "outputs": ["output_0.pb"]})


def write_huge(request, folder):
    with (folder / "output_0.pb").open("wb") as file:
        file.truncate(2**31)
    say({"id": request["id"], "outputs": ["output_0.pb"]})


def write_double(request, folder):
    # A TensorProto by hand: dims 1, data_type DOUBLE, raw_data of eight zero bytes.
    (folder / "output_0.pb").write_bytes(bytes([8, 1, 16, 11, 74, 8]) + bytes(8))
    say({"id": request["id"], "outputs": ["output_0.pb"]})


def leave_rubbish(request, folder):
    (folder / "left" / "behind").mkdir(parents=True)
    (folder / "left").chmod(0)
    copy(request, folder)


def record(request, folder):
    names = sorted(path.name for path in folder.iterdir())
    Path(sys.argv[2]).write_text(json.dumps({**request, "files": names}))
    copy(request, folder)


def die(_request, _folder):
    os._exit(7)


def segfault(_request, _folder):
    os.kill(os.getpid(), signal.SIGSEGV)


ANSWERS = {
    "unsupported": {"unsupported": "cannot do it", "operator": ":Neg"},
    "unsupported-without-operator": {"unsupported": "cannot do it"},
    "error": {"error": "out of \x1b[31mluck"},
    "empty-error": {"error": ""},
    "unknown-field": {"outputs": [], "seconds": 1},
    "two-answers": {"outputs": [], "error": "and a failure"},
    "no-answer": {},
    "outputs-no-list": {"outputs": "output_0.pb"},
    "missing-file": {"outputs": ["output_0.pb"]},
    "no-outputs": {"outputs": []},
    "path-up": {"outputs": ["../../../etc/passwd"]},
    "absolute-path": {"outputs": ["/etc/passwd"]},
    "dot-dot": {"outputs": [".."]},
    "surrogate": {"outputs": ["\ud800"]},
    "the-model": {"outputs": ["model.onnx"]},
}
LINES = {
    "garbage": b"hello there\n",
    "not-utf-8": b'{"id": #, "error": "\xff"}\n',
    "a-list": b"[#]\n",
    "nan": b'{"id": #, "error": NaN}\n',
    "field-twice": b'{"id": #, "error": "a", "error": "b"}\n',
    "other-id": b'{"id": 99, "outputs": []}\n',
    "true-id": b'{"id": true, "outputs": []}\n',
    "no-id": b'{"outputs": []}\n',
    "nested": b"[" * 500_000 + b"\n",
    "too-long": b" " * (1 << 20) + b"\n",
    "never-ending-line": b"x" * (3 << 20),
    "empty-line": b"\n",
}
DEEDS = {
    "dies": once(die),
    "segfaults": once(segfault),
    "hangs": once(lambda _request, _folder: time.sleep(60)),
    "stops": once(lambda _request, _folder: os.kill(os.getpid(), signal.SIGSTOP)),
    "breaks-once": once(lambda _request, _folder: say({"id": -1})),
    "closes-output": close_output,
    "answers-twice": answer_twice,
    "chatters": answer_and_chatter,
    "answers-and-dies": answer_and_die,
    "link": write_link,
    "pipe": write_pipe,
    "rubbish": write_rubbish,
    "huge": write_huge,
    "double": write_double,
    "leaves-rubbish": leave_rubbish,
    "records": record,
}

main()

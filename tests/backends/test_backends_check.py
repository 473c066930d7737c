"""The command ``onnxopt backends check``: each rule detects backends that break the rule."""

from __future__ import annotations

import shlex
import sys

import pytest
from commands import run_command
from exec_commands import spec
from places import PLUGINS

from onnxopt_cli.backends.check.protocol_check import (
    COMMAND_RULES,
    PLUGIN_RULES,
    check_backend,
)
from onnxopt_cli.backends.check.protocol_rule import RuleOutcome

#: For each mode of exec/identity.py: the rules that the command breaks. An ellipsis stands for
#: further rules that it breaks as a consequence.
BREAKING_COMMANDS = {
    "fields": ["ignores unknown fields"],
    "chatter": ["runs further cases, and writes nothing without a request", ...],
    "id": ["responds to run with its id and the stated number of bytes", ...],
    "length": ["responds to run with its id and the stated number of bytes", ...],
    "damaged": ["reports a damaged model, and continues"],
    "unsupported": ["reports an unknown operator as unsupported"],
    "type": ["returns outputs of the declared type and shape"],
    "alike": ["returns the same outputs for the same inputs"],
    "empty": ["survives an empty tensor"],
    "large": ["survives a tensor of 10 MB"],
    "names": ["survives names that are not ASCII"],
    "shutdown": ["ends with exit code 0 on shutdown"],
    "end-of-input": ["ends with exit code 0 when its input ends"],
}
BREAKING_PLUGINS = {
    "Bare": ["returns a list, tuple or dict of outputs", ...],
    "Scribbles": ["does not modify its inputs", ...],
    "AcceptsAll": ["raises an exception for an invalid model"],
    "FailsForUnknown": ["reports an unknown operator as unsupported"],
    "Doubles": ["returns outputs of the declared type and shape"],
    "Counts": ["returns the same outputs for the same inputs"],
    "EndsOnEmpty": ["survives an empty tensor"],
    "CrashesOnLarge": ["survives a tensor of 10 MB"],
    "CrashesOnNames": ["survives names that are not ASCII"],
    "Prints": ["prints nothing"],
}


def command(breaks=""):
    return spec(breaks, command=PLUGINS / "exec" / "identity.py", timeout=5)


def plugin(name):
    return f"python:{PLUGINS / 'rule_breakers.py'}:{name}"


def broken(backend):
    return [f.rule.name for f in check_backend(backend) if f.verdict is RuleOutcome.FAIL]


@pytest.mark.parametrize("breaks", BREAKING_COMMANDS)
def test_rule_detects_command_that_breaks_it(breaks):
    expected = BREAKING_COMMANDS[breaks]
    violated = broken(command(breaks))
    assert expected[0] in violated
    assert expected[-1] is ... or violated == expected


def test_changed_hello_after_restart_is_detected():
    *_, last = check_backend(command("version"))
    assert last.verdict is RuleOutcome.FAIL
    assert "sent a different response to hello after a restart" in last.observed
    assert last.remedy == "send the same response to hello each time"


@pytest.mark.parametrize(
    "name",
    [
        # The plugin is tested only by slow tests if a command breaks the same rule, because testing
        # the command takes less time.
        pytest.param(name, marks=pytest.mark.slow)
        if rules[:1] in BREAKING_COMMANDS.values()
        else name
        for name, rules in BREAKING_PLUGINS.items()
    ],
)
def test_rule_detects_plugin_that_breaks_it(name):
    expected = BREAKING_PLUGINS[name]
    violated = broken(plugin(name))
    assert expected[0] in violated
    assert expected[-1] is ... or violated == expected


def test_every_rule_has_a_backend_that_breaks_it():
    tied = {names[0] for names in BREAKING_COMMANDS.values()}
    assert {rule.name for rule in COMMAND_RULES} - tied == {"responds to hello"}
    tied = {names[0] for names in BREAKING_PLUGINS.values()}
    assert {rule.name for rule in PLUGIN_RULES} - tied == {"can be loaded, and has prepare or run"}


@pytest.mark.parametrize(
    "backend", [command(), plugin("Keeps"), pytest.param("numpy", marks=pytest.mark.slow)]
)
def test_backend_that_follows_all_rules_passes_each_rule(backend, onnxopt):
    answer = onnxopt("backends", "check", backend)
    lines = answer.out.splitlines()
    count = len(tuple(COMMAND_RULES if backend.startswith("exec:") else PLUGIN_RULES))
    assert answer.code == 0
    assert lines[-1] == f"{count} pass"
    assert sum(line.startswith("pass") for line in lines) == count


def test_broken_rule_is_shown_with_observation_and_remedy(onnxopt):
    answer = onnxopt("backends", "check", plugin("CrashesOnLarge"))
    words = " ".join(answer.out.split())
    assert answer.code == 1
    assert "fail survives a tensor of 10 MB its process was killed by SIGSEGV" in words
    assert "to do: respond with outputs, unsupported or an error" in words
    assert words.endswith("10 pass, 1 fail")


@pytest.mark.slow
def test_forged_response_breaks_the_rule(workplace):
    (workplace / "forger.py").write_text(
        "import os, time\n"
        "class Forger:\n"
        "    def run(self, model, inputs):\n"
        "        for descriptor in range(3, 40):\n"
        "            try:\n"
        """                os.write(descriptor, b'{"id": 2, "verdict": "maybe"}\\n')\n"""
        "            except OSError:\n"
        "                pass\n"
        "        time.sleep(30)\n"
    )
    # A process of its own numbers its requests from 1, so the plugin can forge a response.
    done = run_command("backends", "check", "python:forger.py:Forger")
    assert (done.returncode, done.stderr) == (1, "")
    assert "its process sent something other than the result of a rule" in done.stdout


def test_misspelt_backend_gets_a_suggestion(onnxopt):
    answer = onnxopt("backends", "check", "numpyy")
    assert answer.code == 2
    assert "to do: did you mean numpy?" in answer.out


@pytest.mark.parametrize(
    ("backend", "words", "code"),
    [
        (spec("hello-error"), "no licence", 4),
        (spec("hello-dies"), "ended with exit code 3", 4),
        ("exec:./not-here", "does not exist", 4),
        (plugin("Nothing"), "neither prepare", 4),
        (plugin("Misspelt"), "has no Misspelt", 4),
        ("no-such-backend", "unknown backend", 2),
    ],
)
def test_backend_that_does_not_start_breaks_only_the_first_rule(backend, words, code, onnxopt):
    answer = onnxopt("backends", "check", backend)
    assert answer.code == code
    assert words in " ".join(answer.out.split())
    assert answer.out.splitlines()[-1] == "1 fail"


def test_hanging_command_takes_one_timeout():
    results = list(check_backend(spec("hello-hangs", timeout=0.3)))
    assert len(results) == 1
    assert results[0].observed == "the command did not respond within 0.3 s"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["command", "plugin"])
def test_hanging_backend_is_not_checked_further(kind, monkeypatch, tmp_path):
    if kind == "command":
        backend = spec("hangs", tmp_path / "marker", timeout=2)
    else:
        monkeypatch.setattr("onnxopt_cli.backends.check.protocol_check._SECONDS", 5.0)
        backend = plugin("Sleeps")
    *passed, last = check_backend(backend)
    assert {finding.verdict for finding in passed} == {RuleOutcome.PASS}
    assert last.verdict is RuleOutcome.FAIL
    assert "did not respond within" in last.observed
    assert last.remedy != last.rule.remedy


def test_unknown_option_of_command_is_usage_error(onnxopt):
    assert onnxopt("backends", "check", spec(speed="1")).code == 2


def test_plugin_is_imported_from_sys_path_of_this_process(workplace, monkeypatch):
    (workplace / "here").mkdir()
    (workplace / "here" / "vendor.py").write_text((PLUGINS / "rule_breakers.py").read_text())
    monkeypatch.setattr(sys, "path", [str(workplace / "here"), *sys.path])
    assert broken("python:vendor:Keeps") == []


def test_command_is_probed_with_stated_types(tmp_path):
    script = tmp_path / "double_only.py"
    text = (PLUGINS / "exec" / "identity.py").read_text()
    script.write_text(text.replace('"float32", "int64"', '"float64"'))
    findings = {f.rule.name: f for f in check_backend(spec("", command=script))}
    assert {finding.verdict for finding in findings.values()} == {RuleOutcome.PASS}
    assert findings["returns outputs of the declared type and shape"].observed == "float64"


def test_command_without_ai_onnx_is_checked_for_start_and_end_only(tmp_path):
    script = tmp_path / "other_domain.py"
    text = (PLUGINS / "exec" / "identity.py").read_text()
    script.write_text(text.replace('"ai.onnx"', '"com.acme"'))
    verdicts = {f.rule.name: f.verdict for f in check_backend(spec("", command=script))}
    assert RuleOutcome.FAIL not in verdicts.values()
    assert (
        verdicts["responds to run with its id and the stated number of bytes"]
        is RuleOutcome.NOT_SHOWN
    )


def own(name, pattern=None):
    option = "" if pattern is None else f",unsupported={pattern}"
    return f"python:{PLUGINS / 'own_errors.py'}:{name}{option}"


RULE = "reports an unknown operator as unsupported"


def proposed(onnxopt, backend):
    """Return the backend specification in the option ``-b`` that the check proposes."""
    output = onnxopt("backends", "check", backend).out
    assert f"fail {RULE}" in " ".join(output.split())
    (option,) = (line for line in output.splitlines() if line.startswith("-b "))
    _, specification = shlex.split(option)
    return specification


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("Only", "translation of the operator"),
        ("OnlyAdam", "translation of the operator"),
        ("OnlyGemmInDouble", "translation of the operator"),
        ("OnlyNotOfBooleans", "translation of the operator"),
        ("SaysItByType", "^OperatorIsMissing:"),
        ("SaysTwoThings", "translation of the operator|has no dialect"),
        ("LacksAdamInOtherWords", "cannot lower"),
    ],
)
def test_proposed_pattern_recognises_unknown_operators(onnxopt, name, pattern):
    written = proposed(onnxopt, own(name))
    assert all(part in written.partition(",unsupported=")[2] for part in pattern.split("|"))
    findings = {result.rule.name: result for result in check_backend(written)}
    assert findings[RULE].verdict is RuleOutcome.PASS, findings[RULE].observed
    assert findings["returns a list, tuple or dict of outputs"].verdict is RuleOutcome.PASS
    assert RuleOutcome.FAIL not in {finding.verdict for finding in findings.values()}


@pytest.mark.slow
def test_proposed_pattern_does_not_depend_on_tensor_names(onnxopt):
    written = proposed(onnxopt, own("NamesTheTensor"))
    backend = ("-b", written, "--lower", "never", "--isolation", "none", "--no-explain")
    for case in ("spec/adam/adam", "onnx-node/test_erf"):
        output = " ".join(onnxopt("run", case, *backend).out.split())
        assert "1 unsupported" in output


@pytest.mark.slow
def test_pattern_that_a_shorter_one_contains_is_not_proposed(onnxopt):
    written = proposed(onnxopt, own("NamesTheDomain"))
    assert written == own("NamesTheDomain", "Unsupported op")
    assert broken(written) == []


@pytest.mark.slow
def test_proposed_pattern_extends_existing_pattern(onnxopt):
    written = proposed(onnxopt, own("SaysTwoThings", "has no dialect"))
    assert written == own("SaysTwoThings", written.partition(",unsupported=")[2])
    assert "unsupported=has no dialect|" in written
    assert broken(written) == []


def test_too_broad_pattern_is_detected():
    results = {result.rule.name: result for result in check_backend(own("Only", "RuntimeFault"))}
    assert results[RULE].verdict is RuleOutcome.FAIL
    assert "unsupported=REGEX is too broad" in results[RULE].observed
    assert "no such tensor: nowhere" in results[RULE].observed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SaysTheSameOfAll", "no part of the message differs from"),
        pytest.param(
            "RefusesEverything",
            "it runs none of the operators that were tried",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_unspecific_words_are_not_proposed(name, words):
    results = {result.rule.name: result for result in check_backend(own(name))}
    assert results[RULE].verdict is RuleOutcome.FAIL
    assert words in results[RULE].observed
    assert not results[RULE].option


def test_defect_in_one_training_operator_is_not_unsupported():
    results = {result.rule.name: result for result in check_backend(own("BreaksInAdam"))}
    assert results[RULE].verdict is RuleOutcome.PASS
    assert "for Adam: RuntimeFault: the shapes of V and H contradict" in results[RULE].observed


def test_pattern_is_proposed_for_command(tmp_path):
    script = tmp_path / "failing.py"
    text = (PLUGINS / "exec" / "identity.py").read_text()
    text = text.replace(
        '{"unsupported": "only Identity is known"}',
        '{"error": f"no translation of {re.findall(rb\'[A-Z][A-Za-z0-9]{3,}\', model)[:1]}"}',
    )
    text = text.replace("import json\n", "import json\nimport re\n")
    script.write_text(text)
    results = {result.rule.name: result for result in check_backend(spec("", command=script))}
    written = shlex.split(results[RULE].option)[1]
    assert ",unsupported=no translation of" in written
    assert broken(written) == []

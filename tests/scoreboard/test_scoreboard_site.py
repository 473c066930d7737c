"""The site of a scoreboard: links, escaped names, marks, badges, and files of earlier sites."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from report_records import HOSTILE
from two_cases import BACKEND, CASE

from onnxopt_cli.scoreboard.safe_names import anchor, base_name, file_name

#: Labels that are hostile, or that differ only in case or punctuation.
LABELS = (
    *(text for text in HOSTILE if len(text) <= 60 and text.isprintable()),
    *("ORT", "ort", "Ort!", "con", "..", "index", "ümlaut", "日本", "ort-2"),
)
RAISES = f"""\
class Raises:
    def run(self, model, inputs):
        raise ValueError({" ".join(HOSTILE[:3])!r})
"""
PARTLY = """\
from onnxopt_cli.backends.resolve import resolve_backend


class Partly:
    def run(self, model, inputs):
        if b"nesterov" in model.SerializeToString():
            raise NotImplementedError("no Nesterov momentum")
        return resolve_backend("numpy").prepare(model).run(inputs)
"""
INACCURATE = """\
import numpy as np
from onnxopt_cli.backends.resolve import resolve_backend


class Inaccurate:
    def run(self, model, inputs):
        return list(map(self.changed, resolve_backend("numpy").prepare(model).run(inputs)))


class Three(Inaccurate):
    def changed(self, output):
        return (output.view(np.int32) + 3).view(np.float32)


class Infinite(Inaccurate):
    def changed(self, output):
        return output + np.float32(np.inf)
"""


class Page(HTMLParser):
    """A parser that collects the links, ids, scripts and text of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids, self.sources, self.tags, self.text = [], set(), [], Counter(), ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags[tag] += 1
        self.ids |= {attributes["id"]} if "id" in attributes else set()
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        if tag == "a":
            self.links.append(attributes["href"])
        if "src" in attributes or tag == "link":
            self.sources.append(attributes.get("src") or attributes["href"])

    def handle_data(self, data):
        self.text += data


def pages_of(site):
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


@pytest.fixture
def site(onnxopt, workplace):
    """Return a function that makes a scoreboard of labelled backends, and returns its site."""
    (workplace / "demo.yaml").write_text(CASE)
    (workplace / "demo.py").write_text(BACKEND)
    (workplace / "raises.py").write_text(RAISES)

    def make(backends, *arguments, code=0):
        rows = [f"{json.dumps(label)} = {json.dumps(text)}" for label, text in backends.items()]
        head = ['title = "<b>Demo</b>"', 'suites = ["demo.yaml"]', "[backends]"]
        text = "\n".join([*head, *rows, ""])
        (workplace / "board.toml").write_text(text, encoding="utf-8")
        answer = onnxopt("scoreboard", "board.toml", "--explain-time", "0", *arguments)
        assert answer.code == code, answer.text
        return workplace / "site"

    return make


def test_every_link_leads_to_a_page_and_an_anchor_of_the_site(site):
    folder = site({"right": "numpy", "raises": "python:raises.py:Raises", "gone": "no"}, code=4)
    pages = pages_of(folder)
    assert len(pages) == 2 + 3 + 1 + 1
    for path, page in pages.items():
        for link in page.links:
            file, _, fragment = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.is_file(), link
            if fragment:
                assert unquote(fragment) in pages[target].ids, link
        for source in page.sources:
            assert (path.parent / source).resolve().is_file(), source


def test_hostile_names_and_messages_are_escaped_and_have_distinct_files(site):
    assert len(LABELS) > 12
    folder = site(dict.fromkeys(LABELS, "python:raises.py:Raises"))
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert len({name.lower() for name in names}) == len(names)
    assert all(re.fullmatch(r"(\w+/)?[a-z0-9_][a-z0-9._-]*", name, re.ASCII) for name in names)
    assert len([name for name in names if name.startswith("backends/")]) == len(LABELS)
    for page in pages_of(folder).values():
        assert page.tags["script"] == 1
        assert page.tags["img"] == 0
        assert all(not link.startswith(("http", "javascript", "//")) for link in page.links)
    results = [path.name for path in (folder.parent / "results").iterdir()]
    assert len({name.lower() for name in results}) == len(LABELS)


def test_cells_count_outcomes_and_lead_to_causes(site):
    folder = site({"right": "numpy", "off": "python:demo.py:Off"})
    index = (folder / "index.html").read_text()
    cell = '<td class="zero"><a href="operators/momentum.html#off"><b>0</b>/2<small>2 fail</small>'
    assert cell in index
    operator = (folder / "operators" / "momentum.html").read_text()
    section = operator.partition('<section id="off">')[2].partition("</section>")[0]
    assert "Momentum: X_new off" in section
    assert 'href="../cases/momentum.html#demo/demo/plain"' in section


def test_cell_with_passes_and_unsupported_cases_is_not_shown_as_failing(site, workplace):
    (workplace / "partly.py").write_text(PARTLY)
    folder = site({"partly": "python:partly.py:Partly"}, "--lower", "never")
    cell = "<b>1</b>/2<small>1 unsupported</small>"
    link = '<a href="operators/momentum.html#partly">'
    assert f'<td class="supported">{link}{cell}' in (folder / "index.html").read_text()


def test_page_of_a_failing_case_has_attributes_inputs_and_wrong_values(site):
    folder = site({"right": "numpy", "off": "python:demo.py:Off"})
    page = (folder / "cases" / "momentum.html").read_text()
    section = page.partition('id="demo/demo/plain"')[2].partition("</section>")[0]
    assert "One ordinary step." in section
    assert "mode=standard" in section
    assert "X: float32[2] [1.0, 2.0]" in section
    assert "<b>pass</b>: right" in section
    assert "2 of 2 off" in section


def test_long_message_is_whole_and_folded_once_for_a_page(site, workplace):
    words = " ".join(f"word{number}" for number in range(400))
    (workplace / "long.py").write_text(
        RAISES.partition("raise")[0] + f"raise ValueError({words!r})"
    )
    folder = site({"long": "python:long.py:Raises"})
    page = Page(folder / "cases" / "momentum.html")
    assert page.tags["details"] == 1
    assert page.links.count("#repeated-0") == 1
    text = re.sub(r"\d+ more characters", "", page.text)
    assert text.count(f"ValueError: {words}") == 1


def test_page_of_an_operator_groups_cases_with_the_same_outcomes(site):
    folder = site({"right": "numpy", "off": "python:demo.py:Off"})
    page = (folder / "operators" / "momentum.html").read_text()
    groups = page.partition("<h2>Cases by outcome</h2>")[2].split("<li>")[1:]
    assert len(groups) == 1
    assert "2 cases" in groups[0]
    assert "<b>pass</b>: right" in groups[0]
    assert "<b>fail</b>: off" in groups[0]
    assert groups[0].count('href="../cases/momentum.html#demo/demo/') == 2


def test_same_wrong_result_of_several_backends_is_marked(site):
    backends = {"right": "numpy", "one": "python:demo.py:Off", "two": "python:./demo.py:Off"}
    folder = site(backends)
    index = (folder / "index.html").read_text()
    assert "Same wrong result on several backends" in index
    assert index.count("with the same wrong result as another backend</abbr>") == 0
    assert (
        index.count('<abbr title="2 with the same wrong result as another backend">=</abbr>') == 2
    )
    cases = (folder / "cases" / "momentum.html").read_text()
    assert cases.count('<dt class="o fail">one, two<dd><b>fail</b>; same wrong result<p>') == 2


def test_results_that_differ_only_in_the_backend_are_shown_once(site):
    backends = {"right": "numpy", "a": "python:raises.py:Raises", "b": "python:./raises.py:Raises"}
    page = (site(backends) / "cases" / "momentum.html").read_text()
    section = page.partition('id="demo/demo/plain"')[2].partition("</section>")[0]
    assert '<dt class="o error">a, b<dd>' in section
    assert section.count("<dt") == section.count("ValueError") == 1


def test_inputs_that_the_description_states_are_not_repeated(site, workplace):
    about = "A step; of R float32[], X float32[2], and MG float32[2]."
    (workplace / "demo.yaml").write_text(CASE.replace("One ordinary step.", json.dumps(about)))
    page = (site({"off": "python:demo.py:Off"}) / "cases" / "momentum.html").read_text()
    plain, _, nesterov = page.partition('id="demo/demo/nesterov"')
    assert "; R = 0.1; T: int64[] 1; X = [1.0, 2.0]; G: float32[2] [0.5, -0.5]" in plain
    assert "; R: float32[] 0.1; T: int64[] 1; X: float32[2] [1.0, 2.0]" in nesterov


def test_cases_in_a_folder_have_short_names_below_its_name(site):
    page = (site({"off": "python:demo.py:Off"}) / "operators" / "momentum.html").read_text()
    links = '<a href="../cases/momentum.html#demo/demo/plain">plain</a>'
    assert f'<p class="ids spaced">demo/demo/ {links}' in page


def test_accuracy_states_the_bits_that_each_backend_loses(site, workplace):
    (workplace / "inaccurate.py").write_text(INACCURATE)
    plugin = "python:inaccurate.py:"
    backends = {"right": "numpy", "three": f"{plugin}Three", "infinite": f"{plugin}Infinite"}
    page = (site({**backends, "gone": "no"}, code=4) / "accuracy.html").read_text()
    (row,) = page.partition("<tbody>")[2].partition("</tbody>")[0].strip().splitlines()
    operator, *cells = row.split("<td class=")
    assert '<a href="operators/momentum.html">Momentum</a>' in operator
    assert [cell.partition("</td>")[0] for cell in cells] == [
        '"all"><b>0.0</b><small>most 0.0</small>',
        # An error of 3 ulp loses log2(1 + 3) = 2 bits.
        '"some"><b>2.0</b><small>most 2.0</small>',
        '"zero"><b>not finite</b>',
        '"none plain">not started',
    ]


def test_pass_by_another_reading_is_marked(site):
    folder = site({"right": "numpy"})
    (log,) = (folder.parent / "results").rglob("*.jsonl")
    note = '"note":"contested: reading 2 of 2 (round half up)"'
    log.write_text(log.read_text().replace('"note":""', note, 1))
    site({"right": "numpy"}, "--no-run")
    assert "1 by another reading of a contested question" in (folder / "index.html").read_text()
    assert "reading 2 of 2 (round half up)" in (folder / "cases" / "momentum.html").read_text()


def test_badges_are_endpoints_of_shields(site):
    folder = site({"right": "numpy", "off": "python:demo.py:Off", "gone": "no"}, code=4)
    badges = {path.stem: json.loads(path.read_text()) for path in folder.glob("badges/*.json")}
    assert badges["right"]["message"] == "2 of 2 pass"
    assert badges["right"]["color"] == "brightgreen"
    assert badges["off"]["message"] == "0 of 2 pass"
    assert badges["gone"]["message"] == "could not be started"
    assert badges["gone"]["isError"]


def test_values_of_variables_are_hidden(site):
    folder = site({"right": "python:demo.py:Right,env.TOKEN=open sesame"})
    for path in folder.rglob("*.html"):
        assert "sesame" not in path.read_text()
    assert "env.TOKEN=..." in (folder / "backends" / "right.html").read_text()


def test_pages_of_an_earlier_site_are_removed_and_other_files_kept(site):
    folder = site({"right": "numpy", "off": "python:demo.py:Off"})
    (folder / "CNAME").write_text("scoreboard.example\n")
    site({"right": "numpy"})
    assert [path.name for path in (folder / "backends").iterdir()] == ["right.html"]
    assert (folder / "CNAME").is_file()


def test_page_that_cannot_be_removed_is_an_error(site):
    folder = site({"right": "numpy", "off": "python:demo.py:Off"})
    (folder / "backends" / "off.html").unlink()
    (folder / "backends" / "off.html").mkdir()
    site({"right": "numpy"}, code=2)


def test_list_of_files_cannot_remove_other_files(site):
    folder = site({"right": "numpy"})
    (folder.parent / "precious.html").write_text("")
    listed = folder / "scoreboard-files.json"
    listed.write_text('["../precious.html", "/etc/passwd", 7, "backends/../../precious.html"]')
    site({"right": "numpy"})
    assert (folder.parent / "precious.html").is_file()


def test_names_of_files_differ_for_different_texts():
    texts = [
        "a b",
        "a-b",
        "A-b",
        "a_b",
        "a/b",
        "..",
        ".",
        "",
        "con",
        "nul.txt",
        "x" * 300,
        "x" * 301,
    ]
    texts += [f"a-b-{file_name('a b')[-8:]}", *HOSTILE]
    names = [file_name(text) for text in texts]
    assert len({name.lower() for name in names}) == len(texts)
    assert all(re.fullmatch(r"[a-z0-9_][a-z0-9._-]{0,99}", name) for name in names)
    assert all(re.fullmatch(r"[a-z0-9_][a-z0-9._-]{0,99}", base_name(text)) for text in texts)
    anchors = [anchor(text) for text in texts]
    assert len(set(anchors)) == len(texts)
    assert all(" " not in name and name for name in anchors)

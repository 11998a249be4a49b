"""The report in the formats of other tools: what each holds, that it is well-formed, and that hostile
names are text in all of them."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from jsonschema import Draft4Validator

import nanodoc as nanodoc_package
from nanodoc.cli.outputs import check_output
from nanodoc.config import FORMATS, Config
from nanodoc.pipeline.run import run_training
from nanodoc.report.formats import rendered
from nanodoc.report.report import Accepted, Report
from nanodoc.report.sarif import SITE
from nanodoc.report.terminal import Look
from nanodoc.rules.catalogue import RULES
from tests.helpers import nanodoc
from tests.report.test_page import HOSTILE, hostile
from tests.report.test_renderers import SICK


@pytest.fixture
def report(tmp_path: Path) -> Report:
    (tmp_path / "train.py").write_text(SICK)
    made = run_training("train.py:build", Config(device="cpu"))
    return replace(made, nanodoc="0.0")


@pytest.mark.parametrize("form", ["sarif", "junit", "markdown", "gitlab"])
def test_the_text(report: Report, form: str, golden: Callable[[str, str], None]) -> None:
    golden(form, rendered(report, form, Look(), rules=RULES))


@pytest.mark.parametrize("form", FORMATS)
def test_hostile_names_are_text(report: Report, form: str) -> None:
    text = rendered(hostile(report), form, Look(width=80))
    own = re.sub(r"<script>.*?</script>|<style>.*?</style>", "", text, flags=re.S)
    assert all(ch == "\n" or ch.isprintable() for ch in own)
    if form in ("json", "sarif", "gitlab"):
        assert HOSTILE.split("<img")[0] in str(json.loads(text))
    if form == "junit":
        assert ElementTree.fromstring(text).find(".//img") is None
    if form == "markdown":
        fences = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.S | re.M)
        assert not re.search(
            r"(?<!\\)<(?!!-- |/?(details|summary|sub)>)", re.sub(r"`[^`\n]+`", "", fences)
        )


def sarif(report: Report) -> dict[str, Any]:
    (run,) = json.loads(rendered(report, "sarif", Look(), rules=RULES))["runs"]
    return dict(run)


def test_sarif_is_what_code_scanning_takes(report: Report) -> None:
    """SARIF 2.1.0: sections 3.27 (result), 3.30 (region), 3.38 (threadFlowLocation), 3.55 (fix)."""
    run = sarif(report)
    (result,) = run["results"]
    rules = run["tool"]["driver"]["rules"]
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "ND301"
    assert result["level"] == "error"
    assert result["partialFingerprints"] == {"nanodoc/v1": report.findings[0].fingerprint}
    region = result["locations"][0]["physicalLocation"]["region"]
    line = (Path("train.py").read_text()).splitlines()[region["startLine"] - 1]
    assert line[region["startColumn"] - 1 : region["endColumn"] - 1].startswith("torch.sqrt(")
    flow = result["codeFlows"][0]["threadFlows"][0]["locations"]
    assert all(step["location"]["physicalLocation"] for step in flow)
    (change,) = result["fixes"][0]["artifactChanges"]
    (replacement,) = change["replacements"]
    cut = replacement["deletedRegion"]
    new = (
        line[: cut["startColumn"] - 1]
        + replacement["insertedContent"]["text"]
        + line[cut["endColumn"] - 1 :]
    )
    assert new.strip() == "return torch.sqrt(self.scale(x).pow(2).mean(1).clamp_min(1e-12))"
    assert new.startswith("        return")


def test_every_rule_of_sarif_has_a_page_and_a_description(report: Report) -> None:
    """GitHub's code scanning shows both; the pages are those that scripts/docs builds."""
    (finding,) = report.findings
    every = tuple(replace(finding, code=rule.code, name=rule.name) for rule in RULES)
    rules = sarif(replace(report, findings=every))["tool"]["driver"]["rules"]
    assert len(rules) == len(RULES)
    for row, rule in zip(rules, RULES, strict=True):
        assert row["helpUri"] == f"{SITE}rules/{rule.code}/"
        assert rule.summary[1:] in row["fullDescription"]["text"]
        assert len(row["fullDescription"]["text"]) <= 1024
        assert f"nanodoc explain {rule.code}" in row["help"]["text"]
    config = tomllib.loads(
        (Path(nanodoc_package.__file__).parents[1] / "zensical.toml").read_text()
    )
    assert config["project"]["site_url"] == SITE


@pytest.mark.parametrize("again", [False, True], ids=["run", "view"])
def test_the_command_line_gives_sarif_the_texts_of_the_rules(tmp_path: Path, again: bool) -> None:
    (tmp_path / "train.py").write_text(SICK)
    form = "json" if again else "sarif"
    done = nanodoc("run", "train.py:build", "--output-format", form, cwd=tmp_path)
    if again:
        (tmp_path / "a.json").write_text(done.stdout)
        done = nanodoc("view", "a.json", "--output-format", "sarif", cwd=tmp_path)
    (rule,) = json.loads(done.stdout)["runs"][0]["tool"]["driver"]["rules"]
    assert rule["fullDescription"]["text"].startswith("The derivative is infinite")
    assert rule["helpUri"].endswith("/rules/ND301/")


def test_a_code_of_a_later_version_has_a_page_too(report: Report) -> None:
    (finding,) = report.findings
    later = replace(finding, code="ND999", name="a-later-rule")
    (row,) = sarif(replace(report, findings=(later,)))["tool"]["driver"]["rules"]
    assert row["helpUri"] == f"{SITE}rules/ND999/"
    assert row["fullDescription"]["text"] == "a later rule"


def test_fingerprints_do_not_move_with_the_lines(report: Report) -> None:
    Path("train.py").write_text("# one line more\n\n" + SICK)
    again = run_training("train.py:build", Config(device="cpu"))
    assert [f.fingerprint for f in again.findings] == [f.fingerprint for f in report.findings]
    assert again.findings[0].culprit.location != report.findings[0].culprit.location


def test_junit_counts_its_cases(report: Report) -> None:
    (suite,) = ElementTree.fromstring(rendered(report, "junit", Look()))
    cases = suite.findall("testcase")
    assert int(suite.get("tests", "")) == len(cases)
    assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure")) == 1
    assert int(suite.get("skipped", "")) == len(suite.findall("testcase/skipped"))
    healthy = replace(report, findings=())
    (suite,) = ElementTree.fromstring(rendered(healthy, "junit", Look()))
    assert suite.get("failures") == "0"
    assert suite.findall("testcase")  # a suite without a case counts as not run


def test_several_reports_of_one_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SICK)
    told = ["--output", "html=a.html", "--output", "sarif=out/a.sarif", "--output", "a.txt"]
    for _ in range(2):  # the second time over reports of our own
        done = nanodoc("run", "train.py:build", *told, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
    assert "critical[ND301]" in (tmp_path / "a.txt").read_text()
    assert "<!doctype html>" in (tmp_path / "a.html").read_text()
    assert json.loads((tmp_path / "out" / "a.sarif").read_text())["version"] == "2.1.0"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (["a.txt", "b.txt"], "a second report needs its format, such as html=b.txt"),
        (["html=a", "html=b"], "two files for one format"),
        (["html="], "FORMAT=FILE needs a file"),
        (["html=train.py"], "is not a nanodoc report"),
    ],
)
def test_outputs_that_cannot_be(tmp_path: Path, told: list[str], said: str) -> None:
    (tmp_path / "train.py").write_text(SICK)
    flags = [word for file in told for word in ("--output", file)]
    done = nanodoc("run", "train.py:build", *flags, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert (tmp_path / "train.py").read_text() == SICK


def test_a_further_report_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SICK)
    (tmp_path / "file").write_text("")
    further = ("--output", "html=file/a.html", "--output", "junit=a.xml")
    done = nanodoc("run", "train.py:build", *further, cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot write the report to file/a.html" in done.stderr
    assert "critical[ND301]" in done.stdout
    assert (tmp_path / "a.xml").exists()


def test_a_healthy_report_takes_the_place_of_one(report: Report, tmp_path: Path) -> None:
    healthy = replace(report, findings=())
    for form in FORMATS:
        file = tmp_path / f"r.{form}"
        file.write_text(rendered(healthy, form, Look()))
        check_output(Config(output=str(file)))


def test_every_result_of_sarif_has_a_place(report: Report) -> None:
    (finding,) = report.findings
    nowhere = replace(finding, culprit=replace(finding.culprit, location=None))
    (result,) = sarif(replace(report, findings=(nowhere,)))["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "train.py"


def test_no_change_is_offered_for_a_line_with_a_hidden_credential(report: Report) -> None:
    """Applied, it would write the asterisks into the file."""
    (finding,) = report.findings
    where = finding.culprit.location
    assert where is not None
    line = replace(where, code=where.code + '  # api_key="sk-aaaaaaaaaaaaaaaa"')
    secret = replace(finding, culprit=replace(finding.culprit, location=line))
    (result,) = sarif(replace(report, findings=(secret,)))["results"]
    assert "sk-aaaa" not in str(result)
    assert "fixes" not in result


def test_json_stays_json_on_narrow_streams(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SICK)
    flags = ("--in-process", "--output-format", "sarif")
    narrow = {"PYTHONIOENCODING": "ascii"}
    done = nanodoc("run", "train.py:build", *flags, cwd=tmp_path, **narrow)
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["version"] == "2.1.0"


def test_a_file_whose_name_holds_an_equals_sign(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SICK)
    nanodoc("run", "train.py:build", "--output", "./lr=1.txt", cwd=tmp_path)
    assert "ND301" in (tmp_path / "lr=1.txt").read_text()


def test_further_reports_in_yaml(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SICK)
    (tmp_path / "c.yaml").write_text("also: {junit: r.xml}\n")
    nanodoc("run", "train.py:build", "--config", "c.yaml", cwd=tmp_path)
    assert ElementTree.parse(tmp_path / "r.xml").getroot().get("name") == "nanodoc"
    (tmp_path / "c.yaml").write_text("also: {pdf: r.pdf}\n")
    refused = nanodoc("run", "train.py:build", "--config", "c.yaml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "a mapping of formats to files" in refused.stderr


SCHEMA = Path(__file__).parent / "schema" / "sarif-2.1.0-rtm.5.json"


@pytest.mark.parametrize("change", ["as it is", "hostile", "accepted", "without a place"])
def test_sarif_keeps_to_the_schema_of_oasis(report: Report, change: str) -> None:
    finding = report.findings[0]
    shown = {
        "as it is": report,
        "hostile": hostile(report),
        "accepted": replace(
            report,
            accepted=(Accepted(finding=finding, by="comment", place="a.py:3", reason="known"),),
        ),
        "without a place": replace(
            report,
            findings=(replace(finding, culprit=replace(finding.culprit, location=None)),),
        ),
    }[change]
    schema = json.loads(SCHEMA.read_text())
    made = json.loads(rendered(shown, "sarif", Look(), rules=RULES))
    Draft4Validator(schema).validate(made)
    rules = made["runs"][0]["tool"]["driver"]["rules"]
    assert all(rule["helpUri"] and rule["fullDescription"]["text"] for rule in rules)


def test_the_schema_is_the_published_one() -> None:
    told = (SCHEMA.parent / "SHA256SUMS").read_text().split()[0]
    assert hashlib.sha256(SCHEMA.read_bytes()).hexdigest() == told

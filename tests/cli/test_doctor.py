from __future__ import annotations

import json

import pytest

import ogkd.cli.doctor as doctor
from ogkd.backbones import engines
from ogkd.cli.doctor import Finding

PASS = Finding("PASS", "Python", "3.11")
WARN = Finding("WARN", "Model hub", "does not answer", "use a network")
FAIL = Finding("FAIL", "Cache", "cannot be written", "set OGKD_CACHE")


@pytest.mark.parametrize(
    ("findings", "code"), [([PASS], 0), ([PASS, WARN], 0), ([FAIL, WARN, PASS], 2)]
)
def test_each_finding_is_a_line_with_its_fix(ogkd, monkeypatch, findings, code):
    monkeypatch.setattr(doctor, "examine", lambda: iter(findings))
    outcome = ogkd("doctor")
    assert outcome.code == code
    expected = []
    for finding in findings:
        expected.append(f"{finding.status:5}{finding.what}: {finding.found}")
        if finding.fix:
            expected.append(f"      fix: {finding.fix}")
    assert outcome.out.splitlines() == expected
    as_json = ogkd("doctor", "--json")
    assert as_json.code == code
    assert [Finding(**row) for row in json.loads(as_json.out)] == findings


def test_this_machine_can_be_examined(ogkd, tiny_builtin, monkeypatch):
    monkeypatch.setattr(engines, "_PROBE", "pass")
    outcome = ogkd("doctor")
    assert outcome.code == 0, outcome.out
    starts = {line[:5].strip() for line in outcome.out.splitlines()}
    assert starts <= {"PASS", "WARN", ""}

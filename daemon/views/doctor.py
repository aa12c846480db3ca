"""What `mlxd doctor` shows: a line for each check, and under it what mends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from daemon.doctor import Finding, Severity, worst
from daemon.views.words import counted, plain

MARKS = {
    Severity.OK: ("✓", "green"),
    Severity.NOTE: ("·", "dim"),
    Severity.WARNING: ("!", "yellow"),
    Severity.PROBLEM: ("✗", "red"),
}


def doctor_view(findings: Sequence[Finding]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, style = MARKS[finding.severity]
        table.add_row(Text(mark, style), Text(finding.check, "bold"), Text(plain(finding.words)))
        if finding.fix:
            table.add_row("", "", Text(f"→ {plain(finding.fix)}"))
    return Group(table, Text(""), Text(summary(findings), "bold"))


def summary(findings: Iterable[Finding]) -> str:
    severities = [finding.severity for finding in findings]
    problems = severities.count(Severity.PROBLEM)
    warnings = severities.count(Severity.WARNING)
    if not problems and not warnings:
        return "Nothing is wrong."
    return f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}."


def doctor_json(findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "worst": worst(findings).name.lower(),
        "findings": [
            {
                "check": finding.check,
                "severity": finding.severity.name.lower(),
                "words": finding.words,
                "fix": finding.fix,
            }
            for finding in findings
        ],
    }

"""End a run of the tests with its skips by reason; `--listed-skips` fails if one is not in tests/skips.txt."""

from collections import Counter
from pathlib import Path

import pytest

_LIST = Path(__file__).with_name("skips.txt")


def expected() -> list[str]:
    """Return what the reasons of expected skips contain."""
    rows = [line.partition(" | ")[0] for line in _LIST.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row and not row.startswith("#")]


def unexpected(reasons: Counter[str]) -> list[str]:
    return sorted(reason for reason in reasons if not any(part in reason for part in expected()))


def reasons_of(config: pytest.Config) -> Counter[str]:
    """Count the skipped cases of a run by reason."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    return Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason, count in sorted(reasons_of(config).items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")
    if config.option.listed_skips and (new := unexpected(reasons_of(config))):
        terminalreporter.write_line(f"error: skips that are not in {_LIST.name}: {'; '.join(new)}", red=True)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.option.listed_skips and unexpected(reasons_of(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

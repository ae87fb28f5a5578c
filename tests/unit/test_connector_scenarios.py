"""The checklist of the Spark connector is complete, and says which tests show what."""

from __future__ import annotations

from support.scenarios import DOCUMENT, named, renewed, scenarios


def test_the_checklist_names_the_tests_of_now() -> None:
    """Makes its lines anew from the docstrings."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == renewed(text), "run: python tests/support/scenarios.py"


def test_every_scenario_is_tested_or_says_why_not() -> None:
    """Looks for scenarios without either, for tests of numbers that do not exist, and for reasons beside tests."""
    known = scenarios(DOCUMENT.read_text(encoding="utf-8"))
    tested = set(named())
    assert not tested - set(known)
    assert not {number for number, below in known.items() if not below.startswith(("Tests: ", "No test: "))}
    assert not {number for number in tested if known[number].startswith("No test: ")}

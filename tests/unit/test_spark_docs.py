"""The guide of the Spark connector says what the code declares."""

from __future__ import annotations

import pickle
from pathlib import Path

from rmq_spark.errors import Condition
from rmq_spark.options import OPTIONS, document

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_tables_of_the_guide_are_fresh() -> None:
    """Makes them anew from the declarations."""
    text = GUIDE.read_text(encoding="utf-8")
    assert text == document(text), "run: python -m rmq_spark.options docs/spark.md"
    assert all(f"| `{each.name}` |" in text for each in OPTIONS)


def test_conditions_are_their_names_wherever_they_travel() -> None:
    """The text beside a condition must not become its value."""
    for each in Condition:
        assert each.value == each.name == str(each)
        assert pickle.loads(pickle.dumps(each)) is each
        assert each.text.endswith(".")

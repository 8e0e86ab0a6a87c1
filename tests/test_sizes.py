from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechunk_exec.errors import PlanError
from rechunk_exec.sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    "given_size, expected",
    [
        ("8GB", 8 * 10**9),
        ("1 GB", 10**9),
        ("1GiB", 2**30),
        ("1.5GB", 1_500_000_000),
        ("0.1 GB", 100_000_000),
        ("12kB", 12_000),
        ("12KB", 12_000),
        ("12KiB", 12_288),
        ("3 MB", 3_000_000),
        ("3MiB", 3 * 2**20),
        ("2TB", 2 * 10**12),
        ("2 TiB", 2 * 2**40),
        ("500", 500),
        ("500 B", 500),
        (" 1e9 ", 10**9),
        ("8gb", 8 * 10**9),
        (1, 1),
        (8e9, 8 * 10**9),
        (np.int64(7), 7),
    ],
)
def test_sizes_as_people_write_them(given_size: Any, expected: int) -> None:
    size = parse_bytes(given_size)
    assert size == expected
    assert type(size) is int


@pytest.mark.parametrize(
    "wrong",
    [0, -1, True, np.True_, 1.5, float("nan"), float("inf"), "0", "-1GB", "8 XB", "8 G B", "GB", "", "8,5GB", "1.2.3MB",
     None, [1], "0.1B", "٣GB"],
)  # fmt: skip
def test_what_is_no_size_is_refused_with_the_rule_the_value_and_the_remedy(wrong: Any) -> None:
    with pytest.raises(PlanError) as refused:
        parse_bytes(wrong)
    message = str(refused.value)
    assert message.startswith("max_mem must be")
    assert repr(wrong) in message
    assert "'8GB'" in message


def test_more_bytes_than_documents_can_hold_are_refused() -> None:
    many: list[Any] = [2**63, "8e99GB", 1e300, 10**5000, "9" * 5000]
    for size in many:
        with pytest.raises(PlanError, match=r"max_mem must be less than 2\*\*63 bytes"):
            parse_bytes(size)
    assert parse_bytes(2**63 - 1) == 2**63 - 1


@given(st.integers(1, 9 * 10**18))
def test_formatted_sizes_read_back_to_three_figures(size: int) -> None:
    text = format_bytes(size)
    assert abs(Decimal(parse_bytes(text)) / size - 1) <= Decimal("0.0051")
    digits = text.split()[0].replace(".", "")
    assert len(digits) <= 3 or text.endswith("EB")


@pytest.mark.parametrize(
    "size, text",
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_499, "999 kB"), (999_999, "1 MB"), (10**21, "1000 EB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text

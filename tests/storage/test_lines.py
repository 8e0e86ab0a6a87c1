"""Files of lines while they are written: what is half written, by whom, and what stays of it."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rechunk_exec.errors import SerializationError, StorageError
from rechunk_exec.storage import LinesFile, LinesWriter
from rechunk_exec.storage.files import ABANDONED_S


def begun(place: Path) -> LinesWriter:
    writer = LinesWriter(str(place), replace=lambda beginning: beginning == "a line    \n")
    writer.write("a line", 10)
    return writer


@pytest.fixture(params=["jobs.jsonl", "j*[a]?.jsonl"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def abandoned(place: Path) -> Path:
    partial = place.with_name(f".{place.name}.0123456789ab.partial")
    partial.write_text("half a li")
    return partial


def test_only_what_may_be_replaced_is(place: Path) -> None:
    place.write_text("another line\n")
    with pytest.raises(StorageError, match="something else"):
        begun(place)
    assert place.read_text() == "another line\n"
    place.write_text("")
    for _ in range(2):
        begun(place).commit()
        assert place.read_text() == "a line    \n"
    assert [path.name for path in place.parent.iterdir()] == [place.name]


@pytest.mark.parametrize(
    "url", ["https://host/jobs.jsonl?X-Amz-Signature=hunter2", "https://me:hunter2@host/jobs.jsonl"]
)
def test_the_url_of_a_file_holds_no_credentials(url: str) -> None:
    with pytest.raises(SerializationError, match="carries no credentials; got a URL of host") as caught:
        LinesFile(url)
    assert "hunter2" not in str(caught.value)


def test_what_a_dead_writer_has_left_goes_when_the_file_is_written_anew(place: Path) -> None:
    partial = abandoned(place)
    writer = begun(place)
    assert not partial.exists()
    writer.commit()
    assert list(place.parent.iterdir()) == [place]
    assert list(LinesFile(str(place)).between(0, 9)) == ["a line    "]


def test_what_somebody_still_writes_stays(place: Path) -> None:
    first, second = begun(place), begun(place)
    assert len(list(place.parent.iterdir())) == 2
    first.commit()
    begun(place).abort()
    second.commit()
    assert list(place.parent.iterdir()) == [place]


def test_files_of_other_names_stay(place: Path) -> None:
    others = [
        abandoned(place.with_name("other.jsonl")),
        abandoned(place.with_name(f"{place.name}.more")),
        place.with_name(f".{place.name}.mine.partial"),
        place.with_name(f".{place.name}.0123456789ab.partial.txt"),
    ]
    for other in others[2:]:
        other.touch()
    begun(place).commit()
    assert set(place.parent.iterdir()) == {place, *others}


def test_without_locks_only_what_has_not_been_written_to_for_a_while_goes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    partial = abandoned(place)
    begun(place).commit()
    assert partial.exists()
    os.utime(partial, (time.time() - ABANDONED_S - 5,) * 2)
    begun(place).commit()
    assert list(place.parent.iterdir()) == [place]


def test_a_writer_whose_file_was_taken_for_a_dead_ones_begins_another(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    taken: list[Path] = []

    def take_once(descriptor: int, kind: int) -> None:
        if not taken:
            taken.extend(place.parent.iterdir())
            taken[0].unlink()
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", take_once)
    begun(place).commit()
    assert len(taken) == 1
    assert list(place.parent.iterdir()) == [place]

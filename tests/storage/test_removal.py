from __future__ import annotations

from pathlib import Path

from rechunk_exec.storage.removal import remove_array
from rechunk_exec.tasks import ArrayRef


def test_all_that_is_in_an_array_goes_and_nothing_that_it_links_to(tmp_path: Path) -> None:
    array, elsewhere = tmp_path / "array", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("kept")
    for number in range(300):
        chunk = array / "c" / str(number % 7) / str(number)
        chunk.parent.mkdir(parents=True, exist_ok=True)
        chunk.write_bytes(b"chunk")
    (array / "zarr.json").write_text("{}")
    (array / "empty" / "inner").mkdir(parents=True)
    (array / "c" / "link").symlink_to(elsewhere, target_is_directory=True)
    remove_array(ArrayRef(store=str(array)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere"]
    assert (elsewhere / "kept").read_text() == "kept"

"""A folder that tests may change, and that is as it was for the next one."""

from __future__ import annotations

import shutil
from pathlib import Path


class Kept:
    """A folder and a copy of it as it was, with the times of its files.

    Parameters
    ----------
    folder : Path
        With what is to be kept in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._copy = folder.with_name(f"{folder.name}-kept")
        shutil.copytree(folder, self._copy, symlinks=True)

    def restore(self) -> None:
        """Put everything back."""
        shutil.rmtree(self.folder)
        shutil.copytree(self._copy, self.folder, symlinks=True)

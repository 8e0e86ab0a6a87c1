"""Jobs that die at a given change of a store, and the same call made again: ``python -m tests.faults.crashes``.

Where :mod:`.kills` kills real processes on a local disk at random moments, this goes through the moments one by one: a
job dies before its k-th change (a write, a removal, on a local disk any operation that changes files), for a spread of
k, or each with ``--long``. After each death the target must be whole, or unfinished and known for it, or not there, and
the call that is made then must give the exact array, with nothing left beside it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr

import rechunk_exec as rx
from rechunk_exec.api import describe
from rechunk_exec.storage import array_ref, lease, read_job
from tests.faults.dying import Fuse
from tests.faults.dyingplaces import DiskPlace, MemoryPlace, Place
from tests.jobs import QUICK_STAGES, make_array, stop_after
from tests.values import Array, position_values, same_bits

ROOT = Path(__file__).parents[2]
SHAPE = (8, 8, 8)
NEW, OLD = position_values(SHAPE, "f4"), position_values(SHAPE, "f4", seed=9)
OLD_CHUNKS = (4, 4, 4)
DEAR = replace(rx.CostModel.object(), operation_s=5.0, deeper_s=0.0)
"""Operations so slow that a third stage saves more of them than it costs."""
TARGET, NEIGHBOUR, TEMP = "group/t", "group/a", "temp"
FOREIGN = {"group/t-mine/c/0": b"t", f"{TEMP}/mine/x": b"temp", "mine": b"mine"}
"""Objects of others, beside the target, in the temp store and above."""
Mode = Literal["fail", "overwrite", "resume"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job, and what is there before it."""

    stages: int = 1
    prior: Literal["nothing", "same", "ours", "foreign", "unfinished", "stopped"] = "nothing"
    """What is at the target: an array by the same call, one of other values and chunks by another call or by somebody
    else, one that is not finished, or this very job, stopped after a task."""
    prior_format: Literal[2, 3] = 3
    """Of the target that is replaced, and of the group above."""
    consolidated: bool = False
    """Whether the group above has consolidated metadata."""
    chunks: tuple[int, ...] = (8, 4, 4)
    max_mem: int = 20_000
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mode(self) -> Mode:
        """By which the job is first asked for."""
        return "fail" if self.prior == "nothing" else "resume" if self.prior == "stopped" else "overwrite"


TWO: dict[str, Any] = {"stages": 2, "max_mem": 2600, "options": {"cost_model": QUICK_STAGES}}
PIECES: dict[str, Any] = TWO | {"max_mem": 1800}
SHARDS: dict[str, Any] = {"options": {"target_shards": (8, 8, 4)}, "chunks": (8, 2, 2)}
CASES = {
    "fresh": Case(),
    "fresh, format 2, in a consolidated group": Case(prior_format=2, consolidated=True),
    "fresh, two stages": Case(**TWO),
    "fresh, three stages": Case(stages=3, max_mem=1400, chunks=(8, 4, 2), options={"cost_model": DEAR}),
    "over the same, two stages": Case(prior="same", consolidated=True, **TWO),
    "over the same, format 2": Case(prior="same", consolidated=True, prior_format=2),
    "over ours, shards": Case(prior="ours", consolidated=True, **SHARDS),
    "over ours of format 2, in pieces": Case(prior="ours", prior_format=2, consolidated=True, **PIECES),
    "over a foreign one": Case(prior="foreign", consolidated=True),
    "over a foreign one of format 2": Case(prior="foreign", prior_format=2, options={"zarr_format": 3}),
    "over an unfinished one": Case(prior="unfinished", **TWO),
    "going on": Case(prior="stopped", consolidated=True, **PIECES),
    "going on, shards, verified": Case(
        prior="stopped",
        stages=2,
        max_mem=2600,
        chunks=(8, 2, 2),
        options={"target_shards": (8, 4, 4), "verify": True, "cost_model": QUICK_STAGES},
    ),
}


class Scene:
    """A case on a store: what is there before, what a death leaves, and how it goes on."""

    def __init__(self, case: Case, place: Place, folder: Path) -> None:
        self.case, self.place = case, place
        self.source = folder / "source"
        other = make_array(folder / "other", SHAPE, (1, 8, 8), values=OLD, zarr_format=case.prior_format)
        make_array(self.source, SHAPE, (1, 8, 8), values=NEW, zarr_format=case.prior_format)
        place.restore(FOREIGN)
        group_format = case.options.get("zarr_format", case.prior_format)
        zarr.create_group(place.at("group"), zarr_format=group_format)
        make_array(place.at(NEIGHBOUR), (4,), (2,), zarr_format=group_format)
        with quiet():
            if case.consolidated:
                zarr.consolidate_metadata(place.at("group"))
            self._make_prior(other)
            if case.consolidated and case.prior == "foreign":
                zarr.consolidate_metadata(place.at("group"))
        self.before = place.objects()
        record = self._record()
        self.prior_job = "" if record is None else record.job

    def _make_prior(self, other: Any) -> None:
        prior, there = self.case.prior, self.place.at(TARGET)
        words: dict[str, Any] = {"executor": "serial", "progress": False}
        if prior == "same":
            self.job("fail").execute()
        elif prior == "ours":
            rx.rechunk(other, OLD_CHUNKS, "1MB", there, **words).execute()
        elif prior == "foreign":
            make_array(there, SHAPE, OLD_CHUNKS, values=OLD, zarr_format=self.case.prior_format)
        elif prior == "unfinished":
            job = rx.rechunk(other, (4, 4, 8), 2000, there, temp_store=self.place.at(TEMP), **words)
            stop_after(job.plan.tasks - 1, job)
        elif prior == "stopped":
            job = self.job("fail")
            stop_after(job.plan.tasks // 2, job)

    def job(self, mode: Mode) -> rx.Rechunked:
        """The call of the case."""
        job = rx.rechunk(
            self.source, self.case.chunks, self.case.max_mem, self.place.at(TARGET), temp_store=self.place.at(TEMP),
            mode=mode, executor="serial", progress=False, **self.case.options,
        )  # fmt: skip
        assert len(job.stages) == self.case.stages
        return job

    def die(self, at: int | None, *, torn: bool = False) -> Fuse:
        """Have the job die at a change, from what was there before."""
        self.place.restore(self.before)
        fuse = Fuse(at, torn)
        self.place.die(fuse, self.job(self.case.mode).execute)
        self.place.bury()
        return fuse

    def check_left(self) -> str:
        """Look at what a death has left: nothing may look done that is not; return what ``status`` says."""
        values, state = self._values(), self.state()
        whole = values is not None and (same_bits(values, NEW) or self._is_old(values))
        if state == "unfinished":
            assert values is None or self._is_part_of_one(values)
        elif state == "finished":
            assert whole, "finished, and not exact"
        else:
            assert state == "none"
            assert values is None or (self.case.prior == "foreign" and self._is_old(values))
        if values is not None:
            report = rx.verify(self.source, self.place.at(TARGET), executor="serial")
            assert bool(report.unfinished) == (state == "unfinished")
            assert report.ok == (state != "unfinished" and same_bits(values, NEW))
            assert ("unfinished" in describe(self.place.at(TARGET)).job) == (state == "unfinished")
        shown = self._shown()
        assert shown is None or same_bits(shown, NEW) or self._is_old(shown), "consolidated metadata show what is not"
        self._check_modes(taken=values is not None or state == "unfinished")
        self._check_others()
        return state

    def _check_modes(self, *, taken: bool) -> None:
        """See that an array or a job is in the way of the one mode that does not replace it, and of that only."""
        self.job("overwrite")
        if taken:
            try:
                self.job("fail")
            except rx.TargetExistsError:
                return
            raise AssertionError("mode='fail' would write to what is there")
        self.job("fail")
        self.job("resume")

    def go_on(self, mode: Mode) -> None:
        """Make the call again; where it may not be resumed, because what is there is whole, by its own mode."""
        try:
            job = self.job(mode)
        except rx.ResumeError:
            record = self._record()
            assert (record.job if record else "") == self.prior_job, "what was begun by this call must go on"
            assert self.case.prior in {"ours", "foreign", "unfinished"}
            job = self.job("overwrite")
        job.execute()
        self.check_finished()

    def go_on_from_half(self) -> str:
        """See that half an object was not believed, and make the call again; return what ``status`` says before."""
        try:
            state = self.state()
            if state == "finished":
                values = self._values()
                assert values is not None
                assert same_bits(values, NEW) or self._is_old(values)
            self.job("resume").execute()
        except rx.RechunkError:  # which says that overwrite begins anew
            state = "damaged"
            self.job("overwrite").execute()
        array = zarr.open_array(self.place.at(TARGET), mode="r")
        assert same_bits(np.asarray(array[...]), NEW)
        assert self.state() == "finished"
        return state

    def check_finished(self) -> None:
        """Fail unless the target is exact, is shown, and nothing of the work is left."""
        array = zarr.open_array(self.place.at(TARGET), mode="r")
        assert array.chunks == self.case.chunks
        assert same_bits(np.asarray(array[...]), NEW)
        assert self.state() == "finished"
        assert rx.verify(self.source, self.place.at(TARGET), executor="serial").ok
        if self.case.consolidated:
            shown = self._shown()
            assert shown is not None
            assert same_bits(shown, NEW)
        self._check_others()
        record = self._record()
        assert record is not None
        metadata = ("zarr.json", ".zarray", ".zattrs")
        grid = np.ndindex(*(-(-n // unit) for n, unit in zip(SHAPE, array.shards or array.chunks, strict=True)))
        keys = (array.metadata.encode_chunk_key(index) for index in grid)
        journal = (f".rechunk_exec/{name}" for name in ("job.json", "finished.json", f"{record.job}/"))
        known = tuple(f"{TARGET}/{name}" for name in (*metadata, *keys, *journal))
        there = self.place.objects()
        strange = {name for name in there if name.startswith(f"{TARGET}/")} | (there.keys() - self.before.keys())
        left = sorted(name for name in strange if not name.startswith(known))
        assert left == [], left

    def state(self) -> str:
        """What ``status`` says; ``none`` if no job is recorded."""
        try:
            return rx.status(self.place.at(TARGET)).state
        except rx.StorageError:
            return "none"

    def _record(self) -> Any:
        return read_job(array_ref(self.place.at(TARGET)))

    def _values(self) -> Array | None:
        """What zarr reads from the target; None if there is no array."""
        try:
            array = zarr.open_array(self.place.at(TARGET), mode="r")
        except (FileNotFoundError, zarr.errors.NodeNotFoundError):
            return None
        return np.asarray(array[...])

    def _shown(self) -> Array | None:
        """What zarr reads from the target by the consolidated metadata of the group; None if they do not show it."""
        if not self.case.consolidated:
            return None
        group = zarr.open_group(self.place.at("group"), mode="r", use_consolidated=True)
        names = list(group.array_keys())
        assert "a" in names
        shown: Any = group["t"] if "t" in names else None
        return None if shown is None else np.asarray(shown[...])

    def _is_old(self, values: Array) -> bool:
        """Whether these are the values of the array that was there before, whole."""
        if self.case.prior in {"ours", "foreign"}:
            return same_bits(values, OLD)
        return self.case.prior == "same" and same_bits(values, NEW)

    @staticmethod
    def _is_part_of_one(values: Array) -> bool:
        """Whether these are of one array, old or new, with fill values where a task was not done."""
        bits = values.view("u4")
        return any(((bits == whole.view("u4")) | (bits == 0)).all() for whole in (NEW, OLD))

    def _check_others(self) -> None:
        """Fail if what is not of this job was changed, made or lost: all but the target, and metadata of its group."""
        apart = ("group/zarr.json", "group/.zmetadata")
        there = self.place.objects()
        for name, content in self.before.items():
            if not name.startswith((f"{TARGET}/", f"{TEMP}/rechunk_exec-", *apart)):
                assert there.get(name) == content, name


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what zarr warns of: consolidated metadata, which are no part of its specification, and foreign objects."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part|Object at .* is not recognized")
        yield


@dataclass
class Figures:
    """What was seen."""

    deaths: int = 0
    found: Counter[str] = field(default_factory=Counter)
    """States of the target after a death."""

    def __str__(self) -> str:
        return f"{self.deaths} deaths; found then: {dict(sorted(self.found.items()))}"


def run_case(scene: Scene, figures: Figures, *, every: int, seed: int = 0) -> None:
    """Die at every so-manieth change of the job, beginning with one drawn by the seed, and go on each time."""
    chance = random.Random(seed)
    at = chance.randint(1, every)
    before = figures.deaths
    while (fuse := scene.die(at)).what:
        figures.deaths += 1
        try:
            figures.found[scene.check_left()] += 1
            scene.go_on("resume" if scene.case.mode == "fail" else chance.choice(["resume", scene.case.mode]))
        except Exception as error:
            error.add_note(f"after a death at change {at}: {fuse.what}")
            raise
        at += every
    scene.check_finished()
    assert figures.deaths > before, f"the job makes fewer changes than {at}"


def run_torn(scene: Scene, figures: Figures, *, every: int, seed: int = 0) -> None:
    """The same on a store that may keep half an object, where a death is in the midst of a write."""
    at = random.Random(seed).randint(1, every)
    while (fuse := scene.die(at, torn=True)).what:
        # What is above the target is not ours to mend: an error names it.
        if fuse.what.startswith((f"set {TARGET}/", f"set {TEMP}/")):
            figures.deaths += 1
            try:
                figures.found[scene.go_on_from_half()] += 1
            except Exception as error:
                error.add_note(f"after a death at change {at}: {fuse.what}")
                raise
        at += every


def main(arguments: Any = None) -> None:
    """Run all cases from the command line and print the figures."""
    parser = argparse.ArgumentParser(description="Have jobs die at each change that they make, and make them again.")
    parser.add_argument("--long", action="store_true", help="each change, whatever --every says")
    parser.add_argument("--every", type=int, default=7, help="die at every so-manieth change")
    parser.add_argument("--place", choices=["memory", "disk"], default="memory")
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    lease.WORKERS_LEAVE_S = 0.0  # there are none
    figures = Figures()
    for name in options.case or CASES:
        with tempfile.TemporaryDirectory(prefix="crashes-") as folder, quiet():
            place = DiskPlace(Path(folder, "place")) if options.place == "disk" else MemoryPlace()
            scene = Scene(CASES[name], place, Path(folder))
            run_case(scene, figures, every=1 if options.long else options.every, seed=options.seed)
        print(f"{name}: {figures}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

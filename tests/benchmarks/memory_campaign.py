"""The promise of memory, over random jobs in fresh processes. Run by hand.

    python tests/benchmarks/memory_campaign.py [--jobs 300] [--seed 1] [--at-once 2] [--out FILE] [--folder DIR]
        [--only NUMBER ...] [--place s3]

Each job is run in a process of its own, after a tiny job of the same kind: see :mod:`tests.benchmarks.memoryprobe` for
how it is measured, and :mod:`tests.benchmarks.memoryjobs` for what is drawn. The table has a line for each job that
broke a rule, the summary counts them; with ``--out`` each job is a line of JSON besides. The exit code is 1 if a rule
was broken:

* what was planned is within ``max_mem``;
* what was measured is within what was planned, and for jobs below 200 MB within that and the plan's
  ``process_bytes``;
* what was planned is at most 1.5 times what was measured, for jobs that took more than 200 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]  # as a script it sees its own folder only

from tests.benchmarks.memoryjobs import LARGEST_AFAR, MB, Job, JobSpace, from_json, placed  # noqa: E402
from tests.benchmarks.memoryprobe import Measured  # noqa: E402
from tests.s3 import Bucket, running_server  # noqa: E402

Outcome: TypeAlias = tuple[Job, Measured | str]
"""A job and what was found, or what went wrong."""
SMALL, LARGE = 100 * MB, 200 * MB
OVERCOUNT = 1.5
_TIMEOUT_S = 900


@dataclass(frozen=True)
class Campaign:
    """Measures jobs in fresh processes, a folder for each source, which stays until it is forgotten."""

    folder: Path
    environment: Mapping[str, str]

    def measure(self, job: Job) -> Measured:
        """Run a job, on its source, which is made before if it is not there."""
        folder = self.folder / str(job.source.number)
        if not folder.exists():
            folder.mkdir()
            if job.source.place != "memory":
                self._probe("make", job, folder)
        try:
            record = json.loads(self._probe("run", job, folder).splitlines()[-1])
        finally:
            for path in folder.glob("*"):
                if not path.name.startswith("source"):
                    if path.is_dir():
                        shutil.rmtree(path)
                    else:  # what a job that was stopped has left
                        path.unlink()
        return Measured(**record | {"ways": tuple(record["ways"])})

    def forget(self, job: Job) -> None:
        """Remove a job's source."""
        shutil.rmtree(self.folder / str(job.source.number))

    def _probe(self, what: str, job: Job, folder: Path) -> str:
        script = Path(__file__).with_name("memoryprobe.py")
        done = subprocess.run(
            [sys.executable, str(script), what, json.dumps(asdict(job)), str(folder)],
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"} | dict(self.environment),
            timeout=_TIMEOUT_S,
        )
        if done.returncode:
            raise RuntimeError(f"job {job.number} failed: {done.stderr.strip()[-300:]}")
        return done.stdout


def broken_rules(found: Measured, beside: int | None = None) -> list[str]:
    """What a job broke; ``beside`` is what it may hold besides what was planned, if that is not what the plan says."""
    allowed = 0 if found.measured > LARGE else found.beside if beside is None else beside
    rules = {
        "planned over max_mem": found.predicted > found.max_mem,
        "measured over planned": found.measured > found.predicted + allowed,
        "planned 1.5 x measured": found.measured > LARGE and found.predicted > OVERCOUNT * found.measured,
    }
    return [name for name, broken in rules.items() if broken]


def describe(job: Job, found: Measured) -> str:
    """A line of the table."""
    one = job.source
    text = f"v{one.zarr_format} {one.dtype} {one.shape} {one.chunks}/{one.shards} {'-'.join(map(str, one.codec))} "
    text += (
        f"{one.order}{' soft' if one.compressible else ''} {one.place} -> v{job.zarr_format} {job.chunks}/{job.shards} "
    )
    text += f"{'-'.join(map(str, job.codec))} {job.place} {job.executor} {job.workers} room {job.room}"
    text += f"{' verify' if job.verify else ''} {'+'.join(found.ways)} stages {found.stages} tasks {found.tasks}"
    return text


def figures(found: Measured) -> str:
    """The figures of a line, in MB."""
    numbers = (found.max_mem, found.predicted, found.beside, found.measured, found.told)
    ratio = found.measured / found.predicted
    over = (found.measured - found.predicted) / MB
    return " ".join(f"{number / MB:8.1f}" for number in numbers) + f" {ratio:6.3f} {over:+7.2f}"


def summarize(done: Sequence[tuple[Job, Measured]]) -> list[str]:
    """The lines of the summary."""
    lines: list[str] = []
    groups: dict[str, Callable[[Measured], bool]] = {
        "below 100 MB": lambda found: found.measured < SMALL,
        "100 to 200 MB": lambda found: SMALL <= found.measured <= LARGE,
        "above 200 MB": lambda found: found.measured > LARGE,
    }
    for name, within in groups.items():
        some = [found for _, found in done if within(found)]
        if not some:
            continue
        ratio = np.array([found.measured / found.predicted for found in some])
        over = np.array([found.measured - found.predicted for found in some]) / MB
        quarters = " ".join(f"{value:.2f}" for value in np.percentile(ratio, (0, 5, 25, 50, 75, 95, 100)))
        lines.append(
            f"{name:14s} {len(some):4d} jobs; measured / planned min, 5, 25, 50, 75, 95 %, max: {quarters}; "
            f"over planned: {int((over > 0).sum())}, by at most {over.max():.2f} MB; "
            f"of what it may hold besides, at most {max(_used(found) for found in some):.2f}"
        )
    told = [abs(found.told - found.measured) / MB for job, found in done if job.executor != "dask"]
    if told:
        lines.append(
            f"told by the tasks and measured differ by {np.median(told):.2f} MB (median), {max(told):.2f} MB at most"
        )
    for rule in ("planned over max_mem", "measured over planned", "planned 1.5 x measured"):
        count = sum(rule in broken_rules(found) for _, found in done)
        lines.append(f"{rule}: {count} of {len(done)} jobs")
    return lines


def _used(found: Measured) -> float:
    """How much of what a process may hold besides it held."""
    return (found.measured - found.predicted) / found.beside


def read_lines(path: Path) -> list[Outcome]:
    """The outcomes that an earlier run has written."""
    outcomes: list[Outcome] = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        found = Measured(**record["found"] | {"ways": tuple(record["found"]["ways"])})
        outcomes.append((from_json(record["job"]), found))
    return outcomes


def run_all(
    groups: Mapping[int, list[Job]], campaign: Campaign, at_once: int, out: IO[str] | None
) -> Iterator[Outcome]:
    """Measure jobs, grouped by their sources; yield them with what was found, or what went wrong."""

    def run_group(number: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for job in groups[number]:
            try:
                found = campaign.measure(job)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                outcomes.append((job, str(error)))
                continue
            outcomes.append((job, found))
            if out:
                out.write(json.dumps({"job": asdict(job), "found": asdict(found)}) + "\n")
                out.flush()
        campaign.forget(groups[number][0])
        return outcomes

    with ThreadPoolExecutor(at_once) as pool:
        for outcomes in pool.map(run_group, groups):
            yield from outcomes


def report(outcomes: Iterable[Outcome]) -> bool:
    """Print the table and the summary; return whether a rule was broken."""
    done: list[tuple[Job, Measured]] = []
    failed = 0
    print(" max_mem  planned  besides measured     told  ratio    over  (MB)")
    for job, found in outcomes:
        if isinstance(found, str):
            failed += 1
            print(f"#{job.number} {found}", flush=True)
            continue
        done.append((job, found))
        rules = ", ".join(broken_rules(found))
        print(f"{figures(found)} {rules:22s} #{job.number} {describe(job, found)}", flush=True)
    print("\n".join(summarize(done)), f"{failed} jobs failed", sep="\n")
    return failed > 0 or any(broken_rules(found) for _, found in done)


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="jobs at once: 3 GB of memory for each")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help="where arrays are made; needs 2 GB for each job at once")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of jobs")
    parser.add_argument("--place", choices=("objects", "s3"), help="write all targets there, those under 300 MB")
    parser.add_argument("--read", type=Path, help="report the lines of an earlier run")
    asked = parser.parse_args()
    if asked.read:
        return int(report(read_lines(asked.read)))
    groups: dict[int, list[Job]] = {}
    for job in JobSpace(asked.seed).jobs(asked.jobs):
        if (asked.only and job.number not in asked.only) or (asked.place and job.source.nbytes >= LARGEST_AFAR):
            continue
        groups.setdefault(job.source.number, []).append(placed(job, asked.place or job.place))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=asked.folder)))
        bucket = Bucket(stack.enter_context(running_server()), "memory")
        os.environ.update(bucket.environment)
        bucket.make()
        out = stack.enter_context(asked.out.open("a")) if asked.out else None
        campaign = Campaign(folder, bucket.environment)
        return int(report(run_all(groups, campaign, asked.at_once, out)))


if __name__ == "__main__":
    sys.exit(main())

"""One layer of a real frame's size: 389 epochs of 6898 x 9618 float32, 103 GB. Run by hand; asserts no time.

    python -m tests.benchmarks.whole_frame [--folder DIR] [--max-mem 8GB 2GB] [--rows N] [--epochs N]

The layer (:mod:`tests.benchmarks.framedata`) is made on disk in whole-epoch chunks, and once more in (1, 1024, 1024),
and goes to shards (389, 256, 256) of chunks (389, 64, 64), by the executor ``processes`` with two workers, within each
``--max-mem``. Where source, target and what the plan keeps in between would not fit the disk, the largest part is used
that does: all epochs, and as many whole rows of shards as fit, by the size of one epoch that is made for it. ``--rows``
and ``--epochs`` give the part instead. It prints the plan, predicted and measured seconds and memory, and whether all
bits are right. The page cache is left as it is; most of such an array does not fit it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import rechunk_exec as rx
from rechunk_exec.array_report import describe_array
from rechunk_exec.executors import ProcessesExecutor
from rechunk_exec.sizes import format_bytes, parse_bytes
from tests.benchmarks.contender import compete
from tests.benchmarks.framedata import make_frame
from tests.benchmarks.peer_jobs import import_zarr
from tests.benchmarks.processtree import ContenderError, watch

FRAME = (389, 6898, 9618)
CHUNK_YX, SHARD_YX, WORKERS = 64, 256, 2
LAYOUTS = {"epochs": FRAME[1:], "blocks": (1024, 1024)}
SPARE = 0.93
"""The part of the free disk that may be used."""
BEFORE = "dask did this frame in 600,000 tasks, with 6.0 GB in a worker and 3.1 GB in the coordinator at the most"


def chunks_of(layout: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The source's chunks of a layout."""
    rows, columns = LAYOUTS[layout]
    return 1, min(rows, shape[1]), min(columns, shape[2])


def planned(source: Path, target: Path, max_mem: str, executor: ProcessesExecutor) -> rx.Rechunked:
    """The job; nothing is written yet."""
    return rx.rechunk(
        source, {"time": -1, "y": CHUNK_YX, "x": CHUNK_YX}, max_mem, target, executor=executor, progress=False,
        target_shards={"time": -1, "y": SHARD_YX, "x": SHARD_YX},
    )  # fmt: skip


def copy(source: Path, target: Path, max_mem: str) -> Iterator[str]:
    """The job as a contender."""
    with ProcessesExecutor(WORKERS) as executor:
        executor.run_on_workers(import_zarr)
        yield ""
        job = planned(source, target, max_mem, executor)
        job.execute()
        assert job.report is not None
        stages = [f"{stage.region} from units of {stage.read_unit}" for stage in job.plan.stages]
        said = {
            "plan": " -> ".join(stages), "traffic": job.plan.traffic, "tasks": job.plan.tasks,
            "temp_bytes": job.plan.temp_bytes, "predicted_s": job.plan.predicted_s, "copy_s": job.report.seconds,
            "predicted_bytes": job.plan.peak_bytes, "peak_bytes": job.report.peak_bytes,
            "warnings": job.report.warnings, "paths": job.report.codec_paths,
        }  # fmt: skip
        yield json.dumps(said)


def stored_bytes(path: Path) -> int:
    """Bytes of all files under a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def fitting_rows(folder: Path, layout: str, epochs: int, budgets: list[str]) -> int:
    """The most rows of which source, target and intermediates fit the disk, in whole shards, or all."""
    trial = folder / "trial.zarr"
    make_frame(trial, (2, *FRAME[1:]), chunks_of(layout, FRAME))
    a_row = stored_bytes(trial) / 2 / FRAME[1] * epochs
    raw_row = 4 * FRAME[2] * epochs
    unit = describe_array(rx.ArrayRef(store=str(trial))).read_unit
    shape = (epochs, *FRAME[1:])
    plans = [
        rx.plan_rechunk(
            shape, 4, chunks_of(layout, shape), (epochs, CHUNK_YX, CHUNK_YX), max_mem, read_unit=unit,
            target_shards=(epochs, SHARD_YX, SHARD_YX),
        )
        for max_mem in budgets
    ]  # fmt: skip
    temp = max(plan.temp_bytes for plan in plans) / FRAME[1]
    shutil.rmtree(trial)
    rows = int(SPARE * shutil.disk_usage(folder).free / (2 * a_row + temp))
    print(
        f"{layout}: an epoch takes {a_row / raw_row:.3f} of its raw bytes; {rows} of {FRAME[1]} rows fit the disk "
        f"({format_bytes(shutil.disk_usage(folder).free)} free)"
    )
    return FRAME[1] if rows >= FRAME[1] else max(SHARD_YX, rows // SHARD_YX * SHARD_YX)


def run(options: argparse.Namespace, layout: str) -> None:
    """Make the layer in one layout, copy it within each budget, and print what came of it."""
    folder: Path = options.folder.absolute()
    rows = options.rows or fitting_rows(folder, layout, options.epochs, options.max_mem)
    shape = (options.epochs, rows, FRAME[2])
    source, target = folder / f"{layout}.zarr", folder / "target.zarr"
    began = time.perf_counter()
    make_frame(source, shape, chunks_of(layout, shape))
    part = "the whole layer" if shape == FRAME else f"{shape[1] * shape[0] / FRAME[0] / FRAME[1]:.1%} of the layer"
    nbytes = 4 * shape[0] * shape[1] * shape[2]
    print(
        f"\n{layout}: {shape} ({part}), {format_bytes(nbytes)} raw, {format_bytes(stored_bytes(source))} stored, in "
        f"chunks {chunks_of(layout, shape)}, made in {time.perf_counter() - began:.0f} s"
    )
    for max_mem in options.max_mem:
        shutil.rmtree(target, ignore_errors=True)
        command = [sys.executable, "-m", "tests.benchmarks.whole_frame", "--one", str(source), str(target), max_mem]
        try:
            measured = watch(command, limit_s=60 * options.limit_minutes)
        except ContenderError as error:
            print(f"  {max_mem}: {error}")
            continue
        said = json.loads(measured.note)
        began = time.perf_counter()
        report = rx.verify(source, target)
        verified = time.perf_counter() - began
        seconds, predicted = said["copy_s"], said["predicted_s"]
        print(
            f"  {format_bytes(int(max_mem))}, {WORKERS} processes: {said['plan']}; traffic {said['traffic']:.2f}, "
            f"{said['tasks']} tasks, in between {format_bytes(said['temp_bytes'])}; {'; '.join(said['paths'])}\n"
            f"    seconds: predicted {predicted:.0f}, measured {seconds:.0f} ({seconds / predicted:.2f} x), with "
            f"planning {measured.seconds:.0f}; {measured.cpu_seconds:.0f} of processors; "
            f"{nbytes / seconds / 1e6:.0f} MB/s\n"
            f"    a worker: predicted {format_bytes(said['predicted_bytes'])}, measured "
            f"{format_bytes(said['peak_bytes'])} over idle, seen from outside {format_bytes(measured.largest_bytes)}\n"
            f"    the coordinator: {format_bytes(measured.first_bytes)} over idle, "
            f"{format_bytes(measured.first_resident_bytes)} in all\n"
            f"    {report} ({verified:.0f} s){''.join(f'{chr(10)}    {warning}' for warning in said['warnings'])}\n"
            f"    for comparison: {BEFORE}",
            flush=True,
        )
    shutil.rmtree(target, ignore_errors=True)
    if not options.keep:
        shutil.rmtree(source)


def main() -> None:
    """Do all layouts and budgets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("whole-frame-benchmark"))
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--max-mem", nargs="+", default=["8GB", "2GB"], type=lambda text: str(parse_bytes(text)))
    parser.add_argument("--epochs", type=int, default=FRAME[0])
    parser.add_argument("--rows", type=int, help="the first rows only; default: as many as fit the disk")
    parser.add_argument("--keep", action="store_true", help="keep the sources, which are used again")
    parser.add_argument("--limit-minutes", type=float, default=120.0, help="of one copy")
    parser.add_argument("--one", nargs=3, metavar=("SOURCE", "TARGET", "MAX_MEM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        source, target, max_mem = options.one
        compete(copy(Path(source), Path(target), max_mem))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    for layout in options.layout:
        run(options, layout)


if __name__ == "__main__":
    main()

"""Measure the overhead of a Dask cluster, and simulate clusters with many workers.

    python scripts/cluster_costs.py                      10,000 cases (minutes)
    python scripts/cluster_costs.py --cases 100000       the figures of docs/cluster.md
    python scripts/cluster_costs.py --audit --cases 15000    audits with 1 and 2 workers (30 min)
    python scripts/cluster_costs.py --tasks              overhead of Dask per task
    python scripts/cluster_costs.py --simulate 1.1e-3 6e-4

The scheduler and the workers are processes on this machine. Processor times are valid even on a
busy machine. Wall times are valid only on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from benchmark import CASES_A_FILE, MAKE_MANY, ONNXOPT

#: Fields of a report that differ between runs.
_VARYING_FIELDS = {"seconds", "started", "hostname", "cluster", "reports", "log", "jobs"}
# The minimum duration of a batch, and the client's time for it, as in the package's Dask client.
_BATCH_SECONDS, _TASK_SECONDS = 1.0, 0.01
_SIMULATED_WORKERS = (1, 2, 10, 100, 300, 1000)


@contextmanager
def running_cluster(workers: int) -> Iterator[tuple[str, list[psutil.Process]]]:
    """Start a scheduler and workers; yield the scheduler file and the processes."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = f"{folder}/scheduler.json"
        common = ["--no-dashboard", "--host", "127.0.0.1", "--scheduler-file", file]
        worker_options = ["--nthreads", "1", "--memory-limit", "0", "--no-nanny"]
        worker_options += ["--local-directory", folder]
        programs = [("scheduler", ["--port", "0"]), *[("worker", worker_options)] * workers]
        processes = []
        for program, options in programs:
            module = f"distributed.cli.dask_{program}"
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *common, *options],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            while not Path(file).exists():
                time.sleep(0.05)
        try:
            yield file, [psutil.Process(process.pid) for process in processes]
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def measure_command(arguments: list[str]) -> dict[str, float]:
    """Run a command, and return its wall time, its processor time and its memory in MiB.

    The processes of the cluster are not included.
    """
    began = time.perf_counter()
    process = subprocess.Popen([*ONNXOPT, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "code": process.returncode,
        "wall": time.perf_counter() - began,
        "processor": usage.ru_utime + usage.ru_stime,
        "memory": usage.ru_maxrss / 1024,
    }


def processor_seconds(process: psutil.Process) -> float:
    """Return the processor time of a process and of its ended and running children."""
    times = process.cpu_times()
    seconds = times.user + times.system + times.children_user + times.children_system
    return seconds + sum(processor_seconds(child) for child in process.children())


def reports_agree(first: Path, second: Path) -> bool:
    """Return whether two reports are equal except for fields that differ between runs."""

    def without_varying(data: Any) -> Any:
        if isinstance(data, dict):
            return {
                key: without_varying(value)
                for key, value in data.items()
                if key not in _VARYING_FIELDS
            }
        return [without_varying(item) for item in data] if isinstance(data, list) else data

    first_data, second_data = (json.loads(path.read_text()) for path in (first, second))
    return bool(without_varying(first_data) == without_varying(second_data))


def write_many_cases(folder: Path, count: int) -> str:
    """Write small cases to a subfolder of a folder, and return the subfolder."""
    cases = str(folder / "many")
    subprocess.run([sys.executable, "-c", MAKE_MANY, cases, str(count), str(CASES_A_FILE)],
                   check=True)  # fmt: skip
    return cases


def many_cases(count: int) -> None:
    """Measure many small cases without a cluster, and with one and two workers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = write_many_cases(folder, count)
        local_report = folder / "local.json"
        local = measure_command(["run", cases, "-q", "-j", "1", f"--report=json={local_report}",
                                 "--log", f"{folder}/local.jsonl"])  # fmt: skip
        print(f"{count} cases, one process: {local}")
        for workers in (1, 2):
            with running_cluster(workers) as (file, processes):
                client = measure_command(["run", cases, "-q", "--cluster", file])
                print(f"{workers} workers, without log and report: client {client}")
                before = [processor_seconds(process) for process in processes]
                client = measure_command(["run", cases, "-q", "--cluster", file,
                                          f"--report=json={folder}/cluster-{workers}.json",
                                          "--log", f"{folder}/{workers}.jsonl"])  # fmt: skip
                scheduler_time, *worker_times = (
                    processor_seconds(process) - seconds
                    for process, seconds in zip(processes, before, strict=True)
                )
            worker_time = sum(worker_times)
            total = client["processor"] + scheduler_time + worker_time
            overhead = (total - local["processor"]) / count
            print(f"{workers} workers, with log and report: client {client}\n"
                  f"  processor time: scheduler {scheduler_time:.1f} s, workers {worker_time:.1f} s"
                  f"\n  per case: client {1e3 * client['processor'] / count:.2f} ms, "
                  f"total minus one process {1e3 * overhead:.2f} ms")  # fmt: skip
        # The reports are loaded last: the measured memory of a child process includes the memory
        # that this process has when it starts the child.
        for workers in (1, 2):
            equal = reports_agree(local_report, folder / f"cluster-{workers}.json")
            print(f"{workers} workers: report equal apart from times and host: {equal}")
        for case_seconds in (worker_time / count, 0.05, 1.0):
            simulate(case_seconds, client["processor"] / count)


def simulate(
    case_seconds: float, client_seconds: float, task: float = 3.3e-3, count: int = 1_000_000
) -> None:
    """Print the throughput, and the load of client and workers, by number of workers.

    Args:
        case_seconds: seconds that a worker needs for one case.
        client_seconds: seconds that the client needs for one case: for reading its file, receiving
            its result, and writing the log and the reports.
        task: seconds that the client and the scheduler need for one task, as --tasks measures them.
        count: number of cases.
    """
    print(
        f"simulated: per case {1e3 * case_seconds:.2f} ms of a worker, "
        f"{1e3 * client_seconds:.2f} ms of the client"
    )
    for workers in _SIMULATED_WORKERS:
        batch_seconds = max(_BATCH_SECONDS, _TASK_SECONDS * workers)
        largest_batch = max(1, min(1000, int(batch_seconds / case_seconds)))
        remaining, client_free_at, client_busy = count, 0.0, 0.0
        queue = [(0.0, number) for number in range(workers)]
        heapq.heapify(queue)
        while remaining > 0:
            worker_free_at, number = heapq.heappop(queue)
            batch = min(largest_batch, remaining, max(1, remaining // (2 * workers)))
            remaining -= batch
            # A single thread of the client sends all batches and receives all results.
            client_free_at = max(client_free_at, worker_free_at) + task + batch * client_seconds
            client_busy += task + batch * client_seconds
            heapq.heappush(queue, (client_free_at + batch * case_seconds, number))
        end = max(free_at for free_at, _ in queue)
        print(
            f"  {workers:5} workers: {count / end:8.0f} cases/s, client {client_busy / end:4.0%} "
            f"busy, workers {count * case_seconds / end / workers:4.0%}"
        )


async def tasks() -> None:
    """Measure the time that client, scheduler and workers need for an empty task."""
    import distributed

    client_type: Any = distributed.Client
    cluster_type: Any = distributed.LocalCluster

    for workers in (1, 10, 50, 100):
        async with (
            cluster_type(n_workers=workers, threads_per_worker=1, processes=False,
                         dashboard_address=None, memory_limit=0, asynchronous=True) as cluster,
            client_type(cluster, asynchronous=True) as client,
        ):  # fmt: skip
            addresses = list((await client.scheduler.identity(n_workers=-1))["workers"])
            rounds = 20 + 200 // workers
            began = time.process_time()
            for _ in range(rounds):
                await asyncio.gather(*(
                    client.submit(bytes, 1000, workers=[address], pure=False)
                    for address in addresses
                ))  # fmt: skip
            task_seconds = (time.process_time() - began) / (rounds * workers)
            before = time.process_time()
            await client.scheduler.identity(n_workers=-1)
            listing_seconds = time.process_time() - before
            print(f"{workers:4} workers in this process: {1e3 * task_seconds:.2f} ms per task, "
                  f"{1e3 * listing_seconds:.1f} ms to list the workers")  # fmt: skip


def audits(count: int) -> None:
    """Measure a thorough audit of many small cases with one worker and with two workers."""
    wall_times = []
    with tempfile.TemporaryDirectory() as folder:
        cases = write_many_cases(Path(folder), count)
        for workers in (1, 2):
            with running_cluster(workers) as (file, _):
                # The small cases do not kill all mutants, so the audit passes only with --allow.
                audit = measure_command(["audit", cases, "-v", "--allow", "*", "--cluster", file])
            print(f"{workers} workers: {audit}")
            wall_times.append(audit["wall"])
    print(f"time with two workers / time with one: {wall_times[1] / wall_times[0]:.2f}")


def main() -> None:
    """Run the selected measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--tasks", action="store_true")
    parser.add_argument(
        "--simulate", nargs=2, type=float, metavar="SECONDS",
        help="only simulate, given the seconds per case of a worker and of the client",
    )  # fmt: skip
    options = parser.parse_args()
    if options.simulate:
        simulate(*options.simulate)
    elif options.audit:
        audits(options.cases)
    elif options.tasks:
        asyncio.run(tasks())
    else:
        many_cases(options.cases)


if __name__ == "__main__":
    main()

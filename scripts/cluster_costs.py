"""Measure what a cluster costs, and simulate what that comes to with many workers.

    python scripts/cluster_costs.py                      10,000 cases, processor times (minutes)
    python scripts/cluster_costs.py --cases 100000       on a quiet machine, wall times, too
    python scripts/cluster_costs.py --audit --cases 15000    by one worker and two (half an hour)
    python scripts/cluster_costs.py --tasks              what Dask needs for a task, by workers
    python scripts/cluster_costs.py --simulate 1.1e-3 6e-4

Scheduler and workers are processes on this machine, one core each. Processor times hold on a
machine that is not quiet, too; wall times do not.
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

#: What is another one from run to run.
_TIMES = {"seconds", "started", "hostname", "cluster", "reports", "log", "jobs"}
# As in onnxopt_cli/cluster/client.py.
_BATCH_SECONDS, _TASK_SECONDS = 1.0, 0.01
_SIMULATED = (1, 2, 10, 100, 300, 1000)


@contextmanager
def started(workers: int) -> Iterator[tuple[str, list[psutil.Process]]]:
    """Start a scheduler and workers; yield the scheduler's file and the processes."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = f"{folder}/scheduler.json"
        common = ["--no-dashboard", "--host", "127.0.0.1", "--scheduler-file", file]
        mine = ["--nthreads", "1", "--memory-limit", "0", "--no-nanny"]
        mine += ["--local-directory", folder]
        programs = [("scheduler", ["--port", "0"]), *[("worker", mine)] * workers]
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
            yield file, [psutil.Process(it.pid) for it in processes]
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def measured(words: list[str]) -> dict[str, float]:
    """Run a command; return its wall time, processor time and memory, without its workers."""
    began = time.perf_counter()
    process = subprocess.Popen([*ONNXOPT, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "code": process.returncode,
        "wall": time.perf_counter() - began,
        "processor": used.ru_utime + used.ru_stime,
        "memory": used.ru_maxrss / 1024,
    }


def spent(process: psutil.Process) -> float:
    """Return the processor time of a process and all that it has started and waited for."""
    times = process.cpu_times()
    found = times.user + times.system + times.children_user + times.children_system
    return found + sum(spent(it) for it in process.children())


def same(one: Path, other: Path) -> bool:
    """Tell whether two reports agree but for times."""

    def cleaned(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: cleaned(it) for key, it in data.items() if key not in _TIMES}
        return [cleaned(it) for it in data] if isinstance(data, list) else data

    return bool(cleaned(json.loads(one.read_text())) == cleaned(json.loads(other.read_text())))


def many_cases(count: int) -> None:
    """Measure many small cases without a cluster, and with one and two workers."""
    with tempfile.TemporaryDirectory() as folder:
        cases = Path(folder, "many")
        given = [str(cases), str(count), str(CASES_A_FILE)]
        subprocess.run([sys.executable, "-c", MAKE_MANY, *given], check=True)
        here = Path(folder, "here.json")
        alone = measured(["run", str(cases), "-q", "-j", "1", f"--report=json={here}",
                          "--log", f"{folder}/here.jsonl"])  # fmt: skip
        print(f"{count} cases, one process: {alone}")
        for workers in (1, 2):
            with started(workers) as (file, processes):
                bare = measured(["run", str(cases), "-q", "--cluster", file])
                print(f"{workers} workers, without log and report: client {bare}")
                before = [spent(it) for it in processes]
                there = Path(folder, f"there-{workers}.json")
                found = measured(["run", str(cases), "-q", "--cluster", file,
                                  f"--report=json={there}",
                                  "--log", f"{folder}/{workers}.jsonl"])  # fmt: skip
                used = [spent(it) - then for it, then in zip(processes, before, strict=True)]
                scheduler, *others = used
                print(f"{workers} workers, with log and report: client {found}")
                print(f"  scheduler {scheduler:.1f} s, workers {sum(others):.1f} s of processor")
                whole = found["processor"] + scheduler + sum(others)
                print(f"  a case: client {1e3 * found['processor'] / count:.2f} ms, all over one "
                      f"process {1e3 * (whole - alone['processor']) / count:.2f} ms")  # fmt: skip
        # Not earlier: the memory of a process counts what its parent held when it was started.
        for workers in (1, 2):
            equal = same(here, Path(folder, f"there-{workers}.json"))
            print(f"{workers} workers: report equal but for times and host: {equal}")
        worker, client = sum(others) / count, found["processor"] / count
        for case in (worker, 0.05, 1.0):
            simulate(case, client)


def simulate(case: float, client: float, task: float = 3.3e-3, count: int = 1_000_000) -> None:
    """Print how many cases a second some numbers of workers do, and what holds them up.

    Args:
        case: seconds of a worker for a case.
        client: seconds of the client for a case: reading its file, its result, the log, reports.
        task: seconds of client and scheduler for a task; --tasks measures it.
        count: how many cases.
    """
    print(f"simulated: {1e3 * case:.2f} ms a case at a worker, {1e3 * client:.2f} ms at the client")
    for workers in _SIMULATED:
        size = max(1, min(1000, int(max(_BATCH_SECONDS, _TASK_SECONDS * workers) / case)))
        left, free_at, now = count, 0.0, 0.0
        busy = 0.0
        queue = [(0.0, number) for number in range(workers)]
        heapq.heapify(queue)
        while left > 0 and queue:
            done, number = heapq.heappop(queue)
            batch = min(size, left, max(1, left // (2 * workers)))
            left -= batch
            # One thread sends each batch and takes its results, one after the other.
            free_at = max(free_at, done) + task + batch * client
            busy += task + batch * client
            now = max(free_at, done) + batch * case
            heapq.heappush(queue, (now, number))
        end = max(it for it, _ in queue)
        print(
            f"  {workers:5} workers: {count / end:8.0f} cases/s, client busy {busy / end:4.0%}, "
            f"workers {count * case / end / workers:4.0%}"
        )


async def tasks() -> None:
    """Measure what client and scheduler need for a task, with workers that do nothing."""
    from distributed import Client, LocalCluster

    for workers in (1, 10, 50, 100):
        async with (
            LocalCluster(n_workers=workers, threads_per_worker=1, processes=False,
                         dashboard_address=None, memory_limit=0, asynchronous=True) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):  # fmt: skip
            addresses = list((await client.scheduler.identity(n_workers=-1))["workers"])
            began, number = time.process_time(), 20 * workers + 200
            for start in range(0, number, workers):
                found = [client.submit(bytes, 1000, workers=[it], pure=False) for it in addresses]
                await asyncio.gather(*found)
                if start > number:
                    break
            each = (time.process_time() - began) / (-(-number // workers) * workers)
            before = time.process_time()
            await client.scheduler.identity(n_workers=-1)
            look = time.process_time() - before
            print(f"{workers:4} workers in this process: {1e3 * each:.2f} ms a task with them, "
                  f"{1e3 * look:.1f} ms to look who is there")  # fmt: skip


def audits(count: int) -> None:
    """Measure a thorough audit of many small cases by one worker and by two."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        cases = str(Path(folder, "many"))
        given = [cases, str(count), str(CASES_A_FILE)]
        subprocess.run([sys.executable, "-c", MAKE_MANY, *given], check=True)
        for workers in (1, 2):
            with started(workers) as (file, _):
                # Such cases do not ask for everything: some wrong ones survive.
                found.append(measured(["audit", cases, "-v", "--allow", "*", "--cluster", file]))
                print(f"{workers} workers: {found[-1]}")
    print(f"two take {found[1]['wall'] / found[0]['wall']:.2f} of the time of one")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--tasks", action="store_true")
    said = "simulate alone: seconds of a worker, and of the client, for a case"
    parser.add_argument("--simulate", nargs=2, type=float, metavar="SECONDS", help=said)
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

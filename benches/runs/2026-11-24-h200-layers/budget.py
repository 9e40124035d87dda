"""The passes of a stream whose `mapped_budget` is given, from its first on: seconds and the
processor's time of each, beside plain copies from pinned memory in the same turn."""

import glob
import json
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import torch

import forebay
from forebay.stream import LayerStream
from forebay.stream_bench import model as files
from forebay.stream_bench import residency

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
PASSES, STREAMS, ROOM = 6, 3, 3
found = []


def link(nbytes, times):
    """Bytes per second of plain copies, one behind another, between two host and two GPU buffers."""
    host = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    device = [torch.empty(nbytes, dtype=torch.uint8, device="cuda:0") for _ in range(2)]
    for number in range(2):
        device[number].copy_(host[number], non_blocking=True)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for number in range(times):
        device[number % 2].copy_(host[number % 2], non_blocking=True)
    torch.cuda.synchronize()
    return nbytes * times / (time.perf_counter() - started)


def threads():
    found = defaultdict(float)
    for task in glob.glob("/proc/self/task/*"):
        try:
            name = Path(task, "comm").read_text().strip()
            found[name] += int(Path(task, "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            pass
    return found


class Watch:
    """What the planner does, every half millisecond: its system call, or `running`."""

    def __init__(self):
        self.seen, self.on = defaultdict(int), True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while self.on:
            for task in glob.glob("/proc/self/task/*"):
                try:
                    if "planner" in Path(task, "comm").read_text():
                        self.seen[Path(task, "syscall").read_text().split()[0]] += 1
                except OSError:
                    pass
            time.sleep(0.0005)

    def end(self):
        self.on = False
        self.thread.join()
        return dict(self.seen)


end = torch.cuda.Event(blocking=True)
for layers, megabytes in ((24, 200), (6, 1237)):
    nbytes = megabytes * 1_000_000 // 4096 * 4096
    made = files.made(folder / f"budget-{megabytes}.bin", layers, nbytes, "cuda:0", 1)
    residency.touch(made.path)
    for turn in range(STREAMS + 1):
        before = link(nbytes, layers)
        torch.cuda.empty_cache()
        passes = []
        with forebay.open(made.path) as file, LayerStream(
            [[(file, made.offset(n), nbytes)] for n in range(layers)], "cuda:0", order="forward",
            gpu_budget=ROOM * nbytes, stream=0, host_budget=0, mapped_budget=layers * (nbytes + (1 << 20)),
        ) as stream:
            watch = Watch() if turn == STREAMS else None
            for _ in range(PASSES):
                before_, cpu, started = threads(), time.process_time(), time.perf_counter()
                for _ in stream:
                    pass
                end.record()
                end.synchronize()
                wall = time.perf_counter() - started
                passes.append({"wall_s": wall, "cpu_s": time.process_time() - cpu,
                               "threads": {who: round(took - before_.get(who, 0), 5) for who, took in threads().items()
                                           if took - before_.get(who, 0) > 1e-4}})
            watched = watch.end() if watch else None
            told, plan = stream.statistics(), stream.placement()
        after = link(nbytes, layers)
        for one, seen in zip(passes, told["passes"]):
            one.update({name: seen.get(name) for name in ("mapped_bytes", "file_bytes", "drive_bytes")})
        found.append({"layers": layers, "nbytes": nbytes, "link_before": before, "link_after": after,
                      "passes": passes, "told": told, "placement": plan, "watched": watched})
        rate = max(before, after)
        print(layers, megabytes, "link", round(before / 1e9, 2), round(after / 1e9, 2), "passes of it",
              [round(layers * nbytes / one["wall_s"] / rate, 3) for one in passes], "CPU s/GB",
              [round(one["cpu_s"] / layers / nbytes * 1e9, 4) for one in passes],
              [one["mapped_bytes"] for one in passes], watched, [one["threads"] for one in passes[:2]], flush=True)
    made.path.unlink()
(out / "budget.json").write_text(json.dumps(found, default=str))

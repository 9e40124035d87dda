"""How long each pass of a stream takes while its layers' pages come to be pinned, and after; beside
the same through slots, in turn."""
import json, statistics, sys, time
import forebay
from forebay.stream import LayerStream
path, layers, nbytes, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rows = {"mapped": [], "slots": []}
for turn in range(3):
    for name, budget in (("slots", 0), ("mapped", layers * nbytes)):
        file = forebay.open(path)
        with LayerStream([[(file, n * nbytes, nbytes)] for n in range(layers)], "cuda:0",
                         gpu_budget=3 * nbytes, mapped_budget=budget, stream=0) as s:
            walls = []
            for _ in range(16):
                t = time.perf_counter()
                for _ in s:
                    pass
                walls.append(time.perf_counter() - t)
            print(name, [round(w * 1e3, 1) for w in walls], s.mapped(), flush=True)
            rows[name].append(walls)
json.dump(rows, open(out, "w"))

"""Plant small mistakes in copies of the project, one at a time: do the tests notice?

    python tests/mutation --lang c --area _core/layout --count 20 --seed 7

Of each language `count` mistakes are drawn by the seed. For each, the tests of its area
(`areas.py`) run in a copy, the nearest first, until one fails; those that fail on the unchanged
code as well do not count. `equivalent.toml` has the mistakes that are none, each with a reason.
What survives is printed with its place, then the score of each area; the exit status is 1 if a
language has less than `--score`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from judging import (
    FINDERS,
    ROOT,
    Campaign,
    Copies,
    Verdict,
    draw,
    known_equivalent,
    print_scores,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="which mistakes are drawn")
    parser.add_argument("--count", type=int, default=50, help="how many of each language")
    parser.add_argument("--area", default="", help="a folder of the package, such as graph/ops")
    parser.add_argument("--lang", default="", help="python or c; both unless given")
    parser.add_argument("--score", type=float, default=0, help="per cent that must be noticed")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one mistake")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies at a time")
    parser.add_argument(
        "--copies", type=Path, default=ROOT / "build/mutants", help="where they are"
    )
    chosen = parser.parse_args()

    copies = Copies(chosen.copies.resolve())
    directories = [copies.make(number) for number in range(chosen.jobs)]
    verdicts: list[Verdict] = []
    for language in FINDERS:
        if chosen.lang not in ("", language):
            continue
        drawn = draw(language, chosen.area, chosen.seed, copies.unchanged)
        campaign = Campaign(copies, drawn, chosen.count, chosen.limit, known_equivalent())
        with ThreadPoolExecutor(chosen.jobs) as pool:
            for done in [pool.submit(campaign.work, each) for each in directories]:
                done.result()
        campaign.settle(directories[0])
        verdicts += campaign.verdicts
        for test in campaign.unreliable:
            print(f"not counted, as it fails on the unchanged code: {test}")
    shutil.rmtree(copies.directory)
    return int(print_scores(verdicts) < chosen.score)


if __name__ == "__main__":
    sys.exit(main())

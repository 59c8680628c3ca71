"""The scenarios find what they are for: each ordering bug planted in the core fails them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from core_build import ROOT, CoreBuild
from fake_driver import compile_fake
from mutants import MUTANTS, Mutant

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1800),  # one test may wait for all the others' processes
    pytest.mark.skipif(
        np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="the core is compiled with NumPy 2"
    ),
    pytest.mark.unsanitized("the planted bugs are not those of sanitizers"),
]
HERE = Path(__file__).resolve().parent
PYTEST = (
    *(sys.executable, "-m", "pytest", "-x", "-q", "-m", "not gpu", "-p", "no:cacheprovider"),
    *(f"--rootdir={ROOT}", f"--config-file={ROOT / 'pyproject.toml'}"),
)
Verdict = tuple[bool, str]  # whether all passed, and the end of what was printed
SCENARIOS = ("streams", "return_ordering", "capture", "interleavings")


def scenarios_pass(package: Path, fake: Path) -> Verdict:
    """Run the scenarios in a process of its own, on the package and the driver in these places."""
    files = [str(HERE / f"test_{name}.py") for name in SCENARIOS]
    done = subprocess.run(
        [*PYTEST, *files],
        cwd=package,
        env={
            **os.environ,
            "PYTHONPATH": str(package),
            "HYPOTHESIS_PROFILE": "verdict",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # what is installed takes longer than the tests
            "DLBRIDGE_TESTS_FAKE_CUDA": str(fake),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    text = done.stdout[-3000:] + done.stderr[-3000:]
    is_verdict = done.returncode < 2  # a crash is a negative number, and also a verdict
    assert is_verdict, f"the scenarios did not run: {done.returncode}\n{text}"
    return done.returncode == 0, text


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Verdict]]]:
    """Yield what the scenarios say of the core as it is (""), and of each mutant by its name."""
    build = CoreBuild(tmp_path_factory.mktemp("core"))
    fake = compile_fake(tmp_path_factory.mktemp("fake")).parent

    def judge(mutant: Mutant) -> Verdict:
        package = build.directory / mutant.name.replace(" ", "_")
        build.change(mutant.file, mutant.old, mutant.new, package)
        return scenarios_pass(package, fake)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {mutant.name: pool.submit(judge, mutant) for mutant in MUTANTS}
        yield {"": pool.submit(scenarios_pass, build.directory, fake), **running}


def test_the_core_as_it_is_passes(verdicts):
    passed, text = verdicts[""].result()
    assert passed, text


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_scenarios_catch(verdicts, mutant):
    passed, _ = verdicts[mutant.name].result()
    assert not passed, f"nothing noticed: {mutant.why}"

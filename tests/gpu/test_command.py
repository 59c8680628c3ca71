"""`make test-gpu` where there is nothing to run on: it says so, and does not pass."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from measuring import now, until

from dlbridge._core import native

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".ci"))
import gpu  # noqa: E402


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ".ci/gpu.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(native.cuda_open() is None, reason="there is a CUDA driver here")
def test_without_a_gpu_nothing_passes(tmp_path):
    """A machine on which nothing was checked must not look like one on which all is well."""
    done = run("--out", tmp_path, "--wheels", tmp_path, "--steps", "environment,tests")
    assert done.returncode == 1
    assert "there is no CUDA driver here" in done.stdout
    assert "nothing was checked on a GPU" in done.stdout
    results = json.loads((tmp_path / "summary.json").read_text())["results"]
    assert {each["step"] for each in results} == {"environment"}


def test_a_step_that_is_none_is_refused(tmp_path):
    done = run("--out", tmp_path, "--steps", "tests,dance")
    assert done.returncode == 2
    assert "not dance" in done.stderr


def test_the_command_is_the_one_that_the_docs_name():
    docs, makefile = (ROOT / "docs/cuda.md").read_text(), (ROOT / "Makefile").read_text()
    for command in ("test-gpu", "gpu-wheels"):
        assert f"make {command}" in docs
        assert f"\n{command}:" in makefile


# ---- what a part does ----------------------------------------------------------------------------


@pytest.fixture
def setting(tmp_path, monkeypatch) -> gpu.Setting:
    """Return the setting of a run that writes to a folder of the test."""
    monkeypatch.setattr(gpu, "ROOT", tmp_path / "root")
    arguments = argparse.Namespace(
        out=tmp_path / "out", wheels=tmp_path / "wheels", peers=None, jobs=2, quick=True,
        rehearse=False, seconds=100.0, again=False, resume=None,
    )  # fmt: skip
    made = gpu.Setting(arguments)
    made.environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / ".ci"), *sys.path])
    made.prepare()
    return made


def run_tests(setting: gpu.Setting, text: str) -> gpu.Result:
    """Run a file with tests of this text, each marked `gpu`, as `make test-gpu` does."""
    gpu.ROOT.mkdir(exist_ok=True)
    (gpu.ROOT / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--ring')\n"
        "def pytest_configure(config): config.addinivalue_line('markers', 'gpu: needs one')\n"
    )
    path = gpu.ROOT / "test_it.py"
    path.write_text(f"import os, signal, time, pytest\npytestmark = pytest.mark.gpu\n{text}")
    return gpu._test_file(setting, path)


def outcomes(setting: gpu.Setting) -> dict[str, str]:
    """Return what the file of results says of each test."""
    lines = (setting.tests / "test_it.py.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {each["test"].rpartition("::")[2]: each["outcome"] for each in records}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("raise RuntimeError('cuEventQuery: CUDA_ERROR_ILLEGAL_ADDRESS')", "that stays"),
        ("raise RuntimeError('CUDA error: unspecified launch failure')", "that stays"),
        ("os.kill(os.getpid(), signal.SIGKILL)", f"status {-signal.SIGKILL}"),
    ],
)
@pytest.mark.full
def test_tests_after_a_sticky_error_run_in_a_new_process(setting, bad, said):
    """Such an error is every later call's answer: none of the tests after it would say anything."""
    result = run_tests(
        setting,
        "first = os.getpid()\n"
        f"def test_a(): open({str(gpu.ROOT / 'pid')!r}, 'w').write(str(first))\n"
        f"def test_b(): {bad}\n"
        f"def test_c(): assert open({str(gpu.ROOT / 'pid')!r}).read() != str(os.getpid())\n",
    )
    assert result.outcome == "failed"
    assert any("test_it.py::test_b: a new process" in note and said in note
               for note in result.notes), result.notes  # fmt: skip
    end = "failed" if said == "that stays" else "began"
    assert outcomes(setting) == {"test_a": "passed", "test_b": end, "test_c": "passed"}


def test_an_ordinary_failure_ends_nothing(setting):
    text = "def test_a(): assert False\ndef test_b(): pytest.skip('no torch')\ndef test_c(): pass\n"
    result = run_tests(setting, text)
    assert result.outcome == "failed"
    assert result.notes[0] == "1 failed, 1 skipped, 1 passed"
    assert result.notes[1] == "skipped 1: Skipped: no torch"
    assert not any("new process" in note for note in result.notes)


@pytest.mark.full
def test_a_file_goes_on_after_a_test_that_hangs(setting, monkeypatch):
    """The process ends with what it has started, and the tests after it run in a new one."""
    begin = now()
    run_tests(setting, "def test_a(): pass\n")
    (setting.tests / "test_it.py.jsonl").unlink()
    monkeypatch.setattr(gpu, "FILE_SECONDS", 2 + 3 * (now() - begin))
    result = run_tests(
        setting,
        "def test_a(): pass\n"
        "def test_b():\n    import subprocess\n    subprocess.run(['sleep', '1000'])\n"
        "def test_c(): pass\n",
    )
    assert result.outcome == "failed"
    assert result.notes[0] == "2 passed, 1 stopped"
    assert any("test_b: a new process after its time was over" in each for each in result.notes)
    assert outcomes(setting) == {"test_a": "passed", "test_b": "began", "test_c": "passed"}


@pytest.mark.full
def test_a_missing_package_skips_the_files_that_need_it_and_no_others(setting):
    setting.missing = {"protobuf"}
    assert run_tests(setting, "def test_a(): pass\n").outcome == "passed"
    result = run_tests(setting, "def test_a():\n    from dlbridge.graph import session\n")
    assert result.outcome == "not possible"
    assert result.notes == ["needs protobuf: `make gpu-wheels` where there is a network"]


def test_a_part_without_time_left_is_not_begun(setting):
    setting.end = 0
    result = run_tests(setting, "def test_a(): pass\n")
    assert (result.outcome, result.notes) == ("not possible", setting.why_not("tests"))
    assert "--seconds" in result.notes[0]


def test_the_most_telling_files_come_first_and_kernels_last():
    found = sorted([ROOT / "tests/gpu/test_kernels_on_gpu.py", *ROOT.glob("tests/gpu/test_*.py")],
                   key=gpu._rank)  # fmt: skip
    names = [path.stem.removeprefix("test_").removesuffix("_on_gpu") for path in found]
    wanted = ["streams", "exchange", "copies", "capture", "processes", "kernels", "managed"]
    assert [name for name in dict.fromkeys(names) if name in wanted] == wanted
    assert {*names[-2:]} == {"full_device", "managed"}


def test_only_what_is_missing_is_unpacked(setting, monkeypatch):
    """The machine's own packages are to be checked; those of another Python cannot be imported."""
    setting.wheels.mkdir()
    for name, tag in (("numpy", "py3-none"), ("not_here", "py3-none"), ("other", "cp30-cp30")):
        with zipfile.ZipFile(setting.wheels / f"{name}-1-{tag}-any.whl", "w") as wheel:
            wheel.writestr(f"{name}_of_a_wheel.py", "")
    monkeypatch.setattr(setting, "site", setting.out / "site")
    notes = gpu.install_missing(setting)
    assert [path.name for path in setting.site.iterdir()] == ["not_here_of_a_wheel.py"]
    assert "not_here-1-py3-none-any.whl" in notes[0]


def test_a_core_of_other_sources_is_not_taken(tmp_path, monkeypatch):
    """It would be checked in the place of these."""
    core = tmp_path / "core"
    core.mkdir()
    library = core / f"_cffi{sysconfig.get_config_var('EXT_SUFFIX')}"
    library.write_bytes(b"")
    (core / "sources").write_text(gpu.sources_digest())
    assert gpu.find_core(tmp_path) == library
    (core / "sources").write_text("of other sources")
    assert gpu.find_core(tmp_path) is None


def test_the_summary_is_written_after_each_part(setting):
    """A machine that is taken back in the middle leaves what was known."""
    gpu.write_summary(setting, [gpu.Result("tests", "a", "passed")])
    found = json.loads((setting.out / "summary.json").read_text())
    assert [each["what"] for each in found["results"]] == ["a"]


def test_the_probe_knows_its_lines():
    done = subprocess.run([sys.executable, gpu.PROBE, "--list"], cwd=ROOT, capture_output=True,
                          text=True, check=True)  # fmt: skip
    wanted = {"versions", "driver", "module_load", "relaunch", "ipc", "pointers", "copies",
              "jax_wait", "torch_path", "jax_consumer", "pairs"}  # fmt: skip
    assert wanted <= set(done.stdout.split())


# ---- a call, and the next one --------------------------------------------------------------------


@pytest.mark.full
def test_a_later_call_leaves_out_what_passed_and_gives_failures_another_turn(setting):
    """Machines with a GPU are lent for minutes: the second call goes on where the first stood."""
    text = "def test_a(): assert os.environ.get('MENDED')\ndef test_b(): pass\n"
    first = run_tests(setting, text)
    gpu.write_summary(setting, [gpu.Result("probe", "driver", "passed"), first])
    gpu.pack(setting.out)
    archive = setting.out.parent / "first.tar.gz"
    (setting.out / gpu.ARCHIVE).rename(archive)
    setting.prepare()
    setting.again = True
    setting.resume(archive)
    assert setting.is_done("probe", "driver")
    assert not setting.is_done("tests", "test_it.py")
    assert outcomes(setting) == {"test_b": "passed"}
    setting.environment["MENDED"] = "1"
    second = run_tests(setting, text)
    assert (second.outcome, second.notes[0]) == ("passed", "2 passed")


def test_the_verdict_is_a_page_with_what_is_wrong_in_it(setting):
    """A machine with a GPU may give back no more than some thousand characters."""
    notes = [f"a line of it, number {number}" for number in range(50)]
    right = [gpu.Result("tests", f"file {n}", "passed", notes=notes) for n in range(60)]
    wrong = [gpu.Result("tests", f"file {n}", "failed", notes=notes) for n in range(5)]
    page = gpu.describe([*wrong, *right], setting)
    assert len(page) <= gpu.VERDICT
    assert "60 of 65 parts passed" in page
    assert all(f"failed       tests        file {n}" in page for n in range(5))


def test_a_call_that_is_ended_leaves_its_verdict_and_no_process(tmp_path):
    """`timeout` ends it with SIGTERM in the middle of a part, whose child is in another session."""
    pid, child, part = (tmp_path / name for name in ("pid", "child.py", "part.py"))
    child.write_text(
        f"import os, time\nos.setsid()\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(1000)\n"
    )
    part.write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, {str(child)!r}])\n")
    call = tmp_path / "call.py"
    call.write_text(f"""
import sys
sys.path.insert(0, {str(ROOT / ".ci")!r})
import gpu

def hangs(setting):
    yield gpu.Result("probe", "first", "passed")
    yield from gpu._all_of(setting, run_part, ["second"])

def run_part(setting, name):
    setting.run(sys.executable, {str(part)!r}, name=name)
    return gpu.Result("probe", name, "failed")

gpu.STEPS["probe"] = hangs
sys.argv[1:] = ["--out", {str(tmp_path / "out")!r}, "--steps", "probe"]
sys.exit(gpu.main())
""")
    process = subprocess.Popen([sys.executable, call], cwd=ROOT, stdout=subprocess.PIPE)
    until(lambda: process.poll() is not None or (pid.exists() and pid.read_text()), "the child")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == gpu.LATE
    assert "1 of 1 parts passed" in output.decode()
    assert (tmp_path / "out" / gpu.ARCHIVE).exists()
    until(lambda: not Path(f"/proc/{pid.read_text()}").exists(), "the end of the child")


# ---- what the sanitizers look at -----------------------------------------------------------------

COUNTING = """
import ctypes, os, runpy, sys
sys.argv = ["sanitized.py", "--scenario", "tiles"]
try:
    runpy.run_path("tests/gpu/sanitized.py", run_name="__main__")
except SystemExit as done:
    assert not done.code
driver = ctypes.CDLL(os.environ["DLBRIDGE_CUDA_DRIVER"])
print(*(driver.fake_launches(b"dlb_transpose_%d" % size) for size in (1, 2, 4, 8, 16)))
"""


@pytest.mark.full
def test_racecheck_reaches_a_tile_of_every_size(tmp_path):
    """dlbridge's own shared memory is that of its transposed copies."""
    sys.path.insert(0, str(ROOT / "tests/cuda"))
    from fake_driver import build

    path = build(tmp_path, "libcuda.so.1")
    environment = os.environ | {
        "DLBRIDGE_CUDA_DRIVER": str(path),
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", COUNTING], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert "tiles: ok" in done.stdout, done.stderr
    assert all(int(count) > 0 for count in done.stdout.split("\n")[-2].split())

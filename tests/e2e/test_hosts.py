"""Ranks on several hosts: on this one as if it were two (TRIREME_HOST), in two network namespaces where that is
permitted, and under mpirun where trireme is built with MPI. A run draws one host's losses bit for bit."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from support import PROGRAM, ROOT, layout, losses, train, trireme

LAYOUT = layout(dp=2, tp=2)
KEYS = [*LAYOUT[2:], "train.zero_optimization.stage=1", "train.checkpointer.period=4"]
STEPS = 12


@pytest.fixture(scope="module")
def one_host(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_host")
    train(tiny, folder, *LAYOUT, *KEYS, f"train.train_iter={STEPS}")
    return losses(folder)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def training(tiny, folder):
    return [PROGRAM, "train", "--config", tiny, f"train.output_dir={folder}", *KEYS, f"train.train_iter={STEPS}"]


LAUNCH = [PROGRAM, "launch", "--nproc", 2, "--nnodes", 2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", 2, "--nnodes", 2]


def start_hosts(*words, launcher=LAUNCH, address="127.0.0.1", within=lambda node: [], hosts=("left", "right")):
    """A launcher on each of two hosts, with two ranks."""
    port = free_port()
    launch = [*launcher, "--master-addr", address, "--master-port", port]
    runs = []
    for node in range(2):
        environment = {**os.environ, **({"TRIREME_HOST": hosts[node]} if hosts else {})}
        command = [*within(node), *launch, "--node-rank", node, *words]
        runs.append(subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     text=True, stdin=subprocess.DEVNULL, env=environment))
    return runs


def outputs(runs, timeout=300):
    said = []
    try:
        said = [run.communicate(timeout=timeout)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
    return said


def test_two_hosts_train_as_one(tiny, one_host, tmp_path):
    runs = start_hosts("--", *training(tiny, tmp_path))
    said = outputs(runs)
    assert [run.returncode for run in runs] == [0, 0], said
    assert losses(tmp_path) == one_host


def test_torchrun_starts_two_hosts(tiny, one_host, tmp_path):
    runs = start_hosts(*training(tiny, tmp_path), launcher=TORCHRUN)
    said = outputs(runs)
    assert [run.returncode for run in runs] == [0, 0], said
    assert losses(tmp_path) == one_host


def test_torchrun_repeats_the_error_of_a_rank(tiny, tmp_path):
    """Its summary holds what the rank said, as for a Python program whose main function is recorded."""
    said = outputs(start_hosts(*training(tiny, tmp_path), "model.n_head=7", launcher=TORCHRUN))
    summary = said[0][said[0].index("traceback : "):]
    assert "n_head" in summary and "7" in summary, said[0]


def test_slurm_starts_two_hosts(tiny, one_host, tmp_path):
    """Ranks as srun starts them: nobody launches, each finds its place and the others in Slurm's variables."""
    port = 15000 + os.getpid() % 10000
    runs = []
    for rank in range(4):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "OMPI_", "PMI"))}
        environment |= {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "4", "SLURM_LOCALID": str(rank % 2), "SLURM_NODEID": str(rank // 2),
                        "SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_JOB_ID": str(port), "SLURM_NNODES": "2",
                        "SLURM_JOB_NODELIST": "localhost", "SLURM_STEP_NODELIST": "localhost", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TRIREME_HOST": ["left", "right"][rank // 2]}
        runs.append(subprocess.Popen([str(word) for word in training(tiny, tmp_path)], stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, env=environment))
    said = outputs(runs)
    assert [run.returncode for run in runs] == [0] * 4, said
    assert losses(tmp_path) == one_host


def test_the_check_covers_every_axis():
    runs = start_hosts("--check", "--tensor-parallel", 2)
    said = outputs(runs)
    assert [run.returncode for run in runs] == [0, 0], said
    for line in ("world: 4 ranks on 2 hosts", "dp: 2 ranks on 2 hosts", "tp: 2 ranks on 1 host"):
        assert line in said[0]
    for operation in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send, receive"):
        assert said[0].count(f"\n{operation} ") == 3 * 4
    assert "latency" in said[0] and "bandwidth" in said[0]
    stages = outputs(start_hosts("--check", "--pipeline-parallel", 2))[0]
    assert "pp: 2 ranks on 2 hosts" in stages and "dp: 2 ranks on 1 host" in stages
    wrong = start_hosts("--check", "--tensor-parallel", 4)
    assert "tensor-parallel ranks 0 1 2 3 are on several hosts" in outputs(wrong)[0]


def rank_processes(run):
    return [int(child) for task in pathlib.Path(f"/proc/{run.pid}/task").glob("*/children")
            for child in task.read_text().split()]


@pytest.mark.parametrize("host", [0, 1])
def test_a_killed_rank_restarts_both_hosts(tiny, one_host, tmp_path, host):
    runs = start_hosts("--max-restarts", 2, "--", *training(tiny, tmp_path))
    metrics = tmp_path / "metrics.jsonl"
    limit = time.time() + 60
    while time.time() < limit and not (metrics.exists() and metrics.read_text().count('"loss"') >= 6):
        time.sleep(0.005)
    victims = rank_processes(runs[host])
    assert len(victims) == 2, outputs(runs)
    os.kill(victims[1], signal.SIGKILL)
    said = outputs(runs)
    assert [run.returncode for run in runs] == [0, 0], said
    assert "was killed by signal 9 (SIGKILL)" in said[host] and "restart 1 of 2" in said[host]
    assert "restart 1 of 2" in said[1 - host]
    assert "resumed from" in said[0]
    assert losses(tmp_path) == one_host


def test_a_missing_host_is_told(tmp_path):
    words = ["--nproc", 1, "--nnodes", 2, "--master-port", free_port(), "--timeout", 1, "--", "true"]
    done = trireme("launch", "--node-rank", 0, *words, code=3)
    assert "1 of 2 hosts were ready to start within 1 s" in done.stderr
    assert "trireme: error:" in trireme("launch", "--node-rank", 1, *words, code=3).stderr


@pytest.fixture
def namespaces():
    """Two network namespaces joined by a cable, and the first one's address."""
    names = [f"trireme{os.getpid()}{side}" for side in "ab"]

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True)

    try:
        made = [ip("netns", "add", name) for name in names]
    except FileNotFoundError:
        pytest.skip("there is no `ip` (Debian: apt-get install iproute2)")
    try:
        cable = [f"tr{os.getpid() % 100000}{side}" for side in "ab"]
        made.append(ip("link", "add", cable[0], "netns", names[0], "type", "veth", "peer", "name", cable[1],
                       "netns", names[1]))
        for i in range(2):
            made.append(ip("-n", names[i], "addr", "add", f"10.231.77.{i + 1}/24", "dev", cable[i]))
            made.append(ip("-n", names[i], "link", "set", cable[i], "up"))
            made.append(ip("-n", names[i], "link", "set", "lo", "up"))
        failed = [step.stderr for step in made if step.returncode != 0]
        if failed:
            pytest.skip(f"network namespaces are not permitted here: {failed[0].strip()}")
        yield names, "10.231.77.1"
    finally:
        for name in names:
            ip("netns", "delete", name)


def test_two_network_namespaces(tiny, one_host, tmp_path, namespaces):
    names, address = namespaces
    runs = start_hosts("--", *training(tiny, tmp_path), address=address, hosts=None,
                       within=lambda node: ["ip", "netns", "exec", names[node]])
    said = outputs(runs)
    assert [run.returncode for run in runs] == [0, 0], said
    assert losses(tmp_path) == one_host


def runs(pid):
    """Whether a process goes on; what mpirun leaves behind gets a while to end."""
    for _ in range(100):
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except (FileNotFoundError, ProcessLookupError):
            return False
        time.sleep(0.1)
    return True


def mpirun():
    path = os.environ.get("TRIREME_MPIEXEC", "")
    if not path:
        pytest.skip("trireme is built without MPI (Debian: apt-get install libopenmpi-dev openmpi-bin)")
    return path


def test_mpirun_trains_as_one_host(tiny, one_host, tmp_path):
    words = ["bash", ROOT / "tests/ranks/mpirun.sh", mpirun(), *training(tiny, tmp_path)]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(tmp_path) == one_host


def test_mpirun_ends_when_a_rank_is_killed(tiny, tmp_path):
    words = ["bash", ROOT / "tests/ranks/mpirun.sh", mpirun(), *training(tiny, tmp_path), "train.train_iter=100000"]
    run = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = tmp_path / "metrics.jsonl"
    limit = time.time() + 60
    while time.time() < limit and not (metrics.exists() and metrics.read_text().count('"loss"') >= 3):
        time.sleep(0.01)
    victims = rank_processes(run)
    assert len(victims) == 4, outputs([run])
    os.kill(victims[2], signal.SIGKILL)
    killed = time.time()
    said = outputs([run], timeout=60)
    assert time.time() - killed < 30 and run.returncode != 0, said
    assert not any(runs(pid) for pid in victims)

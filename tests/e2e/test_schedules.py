"""Every pipeline schedule through the program: one loss curve, a measured timeline, a schedule of one's own and `auto`."""

import json
import pathlib
import re
import subprocess

import pytest

from support import PROGRAM, apart, latest, layout, learnable_data, losses, train, trireme

PIPELINE = [*layout(dp=1, tp=1, pp=2), "train.num_accumulation_steps=4", "train.global_batch_size=null",
            "train.train_micro_batch_size=2", "train.train_iter=4"]


def run(tiny, folder, *words):
    return losses_of(folder, train(tiny, folder, *PIPELINE, *words))


def train_from(config, *words, **options):
    return trireme("train", "--config", config, "--ranks", 2, *words, **options)


def losses_of(folder, done):
    return list(losses(folder).values()), done.stdout + done.stderr


@pytest.fixture(scope="module")
def expected(tiny, tmp_path_factory):
    return run(tiny, tmp_path_factory.mktemp("expected"), "train.dist.schedule=gpipe")[0]


@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1", "zb-2p", "zb-v", "v-half", "v-min"])
def test_every_schedule_draws_the_same_curve(tiny, expected, tmp_path, schedule):
    got, _ = run(tiny, tmp_path, f"train.dist.schedule={schedule}")
    assert apart(got, expected) < 1e-5


def test_balance_by_cost_and_recompute(tiny, expected, tmp_path):
    got, _ = run(tiny, tmp_path, "train.dist.balance=cost", "train.activation_checkpoint={enabled: true, every: 2}")
    assert apart(got, expected) < 1e-5


def test_own_layer_counts_of_virtual_stages(tiny, expected, tmp_path):
    got, _ = run(tiny, tmp_path, "train.dist.schedule=interleaved", "train.dist.custom_pipeline_stage_id=[0, 1, 2, 3]")
    assert apart(got, expected) < 1e-5


def test_uneven_layer_counts_of_virtual_stages(tiny, tmp_path):
    words = ["model.n_layer=6", "train.dist.schedule=interleaved"]
    want, _ = run(tiny, tmp_path / "even", "model.n_layer=6", "train.dist.schedule=gpipe")
    for stages in ("[0, 0, 1, 2, 2, 3]", "[0, 1, 1, 1, 2, 3]"):
        got, _ = run(tiny, tmp_path / stages, *words, f"train.dist.custom_pipeline_stage_id={stages}")
        assert apart(got, want) < 1e-5
    with_others = train(tiny, tmp_path / "other", *PIPELINE, *words, "train.dist.custom_pipeline_stage_id=[0, 0, 1, 1, 1, 1]", code=2)
    assert "custom_pipeline_stage_id" in with_others.stderr


def test_measured_timeline(tiny, tmp_path):
    _, said = run(tiny, tmp_path, "train.dist.schedule=zb-h1", "train.trace.steps=[2]")
    assert "measured" in said and "simulated" in said
    folder = tmp_path / "trace"
    assert sorted(f.name for f in folder.iterdir()) == [f"step_00000002.{end}" for end in ("json", "svg", "trace.json", "txt")]
    events = json.loads((folder / "step_00000002.trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == 2 * 4 * 3  # stages x micro-batches x (F, I, W)
    svg = (folder / "step_00000002.svg").read_text()
    assert svg.startswith("<svg") and float(svg.split('width="')[1].split('"')[0]) <= 1650
    text = (folder / "step_00000002.txt").read_text()
    assert "step 2, schedule zb-h1, milliseconds" in text
    assert all(len(line) < 110 for line in text.splitlines() if line.startswith("rank"))
    document = json.loads((folder / "step_00000002.json").read_text())
    assert document["unit"] == "ms" and len(document["costs"]["chunks"]) == 2
    assert 0 < document["costs"]["chunks"][0]["f"] < document["makespan"]
    done = train(tiny, tmp_path / "other", *PIPELINE, "train.trace.steps=[4, 5]", code=2)
    assert "train.trace.steps: step 5 lies beyond the run's 4" in done.stderr


def test_own_schedule(tiny, expected, tmp_path):
    own = tmp_path / "own.txt"
    own.write_text("0F0 0F1 0I0 0F2 0I1 0W0 0F3 0I2 0W1 0I3 0W2 0W3\n1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3\n")
    got, _ = run(tiny, tmp_path / "run", f"train.dist.schedule_file={own}")
    assert apart(got, expected) < 1e-5
    done = train(tiny, tmp_path / "other", *PIPELINE, "train.num_accumulation_steps=3",
                 f"train.dist.schedule_file={own}", code=2)
    assert "is a schedule of 4" in done.stderr and "but a step has 3" in done.stderr
    done = train(tiny, tmp_path / "other", *PIPELINE, f"train.dist.schedule_file={tmp_path}", code=2)
    assert "train.dist.schedule_file: " in done.stderr and "--format schedule" in done.stderr


def test_auto_is_kept_by_a_resumed_run(tiny, expected, tmp_path):
    got, said = run(tiny, tmp_path, "train.dist.schedule=auto", "train.checkpointer.period=2")
    assert apart(got, expected) < 1e-5
    assert "timing the model's layers" in said and "ms a step expected" in said
    assert "makespan ms" in said and "peak MiB" in said and "sent MiB" in said and said.count("<- best") == 1
    assert "schedule: auto" in (tmp_path / "config.yaml").read_text()
    chosen = (tmp_path / "schedule.txt").read_text()
    name = chosen.split(",")[0].removeprefix("# ")
    assert f"schedule {name} with" in said and "chosen for pipeline_parallel_size 2" in chosen
    words = [*PIPELINE, "train.dist.schedule=auto", "train.checkpointer.period=2", "--resume"]
    done = train(tiny, tmp_path, *words, "train.train_iter=6", "train.trace.steps=[6]")
    assert "timing" not in done.stdout + done.stderr
    assert (tmp_path / "schedule.txt").read_text() == chosen
    assert f"step 6, schedule {name}, milliseconds" in done.stderr
    for other in ("train.num_accumulation_steps=2", "train.dist.auto_memory_mb=1000"):
        said = train(tiny, tmp_path, *words, "train.train_iter=8", other).stderr
        assert "note: " in said and other.split(".")[-1].replace("=", " ") in said.split("choosing again with")[1], said
    one = ["--ranks", 1, *words[2:], "train.dist.pipeline_parallel_size=1"]
    said = train(tiny, tmp_path, *one, "train.train_iter=8").stderr
    assert "one stage leaves nothing to choose" in said and "timing" not in said
    train(tiny, tmp_path, *words, "train.train_iter=4", code=2)


def test_the_resolved_config_holds_what_auto_chose(tiny, expected, tmp_path):
    run(tiny, tmp_path / "run", "train.dist.schedule=auto", "train.dist.chunks=2")
    chosen = (tmp_path / "run/schedule.txt").read_text()
    config = tmp_path / "run/config.yaml"
    assert f"auto_choice: {tmp_path / 'run/schedule.txt'}" in config.read_text()
    again = train_from(config, f"train.output_dir={tmp_path / 'again'}")
    assert "timing" not in again.stdout + again.stderr
    assert (tmp_path / "again/schedule.txt").read_text() == chosen
    assert losses(tmp_path / "again") == losses(tmp_path / "run")
    other = train_from(config, f"train.output_dir={tmp_path / 'other'}", "train.dist.chunks=null")
    assert "note: " in other.stderr and "timing the model's layers" in other.stdout + other.stderr
    gone = train_from(config, f"train.output_dir={tmp_path / 'gone'}", "train.dist.auto_choice=nowhere.txt", code=2)
    assert "train.dist.auto_choice: there is no file nowhere.txt" in gone.stderr and not (tmp_path / "gone").exists()
    unused = train_from(config, f"train.output_dir={tmp_path / 'unused'}", "train.dist.schedule=gpipe",
                        "train.dist.chunks=null", code=2)
    assert "auto_choice" in unused.stderr and "set it to null" in unused.stderr


def test_auto_with_a_number_of_chunks(tiny, expected, tmp_path):
    got, said = run(tiny, tmp_path, "train.dist.schedule=auto", "train.dist.chunks=2")
    assert apart(got, expected) < 1e-5
    assert "with 2 chunks a stage" in said and "1f1b" not in said and "zb-v" in said


def test_auto_where_nothing_fits(tiny, tmp_path):
    done = train(tiny, tmp_path, *PIPELINE, "train.dist.schedule=auto", "train.dist.auto_memory_mb=0.001", code=2)
    assert "raise train.dist.auto_memory_mb" in done.stderr and "the least is" in done.stderr
    assert not (tmp_path / "schedule.txt").exists()


def test_too_many_virtual_stages_are_refused(tiny, tmp_path):
    done = train(tiny, tmp_path, *PIPELINE, "train.dist.schedule=interleaved", "train.dist.chunks=8", code=2)
    assert "layers cannot be distributed over 16" in done.stderr


def test_the_tool_and_the_trainer_know_the_same_schedules():
    known = {row["schedule"] for row in json.loads(trireme("pipeline", "--compare", "--json").stdout)}
    assert {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-2p", "zb-v", "v-half", "v-min"} <= known


@pytest.mark.parametrize("words,said", [
    (["--compare", "--schedule", "zb-v"], "--schedule has no effect beside --compare"),
    (["--compare", "--format", "svg"], "--compare is a table"),
    (["--compare", "--memory", "-1"], "--memory -1: expected at least 1"),
    (["--compare", "--memory", "0.5"], "--memory 0.5: expected at least 1"),
    (["--json", "--format", "svg"], "--json and --format svg"),
    (["--check", "mine.txt", "--stages", 2], "--stages is what the file"),
    (["--check", "mine.txt", "--memory", 2], "--memory plans a schedule"),
    (["--check", "/tmp"], "--check: /tmp"),
    (["--stages", "two"], "--stages two: expected a whole number"),
    (["--costs", "1,2,3,4,5"], "--costs: 5 values were given, expected at most 4"),
    (["--costs", "1,2"], "--costs: 2 numbers given, expected four"),
    (["--stages", 1000000, "--micro-batches", 100000], "more than can be planned"),
])
def test_the_tool_refuses_what_it_would_ignore(words, said):
    done = trireme("pipeline", *words, code=2, timeout=10)
    assert said in done.stderr, done.stderr


def test_the_tool_prints_a_file_to_start_from(tmp_path):
    own = tmp_path / "own.txt"
    own.write_text(trireme("pipeline", "--schedule", "zb-h1", "--stages", 2, "--micro-batches", 3, "--format", "schedule").stdout)
    assert "a valid schedule" in trireme("pipeline", "--check", own).stdout
    rows = json.loads(trireme("pipeline", "--check", own, "--compare", "--json").stdout)
    assert rows[-1]["schedule"] == str(own) and {(row["stages"], row["micro_batches"]) for row in rows} == {(2, 3)}


def test_the_example_that_pretrains(tmp_path):
    data = learnable_data(tmp_path / "data")
    said = subprocess.run([str(pathlib.Path(PROGRAM).with_name("pretrain")), data, "97", str(tmp_path / "run")],
                          capture_output=True, text=True, check=True, timeout=120).stdout
    assert float(re.search(r"^loss ([0-9.]+), checkpoint .*step_00000050$", said, re.MULTILINE).group(1)) < 4.5, said
    assert len(losses(tmp_path / "run")) == 50 and latest(tmp_path / "run").exists()


def test_the_example_of_an_own_chain_gives_one_loss_on_every_mesh():
    program = str(pathlib.Path(PROGRAM).with_name("own_pipeline"))
    outputs = [subprocess.run([program, *mesh], capture_output=True, text=True, check=True, timeout=60).stdout
               for mesh in ("111", "222", "411", "124")]
    first = [float(line.split()[-1]) for line in outputs[0].splitlines()]
    assert len(first) == 6 and first[-1] < first[0] / 10
    for output in outputs[1:]:
        assert apart([float(line.split()[-1]) for line in output.splitlines()], first) < 1e-3

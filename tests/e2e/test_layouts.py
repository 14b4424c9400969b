"""One configuration with dropout draws the same losses on every layout, and the same ones twice."""

import json

import pytest

from support import apart, layout, losses, train, trireme


@pytest.fixture(scope="module")
def one_rank(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    train(tiny, folder, *layout())
    return losses(folder)


def run(tiny, folder, *words):
    train(tiny, folder, *words)
    return losses(folder)


def test_learns(one_rank):
    assert len(one_rank) == 12
    assert one_rank[12] < one_rank[1] - 0.02


@pytest.mark.parametrize("words", [
    layout(dp=2, tp=2, pp=2), layout(tp=4), layout(pp=4),
    [*layout(tp=2, pp=2), "train.dist.sequence_parallel=true", "train.zero_optimization.stage=1"],
], ids=["222", "141", "114", "122-sp"])
def test_equals_one_rank(tiny, one_rank, tmp_path, words):
    assert apart(list(one_rank.values())[:10], list(run(tiny, tmp_path, *words).values())[:10]) < 1e-5


@pytest.mark.parametrize("dtype, bound", [("fp32", 1e-3), ("fp64", 1e-8)])
def test_fifty_steps_equal_one_ranks(tiny, tmp_path, dtype, bound):
    words = [f"train.dtype={dtype}", "train.train_iter=50"]
    one = run(tiny, tmp_path / "one", *layout(), *words)
    many = run(tiny, tmp_path / "many", *layout(dp=2, tp=2, pp=2), *words)
    assert len(one) == 50 and apart(list(one.values())[:10], list(many.values())[:10]) < 1e-5
    assert apart(list(one.values()), list(many.values())) < bound


def test_same_layout_twice_is_identical(tiny, tmp_path):
    words = layout(dp=2, tp=2, pp=2)
    assert run(tiny, tmp_path / "a", *words) == run(tiny, tmp_path / "b", *words)


def test_another_seed_differs(tiny, one_rank, tmp_path):
    other = run(tiny, tmp_path, *layout(), "train.seed=9")
    assert apart(list(one_rank.values()), list(other.values())) > 1e-3


def test_a_schedule_of_ones_own(tiny, one_rank, tmp_path):
    def write(micro_batches):
        rows = [" ".join(f"{chunk}{op}{m}" for op in "FB" for m in range(micro_batches)) for chunk in (0, 1)]
        (tmp_path / "schedule.txt").write_text("\n".join(rows) + "\n")
        return f"train.dist.schedule_file={tmp_path / 'schedule.txt'}"

    drawn = run(tiny, tmp_path / "run", *layout(pp=2), write(8))
    assert apart(list(one_rank.values())[:10], list(drawn.values())[:10]) < 1e-5
    said = train(tiny, tmp_path / "other", *layout(pp=2), write(4), code=2).stderr
    assert "4 micro-batches on 2 stages, but a step has 8 on 2" in said


def test_inspect_says_why(tiny):
    words = ["inspect", "--config", tiny, *layout(tp=2, pp=2)]
    found = {p["name"]: p["reason"] for p in json.loads(trireme(*words, "--json").stdout)["parameters"]}
    assert found["transformer.wte.weight"] == "vocab: transformer.wte; tied over stages"
    assert found["transformer.h.0.attn.c_attn.weight"] == "column: *.attn.c_attn"
    assert found["transformer.h.3.mlp.c_proj.weight"] == "row: *.mlp.c_proj"
    assert found["transformer.h.0.mlp.c_proj.bias"] == "row: *.mlp.c_proj, whole on every rank"
    assert found["transformer.ln_f.weight"] == "no pattern: whole on every rank"
    lines = trireme(*words).stdout.splitlines()
    assert lines[0].split()[-1] == "why" and any(line.endswith("column: *.attn.c_attn") for line in lines)

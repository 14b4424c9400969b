"""ZeRO's stages from the configuration: the same losses, a checkpoint in which each byte lies once, which any stage reads."""

import json

import pytest
from safetensors import safe_open

from support import apart, latest, layout, losses, train, trireme


def zero(stage, *words):
    return [*words, f"train.zero_optimization.stage={stage}"]


@pytest.fixture(scope="module")
def one_rank(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    train(tiny, folder, *layout())
    return folder


@pytest.mark.parametrize("words", [
    zero(2, *layout(dp=2, pp=2)), zero(2, *layout(dp=2, tp=2), "train.dist.sequence_parallel=true"), zero(3, *layout(dp=4)),
    zero(3, *layout(dp=2, tp=2), "train.activation_checkpoint.enabled=true"),
    zero(3, *layout(dp=2, pp=2), "train.dist.schedule=auto"),
], ids=["2-pp", "2-tp", "3", "3-tp-recompute", "3-pp-auto"])
def test_equals_one_rank(tiny, one_rank, tmp_path, words):
    train(tiny, tmp_path, *words)
    assert apart(list(losses(one_rank).values())[:10], list(losses(tmp_path).values())[:10]) < 1e-5


def stored(checkpoint, kind):
    """Elements by tensor over all files of a kind, and the number of files."""
    sizes, files = {}, sorted(checkpoint.glob(f"{kind}_rank_*.safetensors"))
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():
                sizes[name] = sizes.get(name, 0) + opened.get_tensor(name).numel()
    return sizes, len(files)


def test_each_byte_lies_once_and_any_stage_reads_it(tiny, tmp_path):
    """A run that changes its layout and stage every three steps draws one rank's losses."""
    steady = ["train.scheduler.name=warmup_constant", "train.scheduler.warmup_ratio=0"]
    train(tiny, tmp_path / "one", *layout(), *steady)
    with safe_open(next(latest(tmp_path / "one").glob("model_rank_*.safetensors")), "pt") as opened:
        whole = {name: opened.get_tensor(name).numel() for name in opened.keys()}
    folder = tmp_path / "many"
    for steps, words in ((3, zero(0, *layout(dp=2))), (6, zero(3, *layout(dp=2, tp=2))), (9, zero(2, *layout(dp=2, pp=2))),
                         (12, zero(3, *layout(dp=4)))):
        train(tiny, folder, *words, "--resume", f"train.train_iter={steps}", *steady)
    assert apart(list(losses(tmp_path / "one").values()), list(losses(folder).values())) < 1e-5
    for kind in ("model", "optimizer"):
        sizes, files = stored(latest(folder), kind)
        assert files == 4
        if kind == "model":
            assert sizes == whole
        else:
            assert sizes == {f"{name}.{state}": count for name, count in whole.items()
                             for state in ("exp_avg", "exp_avg_sq")}
    trireme("ckpt", "verify", latest(folder))
    found = [json.loads(train_words.stdout)["loss"] for train_words in (
        trireme("eval", "--config", tiny, "--checkpoint", folder, "--json", *words)
        for words in (layout(), zero(3, *layout(dp=2, tp=2)), zero(3, *layout(dp=4))))]
    assert max(found) - min(found) < 1e-5 * found[0]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_shards_end_within_what_tensor_ranks_hold_alike(tiny, tmp_path, stage):
    """The positions are whole on both tensor ranks, the 97 words are not halves: the data shards end at other positions."""
    words = ["model.n_positions=1024", "train.train_iter=2"]
    train(tiny, tmp_path / "one", *layout(), *words)
    train(tiny, tmp_path / "four", *zero(stage, *layout(dp=2, tp=2)), *words)
    assert apart(list(losses(tmp_path / "one").values()), list(losses(tmp_path / "four").values())) < 1e-5
    trireme("ckpt", "verify", latest(tmp_path / "four"))
    for kind in ("model", "optimizer"):
        assert stored(latest(tmp_path / "four"), kind)[0] == stored(latest(tmp_path / "one"), kind)[0]
    train(tiny, tmp_path / "four", *layout(), *words, "--resume", "train.train_iter=3")


def test_the_report_says_what_it_costs(tiny, tmp_path):
    def report(stage):
        return train(tiny, tmp_path, *zero(stage, *layout(dp=2)), "--dry-run").stdout

    assert "ZeRO 3" in report(3) and "gradients of all 4 micro-batches" in report(2)
    assert "gather the parameters" in report(3) and "gather the parameters" not in report(2)

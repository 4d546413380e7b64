"""The pipeline split: each layer in exactly one stage, each stage on exactly one rank, and messages that say what is
wrong.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.pipelining.schedules import get_schedule_class

from titan.models.registry import Stages
from titan.parallelisms import stages

pytestmark = pytest.mark.quick
ORDER = Stages(first=("tok_embeddings",), blocks="layers", last=("norm", "output"))


def fits(n_layers: int, n_stages: int, first: int, last: int) -> bool:
    """Whether every stage gets a share: the ends at least their own weight, those between at least one layer."""
    weight, extra = divmod(n_layers + first + last, n_stages)
    shares = [weight + (stage < extra) for stage in range(n_stages)]
    return shares[0] >= first and shares[-1] >= last and min(shares[1:-1], default=1) >= 1


@pytest.mark.parametrize(
    ("n_layers", "n_stages", "sizes"),
    [
        (5, 2, [3, 2]),
        (7, 4, [2, 2, 2, 1]),
        (4, 4, [1, 2, 1, 0]),
        (8, 8, [1, 2, 1, 1, 1, 1, 1, 0]),
        (32, 4, [8, 9, 8, 7]),
    ],
)
def test_layers_beyond_the_even_share_stay(n_layers: int, n_stages: int, sizes: list[int]) -> None:
    """C49: 5 layers on 2 stages, 7 on 4."""
    assert [len(layers) for layers in stages.split_layers(n_layers, n_stages)] == sizes


def test_every_split_covers_each_layer_once_in_order() -> None:
    checked = 0
    for n_layers in range(1, 34):
        for n_stages in (1, 2, 3, 4, 6, 8):
            for first, last in ((1, 1), (0, 0), (2, 1), (0, 3)):
                if not fits(n_layers, n_stages, first, last):
                    with pytest.raises(ValueError, match=rf"{n_layers} layers do not fill {n_stages} pipeline stages"):
                        stages.split_layers(n_layers, n_stages, first_less=first, last_less=last)
                    continue
                split = stages.split_layers(n_layers, n_stages, first_less=first, last_less=last)
                assert [layer for part in split for layer in part] == list(range(n_layers))
                shares = [len(part) + first * (i == 0) + last * (i == n_stages - 1) for i, part in enumerate(split)]
                assert max(shares) - min(shares) <= 1, "stages weigh the same, to one layer"
                modules = stages.stage_modules(ORDER, split)
                assert stages.check_modules(ORDER, n_layers, [part for part in modules if part]) == []
                checked += 1
    assert checked > 300


def test_modules_keep_their_global_numbers() -> None:
    split = stages.split_layers(5, 2)
    assert stages.stage_modules(ORDER, split) == [
        ["tok_embeddings", "layers.0", "layers.1", "layers.2"],
        ["layers.3", "layers.4", "norm", "output"],
    ]


@pytest.mark.parametrize("schedule", stages.SCHEDULES)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_each_rank_holds_as_many_stages_as_the_schedule_takes(schedule: str, pp: int) -> None:
    n_stages = stages.count_stages(schedule, pp, 16)
    assert n_stages == (pp if schedule in ("GPipe", "1F1B") else 2 * pp)
    ranks = stages.stage_ranks(schedule, pp, n_stages)
    assert all(ranks.count(rank) == n_stages // pp for rank in range(pp))
    assert get_schedule_class(schedule).__name__.removeprefix("Schedule") == schedule, "torch knows it by this name"


def test_a_v_schedule_holds_both_ends_on_the_first_rank() -> None:
    assert stages.stage_ranks("ZBVZeroBubble", 2, 4) == [0, 1, 1, 0]
    assert stages.stage_ranks("DualPipeV", 4, 8) == [0, 1, 2, 3, 3, 2, 1, 0]
    assert stages.stage_ranks("Interleaved1F1B", 2, 4) == [0, 1, 0, 1]
    assert stages.stage_ranks("LoopedBFS", 2, 6) == [0, 1, 0, 1, 0, 1]


def test_layers_per_stage_counts_the_weights_of_the_ends() -> None:
    assert stages.count_stages("Interleaved1F1B", 2, 6, layers_per_stage=2) == 4
    assert stages.count_stages("Interleaved1F1B", 2, 6, layers_per_stage=1) == 8
    assert stages.count_stages("1F1B", 2, 6, layers_per_stage=3, first_less=0, last_less=0) == 2


@pytest.mark.parametrize(
    ("schedule", "layers_per_stage", "parts"),
    [
        ("1F1B", 2, ["makes 4 stages of 6 layers", "(one a rank)"]),
        ("ZBVZeroBubble", 4, ["makes 2 stages of 6 layers", "4 (two a rank)"]),
        ("Interleaved1F1B", 3, ["makes 3 stages of 6 layers", "a multiple of 2, at least 4"]),
        ("LoopedBFS", 4, ["makes 2 stages of 6 layers", "a multiple of 2, at least 4"]),
    ],
)
def test_layers_per_stage_that_the_schedule_cannot_take_is_refused(
    schedule: str, layers_per_stage: int, parts: list[str]
) -> None:
    with pytest.raises(ValueError, match="pipeline_parallel_layers_per_stage") as raised:
        stages.count_stages(schedule, 2, 6, layers_per_stage=layers_per_stage)
    assert all(part in str(raised.value) for part in parts), raised.value


def test_fewest_microbatches() -> None:
    assert [stages.min_microbatches(schedule, 4) for schedule in ("GPipe", "1F1B", "DualPipeV")] == [1, 4, 8]
    assert stages.min_microbatches("ZBVZeroBubble", 4) == 4


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]], None),
        ([["tok_embeddings"], ["layers.0", "layers.1"], ["norm", "output"]], None),
        ([["tok_embeddings", "layers.0"], ["norm", "output"]], "no stage holds layers.1"),
        ([["tok_embeddings", "layers.0", "layers.1"], ["layers.1", "norm", "output"]], "'layers.1' stands in 2 stages"),
        ([["tok_embeddings", "layers.0", "layer.1"], ["layers.1", "norm", "output"]], "no module 'layer.1'"),
        ([["tok_embeddings", "layers.1"], ["layers.0", "norm", "output"]], "must follow the order of the model"),
        ([["tok_embeddings", "layers.0", "layers.1"], [], ["norm", "output"]], "stage 1 is empty"),
    ],
)
def test_a_list_of_modules_is_checked(parts: list[list[str]], message: str | None) -> None:
    found = stages.check_modules(ORDER, 2, parts)
    if message is None:
        assert found == []
    else:
        assert len(found) == 1
        assert message in found[0]


def test_a_schedule_file_gives_stages_ranks_and_kinds(tmp_path: Path) -> None:
    path = tmp_path / "schedule.csv"
    path.write_text("0F0,0SEND_F0,3RECV_F0,3F0,,3I0,3W0\n0RECV_F0,1F0,2F0,,2B0,(1B0;0F1)OVERLAP_F_B\n")
    first, second = stages.csv_actions(path)
    assert first == [(0, "F"), (0, "SEND_F"), (3, "RECV_F"), (3, "F"), (3, "I"), (3, "W")]
    assert second[-2:] == [(1, "B"), (0, "F")], "two actions in one cell"
    assert stages.csv_has_communication(path)
    assert stages.splits_backward("1F1B", path)


def test_ranks_of_stages_come_from_who_computes_them(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text("0F0,,,3F0,3B0,,,0B0\n,1F0,2F0,,,2B0,1B0\n")
    assert stages.csv_stage_ranks(path) == [0, 1, 1, 0]
    assert not stages.csv_has_communication(path)
    assert not stages.splits_backward("ZBVZeroBubble", path), "the file decides, not the name"
    assert stages.splits_backward("ZBVZeroBubble")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X0\n1F0,1B0\n", r"row 1: '0X0' is no pipeline action"),
        ("0F0\n1F0,forward\n", r"row 2: 'forward' is no pipeline action"),
        ("0F0,0B0\n0F0,1B0\n", r"stage 0 is computed by ranks \[0, 1\]"),
        ("0F0,0B0\n2F0,2B0\n", r"stage 1 is computed by ranks \[\]"),
    ],
)
def test_a_schedule_file_that_cannot_run_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        stages.csv_stage_ranks(path)

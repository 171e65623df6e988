from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from migration.file_kinds import Kind
from migration.legacy_search import find_experiments
from migration.plan import ExperimentPlan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from migration.plan import PlannedFile
    from tests.migration_tool.conftest import OldTree

Answers = dict[str, "PlannedFile"]


def plan_of(path: Path) -> tuple[ExperimentPlan, Answers]:
    """Return the plan for a log directory, and what it says of each file."""
    (experiment,) = find_experiments([path], [])
    plan = ExperimentPlan(experiment)
    answers = {planned.evidence.path: planned for planned in plan.files()}
    assert plan.problems == []
    return plan, answers


def starts_of(answers: Answers) -> dict[str, float | None]:
    """Return the start of the launch that each file is given to, in whole seconds; None if uncertain or left alone."""
    return {
        path: None
        if not planned.runs or planned.runs[0].launch.is_uncertain
        else float(round(planned.runs[0].launch.start))
        for path, planned in answers.items()
    }


def attributed_launch(planned: PlannedFile, launches: list[dict[str, Any]]) -> int | None:
    """Return the number of the real launch during which the launch that a file is given to started."""
    if not planned.runs or planned.runs[0].launch.is_uncertain:
        return None
    begun = [number for number, each in enumerate(launches, 1) if each["start"] <= planned.runs[0].launch.start + 1]
    return begun[-1] if begun else None


def test_every_file_of_a_real_tree_is_in_its_launch(
    corpus_name: str, unpack: Callable[[str], Path], truth: Callable[[str], dict[str, Any]]
) -> None:
    """Of the files whose maker is known, checkpoints and Weights & Biases aside, all are attributed right."""
    known = truth(corpus_name)
    _, answers = plan_of(unpack(corpus_name))

    makers = {path: number for path, number in known["created_by_launch"].items() if number is not None}
    expected = {
        path: makers[path] for path, planned in answers.items() if path in makers and not _is_checkpoint(planned)
    }
    attributed = {path: attributed_launch(answers[path], known["launches"]) for path in expected}
    assert attributed == expected
    overlooked = {path for path in makers if path not in answers and path.split("/")[0] not in ("wandb", "data")}
    assert {path for path in overlooked if not path.endswith(".ckpt")} == set()


def _is_checkpoint(planned: PlannedFile) -> bool:
    return planned.evidence.kind is Kind.CHECKPOINT


def test_a_log_with_lines_of_two_launches_is_in_both(unpack: Callable[[str], Path]) -> None:
    """Under srun both ranks write one name, and an early rank appends to the log of the launch before."""
    _, answers = plan_of(unpack("2.7.3_slurm_testing"))

    shared = answers["run_1/nemo_log_globalrank-0_localrank-0.txt"]

    first, second = shared.runs
    assert first.launch.start < second.launch.start
    assert shared.names == (shared.evidence.name, f"{shared.evidence.name}.from-run_1")
    assert "several launches" in shared.reason


def test_a_log_that_nobody_moved_is_in_all_its_launches(unpack: Callable[[str], Path]) -> None:
    """`NeMoLogger` moves nothing where its `run_N` exists: of later launches only event files tell, and that log."""
    plan, answers = plan_of(unpack("2.7.3_x_nemologger_move_skipped"))

    shared = answers["nemo_log_globalrank-0_localrank-0.txt"]

    assert [run.id for run in shared.runs] == [run.id for run in plan.runs[1:]]
    assert len(plan.runs) == 4


def test_nemo_loggers_launches_end_with_their_own_lines(unpack: Callable[[str], Path]) -> None:
    """A log that two launches wrote, open across the move, does not make the first last until the second."""
    plan, _ = plan_of(unpack("2.7.3_x_nemologger"))

    assert len(plan.runs) == 4
    assert all(run.launch.end - run.launch.start < 5 for run in plan.runs)


def test_a_misfiled_log_keeps_its_name(unpack: Callable[[str], Path]) -> None:
    """A log of rank one, moved while it was open, lies with another launch, but its own has none of that name."""
    _, answers = plan_of(unpack("3.0.0_torchrun_testing"))

    misfiled = answers["run_0/nemo_log_globalrank-1_localrank-1.txt"]

    assert misfiled.names == (misfiled.evidence.name,)
    assert misfiled.runs[0].launch.home == "run_1"


def test_the_time_zone_of_the_training_does_not_matter(old_tree: OldTree, start: float) -> None:
    """NeMo stamps local time; the time of the last write tells the zone, quarters of an hour and summer time too."""
    for number, zone in enumerate([-9.5, -8.5, 5.75, 13.0]):
        old_tree.zone = zone
        old_tree.launch(start + 3600 * number, ranks=(0, 1))

    _, answers = plan_of(old_tree.path)

    for number in range(4):
        source = f"run_{number}/" if number < 3 else ""
        for rank in (0, 1):
            name = f"{source}nemo_log_globalrank-{rank}_localrank-{rank}.txt"
            assert starts_of(answers)[name] == start + 3600 * number


def test_early_and_late_ranks_are_with_their_launch(old_tree: OldTree, start: float) -> None:
    """A rank may begin before rank zero, and then its log is moved by its own launch; or long after."""
    old_tree.launch(start, end=start + 50)
    early = "nemo_log_globalrank-5_localrank-1.txt"
    late = "nemo_log_globalrank-6_localrank-2.txt"
    old_tree.write(early, old_tree.log([start + 98, start + 150]), start + 150)
    old_tree.launch(start + 100, end=start + 150)
    old_tree.write(late, old_tree.log([start + 140, start + 149]), start + 149)

    _, answers = plan_of(old_tree.path)

    assert starts_of(answers)[f"run_0/{early}"] == start + 100
    assert starts_of(answers)[late] == start + 100


def test_a_launch_of_which_only_event_files_are_left_is_a_run(old_tree: OldTree, start: float) -> None:
    """The user removed `run_1`, but not `version_1`: its process id belongs to no other launch."""
    for number in range(4):
        old_tree.launch(start + 100 * number, pid=100 + number)
    shutil.rmtree(old_tree.path / "run_1")

    plan, answers = plan_of(old_tree.path)

    starts = starts_of(answers)
    events = {path: when for path, when in starts.items() if "tfevents" in path}
    assert len(set(events.values())) == 4
    assert len(plan.runs) == 4
    (orphan,) = {path for path in events if path.startswith("version_1/")}
    assert abs((events[orphan] or 0) - (start + 100)) < 3


def test_events_that_two_live_launches_could_have_made_are_uncertain(old_tree: OldTree, start: float) -> None:
    """Two launches at once, and two processes that began their event files while both lived: nobody can tell."""
    old_tree.launch(start, end=start + 900, fit=1e9)
    old_tree.launch(start + 100, end=start + 900, fit=1e9)
    old_tree.write("run_0/lightning_logs.txt", "x", start + 900)
    os.utime(old_tree.path / "run_0", (start + 100, start + 100))
    first = old_tree.events(start + 300, start + 800, pid=1)
    old_tree.events(start + 400, start + 800, pid=2)

    plan, answers = plan_of(old_tree.path)

    planned = answers[str(first.relative_to(old_tree.path))]
    assert planned.runs[0].launch.is_uncertain
    assert len(planned.runs[0].launch.candidates) == 2
    assert planned.reason.startswith("uncertain: ")
    assert sum(run.launch.is_uncertain for run in plan.runs) == 1


def test_a_process_that_began_while_one_launch_lived_leaves_the_other_to_the_next(
    old_tree: OldTree, start: float
) -> None:
    """Two launches at once, but the first made its event file before the second started."""
    old_tree.launch(start, end=start + 900, pid=1)
    old_tree.launch(start + 100, end=start + 900, pid=2)

    _, answers = plan_of(old_tree.path)

    events = {path: when for path, when in starts_of(answers).items() if "tfevents" in path}
    assert sorted(when or 0 for when in events.values()) == [start, start + 100]


def test_a_log_between_two_launches_is_uncertain(old_tree: OldTree, start: float) -> None:
    """It was written long after the one had ended and long before the next: that launch has left nothing else."""
    old_tree.launch(start, end=start + 50)
    stray = "nemo_log_globalrank-3_localrank-3.txt"
    old_tree.write(stray, old_tree.log([start + 5000, start + 5010]), start + 5010)
    old_tree.launch(start + 9000)

    _, answers = plan_of(old_tree.path)

    assert answers[f"run_0/{stray}"].runs[0].launch.is_uncertain


def test_a_copy_without_times_is_told_by_the_logs(old_tree: OldTree, start: float) -> None:
    """After `cp -r` every file was modified at the time of the copy; the stamps in the logs are still true."""
    for number in range(3):
        old_tree.launch(start + 1000 * number, pid=100 + number)
    for path in old_tree.path.rglob("*"):
        os.utime(path, (start + 90_001.5, start + 90_001.5))

    _, answers = plan_of(old_tree.path)

    starts = starts_of(answers)
    for number in range(3):
        source = f"run_{number}" if number < 2 else ""
        for name in ("cmd-args.log", "git-info.log", "nemo_error_log.txt", "lightning_logs.txt"):
            assert abs((starts[f"{source}/{name}".lstrip("/")] or 0) - (start + 1000 * number)) <= 3, name
        assert abs((starts[f"version_{number}/hparams.yaml"] or 0) - (start + 1000 * number)) <= 3


def test_a_file_that_nemo_only_moved_goes_with_its_launch(old_tree: OldTree, start: float) -> None:
    """A user's file that was written during a launch, or moved with its files, is part of the run; others stay."""
    old_tree.launch(start, end=start + 50)
    old_tree.write("during.csv", "x", start + 20)
    old_tree.write("before.csv", "x", start - 9000)
    old_tree.launch(start + 100, end=start + 150)
    old_tree.write("notes.txt", "x", start + 90_000)
    old_tree.write("during.txt", "x", start + 120)

    _, answers = plan_of(old_tree.path)

    starts = starts_of(answers)
    assert starts["run_0/during.csv"] == starts["run_0/before.csv"] == start
    assert starts["during.txt"] == start + 100
    assert starts["notes.txt"] is None
    assert answers["notes.txt"].runs == ()


def test_one_plan_and_the_next_have_the_same_run_ids(unpack: Callable[[str], Path]) -> None:
    """A stopped migration is continued in the same directories, since the ids are made of the launches."""
    path = unpack("2.7.3_torchrun")

    first, second = plan_of(path)[0], plan_of(path)[0]

    assert [run.id for run in first.runs] == [run.id for run in second.runs]
    assert len({run.id for run in first.runs}) == 4


def test_lineages_follow_the_checkpoint_that_was_restored(unpack: Callable[[str], Path]) -> None:
    """Resumed launches continue the one before; launches that restored nothing begin a lineage of their own."""
    resumed, _ = plan_of(unpack("3.0.0_single"))
    fresh, _ = plan_of(unpack("2.0.0_x_explicit_noresume"))

    assert {run.lineage for run in resumed.runs} == {resumed.runs[0].id}
    assert [run.resumed_from for run in resumed.runs] == [None, *(run.id for run in resumed.runs[:-1])]
    assert {run.lineage for run in fresh.runs} == {run.id for run in fresh.runs}


def test_lineages_outlive_the_names_of_directories(unpack: Callable[[str], Path]) -> None:
    """A tree that was renamed has the lineages that it had under the path in its logs."""
    path = unpack("3.0.0_single")
    before = [(run.id, run.lineage) for run in plan_of(path)[0].runs]
    other = path.rename(path.with_name("renamed"))

    assert [(run.id, run.lineage) for run in plan_of(other)[0].runs] == before


def test_a_checkpoint_of_another_experiment_continues_no_lineage(old_tree: OldTree, start: float) -> None:
    """Not even if its last directory has the same name, as with runs of two users."""
    words = "Restoring states from the checkpoint path at {}/checkpoints/a-last.ckpt\n"
    launches = [f"/data/{old_tree.path.name}", "/data/tiny", f"/others/{old_tree.path.name}", "/data/tiny2"]
    for number, directory in enumerate(launches):
        old_tree.launch(start + 100 * number)
        old_tree.write("lightning_logs.txt", words.format(directory), start + 100 * number + 30)

    runs = plan_of(old_tree.path)[0].runs

    assert [run.resumed_from for run in runs] == [None, runs[0].id, None, None]


@pytest.mark.parametrize(
    ("restored", "saved", "has_resumed"),
    [
        ("exp/tiny", "/data/exp/tiny", True),
        ("../exp/tiny", "/data/exp/tiny", True),
        ("/data/exp/tiny", "exp/tiny", True),
        ("other/tiny", "/data/exp/tiny", False),
        ("tiny2", "/data/exp/tiny", False),
        (".", "/data/exp/tiny", False),
    ],
)
def test_relative_paths_are_compared_by_their_ends(
    old_tree: OldTree, start: float, restored: str, saved: str, has_resumed: bool
) -> None:
    """With a relative `exp_dir` NeMo restores from a relative path, and Lightning tells a full one when it saves."""
    saving = f"Epoch 0, global step 5: 'val_loss' reached 0.1, saving model to '{saved}/checkpoints/a.ckpt' as top 1\n"
    restoring = f"Restoring states from the checkpoint path at {restored}/checkpoints/a-last.ckpt\n"
    for number, words in enumerate((saving, restoring)):
        old_tree.launch(start + 100 * number)
        old_tree.write("lightning_logs.txt", words, start + 100 * number + 30)

    first, second = plan_of(old_tree.path)[0].runs

    assert (first.resumed_from, second.resumed_from) == (None, first.id if has_resumed else None)


def test_a_model_that_loads_for_minutes_does_not_split_a_launch(old_tree: OldTree, start: float) -> None:
    """`NeMoLogger` writes the command down when training starts, long after the heading of the log of rank zero.

    It moves that log, open, with the files of the launch before, under whose name it has gone on writing.
    """
    log = "nemo_log_globalrank-0_localrank-0.txt"
    first = [start - 600, start, start + 200]
    second = [start + 400, start + 1000, start + 1200]
    for number, times in enumerate((first, second)):
        source = "run_0/" if number == 0 else ""
        old_tree.write(f"{source}cmd-args.log", "train.py", times[1])
        errors = old_tree.log([times[0] - 1, times[0]], has_header=False)
        old_tree.write(f"{source}nemo_error_log.txt", errors, times[1])
        old_tree.write(f"{source}lightning_logs.txt", "x", times[2])
    kept = old_tree.log([second[0] - 1], has_header=False)
    old_tree.write(f"run_0/{log}", old_tree.log(first) + kept + old_tree.log(second), second[2])
    os.utime(old_tree.path / "run_0", (second[1], second[1]))

    plan, answers = plan_of(old_tree.path)

    assert [(run.launch.start, run.launch.end) for run in plan.runs] == [
        (start, start + 200),
        (start + 1000, start + 1200),
    ]
    shared = answers[f"run_0/{log}"]
    assert [run.launch.start for run in shared.runs] == [start, start + 1000]
    for path, when in starts_of(answers).items():
        assert when == (start if path.startswith("run_0/") else start + 1000), path


def test_an_empty_log_goes_with_the_files_beside_it(old_tree: OldTree, start: float) -> None:
    """A rank that was killed before its first line has left a file and no time but that of its making."""
    old_tree.launch(start, end=start + 50)
    for rank in (0, 7):
        old_tree.write(f"nemo_log_globalrank-{rank}_localrank-{rank}.txt", "", start + 1)
    old_tree.launch(start + 100, end=start + 150)

    _, answers = plan_of(old_tree.path)

    for rank in (0, 7):
        assert starts_of(answers)[f"run_0/nemo_log_globalrank-{rank}_localrank-{rank}.txt"] == start

"""The packages that are mutated, and for each the fast tests that should find its mutants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """Code and its tests, as paths from the root; those of the code may be patterns."""

    code: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Classes and functions that are not mutated, because only tests with real processes run them, a second each."""
    without_tests: tuple[str, ...] = ()
    """Tests that are not run, because they count calls: a call of a mutated function is several calls."""


RESULT_MODULES = "activity", "analyse", "measured", "parts", "result", "summary", "wording"
"""Modules about results, of training and of checkpoints."""
PROBE_MODULES = "probe_file", "requests", "result", "run"
"""All modules but the page and its figures, which goldens and a browser test."""
OBJECT_TESTS = "s3", "s3_hostile", "s3_options", "s3_tls", "http_exchange", "storage"
PACKAGES = {
    "metrics": Package(("dlemu/metrics/*",), ("tests/metrics", "tests/goldens", "tests/results/test_analyse.py")),
    "plan": Package(("dlemu/plan/*",), ("tests/plan",)),
    "results": Package(
        (
            "dlemu/results/*",
            *(f"dlemu/jobs/[ct]*/{name}.py" for name in RESULT_MODULES),
            "dlemu/contrib/mlperf/audit/audit_answer.py",
        ),
        (
            *("tests/results", "tests/jobs", "tests/goldens", "tests/report/test_terminal.py"),
            "tests/report/test_study_pages.py",
            "tests/metrics/test_by_hand.py",
            "tests/run/test_follow.py",
            "tests/run/test_checkpoint_jobs.py",
            "tests/prediction/test_data_sheet.py",
            "tests/truth/test_truth.py",
            "dlemu/contrib/mlperf/tests/test_audit.py",
        ),
    ),
    "sizing": Package(
        ("dlemu/studies/size/[st]*.py", "dlemu/studies/compare/compare_sides.py"),
        ("tests/sizing/test_search.py", "tests/sizing/test_size_verdict.py", "tests/sizing/test_compare_sides.py"),
    ),
    "comm": Package(
        ("dlemu/ranks/comm.py", "dlemu/ranks/launch.py", "dlemu/ranks/failure.py", "dlemu/ranks/launcher.py"),
        ("tests/ranks/test_local.py", "tests/ranks/test_supervise.py", "tests/ranks/test_base.py"),
        without=("_Supervisor", "_send", "_reap", "_children", "end_adopted"),
    ),
    "manifest": Package(("datagen/manifest.py",), ("tests/datagen/test_inspection.py",)),
    "accelerators": Package(("dlemu/accelerators/*",), ("tests/accelerators",)),
    "rules": Package(
        ("dlemu/contrib/mlperf/rules/training.py", "dlemu/contrib/mlperf/check/training_rules.py"),
        ("dlemu/contrib/mlperf/tests/test_rules.py",),
    ),
    "prediction": Package(
        ("dlemu/jobs/training/prediction/*",),
        ("tests/prediction", "tests/goldens", "tests/truth/test_truth.py", "tests/sizing/test_size_verdict.py"),
    ),
    "probing": Package(
        (*(f"dlemu/jobs/probe/{name}.py" for name in PROBE_MODULES), "dlemu/jobs/training/pattern.py"),
        ("tests/probing",),
        without=("loader_costs", "_level", "_read", "_loader_costs"),
    ),
    "checkpoints": Package(
        ("dlemu/checkpoints/*",),
        ("tests/checkpoints",),
        without_tests=(
            "tests/checkpoints/test_shards.py::test_planning_costs_as_much_as_tensors_are_named_and_files_written",
        ),
    ),
    "s3": Package(
        ("datagen/storage/s3.py", "datagen/storage/_s3_*.py", "datagen/storage/_http_exchange.py"),
        tuple(f"tests/datagen/test_{name}.py" for name in OBJECT_TESTS),
    ),
    "check": Package(
        ("dlemu/contrib/mlperf/check/*",),
        (
            "dlemu/contrib/mlperf/tests/test_check.py",
            "dlemu/contrib/mlperf/tests/test_check_checkpoints.py",
            "dlemu/contrib/mlperf/tests/forging/test_forging.py",
        ),
    ),
}

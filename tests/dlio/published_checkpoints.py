"""Figures of a run that MLPerf Storage v3.0 published: llama3-8b on one drive, 8 ranks on a host of 377 GiB.

Of github.com/mlcommons/storage_results_v3.0, closed/NewFW/results/Solidigm_D5-P5336_61TB_Gen4_NVMe_QLC/checkpointing:
seconds of each checkpoint are those of rank 0's files, and of rank 3's, which was slower.
"""

from __future__ import annotations

from datetime import datetime

SIZE_GIB = 104.70452117919922
MEMORY_GIB = 377.2403106689453
HOST = "cve-ThinkSystem-SR665-V3"
WRITE_STAMP, READ_STAMP = "20260713_104840", "20260713_105538"
WRITE_BEGAN = datetime(2026, 7, 13, 10, 48, 45, 945468)
WRITE_ENDED = datetime(2026, 7, 13, 10, 55, 20, 475175)
READ_BEGAN = datetime(2026, 7, 13, 10, 55, 43, 829515)
SAVED = {
    0: [33.991986, 33.844192, 33.653591, 34.304633, 34.279722, 34.007261, 33.839268, 34.044142, 34.073784, 34.351077],
    3: [34.619219, 33.118887, 34.579835, 34.071887, 34.545985, 34.618332, 34.533019, 34.128286, 34.331833, 34.146848],
}
LOADED = {
    0: [21.202639, 22.002702, 21.506849, 20.898892, 20.706111, 20.179605, 21.00677, 21.362757, 20.319982, 21.042219],
}
WRITE_METRIC = {
    "save_checkpoint_io_mean_GB_per_second": 3.076140817854296,
    "save_checkpoint_io_stdev_GB_per_second": 0.01932669032821004,
    "save_checkpoint_duration_mean_seconds": 34.0389656,
    "save_checkpoint_duration_stdev_seconds": 0.21371410509706698,
    "checkpoint_size_GB": SIZE_GIB,
}
READ_METRIC = {
    "load_checkpoint_io_mean_GB_per_second": 4.983509448925309,
    "load_checkpoint_io_stdev_GB_per_second": 0.12224420035050747,
    "load_checkpoint_duration_mean_seconds": 21.0228526,
    "load_checkpoint_duration_stdev_seconds": 0.5161040870698855,
    "checkpoint_size_GB": SIZE_GIB,
}
OFFICIAL = {
    # model of mlpstorage: (layers, hidden, ffn, heads, kv heads, TP, PP, ZeRO, hash, copies of a subset, its hash)
    "llama3-8b": (32, 4096, 14336, 32, 8, 1, 1, 3, "68df04b7240e3fb0", 8, ""),
    "llama3-70b": (80, 8192, 28672, 128, 8, 8, 1, 3, "3c53fe70d64f91d4", 8, "c48a92d225d70ce8"),
    "llama3-405b": (126, 16384, 53248, 128, 8, 8, 32, 1, "7adcfa87a5c4c8e6", 2, "7e9f853cebd52aa6"),
    "llama3-1t": (128, 25872, 98304, 192, 32, 8, 64, 1, "45fd627ad9dc5f4c", 2, "0918b2db633242db"),
}


def official_yaml(model: str) -> dict[str, object]:
    """Return the workload file that mlpstorage v2.0 and v3.0 give to DLIO."""
    layers, hidden, ffn, heads, kv_heads, tensor, pipeline, zero_stage, *_ = OFFICIAL[model]
    return {
        "model": {
            "name": model.replace("3-", "_"),
            "type": "transformer",
            "num_layers": layers,
            "model_datatype": "fp16",
            "optimizer_datatype": "fp32",
            "parallelism": {"pipeline": pipeline, "tensor": tensor, "zero_stage": zero_stage},
            "transformer": {
                "vocab_size": 128256,
                "hidden_size": hidden,
                "ffn_hidden_size": ffn,
                "num_attention_heads": heads,
                "num_kv_heads": kv_heads,
            },
        },
        "framework": "pytorch",
        "workflow": {"generate_data": False, "train": False, "checkpoint": True},
        "checkpoint": {
            "checkpoint_folder": f"checkpoints/{model}",
            "time_between_checkpoints": 5,
            "num_checkpoints_write": 10,
            "num_checkpoints_read": 10,
            "fsync": True,
        },
    }

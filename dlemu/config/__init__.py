"""The settings of a run, and the only interface to hydra, which is imported where it is needed.

`schema` declares every setting that jobs share, with its range and meaning; a kind's own are in its `settings`. May
import datagen alone.

workload = load(["workload=unet3d", "accelerator=v100", "ranks=18"])
"""

from dlemu.config.dump import datagen_command as datagen_command
from dlemu.config.dump import digest as digest
from dlemu.config.dump import to_yaml as to_yaml
from dlemu.config.loading import load as load
from dlemu.config.loading import load_received as load_received
from dlemu.config.validate import check_checkpoints as check_checkpoints
from dlemu.config.validate import check_data as check_data
from dlemu.config.validate import check_folder as check_folder
from dlemu.config.validate import check_runnable as check_runnable
from dlemu.config.workload_files import workload_names as workload_names

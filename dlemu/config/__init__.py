"""The settings of a run, and the only interface to Hydra, which is imported on use.

`schema` declares every shared setting, with its range and meaning; a kind of job declares its own in `settings`. This
package imports only datagen.

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

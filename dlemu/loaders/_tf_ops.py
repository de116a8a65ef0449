"""Operations below `tf.data.Dataset`, for what its methods have no word for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dlemu.loaders.traits_base import Interleave

_NUMBER = tf.TensorSpec([], tf.int64)
_RECORD = (_NUMBER, tf.TensorSpec([], tf.string))
"""Of a sample: its number, and its record."""


def interleave(sources: Any, records: Callable[..., Any], turns: Interleave) -> Any:
    """Return the records of each source in turn, by the operation below `Dataset.interleave`.

    That one has no word for the files to begin ahead: always twice as many as are read at a time.
    """

    def opened(*source: Any) -> Any:
        return tf.data.experimental.to_variant(records(*source))

    signature = tf.nest.flatten(sources.element_spec)
    interleaved = tf.raw_ops.ParallelInterleaveDatasetV4(
        input_dataset=tf.data.experimental.to_variant(sources),
        other_arguments=[],
        f=tf.function(opened, input_signature=signature, autograph=False).get_concrete_function(),
        cycle_length=turns.files,
        block_length=turns.block_length,
        buffer_output_elements=turns.ready_per_file,
        prefetch_input_elements=turns.files_ahead,
        num_parallel_calls=turns.files,
        output_types=[spec.dtype for spec in _RECORD],
        output_shapes=[spec.shape for spec in _RECORD],
    )
    return tf.data.experimental.from_variant(interleaved, _RECORD)


def clock(steps: Any) -> Any:
    """Return a dataset whose elements are the times at which they are asked for.

    The asking thread looks at the clock itself. `Dataset.map` would have a thread of the pool do it, for which the one
    that puts batches together would wait behind whole batches being parsed; `use_inter_op_parallelism` of the operation
    below it says otherwise.
    """

    def look(step: Any) -> Any:
        with tf.control_dependencies([step]):
            return tf.timestamp()

    times = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(steps)),
        other_arguments=[],
        f=tf.function(look, input_signature=[_NUMBER], autograph=False).get_concrete_function(),
        output_types=[tf.float64],
        output_shapes=[[]],
        use_inter_op_parallelism=False,
    )
    return tf.data.experimental.from_variant(times, tf.TensorSpec([], tf.float64))

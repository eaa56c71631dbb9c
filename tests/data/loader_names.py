"""Which functions of loaders.py are wrong and how, and which are right; apart from it, as that imports torch."""

WRONG = {
    "no_sampler": "data-not-sharded", "by_local_rank": "data-same-samples", "sharded_twice": "data-sharded-twice",
    "same_seed_replacement": "data-not-sharded", "epoch_forgotten": "data-set-epoch",
    "drop_last_differs": "uneven-data", "workers_repeat": "data-workers-repeat",
    "by_node_only": "data-same-samples", "rank_without_data": "uneven-data",
    "shuffled_per_rank": "data-not-sharded",
}  # fmt: skip
RIGHT = (
    "distributed", "distributed_padded", "batch_sampler", "sharded_stream", "stream_with_workers", "single_rank",
)  # fmt: skip

"""The encode worker: a queue of pictures, batches, one vision tower. Runs as a thread of the engine when aggregated."""

"""Continuous batching: requests, the scheduler that plans the steps, the engine that runs them."""

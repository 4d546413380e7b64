"""What a run reports: a header and a line a step on the console, metrics.jsonl and TensorBoard files, FLOP rates."""

from titan.metrics.console import header, step_line
from titan.metrics.peak import peak_flops
from titan.metrics.run import describe, run_throughput
from titan.metrics.sinks import Metrics
from titan.metrics.throughput import Throughput

__all__ = ["Metrics", "Throughput", "describe", "header", "peak_flops", "run_throughput", "step_line"]

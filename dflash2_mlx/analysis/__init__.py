"""Measures a machine and a pair: what runs here, what a pass costs, which block size pays."""

from ..kernels._dispatch import KernelState
from .kernels import KernelTime, kernel_states, time_kernels
from .machine import backend, describe_machine, measure_bandwidth, memory_limit, package_versions
from .pair import PairReport, examine_pair

__all__ = [
    "KernelState",
    "KernelTime",
    "PairReport",
    "backend",
    "describe_machine",
    "examine_pair",
    "kernel_states",
    "measure_bandwidth",
    "memory_limit",
    "package_versions",
    "time_kernels",
]

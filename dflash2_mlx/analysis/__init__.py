"""Measures a machine and a pair: what runs here, what a pass costs, which block size pays, what the method brings."""

from ..decode.stats import conditional_shares, expected_length
from ..device.chips import Chip, this_chip
from ..device.layout import BLOCK_ROWS, block_cost, fast_blas
from ..engine import with_drafter
from ..kernels.dispatch import KernelState
from .ablation import ablations
from .attention import BlockAttention, measure_attention
from .block_view import BlockRow, BlockView, view_block
from .cost_shares import CostShare, CostShares, measure_shares
from .kernels import KernelTime, kernel_states, time_kernels
from .machine import (
    backend,
    compiles_first,
    describe_machine,
    measure_bandwidth,
    memory_limit,
    memory_use,
    package_versions,
)
from .method import Acceptance, Analysis, analyze
from .pair import PairReport, examine_pair
from .recall import Recall, measure_recall
from .replies import Reply, decode

__all__ = [
    "BLOCK_ROWS",
    "Acceptance",
    "Analysis",
    "BlockAttention",
    "BlockRow",
    "BlockView",
    "Chip",
    "CostShare",
    "CostShares",
    "KernelState",
    "KernelTime",
    "PairReport",
    "Recall",
    "Reply",
    "ablations",
    "analyze",
    "backend",
    "block_cost",
    "compiles_first",
    "conditional_shares",
    "decode",
    "describe_machine",
    "examine_pair",
    "expected_length",
    "fast_blas",
    "kernel_states",
    "measure_attention",
    "measure_bandwidth",
    "measure_recall",
    "measure_shares",
    "memory_limit",
    "memory_use",
    "package_versions",
    "this_chip",
    "time_kernels",
    "view_block",
    "with_drafter",
]

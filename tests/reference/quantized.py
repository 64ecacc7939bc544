"""Affine quantization in float64: what packed numbers stand for, and products with them, one element at a time.

A matrix [N, K] is stored as words of 32 bits, K * bits / 32 for each row; the first number is in the lowest bits.
A group of neighbouring numbers of one row shares a scale and a bias: q stands for scale * q + bias.
"""

from __future__ import annotations

import numpy as np


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """[N, words] uint32 -> [N, K] integers."""
    rows, count = words.shape
    per_word = 32 // bits
    numbers = np.zeros((rows, count * per_word), dtype=np.int64)
    for row in range(rows):
        for column in range(count * per_word):
            word = int(words[row, column // per_word])
            numbers[row, column] = (word >> (bits * (column % per_word))) % 2**bits
    return numbers


def dequantize(words: np.ndarray, scales: np.ndarray, biases: np.ndarray, group_size: int, bits: int) -> np.ndarray:
    """The matrix in float64."""
    numbers = unpack(words, bits)
    matrix = np.zeros(numbers.shape)
    for row in range(numbers.shape[0]):
        for column in range(numbers.shape[1]):
            group = column // group_size
            matrix[row, column] = float(scales[row, group]) * numbers[row, column] + float(biases[row, group])
    return matrix


def product(x: np.ndarray, matrix: np.ndarray, offset: np.ndarray | None = None) -> np.ndarray:
    """x [M, K] times the transpose of [N, K], plus offset [N]."""
    y = x.astype(np.float64) @ matrix.T
    return y if offset is None else y + offset.astype(np.float64)

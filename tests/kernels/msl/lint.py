"""Traps in a kernel's text that neither g++ nor clang reports."""

from __future__ import annotations

import re

# What mx.fast.metal_kernel can add to a signature. It looks for these names in the body, comments included.
ATTRIBUTES = """
thread_position_in_grid thread_position_in_threadgroup threadgroup_position_in_grid threadgroups_per_grid
threads_per_grid threads_per_threadgroup dispatch_threads_per_threadgroup grid_size grid_origin
thread_index_in_simdgroup thread_index_in_threadgroup thread_index_in_quadgroup simdgroup_index_in_threadgroup
simdgroups_per_threadgroup dispatch_simdgroups_per_threadgroup quadgroup_index_in_threadgroup
quadgroups_per_threadgroup dispatch_quadgroups_per_threadgroup thread_execution_width threads_per_simdgroup
""".split()
# `using namespace metal` is in force: as names of variables these would hide or clash with functions and types.
TAKEN = (
    "select step mix length distance dot min max all any sign fract array vec exp exp2 log sqrt tanh rsqrt fma abs "
    "cos sin"
).split()
# Not in Metal, or not in every version of it that MLX asks for.
ABSENT = "double goto throw try catch virtual new delete dynamic_cast static auto lambda std printf assert".split()
TYPES = r"(?:float|half|bfloat|int|uint|bool|ushort|short|T)[234]?"
DOUBLES = r"(?<![\w.])(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)(?![\w.])"
HEADER_WORDS = ("Template:", "Grid:", "Called", "Twin")


def problems(text: str) -> list[str]:
    """One line for each trap in a .metal file."""
    found = []
    if not text.isascii():
        found.append("not pure ASCII: MLX passes the text on as ASCII, comments included")
    header = re.match(r"(//[^\n]*\n)*", text).group()
    found += [f"the header does not say {word!r}" for word in HEADER_WORDS if word not in header]
    code = re.sub(r"//.*", "", text)
    words = set(re.findall(r"\w+", code))
    found += [f"{word}: not for kernels" for word in ABSENT if word in words]
    for name in re.findall(rf"\b{TYPES}\s+(\w+)\s*(?:[=;\[]|\))", code):
        if name in TAKEN:
            found.append(f"variable {name}: a name of namespace metal")
    if "constexpr" in re.findall(r"\bif\s+(\w+)", code):
        found.append("if constexpr: not in Metal 3")
    if not words & set(ATTRIBUTES):
        found.append("no attribute in the body: MLX then gets the commas of the signature wrong")
    found += [f"{number}: a literal without f" for number in re.findall(DOUBLES, code)]
    if re.search(r"(?m)^\s*#", code):
        found.append("a preprocessor line")
    if "\t" in text:
        found.append("a tab")
    if re.search(r"/\*", text):
        found.append("a /* comment: only // is taken out before MLX sees the text")
    return found

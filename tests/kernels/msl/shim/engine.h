// What a kernel sees of the engine that runs it: its thread's attributes and the places where threads meet.
//
// Every GPU thread ("lane") is a fiber. A lane runs until it returns or meets others; the order in which lanes and
// threadgroups run is shuffled by a seed, so that code which silently relies on lock-step shows up.
#pragma once
#include <cstddef>
#include <cstdint>
#include "types.h"

namespace msl {
// Everything that mx.fast.metal_kernel can put into a signature.
struct Attributes {
  uint3 thread_position_in_grid, thread_position_in_threadgroup, threadgroup_position_in_grid, threads_per_grid,
      grid_size, grid_origin, threads_per_threadgroup, dispatch_threads_per_threadgroup, threadgroups_per_grid;
  uint thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup,
      simdgroups_per_threadgroup, dispatch_simdgroups_per_threadgroup, thread_execution_width, threads_per_simdgroup,
      thread_index_in_quadgroup, quadgroup_index_in_threadgroup, quadgroups_per_threadgroup,
      dispatch_quadgroups_per_threadgroup;
};

struct Lane {
  Attributes at;
  uint64_t value;   // what this lane brings to a SIMD operation
  int source;       // the lane or distance it asks for, in a shuffle
  uint64_t result;  // what the operation leaves for it
};

// Runs once for the lanes of a SIMD-group that have all arrived: reads `value`, writes `result`. In lane order.
typedef void (*Collective)(Lane** active, int count);

Lane* current();
void meet_simdgroup(Collective collective, int line, bool orders_memory);
void meet_threadgroup(int line, bool orders_memory);
// The object behind a `threadgroup` declaration: one for each threadgroup, filled with 0xFF (NaN).
void* threadgroup_object(const void* declaration, size_t bytes);
}  // namespace msl

// The kernel under test, called once for each lane.
extern "C" void msl_entry(void** buffers, const msl::Attributes& at);

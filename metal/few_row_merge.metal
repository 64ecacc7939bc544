// The parts of few_row_attention.metal put together.
//
//   sums    [PARTS, N, DIM] float32    of each part and row
//   bounds  [PARTS, N, 2] float32      largest score of the part (-INFINITY: it saw nothing), sum of its exponentials
//   out     [N, DIM] T
//
// Template: T; DIM.
// Grid: one SIMD-group for each row, (32, N, 1).
// Called after few_row_attention.metal where the buffer has several parts.
// Twin: none; both kernels together have one.

uint lane = thread_index_in_simdgroup;
uint row = threadgroup_position_in_grid.y;
uint parts = uint(sums_shape[0]);
uint rows = uint(sums_shape[1]);

float most = -INFINITY;
for (uint part = lane; part < parts; part += 32) {
  most = max(most, bounds[(part * rows + row) * 2]);
}
float top = simd_max(most);
float own = 0.0f;
for (uint part = lane; part < parts; part += 32) {
  uint at = (part * rows + row) * 2;
  own = fma(precise::exp(bounds[at] - top), bounds[at + 1], own);
}
float whole = simd_sum(own);
for (uint first = 0; first < DIM; first += 32) {
  uint d = first + lane;
  float sum = 0.0f;
  for (uint some = 0; some < parts; some += 32) {
    // Each lane looks at one part. Those that saw nothing add nothing, whatever they are.
    float weight = some + lane < parts ? precise::exp(bounds[((some + lane) * rows + row) * 2] - top) : 0.0f;
    for (uint part = some; part < min(some + 32, parts); ++part) {
      float share = simd_shuffle(weight, ushort(part - some));
      sum = d < DIM ? fma(share, sums[(part * rows + row) * DIM + d], sum) : 0.0f;
    }
  }
  if (d < DIM) {
    out[row * DIM + d] = T(sum / whole);
  }
}

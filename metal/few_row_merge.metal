// The parts of few_row_attention.metal put together.
//
//   sums    [PARTS, N, DIM] float32    of each part and row, at most 32 parts
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

// Each lane looks at one part.
uint mine = lane < parts ? (lane * rows + row) * 2 : 0;
float most = lane < parts ? bounds[mine] : -INFINITY;
float top = simd_max(most);
float weight = precise::exp(most - top);
float whole = simd_sum(lane < parts ? weight * bounds[mine + 1] : 0.0f);
for (uint first = 0; first < DIM; first += 32) {
  uint d = first + lane;
  float sum = 0.0f;
  for (uint part = 0; part < parts; ++part) {
    float share = simd_shuffle(weight, ushort(part));
    sum += d < DIM ? share * sums[(part * rows + row) * DIM + d] : 0.0f;
  }
  if (d < DIM) {
    out[row * DIM + d] = T(sum / whole);
  }
}

// A few rows times a quantized matrix on the 8x8 matrix units.
//
//   x, weight, scales, biases, offset, y   as in qmm_rows.metal; M at most 8 * TILES
//
// Template: T; TILES of 8 rows; GROUP; BITS, 4 or 8; OFFSET; SIMDGROUPS that share the sums over K.
// Grid: one threadgroup of SIMDGROUPS x 32 threads for 8 outputs, (32 * SIMDGROUPS * ceil(N / 8), 1, 1).
// Called where qmm_rows is, for the shapes at which it is quicker. Twin: mx.quantized_matmul.
//
// A sum may be taken in any order over K. So a step multiplies the j-th numbers of 8 neighbouring words, and each word
// stays in a register for all its numbers. A lane holds two elements of a matrix: row `down`, columns `across` and
// `across + 1`, the map that MLX's own kernels rely on.

constexpr uint PER = 32 / BITS;  // numbers of one word
constexpr uint MASK = (1u << BITS) - 1u;
threadgroup float partial[SIMDGROUPS][TILES * 64];

uint lane = thread_index_in_simdgroup;
uint part = simdgroup_index_in_threadgroup;
uint down = ((lane >> 4) << 2) + ((lane >> 1) & 3u);
uint across = (((lane >> 3) & 1u) << 2) + ((lane & 1u) << 1);
uint rows = uint(x_shape[0]);
uint inputs = uint(x_shape[1]);
uint outputs = uint(weight_shape[0]);
uint words = inputs / PER;
uint groups = inputs / GROUP;
uint first = threadgroup_position_in_grid.x * 8;
uint left = min(first + across, outputs - 1);  // past the end: the last one again, not stored
uint right = min(first + across + 1, outputs - 1);

simdgroup_matrix<float, 8, 8> sums[TILES];
_Pragma("clang loop unroll(full)") for (uint t = 0; t < TILES; ++t) {
  sums[t].thread_elements()[0] = 0.0f;
  sums[t].thread_elements()[1] = 0.0f;
}
for (uint block = part * 8; block < words; block += SIMDGROUPS * 8) {
  uint word = min(block + down, words - 1);  // past the end: multiplied by zeros below
  uint group = word * PER / GROUP;
  uint packed_left = weight[left * words + word];
  uint packed_right = weight[right * words + word];
  float scale_left = float(scales[left * groups + group]);
  float scale_right = float(scales[right * groups + group]);
  float zero_left = float(biases[left * groups + group]);
  float zero_right = float(biases[right * groups + group]);
  for (uint j = 0; j < PER; ++j) {
    simdgroup_matrix<float, 8, 8> b;
    b.thread_elements()[0] = fma(scale_left, float((packed_left >> (BITS * j)) & MASK), zero_left);
    b.thread_elements()[1] = fma(scale_right, float((packed_right >> (BITS * j)) & MASK), zero_right);
    _Pragma("clang loop unroll(full)") for (uint t = 0; t < TILES; ++t) {
      uint row = t * 8 + down;
      uint at = row * inputs + (block + across) * PER + j;
      simdgroup_matrix<float, 8, 8> a;
      a.thread_elements()[0] = row < rows && block + across < words ? float(x[at]) : 0.0f;
      a.thread_elements()[1] = row < rows && block + across + 1 < words ? float(x[at + PER]) : 0.0f;
      simdgroup_multiply_accumulate(sums[t], a, b, sums[t]);
    }
  }
}

_Pragma("clang loop unroll(full)") for (uint t = 0; t < TILES; ++t) {
  partial[part][t * 64 + down * 8 + across] = sums[t].thread_elements()[0];
  partial[part][t * 64 + down * 8 + across + 1] = sums[t].thread_elements()[1];
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint i = thread_index_in_threadgroup; i < TILES * 64; i += SIMDGROUPS * 32) {
  float sum = 0.0f;
  for (uint p = 0; p < SIMDGROUPS; ++p) {
    sum += partial[p][i];
  }
  uint row = i / 8;
  uint output = first + i % 8;
  if (row < rows && output < outputs) {
    y[row * outputs + output] = T(OFFSET ? sum + float(offset[output]) : sum);
  }
}

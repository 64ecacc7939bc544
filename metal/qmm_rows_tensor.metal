// A few rows times a quantized matrix on the tensor units of the M5 (Metal 4 tensor operations). Off unless asked for:
// no device has ever run it.
//
//   x, weight, scales, biases, offset, y   as in qmm_rows.metal; x of type T, M at most 16
//
// Template: T, half or bfloat; GROUP; BITS, 4 or 8; OFFSET; SIMDGROUPS that share the sums over K.
// Grid: one threadgroup of SIMDGROUPS x 32 threads for 32 outputs, (32 * SIMDGROUPS * ceil(N / 32), 1, 1).
// Called only in a race that DFLASH2_KERNELS=qmm_rows_tensor=auto allows, and after it was won. Twin: mx.quantized_matmul.
//
// A step multiplies 16 x 16 numbers of x by 32 x 16 weights, which are rounded to T, as MLX's own tile does. A lane holds
// two rows (`down`, `down + 8`) of four neighbouring columns (`across`) of each 16 x 16 matrix: the map of MLX's kernels
// (steel/gemm/nax.h), written down nowhere else.

constexpr uint PER = 32 / BITS;  // numbers of one word
constexpr uint MASK = (1u << BITS) - 1u;
threadgroup float partial[SIMDGROUPS][16 * 32];

uint lane = thread_index_in_simdgroup;
uint part = simdgroup_index_in_threadgroup;
uint down = ((lane >> 2) & 4u) | ((lane >> 1) & 3u);
uint across = (((lane >> 2) & 2u) | (lane & 1u)) * 4;
uint rows = uint(x_shape[0]);
uint inputs = uint(x_shape[1]);
uint outputs = uint(weight_shape[0]);
uint words = inputs / PER;
uint groups = inputs / GROUP;
uint first = threadgroup_position_in_grid.x * 32;

constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
    16, 32, 16, false, true, true, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
mpp::tensor_ops::matmul2d<descriptor, metal::execution_simdgroup> operation;
auto left = operation.template get_left_input_cooperative_tensor<T, T, float>();
auto right = operation.template get_right_input_cooperative_tensor<T, T, float>();
auto sums = operation.template get_destination_cooperative_tensor<
    metal::remove_addrspace_t<decltype(left)>, metal::remove_addrspace_t<decltype(right)>, float>();
for (uint e = 0; e < 16; ++e) {
  sums[e] = 0.0f;
}

// K is a multiple of 32, so no step goes beyond it.
for (uint k = part * 16; k < inputs; k += SIMDGROUPS * 16) {
  uint column = k + across;  // of this lane's four numbers, which lie in one word
  for (uint half_row = 0; half_row < 2; ++half_row) {
    uint row = down + half_row * 8;
    for (uint j = 0; j < 4; ++j) {
      left[half_row * 4 + j] = row < rows ? x[row * inputs + column + j] : T(0.0f);
    }
  }
  for (uint quarter = 0; quarter < 4; ++quarter) {
    uint output = min(first + down + quarter * 8, outputs - 1);  // past the end: the last one again, not stored
    uint packed = weight[output * words + column / PER] >> (BITS * (column % PER));
    float scale = float(scales[output * groups + column / GROUP]);
    float zero = float(biases[output * groups + column / GROUP]);
    for (uint j = 0; j < 4; ++j) {
      right[quarter * 4 + j] = T(fma(scale, float((packed >> (BITS * j)) & MASK), zero));
    }
  }
  operation.run(left, right, sums);
}

// Elements 0 to 7 are outputs `first` to `first + 15`, the others the 16 after them.
for (uint e = 0; e < 16; ++e) {
  uint row = down + ((e >> 2) & 1u) * 8;
  partial[part][row * 32 + (e >> 3) * 16 + across + (e & 3u)] = sums[e];
}
threadgroup_barrier(mem_flags::mem_threadgroup);
for (uint i = thread_index_in_threadgroup; i < 16 * 32; i += SIMDGROUPS * 32) {
  float sum = 0.0f;
  for (uint p = 0; p < SIMDGROUPS; ++p) {
    sum += partial[p][i];
  }
  uint row = i / 32;
  uint output = first + i % 32;
  if (row < rows && output < outputs) {
    y[row * outputs + output] = T(OFFSET ? sum + float(offset[output]) : sum);
  }
}

// A few rows times a quantized matrix, each weight unpacked once for up to 8 rows.
//
//   x       [M, K]                       any floating type
//   weight  [N, K * BITS / 32] uint32    numbers of BITS bits, the first one in the lowest bits
//   scales  [N, K / GROUP]               a number q of a group stands for scale * q + bias (affine)
//   biases  [N, K / GROUP]
//   offset  [N]                          the layer's own bias; read only if OFFSET
//   y       [M, N] T                     x . matrix^T (+ offset), sums in float32, rounded once
//
// Template: T; ROWS, rows of one SIMD-group, at most 8; GROUP; BITS, 4 or 8; OFFSET.
// Grid: one SIMD-group for 4 outputs of ROWS rows, (32 * ceil(N / 4), ceil(M / ROWS), 1). All tiles of rows are in one
// threadgroup, side by side, so that they find the words in the cache. Nothing is shared between SIMD-groups.
// Called for the linear layers of target and drafter and for the head. Twin: mx.quantized_matmul.
//
// A row's sum has one order whatever ROWS is, and every product is added by fma, so that no compiler may choose: a row
// gets the same bits alone and among others.

constexpr uint OUTPUTS = 4;
constexpr uint PER = 32 / BITS;  // numbers of one word
constexpr uint MASK = (1u << BITS) - 1u;

uint lane = thread_index_in_simdgroup;
uint first = thread_position_in_grid.x / 32 * OUTPUTS;
uint row = thread_position_in_grid.y * ROWS;
uint rows = uint(x_shape[0]);
uint inputs = uint(x_shape[1]);
uint outputs = uint(weight_shape[0]);
uint words = inputs / PER;
uint groups = inputs / GROUP;

float sums[OUTPUTS][ROWS];  // loops over it are unrolled, or it would not be registers
_Pragma("clang loop unroll(full)") for (uint a = 0; a < OUTPUTS; ++a) {
  _Pragma("clang loop unroll(full)") for (uint m = 0; m < ROWS; ++m) {
    sums[a][m] = 0.0f;
  }
}
for (uint word = lane; word < words; word += 32) {
  float values[OUTPUTS][PER];
  _Pragma("clang loop unroll(full)") for (uint a = 0; a < OUTPUTS; ++a) {
    uint output = min(first + a, outputs - 1);  // past the end: the last one again, not stored
    uint packed = weight[output * words + word];
    uint group = output * groups + word * PER / GROUP;
    float scale = float(scales[group]);
    float zero = float(biases[group]);
    _Pragma("clang loop unroll(full)") for (uint i = 0; i < PER; ++i) {
      values[a][i] = fma(scale, float((packed >> (BITS * i)) & MASK), zero);
    }
  }
  _Pragma("clang loop unroll(full)") for (uint m = 0; m < ROWS; ++m) {
    uint at = min(row + m, rows - 1) * inputs + word * PER;
    _Pragma("clang loop unroll(full)") for (uint i = 0; i < PER; ++i) {
      float value = float(x[at + i]);
      _Pragma("clang loop unroll(full)") for (uint a = 0; a < OUTPUTS; ++a) {
        sums[a][m] = fma(value, values[a][i], sums[a][m]);
      }
    }
  }
}

// Every lane keeps one of the sums and stores it.
float mine = 0.0f;
_Pragma("clang loop unroll(full)") for (uint m = 0; m < ROWS; ++m) {
  _Pragma("clang loop unroll(full)") for (uint a = 0; a < OUTPUTS; ++a) {
    float sum = simd_sum(sums[a][m]);
    mine = lane == m * OUTPUTS + a ? sum : mine;
  }
}
uint output = first + lane % OUTPUTS;
uint place = row + lane / OUTPUTS;
if (lane < OUTPUTS * ROWS && output < outputs && place < rows) {
  y[place * outputs + output] = T(OFFSET ? mine + float(offset[output]) : mine);
}

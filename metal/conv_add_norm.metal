// After a sublayer: side 1 of its convolution, the residual sum, and the RMSNorm that comes next, in one dispatch.
//
//   y            [B, L, CHANNELS] T            the sublayer's output
//   residual     [B, L, CHANNELS] T            the stream that runs past it
//   base_kernel  [2, TAPS, CHANNELS]           see dynamic_conv.metal
//   delta        [B, L, 2, TAPS, GROUPS]
//   weight       [CHANNELS]                    of the next norm
//   eps          []  float32
//   stream       [B, L, CHANNELS] T            residual + convolution
//   normed       [B, L, CHANNELS] T            norm of `stream`
//
// Template: T; TAPS; CHANNELS; GROUP; THREADS, a multiple of 32.
// Grid: one threadgroup of THREADS for each row, (THREADS, L, B).
// Called by the drafter's layers, for attention and MLP; the next norm may be the next layer's or the last one.
// Twin: dynamic_conv, +, mx.fast.rms_norm. Rounds to T where they do: convolution, sum, normed value, product.

constexpr uint GROUPS = CHANNELS / GROUP;
constexpr uint EACH = (CHANNELS + THREADS - 1) / THREADS;  // channels of one thread, THREADS apart
threadgroup float partial[THREADS / 32];

uint thread_number = thread_index_in_threadgroup;
uint lane = thread_index_in_simdgroup;
uint row = threadgroup_position_in_grid.y;
uint place = threadgroup_position_in_grid.z * y_shape[1] + row;
float values[EACH];
float squares = 0.0f;
for (uint j = 0; j < EACH; ++j) {
  uint channel = thread_number + j * THREADS;
  values[j] = 0.0f;
  if (channel < CHANNELS) {
    uint at = place * CHANNELS + channel;
    uint change = (place * 2 + 1) * TAPS * GROUPS + channel / GROUP;
    float sum = 0.0f;
    for (uint tap = 0; tap < TAPS && tap <= row; ++tap) {
      float coefficient = float(base_kernel[(TAPS + tap) * CHANNELS + channel]) + float(delta[change + tap * GROUPS]);
      sum += coefficient * float(y[at - tap * CHANNELS]);
    }
    T total = T(float(residual[at]) + float(T(sum)));
    stream[at] = total;
    values[j] = float(total);
    squares += values[j] * values[j];
  }
}

squares = simd_sum(squares);
if (lane == 0) {
  partial[simdgroup_index_in_threadgroup] = squares;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
// Every SIMD-group adds the partial sums for itself, which saves a second barrier.
float mean = simd_sum(lane < THREADS / 32 ? partial[lane] : 0.0f) / float(CHANNELS);
float scale = precise::rsqrt(mean + eps);
for (uint j = 0; j < EACH; ++j) {
  uint channel = thread_number + j * THREADS;
  if (channel < CHANNELS) {
    normed[place * CHANNELS + channel] = T(float(weight[channel]) * float(T(values[j] * scale)));
  }
}

// One side of the grouped dynamic convolution: each row of a block is mixed with the rows before it.
//
//   x            [B, L, CHANNELS]              block rows, row 0 the anchor
//   base_kernel  [2, TAPS, CHANNELS]           what all rows share
//   delta        [B, L, 2, TAPS, GROUPS]       what a row adds, for each group of GROUP channels
//   out          [B, L, CHANNELS] T            sums in float32, rounded once
//
// Template: T; SIDE 0 or 1; TAPS; CHANNELS; GROUP; VECTOR, neighbouring channels of one thread, divides GROUP.
// Grid: one thread for VECTOR channels of one row, (CHANNELS / VECTOR, L, B). Nothing is shared between threads.
// Called for both sides of a convolution; after a sublayer conv_add_norm takes its place where it can.
// Twin: dflash2_mlx/kernels/dynamic_conv.py.

constexpr uint GROUPS = CHANNELS / GROUP;
uint channel = thread_position_in_grid.x * VECTOR;
uint rows = x_shape[1];
uint row = thread_position_in_grid.y;
uint at = (thread_position_in_grid.z * rows + row) * CHANNELS + channel;
uint change = ((thread_position_in_grid.z * rows + row) * 2 + SIDE) * TAPS * GROUPS + channel / GROUP;
uint base = SIDE * TAPS * CHANNELS + channel;

float sums[VECTOR] = {0.0f};
// Before the block's first row there is nothing: those taps add zero.
for (uint tap = 0; tap < TAPS && tap <= row; ++tap) {
  float shared_change = float(delta[change + tap * GROUPS]);
  for (uint i = 0; i < VECTOR; ++i) {
    float coefficient = float(base_kernel[base + tap * CHANNELS + i]) + shared_change;
    sums[i] += coefficient * float(x[at - tap * CHANNELS + i]);
  }
}
for (uint i = 0; i < VECTOR; ++i) {
  out[at + i] = T(sums[i]);
}

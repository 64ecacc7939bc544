// Query and key heads made ready for attention: RMSNorm of each head, then RoPE, in one dispatch.
//
//   rows      [B, L, HEADS_IN, DIM] T   projected heads; the first HEADS of a row are used
//   norms     [HEADS, DIM]              norm weights of each head
//   start     [B] int32                 absolute position of row 0
//   settings  [2] float32               eps of the norm, binary logarithm of RoPE's base
//   turned    [B, HEADS, L, DIM] T
//
// Template: T; HEADS; DIM, even.
// Grid: one SIMD-group for each head of each row, (32 * HEADS, L, B), 32 threads per group.
// Called for the block's queries and keys, and for the context rows of all layers.
// Twin: mx.fast.rms_norm, *, mx.fast.rope. Rounds to T where they do: normed value, product, turned value.

constexpr uint HALF = DIM / 2;
constexpr uint EACH = (HALF + 31) / 32;  // pairs of one lane, 32 apart

uint lane = thread_index_in_simdgroup;
uint head = threadgroup_position_in_grid.x;
uint row = threadgroup_position_in_grid.y;
uint sequence = threadgroup_position_in_grid.z;
uint length_in = rows_shape[1];
uint at = ((sequence * length_in + row) * rows_shape[2] + head) * DIM;
uint to = ((sequence * HEADS + head) * length_in + row) * DIM;

float low[EACH];
float high[EACH];
float squares = 0.0f;
for (uint j = 0; j < EACH; ++j) {
  uint i = lane + 32 * j;
  low[j] = i < HALF ? float(rows[at + i]) : 0.0f;
  high[j] = i < HALF ? float(rows[at + HALF + i]) : 0.0f;
  squares += low[j] * low[j] + high[j] * high[j];
}
float scale = precise::rsqrt(simd_sum(squares) / float(DIM) + settings[0]);
float position = float(start[sequence] + int(row));
for (uint j = 0; j < EACH; ++j) {
  uint i = lane + 32 * j;
  if (i < HALF) {
    float a = float(T(float(T(low[j] * scale)) * float(norms[head * DIM + i])));
    float b = float(T(float(T(high[j] * scale)) * float(norms[head * DIM + HALF + i])));
    float angle = position * precise::exp2(-settings[1] * float(i) / float(HALF));
    float c = precise::cos(angle);
    float s = precise::sin(angle);
    turned[to + i] = T(a * c - b * s);
    turned[to + HALF + i] = T(b * c + a * s);
  }
}
